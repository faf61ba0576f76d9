//! Primary contexts that come and go: whatever the driver calls the next one, no kernel and no scheduler slot of the last may be used in it.
//!
//! The other tests keep the primary context for as long as their process lives, so each of these runs in a process of its own.

use crate::job::{Job, large, small};
use hopper_attention_tests::gpu::{Gpu, PrimaryContext, Stream};
use hopper_attention_tests::{DeviceTest, Failure, Needs, Profile, ensure};
use std::process::{Command, ExitCode};

/// Environment variable: `released` or `reset`, a colon, and a device's number. A process that has it does that and no tests.
const TASK_VARIABLE: &str = "HOPPER_ATTENTION_PRIMARY_CONTEXTS";

pub fn tests() -> Vec<DeviceTest> {
    let test = |task: &'static str| {
        let body = move |gpus: &'static [Gpu]| in_its_own_process(task, &gpus[0]);
        DeviceTest::of_devices(format!("primary_contexts::{task}"), Needs::OneDevice, body)
    };
    vec![test("released"), test("reset")]
}

fn in_its_own_process(task: &str, gpu: &Gpu) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|error| Failure(error.to_string()))?;
    let process = Command::new(program).env(TASK_VARIABLE, format!("{task}:{}", gpu.ordinal)).output();
    let process = process.map_err(|error| Failure(error.to_string()))?;
    ensure!(process.status.success(), "{}: {}", process.status, String::from_utf8_lossy(&process.stderr).trim());
    Ok(())
}

/// The outcome of what the environment asks of this process, if it does.
pub fn asked_of_this_process() -> Option<ExitCode> {
    let task = std::env::var(TASK_VARIABLE).ok()?;
    let done = match task.split_once(':').and_then(|(task, ordinal)| Some((task, ordinal.parse().ok()?))) {
        Some(("released", ordinal)) => come_and_go(ordinal, |context| {
            drop(context);
            Ok(())
        }),
        Some(("reset", ordinal)) => come_and_go(ordinal, PrimaryContext::reset),
        _ => Err(Failure(format!("{TASK_VARIABLE} is '{task}', but must be 'released' or 'reset', a colon, and a device's number"))),
    };
    Some(match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    })
}

fn come_and_go(ordinal: usize, end: fn(PrimaryContext) -> Result<(), Failure>) -> Result<(), Failure> {
    for turn in 0..Profile::get().pick(20, 3) {
        let context = PrimaryContext::retain(ordinal)?;
        for case in [small(turn), large(turn + 1)] {
            let during = |failure: Failure| failure.during(format_args!("primary context {turn} of the process"));
            // Right at first, and the same once more.
            let job = Job::new(&case).map_err(during)?;
            let stream = Stream::new()?;
            job.enqueue(&stream).and_then(|()| job.check(&stream)).map_err(during)?;
        }
        end(context)?;
    }
    Ok(())
}
