//! The emulator in the driver's place: a library with the driver's functions that executes the PTX on the CPU.

use crate::device::{DEVICE_VARIABLE, DRIVER_VARIABLE};
use crate::workspace::{artifacts, cargo, shown, stdout_of, target};
use anyhow::{Context, Result};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

const PACKAGE: &str = "hopper-attention-emulator";
/// Devices that it shows: some tests need two.
const DEVICES: &str = "2";

/// Builds the library, optimised, and returns its path.
pub fn build() -> Result<PathBuf> {
    let mut command = cargo();
    // In an invocation of its own: no other package's features reach it.
    command.args(["build", "--release", "--lib", "--package", PACKAGE, "--message-format", "json-render-diagnostics"]);
    let built = artifacts(&stdout_of(&mut command)?);
    let library = built.into_iter().find_map(|(kind, _, path)| (kind == "cdylib").then_some(path));
    library.context("cargo built no library of the emulator")
}

/// The library's path for messages, or that there is none yet.
pub fn found() -> String {
    let library = target().join("release/libhopper_attention_emulator.so");
    if library.is_file() { shown(&library) } else { "comes with the workspace; the commands that need it build it".to_owned() }
}

/// A function that no driver has.
pub const ITS_OWN_FUNCTION: &str = "hopperEmulatorLastReport";

/// Whether a driver's library is a build of the emulator. The names that a library exports lie in it as text; it need not be opened for them.
pub fn is_one(library: &Path) -> bool {
    fs::read(library).is_ok_and(|bytes| bytes.split(|&byte| byte == 0).any(|word| word == ITS_OWN_FUNCTION.as_bytes()))
}

/// The environment of programs that run on it, whose library this is.
pub fn environment_of(library: PathBuf) -> Vec<(&'static str, OsString)> {
    vec![
        (DRIVER_VARIABLE, library.into_os_string()),
        (DEVICE_VARIABLE, "emulator".into()),
        ("HOPPER_EMULATOR_DEVICES", DEVICES.into()),
        ("HOPPER_EMULATOR_CHECKS", "1".into()),
    ]
}

/// One way to execute the same launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Of the order in which warps and the asynchronous units advance; 0 is a fixed one.
    seed: u32,
    multiprocessors: u32,
}

impl Schedule {
    /// Schedule `number`. The even ones have an H200's multiprocessors, so most tests have one tile a CTA; the odd ones have few, and each
    /// CTA computes a list of tiles, as in large launches.
    pub fn new(number: u32) -> Self {
        Self { seed: number, multiprocessors: if number.is_multiple_of(2) { 132 } else { 3 } }
    }

    /// The environment that chooses it.
    pub fn environment(self) -> [(&'static str, String); 2] {
        [("HOPPER_EMULATOR_SEED", self.seed.to_string()), ("HOPPER_EMULATOR_SMS", self.multiprocessors.to_string())]
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variables = self.environment().map(|(name, value)| format!("{name}={value}"));
        write!(f, "schedule {} ({})", self.seed, variables.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_alternate_between_many_multiprocessors_and_few() {
        assert_eq!(Schedule::new(1).to_string(), "schedule 1 (HOPPER_EMULATOR_SEED=1 HOPPER_EMULATOR_SMS=3)");
        assert_eq!(Schedule::new(2).to_string(), "schedule 2 (HOPPER_EMULATOR_SEED=2 HOPPER_EMULATOR_SMS=132)");
    }
}
