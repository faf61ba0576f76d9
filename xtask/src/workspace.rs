//! Where things lie, and how other programs are started.

use anyhow::{Context, Result, bail};
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The root of the checkout that `cargo xtask` was called in.
pub fn root() -> PathBuf {
    // Cargo sets the variable for the program that it runs, so a target folder shared by two checkouts does not mix them up.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().expect("xtask/ lies in the workspace").to_path_buf()
}

/// Cargo's target folder.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |folder| root().join(folder))
}

/// `path` as seen from the workspace root, for messages.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

/// `cargo`, to be run in the workspace root.
pub fn cargo() -> Command {
    // Not the CARGO of our own environment: through rustup's proxy the pinned toolchain applies whoever started us.
    let mut command = Command::new("cargo");
    command.current_dir(root());
    command
}

/// Runs `command` with its output on the terminal; an error unless it exits with 0.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", line(command)))?;
    if !status.success() {
        bail!("{status}: {}", line(command));
    }
    Ok(())
}

/// Runs `command` and returns what it wrote to stdout; stderr stays on the terminal.
pub fn stdout_of(command: &mut Command) -> Result<String> {
    let output = output_of(command.stderr(Stdio::inherit()))?;
    if !output.status.success() {
        bail!("{}: {}", output.status, line(command));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command` and returns its exit status and what it wrote.
pub fn output_of(command: &mut Command) -> Result<Output> {
    command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", line(command)))
}

/// The command line of `command`, for messages.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// (kind, name, path) of the programs and C libraries among cargo's JSON messages.
pub fn artifacts(messages: &str) -> Vec<(String, String, PathBuf)> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let built = messages.filter(|message| message["reason"] == "compiler-artifact").filter_map(|message| {
        let kind = message["target"]["kind"][0].as_str()?.to_owned();
        let name = message["target"]["name"].as_str()?.to_owned();
        let library = || message["filenames"].as_array()?.iter().filter_map(|file| file.as_str()).find(|file| file.ends_with(".so"));
        let path = message["executable"].as_str().or_else(|| if kind == "cdylib" { library() } else { None })?;
        Some((kind, name, PathBuf::from(path)))
    });
    built.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_libraries() {
        let messages = r#"{"reason":"compiler-artifact","target":{"kind":["lib"],"name":"a"},"filenames":["/t/liba.rlib"],"executable":null}
{"reason":"compiler-artifact","target":{"kind":["test"],"name":"forward"},"filenames":["/t/forward-1"],"executable":"/t/forward-1"}
{"reason":"compiler-artifact","target":{"kind":["cdylib"],"name":"c"},"filenames":["/t/libc.so"],"executable":null}
{"reason":"build-finished","success":true}"#;
        let expected = [("test", "forward", "/t/forward-1"), ("cdylib", "c", "/t/libc.so")];
        assert_eq!(artifacts(messages), expected.map(|(kind, name, path)| (kind.to_owned(), name.to_owned(), PathBuf::from(path))));
    }
}
