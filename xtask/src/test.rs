//! `cargo xtask test`: all tests of the workspace. Those that need a device run on a Hopper GPU, or on the emulator; what does not run is
//! counted, with the reason.

use crate::device::{DRIVER_VARIABLE, Device, Wanted, shield, shielded};
use crate::emulator::Schedule;
use crate::tally::{Tally, parse_unittest, run_tests};
use crate::workspace::{cargo, line, output_of, root};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that holds the device tests and the benchmark.
pub const PACKAGE: &str = "hopper-attention-tests";

/// Where the device tests run, if they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Choice {
    /// On a Hopper GPU where one is found, else on the emulator
    Auto,
    /// On a Hopper GPU; it is an error if none is found
    Gpu,
    /// On the emulator, which executes the same PTX on the CPU: every kernel, smaller cases
    Emulator,
    /// Nowhere: they are built and counted
    None,
}

impl Choice {
    fn wanted(self) -> Option<Wanted> {
        match self {
            Self::Auto => Some(Wanted::Auto),
            Self::Gpu => Some(Wanted::Gpu),
            Self::Emulator => Some(Wanted::Emulator),
            Self::None => None,
        }
    }
}

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Options {
    /// Where the device tests run; for auto and gpu HOPPER_ATTENTION_DRIVER may name another driver
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    pub device: Choice,
    /// On the emulator, the device tests run once for each of these orders of execution, such as 0,1,2; odd ones have 3 multiprocessors
    #[arg(long, value_name = "NUMBERS", allow_negative_numbers = true, value_delimiter = ',', default_values_t = [0])]
    pub schedules: Vec<u32>,
    /// The device tests use the kernels of this folder instead of host/ptx: those of another compiler, for instance
    #[arg(long, value_name = "DIR")]
    pub ptx_dir: Option<PathBuf>,
    /// Only tests whose name contains this
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,
}

/// Where the library finds kernels other than its own.
const PTX_DIR_VARIABLE: &str = "HOPPER_ATTENTION_PTX_DIR";

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let ptx_dir =
        options.ptx_dir.as_ref().map(|dir| dir.canonicalize().with_context(|| format!("--ptx-dir {}", dir.display()))).transpose()?;
    let device = options.device.wanted().map(Device::find).transpose()?;
    let filter = options.filter.as_deref();
    if let Some(note) = ignored_schedules(&options.schedules, device.as_ref()) {
        println!("{note}");
    }
    match shielded()[..] {
        [] => {}
        ref variables => println!("the tests do not see what the environment sets of {}", variables.join(", ")),
    }
    let mut tally = Tally::default();
    match &device {
        Some(device) => {
            println!("the device tests will run on {device}; first the others");
            tally += &on_host(filter)?;
            tally += &on_device(device, &options.schedules, ptx_dir.as_deref(), filter)?;
        }
        None => tally += &everything_on_host(filter)?,
    }
    if filter.is_none() {
        tally += &scripts()?;
    }
    // Without a device there is one reason, which the end of the line says better than the test programs.
    let reasons = if device.is_some() { tally.reasons() } else { Vec::new() };
    let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join("; ")) };
    let place = match &device {
        Some(device) => {
            let kernels = ptx_dir.map(|dir| format!(", with the kernels of {}", dir.display())).unwrap_or_default();
            format!("device tests on {device}{kernels}")
        }
        None => "device tests did not run: --device auto runs them".to_owned(),
    };
    println!("\n{tally}{reasons}; {place}");
    if let Some(filter) = filter {
        ensure!(tally != Tally::default(), "no test has '{filter}' in its name");
    }
    ensure!(tally.failed == 0, "tests failed (see above)");
    Ok(())
}

/// What to say of orders of execution that nothing follows.
fn ignored_schedules(schedules: &[u32], device: Option<&Device>) -> Option<String> {
    if schedules == [0] || device.is_some_and(Device::is_emulator) {
        return None;
    }
    let place = device.map_or("run nowhere".to_owned(), |device| format!("run on {device}"));
    Some(format!("--schedules is ignored: it orders what the emulator executes, and the device tests will {place}"))
}

/// The tests that need no device, as on a machine without a driver.
pub fn on_host(filter: Option<&str>) -> Result<Tally> {
    run_tests(host_tests().args(["--exclude", PACKAGE]).args(filter))
}

/// The same, with the device tests built and counted as skipped.
fn everything_on_host(filter: Option<&str>) -> Result<Tally> {
    run_tests(host_tests().args(filter))
}

fn host_tests() -> Command {
    let mut command = cargo();
    // The command line's own tests need its feature.
    command.args(["test", "--no-fail-fast", "--workspace", "--features", "hopper-attention/cli"]);
    shield(&mut command).env(DRIVER_VARIABLE, "/nonexistent/libcuda.so.1");
    command
}

/// The device tests' package; on the emulator once for each of `schedules`.
pub fn on_device(device: &Device, schedules: &[u32], ptx_dir: Option<&Path>, filter: Option<&str>) -> Result<Tally> {
    let environment = device.environment()?;
    let command = || {
        let mut command = cargo();
        // Optimised: the references on the CPU take most of a GPU's time.
        command.args(["test", "--no-fail-fast", "--release", "--package", PACKAGE]).args(filter);
        shield(&mut command).env("HOPPER_ATTENTION_REQUIRE_DEVICE", "1").envs(environment.iter().cloned());
        command.envs(ptx_dir.map(|dir| (PTX_DIR_VARIABLE, dir)));
        command
    };
    if !device.is_emulator() {
        println!("\nthe device tests on {device}");
        return run_tests(&mut command());
    }
    let mut tally = Tally::default();
    for (turn, &number) in schedules.iter().enumerate() {
        let schedule = Schedule::new(number);
        println!("\nthe device tests on {device}: {schedule}");
        let mut command = command();
        command.envs(schedule.environment());
        if turn == 0 {
            tally += &run_tests(&mut command)?;
        } else {
            // Without the package's unit tests, to which a schedule means nothing.
            tally.add_run(&run_tests(command.args(["--test", "*"]))?);
        }
    }
    Ok(tally)
}

/// The tests of the benchmark's Python side; they need neither PyTorch nor a GPU.
pub fn scripts() -> Result<Tally> {
    let mut command = Command::new("python3");
    command.current_dir(root()).env("PYTHONDONTWRITEBYTECODE", "1").args(["-m", "unittest", "discover", "benches"]);
    let output = output_of(&mut command).context("python3 is needed to test benches/*.py")?;
    let text = String::from_utf8_lossy(&output.stderr);
    print!("{text}");
    let mut tally = parse_unittest(&text).with_context(|| format!("not understood: {}", line(&command)))?;
    if !output.status.success() {
        tally.failed = tally.failed.max(1);
    }
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_that_nothing_follows_are_named() {
        let named = |is_emulator| Device::Named { library: "/x/libcuda.so.1".into(), is_emulator };
        assert_eq!(ignored_schedules(&[0, 1], Some(&named(true))), None);
        assert_eq!(ignored_schedules(&[0], Some(&named(false))), None);
        let note = ignored_schedules(&[0, 1], Some(&named(false))).unwrap();
        assert!(note.starts_with("--schedules is ignored") && note.contains("/x/libcuda.so.1"), "{note}");
        assert!(ignored_schedules(&[3], None).unwrap().ends_with("run nowhere"));
    }
}
