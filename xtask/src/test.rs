//! `cargo xtask test`: all tests of the workspace. Those that need a device say so and are counted where there is none.

use crate::device;
use crate::tally::{Tally, parse_unittest, run_tests};
use crate::workspace::{cargo, line, output_of, root};
use anyhow::{Context, Result, bail, ensure};
use std::process::Command;

/// The package that holds the device tests and the benchmark.
pub const PACKAGE: &str = "hopper-attention-tests";

/// Whether the device tests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// They run where a Hopper GPU is found
    Auto,
    /// They run, and it is an error if no Hopper GPU is found
    Gpu,
    /// They are built and counted
    None,
}

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Options {
    /// What becomes of the device tests
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub device: Device,
    /// Only tests whose name contains this
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let available = device::available();
    let mut command = command();
    match (options.device, &available) {
        (Device::Gpu, Err(why)) => bail!("{why}: --device none builds and counts the device tests"),
        (Device::None, _) => without_device(&mut command),
        (_, Ok(device)) => {
            println!("device tests run on {device}");
            // Optimised: the references on the CPU take most of the time.
            command.arg("--release").env("HOPPER_ATTENTION_REQUIRE_DEVICE", "1");
        }
        (_, Err(why)) => println!("device tests do NOT run: {why}"),
    }
    let (mut tally, mut passed) = run_tests(command.args(&options.filter))?;
    if options.filter.is_none() {
        let (scripts, scripts_passed) = scripts()?;
        tally += scripts;
        passed &= scripts_passed;
    }
    println!("\n{tally}");
    if let (Device::Auto, Err(why)) = (options.device, available) {
        println!("The device tests did not run: {why}.");
    }
    ensure!(passed, "tests failed (see above)");
    Ok(())
}

/// The tests that run without a device, with the others built and counted as skipped.
pub fn on_host() -> Result<(Tally, bool)> {
    let mut command = command();
    without_device(&mut command);
    run_tests(&mut command)
}

/// The tests of the benchmark's Python side; they need neither PyTorch nor a GPU.
pub fn scripts() -> Result<(Tally, bool)> {
    let mut command = Command::new("python3");
    command.current_dir(root()).env("PYTHONDONTWRITEBYTECODE", "1").args(["-m", "unittest", "discover", "benches"]);
    let output = output_of(&mut command).context("python3 is needed to test benches/*.py")?;
    let text = String::from_utf8_lossy(&output.stderr);
    print!("{text}");
    let tally = parse_unittest(&text).with_context(|| format!("not understood: {}", line(&command)))?;
    Ok((tally, output.status.success()))
}

fn command() -> Command {
    let mut command = cargo();
    // The command line's own tests need its feature.
    command.args(["test", "--no-fail-fast", "--workspace", "--features", "hopper-attention/cli"]);
    command
}

/// As on a machine without a driver, whatever is installed.
fn without_device(command: &mut Command) {
    command.env(device::DRIVER_VARIABLE, "/nonexistent/libcuda.so.1");
}
