//! `cargo xtask ci`: everything that can be checked without a GPU, in the order in which failures explain each other.

use crate::demo;
use crate::device::{DRIVER_VARIABLE, Device, Wanted, shield};
use crate::ptx;
use crate::setup;
use crate::tally::Tally;
use crate::test;
use crate::toolchain::CoreSource;
use crate::workspace::{artifacts, cargo, output_of, root, run as run_command, stdout_of, target};
use anyhow::{Context, Result, ensure};
use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// One line of the closing table.
struct Row {
    name: &'static str,
    took: Duration,
    tally: Tally,
    outcome: Outcome,
}

/// What became of a step.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Ok,
    Skipped(String),
    Failed(String),
}

impl Outcome {
    fn of(result: Result<()>) -> Self {
        match result.map_err(|error| error.downcast::<Skipped>()) {
            Ok(()) => Self::Ok,
            Err(Ok(Skipped(why))) => Self::Skipped(why),
            Err(Err(error)) => Self::Failed(format!("{error:#}")),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ok => write!(f, "ok"),
            Self::Skipped(why) => write!(f, "skipped: {why}"),
            Self::Failed(failure) => write!(f, "FAILED: {}", failure.lines().next().unwrap_or_default()),
        }
    }
}

/// What a step returns that could not check anything, with the reason.
#[derive(Debug)]
struct Skipped(String);

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "skipped: {}", self.0)
    }
}

impl std::error::Error for Skipped {}

/// A step's name, and what it does; it adds the tests that it ran.
type Step = (&'static str, fn(&mut Tally) -> Result<()>);

/// Orders in which the emulator executes the device tests (`cargo xtask test --schedules`).
const SCHEDULES: [u32; 3] = [0, 1, 2];

const STEPS: [Step; 11] = [
    ("format", format),
    ("tools", tools),
    ("ptx is fresh", fresh_ptx),
    ("clippy", clippy),
    ("clippy, device", device_clippy),
    ("tests", tests),
    ("device tests", device_tests),
    ("demo", demonstration),
    ("examples", examples),
    ("rust-version", rust_version),
    ("documentation", documentation),
];

/// Runs the command.
pub fn run() -> Result<()> {
    let start = Instant::now();
    let mut rows = Vec::new();
    for (index, (name, step)) in STEPS.into_iter().enumerate() {
        println!("\n=== {}/{}: {name}", index + 1, STEPS.len());
        let begun = Instant::now();
        let mut tally = Tally::default();
        let outcome = Outcome::of(step(&mut tally));
        match &outcome {
            Outcome::Ok => {}
            Outcome::Skipped(_) => println!("{outcome}"),
            Outcome::Failed(message) => {
                eprintln!("error: {message}");
                // So that the closing line never says `0 failed` of a failure.
                tally.failed = tally.failed.max(1);
            }
        }
        rows.push(Row { name, took: begun.elapsed(), tally, outcome });
    }
    println!();
    let mut total = Tally::default();
    for Row { name, took, tally, outcome } in &rows {
        let tests = if *tally == Tally::default() { String::new() } else { format!(" ({tally})") };
        println!("{name:16} {:>5.0} s  {outcome}{tests}", took.as_secs_f64());
        total += tally;
    }
    println!("{:16} {:>5.0} s\n", "all", start.elapsed().as_secs_f64());
    total.reasons().iter().for_each(|line| println!("skipped {line}"));
    println!("{total}");
    let failed: Vec<_> = rows.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_))).map(|row| row.name).collect();
    ensure!(failed.is_empty(), "{} of {} steps failed: {}", failed.len(), rows.len(), failed.join("; "));
    Ok(())
}

fn format(_: &mut Tally) -> Result<()> {
    run_command(cargo().args(["fmt", "--all", "--check"])).context("cargo fmt --all mends it")?;
    for manifest in example_manifests()? {
        run_command(cargo().args(["fmt", "--check", "--manifest-path"]).arg(&manifest)).context("cargo fmt mends it")?;
    }
    Ok(())
}

fn tools(_: &mut Tally) -> Result<()> {
    setup::run()
}

fn fresh_ptx(_: &mut Tally) -> Result<()> {
    ptx::run(&ptx::Options { check: true, ..ptx::Options::default() })?;
    ptx::run(&ptx::Options { backend: ptx::Backend::StandIn, ..ptx::Options::default() })
}

fn clippy(_: &mut Tally) -> Result<()> {
    let warnings_are_errors = ["--", "-Dwarnings"];
    run_command(cargo().args(["clippy", "--workspace", "--all-targets"]).args(warnings_are_errors))?;
    // Every combination of the library's features that differs from the others; `cli` brings all.
    for features in ["", "cust", "reference", "cli"] {
        let library = ["clippy", "--package", "hopper-attention", "--all-targets", "--no-default-features", "--features", features];
        run_command(cargo().args(library).args(warnings_are_errors))?;
    }
    Ok(())
}

fn device_clippy(_: &mut Tally) -> Result<()> {
    for builder in [ptx::builder(CoreSource::Auto)?, ptx::test_kernels(CoreSource::Auto)?, ptx::benchmark_kernels(CoreSource::Auto)?] {
        run_command(builder.cargo("clippy")?.args(["--", "-Dwarnings"]))?;
    }
    Ok(())
}

fn tests(tally: &mut Tally) -> Result<()> {
    *tally += &test::on_host(None)?;
    *tally += &test::scripts()?;
    ensure!(tally.failed == 0, "tests failed (see above)");
    Ok(())
}

fn device_tests(tally: &mut Tally) -> Result<()> {
    *tally += &test::on_device(&emulator()?, &SCHEDULES, None, None)?;
    ensure!(tally.failed == 0, "tests failed (see above)");
    Ok(())
}

/// The emulator, also where there is a GPU: the same on every machine.
fn emulator() -> Result<Device> {
    Device::find(Wanted::Emulator)
}

fn demonstration(_: &mut Tally) -> Result<()> {
    demo::run(&demo::Options { device: Wanted::Emulator })
}

/// What the examples exit with where there is no driver or no Hopper GPU.
const NO_DEVICE: i32 = 2;

/// Builds each example as a crate elsewhere would be, and starts it: it must start without a driver, too, and be right on the emulator.
fn examples(_: &mut Tally) -> Result<()> {
    let nowhere = vec![(DRIVER_VARIABLE, "/nonexistent/libcuda.so.1".into())];
    let machines = [("without a driver", nowhere, NO_DEVICE), ("on the emulator", emulator()?.environment()?, 0)];
    for manifest in example_manifests()? {
        let mut build = example_cargo("build", &manifest)?;
        let messages = stdout_of(build.args(["--message-format", "json-render-diagnostics"]))?;
        for (_, name, program) in artifacts(&messages) {
            for (machine, environment, expected) in &machines {
                let status = shield(&mut Command::new(&program)).envs(environment.iter().cloned()).status();
                let status = status.with_context(|| format!("cannot start {}", program.display()))?;
                ensure!(status.code() == Some(*expected), "example {name} {machine}: {status}, and not {expected}");
                println!("example {name} {machine}: {status}, as it should be");
            }
        }
    }
    Ok(())
}

/// The examples with the oldest Rust that the manifests promise.
fn rust_version(_: &mut Tally) -> Result<()> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).context("Cargo.toml declares no rust-version")?;
    let toolchain = format!("{}.0", version.trim_matches('"'));
    let installed =
        output_of(Command::new("rustup").args(["run", &toolchain, "rustc", "--version"])).is_ok_and(|output| output.status.success());
    if !installed {
        return Err(Skipped(format!("rustup toolchain install {toolchain} --profile minimal")).into());
    }
    for manifest in example_manifests()? {
        let mut check = example_cargo("check", &manifest)?;
        run_command(check.env("RUSTUP_TOOLCHAIN", &toolchain))?;
    }
    Ok(())
}

/// `cargo <subcommand> --locked` on an example, out of reach of the workspace's .cargo/config.toml unless the example has its own.
fn example_cargo(subcommand: &str, manifest: &Path) -> Result<Command> {
    let folder = manifest.parent().context("a manifest without a folder")?;
    let mut command = cargo();
    let started_in = if folder.join(".cargo").is_dir() { folder.to_path_buf() } else { env::temp_dir() };
    command.current_dir(started_in).env_remove("CUDA_LIBRARY_PATH");
    command.args([subcommand, "--locked", "--manifest-path"]).arg(manifest).arg("--target-dir").arg(target().join("examples"));
    Ok(command)
}

/// The crates of examples/: each is outside the workspace, with a lock file of its own.
fn example_manifests() -> Result<Vec<PathBuf>> {
    let folder = root().join("examples");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut manifests: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path().join("Cargo.toml")).filter(|path| path.is_file()).collect();
    manifests.sort();
    ensure!(!manifests.is_empty(), "{} holds no crate", folder.display());
    Ok(manifests)
}

fn documentation(_: &mut Tally) -> Result<()> {
    let mut host = cargo();
    host.args(["doc", "--workspace"]);
    // The kernels' device modules exist for their target only.
    let device = ptx::builder(CoreSource::Auto)?.cargo("doc")?;
    for mut command in [host, device] {
        run_command(command.arg("--no-deps").env("RUSTDOCFLAGS", "-Dwarnings"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_checked_nothing_is_not_ok() {
        assert_eq!(Outcome::of(Ok(())).to_string(), "ok");
        let skipped = Outcome::of(Err(Skipped("no toolchain".to_owned()).into()));
        assert_eq!((skipped.to_string().as_str(), &skipped), ("skipped: no toolchain", &Outcome::Skipped("no toolchain".to_owned())));
        let failed = Outcome::of(Err(anyhow::anyhow!("first\nsecond").context("outer")));
        assert_eq!(failed.to_string(), "FAILED: outer: first");
    }
}
