//! The frame of the device test programs: tests from tables, none silently left out, one closing line.
//!
//! Beside the options of Rust's own test harness:
//!
//! - `--require-device` or `HOPPER_ATTENTION_REQUIRE_DEVICE=1`: a missing device is a failure;
//! - `--report FILE` or `HOPPER_ATTENTION_REPORT_DIR=DIR`: what the run showed, as JSON (`DIR/<program>.json`).

use crate::case::Case;
use crate::gpu::{Gpu, gpus};
use crate::ragged::{Ragged, check_ragged};
use crate::run::{CASE_VARIABLE, check_case};
use crate::{Failure, Profile, report};
use libtest_mimic::{Arguments, Failed, Trial};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// What a test needs beside one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    OneDevice,
    /// A second device.
    TwoDevices,
    /// A GPU's speed or memory: an emulator would take hours.
    Hardware,
}

/// A test that needs a device.
pub struct DeviceTest {
    name: String,
    needs: Needs,
    body: Box<dyn FnOnce(&'static [Gpu]) -> Result<(), Failure> + Send>,
}

impl DeviceTest {
    /// A test of one device, whose primary context is current when it begins.
    pub fn new(name: impl Into<String>, body: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> Self {
        Self { name: name.into(), needs: Needs::OneDevice, body: Box::new(|_| body()) }
    }

    /// The same, if it is more than an emulator can do.
    pub fn on_hardware(name: impl Into<String>, body: impl FnOnce() -> Result<(), Failure> + Send + 'static) -> Self {
        Self { needs: Needs::Hardware, ..Self::new(name, body) }
    }

    /// A test that handles the devices itself.
    pub fn of_devices(
        name: impl Into<String>,
        needs: Needs,
        body: impl FnOnce(&'static [Gpu]) -> Result<(), Failure> + Send + 'static,
    ) -> Self {
        Self { name: name.into(), needs, body: Box::new(body) }
    }

    /// Why it cannot run, if it cannot.
    fn obstacle(&self, devices: &Result<&'static [Gpu], String>) -> Option<String> {
        match (devices, self.needs) {
            (Err(why), _) => Some(format!("no usable device: {why}")),
            (Ok(gpus), Needs::TwoDevices) if gpus.len() < 2 => Some("two devices are needed, and one is here".to_string()),
            (Ok(_), Needs::Hardware) if Profile::get() == Profile::Emulator => Some("too much for an emulator".to_string()),
            _ => None,
        }
    }

    fn into_trial(self, devices: Result<&'static [Gpu], String>) -> Trial {
        let obstacle = self.obstacle(&devices);
        let ignored = obstacle.is_some();
        let run = move || -> Result<(), Failed> {
            let (None, Ok(gpus)) = (obstacle.clone(), devices) else {
                return Err(obstacle.unwrap_or_default().into());
            };
            gpus[0].make_current()?;
            (self.body)(gpus)?;
            // Work that a test left behind, or a context that it broke, is its own fault and not the next test's.
            Ok(gpus[0].synchronize()?)
        };
        Trial::test(self.name, run).with_ignored_flag(ignored)
    }
}

/// Options that are not those of Rust's own harness.
#[derive(Debug, Default, PartialEq)]
struct Options {
    require_device: bool,
    report: Option<PathBuf>,
}

/// Takes our options out of the arguments.
fn split_arguments(arguments: impl IntoIterator<Item = String>) -> Result<(Options, Vec<String>), String> {
    let (mut options, mut rest) = (Options::default(), Vec::new());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--require-device" => options.require_device = true,
            "--report" => options.report = Some(arguments.next().ok_or("--report needs a file name")?.into()),
            _ => rest.push(argument),
        }
    }
    Ok((options, rest))
}

/// Runs a test program. The tests are made when the environment is known to be sound.
pub fn run(program: &str, tests: impl FnOnce() -> Vec<DeviceTest>) -> ExitCode {
    if let Err(failure) = Profile::of_environment() {
        eprintln!("{program}: {failure}");
        return ExitCode::FAILURE;
    }
    let (mut options, rest) = match split_arguments(std::env::args()) {
        Ok(split) => split,
        Err(message) => {
            eprintln!("{program}: {message}");
            return ExitCode::FAILURE;
        }
    };
    options.require_device |= std::env::var("HOPPER_ATTENTION_REQUIRE_DEVICE").is_ok_and(|value| value == "1");
    if let (None, Some(folder)) = (&options.report, std::env::var_os("HOPPER_ATTENTION_REPORT_DIR")) {
        options.report = Some(PathBuf::from(folder).join(format!("{program}.json")));
    }
    let mut arguments = Arguments::from_iter(rest);
    // One test at a time: each has the device for itself, and the references take all cores.
    arguments.test_threads = arguments.test_threads.or(Some(1));

    let devices = gpus();
    if let (true, false, Err(why)) = (options.require_device, arguments.list, &devices) {
        eprintln!("{program}: a device is required, but there is no usable one: {why}");
        return ExitCode::FAILURE;
    }
    run_with(program, replaced_by_a_case(tests()), &options, &arguments, devices)
}

fn run_with(
    program: &str,
    tests: Vec<DeviceTest>,
    options: &Options,
    arguments: &Arguments,
    devices: Result<&'static [Gpu], String>,
) -> ExitCode {
    let (trials, obstacles) = prepare(tests, arguments, &devices);
    let conclusion = libtest_mimic::run(arguments, trials);
    if arguments.list {
        return conclusion.exit_code();
    }
    report::summary().iter().for_each(|line| println!("{line}"));
    for (obstacle, count) in &obstacles {
        println!("{program}: not run, {count} tests: {obstacle}");
    }
    if let Some(path) = &options.report {
        let device = devices.as_ref().map_or("none", |gpus| gpus[0].name.as_str());
        let run = report::Run {
            program,
            device,
            profile: Profile::get().name(),
            passed: conclusion.num_passed,
            failed: conclusion.num_failed,
            not_run: conclusion.num_ignored,
        };
        if let Err(failure) = report::write(path, &run) {
            eprintln!("{program}: the report could not be written: {failure}");
            return ExitCode::FAILURE;
        }
    }
    conclusion.exit_code()
}

/// The tests as the harness takes them, and how many of those that were asked for cannot run for which reason.
fn prepare(
    tests: Vec<DeviceTest>,
    arguments: &Arguments,
    devices: &Result<&'static [Gpu], String>,
) -> (Vec<Trial>, BTreeMap<String, usize>) {
    let mut obstacles = BTreeMap::new();
    let trials = tests.into_iter().map(|test| {
        let obstacle = test.obstacle(devices);
        let trial = test.into_trial(devices.clone());
        if let Some(obstacle) = obstacle.filter(|_| !arguments.is_filtered_out(&trial)) {
            *obstacles.entry(obstacle).or_default() += 1;
        }
        trial
    });
    (trials.collect(), obstacles)
}

/// The case of the environment instead of all tests, if there is one.
fn replaced_by_a_case(tests: Vec<DeviceTest>) -> Vec<DeviceTest> {
    let Ok(text) = std::env::var(CASE_VARIABLE) else { return tests };
    let body = move || {
        let not_understood = |error| Failure(format!("{CASE_VARIABLE}: {error}"));
        let value: serde_json::Value = serde_json::from_str(&text).map_err(not_understood)?;
        if value.get("lengths").is_some() {
            return check_ragged(&serde_json::from_value::<Ragged>(value).map_err(not_understood)?);
        }
        check_case(&serde_json::from_value::<Case>(value).map_err(not_understood)?)
    };
    vec![DeviceTest::new("case_of_the_environment", body)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_options_are_taken_out() {
        let arguments = ["x", "--require-device", "filter", "--report", "a/b.json", "--exact"].map(str::to_string);
        let (options, rest) = split_arguments(arguments).unwrap();
        assert_eq!(options, Options { require_device: true, report: Some("a/b.json".into()) });
        assert_eq!(rest, ["x", "filter", "--exact"]);
        assert!(split_arguments(["x".to_string(), "--report".to_string()]).is_err());
    }

    #[test]
    fn what_was_not_asked_for_is_not_missed() {
        let devices = Err("no driver".to_string());
        let missed = |filter: &[&str]| {
            let tests = ["lengths::a", "lengths::b", "masks::a"].map(|name| DeviceTest::new(name, || Ok(())));
            let (trials, obstacles) = prepare(tests.into(), &Arguments::from_iter(["program"].iter().chain(filter)), &devices);
            assert_eq!(trials.len(), 3);
            obstacles.values().sum::<usize>()
        };
        assert_eq!([missed(&[]), missed(&["lengths"]), missed(&["lengths", "--skip", "::b"]), missed(&["nothing"])], [3, 2, 1, 0]);
    }

    #[test]
    fn a_missing_device_is_an_obstacle_to_all() {
        let missing = Err("no driver".to_string());
        let test = |needs| DeviceTest::of_devices("a", needs, |_| Ok(()));
        for needs in [Needs::OneDevice, Needs::TwoDevices, Needs::Hardware] {
            assert_eq!(test(needs).obstacle(&missing).unwrap(), "no usable device: no driver");
        }
    }
}
