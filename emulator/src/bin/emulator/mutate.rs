//! `emulator mutate`

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hopper_attention_emulator::mutate::{Mutation, mutations};

/// Removes or weakens one synchronising instruction at a time, and runs a command for each mutant: it is caught if the command fails.
///
/// The command must use this emulator as its driver. The unchanged file comes first, which must pass; then each mutant runs every problem on
/// seed 0, then on seed 1 and so on, until it is caught. The kill rate and every survivor are printed.
#[derive(clap::Args)]
pub struct Options {
    /// The PTX file, as the command's program loads it.
    file: PathBuf,
    /// Seeds to try for each mutant.
    #[arg(long, allow_negative_numbers = true, default_value_t = 3)]
    schedules: u64,
    /// What `{}` in the command stands for, once for each problem.
    #[arg(long, default_value = "")]
    problem: Vec<String>,
    /// Mutants that run at a time, each with one thread.
    #[arg(long, allow_negative_numbers = true, default_value_t = std::thread::available_parallelism().map_or(1, usize::from))]
    jobs: usize,
    /// Only mutants of this line.
    #[arg(long, allow_negative_numbers = true)]
    line: Option<u32>,
    /// The command and its arguments; `NAME={}` before it sets a variable of its environment.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// One run of the command.
#[derive(Clone, Copy)]
struct Trial<'a> {
    problem: &'a str,
    seed: u64,
    limit: Duration,
}

/// What became of a mutant.
enum Verdict {
    Caught(String),
    Survived,
    /// No problem comes to the instruction.
    NotReached,
}

/// Runs the command for each mutant of the file, and prints what was caught.
pub fn run(options: &Options) -> Result<(), String> {
    let source = std::fs::read_to_string(&options.file).map_err(|error| format!("{}: {error}", options.file.display()))?;
    let all = mutations(&source).map_err(|error| error.to_string())?;
    let chosen: Vec<&Mutation> = all.iter().filter(|mutation| options.line.is_none_or(|line| mutation.line == line)).collect();
    let entry = all.first().map_or("", |mutation| mutation.entry.as_str());
    let folder = std::env::temp_dir().join(format!("hopper-emulator-mutate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    let verdicts = baseline(options, entry, &source, &folder).map(|trials| judge_all(options, &chosen, &trials, &folder));
    let _ = std::fs::remove_dir_all(&folder);
    let verdicts = verdicts?.into_iter().collect::<Result<Vec<_>, _>>()?;
    let count = |wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| wanted(verdict)).count();
    let (caught, not_reached) = (count(|v| matches!(v, Verdict::Caught(_))), count(|v| matches!(v, Verdict::NotReached)));
    let rate = 100.0 * caught as f64 / verdicts.len().max(1) as f64;
    let total = verdicts.len();
    println!("{entry}: {total} mutants, {caught} caught ({rate:.1} %), {not_reached} not reached by any problem");
    Ok(())
}

/// The verdicts on all mutants, in their order.
fn judge_all(options: &Options, chosen: &[&Mutation], trials: &[Trial<'_>], folder: &Path) -> Vec<Result<Verdict, String>> {
    let (next, (sender, receiver)) = (AtomicUsize::new(0), mpsc::channel());
    let mut verdicts: Vec<Option<Result<Verdict, String>>> = (0..chosen.len()).map(|_| None).collect();
    std::thread::scope(|scope| {
        for job in 0..options.jobs.max(1) {
            let (sender, next) = (sender.clone(), &next);
            let file = folder.join(format!("mutant{job}.ptx"));
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(mutation) = chosen.get(at) else { break };
                    if sender.send((at, judge(options, mutation, trials, &file))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        // Printed in the order of the lines, whichever is ready first.
        let mut printed = 0;
        for (at, verdict) in receiver {
            verdicts[at] = Some(verdict);
            while let Some(Some(verdict)) = verdicts.get(printed) {
                print(chosen[printed], verdict);
                printed += 1;
            }
        }
    });
    verdicts.into_iter().flatten().collect()
}

fn print(mutation: &Mutation, verdict: &Result<Verdict, String>) {
    let text = match verdict {
        Ok(Verdict::Caught(how)) => how,
        Ok(Verdict::Survived) => "SURVIVED",
        Ok(Verdict::NotReached) => "NOT REACHED",
        Err(error) => error,
    };
    println!("line {:5} {:18} {:60.60} {text}", mutation.line, mutation.what, mutation.original);
}

/// The trials of a mutant, after the unchanged text has passed them: a run that takes much longer than that one hangs.
fn baseline<'a>(options: &'a Options, entry: &str, source: &str, folder: &Path) -> Result<Vec<Trial<'a>>, String> {
    let file = folder.join("unchanged.ptx");
    std::fs::write(&file, source).map_err(|error| error.to_string())?;
    let mut trials = Vec::new();
    for seed in 0..options.schedules {
        for problem in &options.problem {
            let trial = Trial { problem, seed, limit: Duration::from_secs(600) };
            let started = Instant::now();
            if let Some(how) = caught(options, entry, &file, trial)? {
                return Err(format!("the command fails without a mutation (problem `{problem}`, seed {seed}): {how}"));
            }
            trials.push(Trial { limit: 20 * started.elapsed() + Duration::from_secs(5), ..trial });
        }
    }
    Ok(trials)
}

fn judge(options: &Options, mutation: &Mutation, trials: &[Trial<'_>], file: &Path) -> Result<Verdict, String> {
    std::fs::write(file, &mutation.source).map_err(|error| error.to_string())?;
    for &trial in trials {
        if let Some(how) = caught(options, &mutation.entry, file, trial)? {
            return Ok(Verdict::Caught(how));
        }
    }
    std::fs::write(file, &mutation.probe).map_err(|error| error.to_string())?;
    for &trial in trials.iter().filter(|trial| trial.seed == 0) {
        if caught(options, &mutation.entry, file, trial)?.is_some() {
            return Ok(Verdict::Survived);
        }
    }
    Ok(Verdict::NotReached)
}

/// Runs the command with a mutant; the first line of the report, or what else went wrong.
fn caught(options: &Options, entry: &str, mutant: &Path, trial: Trial<'_>) -> Result<Option<String>, String> {
    let words: Vec<String> = options.command.iter().map(|word| word.replace("{}", trial.problem)).collect();
    let settings = words.iter().map_while(|word| word.split_once('=')).count();
    let [program, arguments @ ..] = &words[settings..] else { return Err("a command is missing".to_string()) };
    let log = mutant.with_extension("log");
    let errors = std::fs::File::create(&log).map_err(|error| error.to_string())?;
    let mut child = Command::new(program)
        .args(arguments)
        .envs(words[..settings].iter().filter_map(|word| word.split_once('=')))
        .env("HOPPER_EMULATOR_REPLACE", format!("{entry}={}", mutant.display()))
        .env("HOPPER_EMULATOR_SEED", trial.seed.to_string())
        .env("HOPPER_EMULATOR_THREADS", "1")
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .map_err(|error| format!("{program}: {error}"))?;
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
            break status;
        }
        if started.elapsed() > trial.limit {
            let _ = child.kill();
            let _ = child.wait();
            return Ok(Some("out of time".to_string()));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    if status.success() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    let first = text.lines().find_map(|line| line.strip_prefix("hopper emulator: ")).unwrap_or("wrong result");
    Ok(Some(first.chars().take(100).collect()))
}
