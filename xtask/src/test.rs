//! `cargo xtask test`: the tests that need no device, then those that do.

use crate::device;
use crate::tally::{Tally, count_listed, run_tests};
use crate::workspace::{cargo, root, stdout_of};
use anyhow::{Context, Result, bail, ensure};
use std::fs;

/// The package that holds the tests of the whole library.
pub const PACKAGE: &str = "hopper-attention-tests";

/// Whether the device tests run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Device {
    /// Run them where a Hopper GPU is found
    Auto,
    /// Run them; fail where none is found
    Gpu,
    /// Build and count them
    None,
}

/// Options of `cargo xtask test`.
#[derive(clap::Args)]
pub struct Options {
    /// What the device tests run on
    #[arg(long, value_enum, default_value_t = Device::Auto)]
    pub device: Device,
    /// Only tests whose name contains this
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let filter = options.filter.as_deref();
    // Said before the minutes of building.
    let found = device::available();
    if let (Device::Gpu, Err(why)) = (options.device, &found) {
        bail!("{why}: --device none builds and counts the device tests");
    }
    let (mut tally, host_ok) = host(filter)?;
    let (device_tally, device_ok) = match (options.device, found) {
        (Device::Auto | Device::Gpu, Ok(device)) => {
            println!("\ndevice tests on {device}");
            on_device(filter)?
        }
        (_, found) => (not_run(filter, &found.err().unwrap_or_else(|| "--device none".to_owned()))?, true),
    };
    tally += device_tally;
    println!("\n{tally}");
    ensure!(host_ok && device_ok, "tests failed (see above)");
    Ok(())
}

/// The tests that need no device.
pub fn host(filter: Option<&str>) -> Result<(Tally, bool)> {
    // The command line's own tests need its feature.
    let mut rest = cargo();
    rest.args(["test", "--no-fail-fast", "--workspace", "--exclude", PACKAGE, "--features", "hopper-attention/cli"]).args(filter);
    let (mut tally, rest_ok) = run_tests(&mut rest)?;
    let mut harness = cargo();
    harness.args(["test", "--no-fail-fast", "--package", PACKAGE, "--lib", "--bins"]).args(filter);
    let (harness_tally, harness_ok) = run_tests(&mut harness)?;
    tally += harness_tally;
    Ok((tally, rest_ok && harness_ok))
}

fn on_device(filter: Option<&str>) -> Result<(Tally, bool)> {
    let mut command = cargo();
    command.args(["test", "--release", "--no-fail-fast", "--package", PACKAGE]);
    for name in device_tests()? {
        command.args(["--test", &name]);
    }
    run_tests(command.args(filter))
}

/// Builds the device tests and counts them as skipped, aloud.
pub fn not_run(filter: Option<&str>, why: &str) -> Result<Tally> {
    let mut skipped = 0;
    for name in device_tests()? {
        let mut command = cargo();
        command.args(["test", "--package", PACKAGE, "--test", &name, "--"]).args(filter).arg("--list");
        let count = count_listed(&stdout_of(&mut command)?);
        println!("{name}: {count} tests NOT run");
        skipped += count;
    }
    println!("{skipped} device tests NOT run: {why}");
    Ok(Tally { skipped, ..Tally::default() })
}

/// The test programs that need a device: those with a harness of their own (`harness = false`) in the package's manifest.
pub fn device_tests() -> Result<Vec<String>> {
    let file = root().join("tests/Cargo.toml");
    let manifest = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let names = own_harness(&manifest);
    ensure!(!names.is_empty(), "{} names no [[test]] with `harness = false`", file.display());
    Ok(names)
}

fn own_harness(manifest: &str) -> Vec<String> {
    let sections = manifest.split("\n[").filter_map(|section| section.strip_prefix("[test]]"));
    let field = |section: &str, name: &str| {
        let value = section.lines().find_map(|line| line.trim().strip_prefix(name)?.trim_start().strip_prefix('=').map(str::trim));
        value.map(|value| value.trim_matches('"').to_owned())
    };
    sections.filter(|section| field(section, "harness").as_deref() == Some("false")).filter_map(|section| field(section, "name")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_tests_have_their_own_harness() {
        let manifest = "[package]\nname = \"x\"\n\n[[test]]\nname = \"a\"\nharness = false\n\n[[test]]\nname = \"b\"\n\n[[test]]\nharness = false\nname = \"c\"\n[lints]\nworkspace = true\n";
        assert_eq!(own_harness(manifest), ["a", "c"]);
    }
}
