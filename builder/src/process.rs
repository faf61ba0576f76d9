//! How other programs are started.

use crate::error::Error;
use std::process::{Command, Output, Stdio};

/// Runs `command` and returns its exit status and what it wrote; stderr stays where the caller has sent it, if he has.
pub(crate) fn output_of(command: &mut Command) -> Result<Output, Error> {
    command.stdin(Stdio::null()).output().map_err(|error| failed(command, format!("cannot be started: {error}")))
}

/// Runs `command` and returns what it wrote to stdout; an error unless it exits with 0.
pub(crate) fn stdout_of(command: &mut Command) -> Result<String, Error> {
    let output = output_of(command)?;
    if !output.status.success() {
        return Err(failed(command, format!("{}\n{}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(crate) fn failed(command: &Command, problem: String) -> Error {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    Error::Program { command: words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "), problem }
}
