//! `emulator mutate`

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hopper_attention_emulator::mutate::{Mutation, mutations};

/// Runs the command for each mutant of `file`, and prints what was caught.
pub fn run(file: &Path, schedules: u64, timeout: Duration, line: Option<u32>, command: &[String]) -> Result<(), String> {
    let source = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let all = mutations(&source).map_err(|error| error.to_string())?;
    let folder = std::env::temp_dir().join(format!("hopper-emulator-mutate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let mutant = folder.join("mutant.ptx");
    std::fs::write(&mutant, &source).map_err(|error| error.to_string())?;
    let entry = all.first().map_or("", |mutation| mutation.entry.as_str());
    for seed in 0..schedules {
        if let Some(how) = caught(command, entry, &mutant, seed, timeout)? {
            return Err(format!("the command fails without a mutation (seed {seed}): {how}"));
        }
    }
    let (mut survivors, mut unreached) = (0, 0);
    let chosen: Vec<&Mutation> = all.iter().filter(|mutation| line.is_none_or(|line| mutation.line == line)).collect();
    for mutation in &chosen {
        std::fs::write(&mutant, &mutation.source).map_err(|error| error.to_string())?;
        let mut how = None;
        for seed in 0..schedules {
            how = caught(command, &mutation.entry, &mutant, seed, timeout)?;
            if how.is_some() {
                break;
            }
        }
        let verdict = match how {
            Some(how) => how,
            None => {
                std::fs::write(&mutant, &mutation.probe).map_err(|error| error.to_string())?;
                if caught(command, &mutation.entry, &mutant, 0, timeout)?.is_some() {
                    survivors += 1;
                    "SURVIVED".to_string()
                } else {
                    unreached += 1;
                    "not reached by the command".to_string()
                }
            }
        };
        println!("line {:5} {:18} {:60.60} {verdict}", mutation.line, mutation.what, mutation.original);
    }
    let _ = std::fs::remove_dir_all(&folder);
    let reached = chosen.len() - unreached;
    let caught = reached - survivors;
    let rate = 100.0 * caught as f64 / reached.max(1) as f64;
    println!("{}: {caught} of {reached} mutants caught ({rate:.1} %), {unreached} not reached by the command", file.display());
    Ok(())
}

/// Runs the command with a mutant; the first line of the report, or what else went wrong.
fn caught(command: &[String], entry: &str, mutant: &Path, seed: u64, timeout: Duration) -> Result<Option<String>, String> {
    let [program, arguments @ ..] = command else { return Err("a command is missing".to_string()) };
    let log = mutant.with_extension("log");
    let errors = std::fs::File::create(&log).map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args(arguments)
        .env("HOPPER_EMULATOR_REPLACE", format!("{entry}={}", mutant.display()))
        .env("HOPPER_EMULATOR_SEED", seed.to_string())
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if started.elapsed() > timeout {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(Some("out of time".to_string()));
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if status.success() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let first = text.lines().find_map(|line| line.strip_prefix("hopper emulator: ")).unwrap_or("wrong result");
    Ok(Some(first.chars().take(100).collect()))
}
