//! `cargo xtask bundle`: one folder that runs the device tests and the benchmark on a GPU machine without Rust.
//!
//! ```text
//! run.sh COMMIT                  device tests, one after the other, with a log each
//! device-tests/<name>            the test programs
//! bin/                           hopper-attention (command line), bench
//! lib/                           libhopper_attention_capi.so, for benches/peers.py
//! benches/                       the Python side of the benchmark
//! tests/data/                    what the tests read
//! ```

use crate::test;
use crate::workspace::{cargo, root, shown, stdout_of, target};
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of `cargo xtask bundle`.
#[derive(clap::Args)]
pub struct Options {
    /// Where to make the folder; one that is there is replaced [default: target/gpu]
    #[arg(value_name = "DIR")]
    pub folder: Option<PathBuf>,
}

/// What a bundle may weigh.
const MAX_BYTES: u64 = 60 << 20;
/// Marks a folder as a bundle, which may be replaced.
const COMMIT: &str = "COMMIT";

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let folder = options.folder.clone().unwrap_or_else(|| target().join("gpu"));
    let is_empty = !folder.exists() || fs::read_dir(&folder)?.next().is_none();
    ensure!(is_empty || folder.join(COMMIT).is_file(), "{} is there and is no bundle: name another folder", folder.display());
    let programs = build()?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot replace {}", folder.display()))?;
    }
    for (place, program) in &programs {
        copy(program, &folder.join(place))?;
    }
    copy_files(&root().join("benches"), &folder.join("benches"), &["py", "json"])?;
    copy_files(&root().join("tests/data"), &folder.join("tests/data"), &["safetensors"])?;
    write_script(&folder.join("run.sh"), include_str!("bundle/run.sh"))?;
    fs::write(folder.join(COMMIT), commit()?)?;
    let (files, bytes) = weigh(&folder)?;
    ensure!(bytes <= MAX_BYTES, "{} weighs {} MiB, more than {}", folder.display(), bytes >> 20, MAX_BYTES >> 20);
    println!("{}: {files} files, {:.1} MiB. On the GPU machine: ./run.sh LOG_DIR", shown(&folder), bytes as f64 / (1 << 20) as f64);
    Ok(())
}

/// Builds the programs; each with its place in the bundle.
fn build() -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut programs = Vec::new();
    let mut tests = release("test", test::PACKAGE);
    tests.arg("--no-run");
    for name in test::device_tests()? {
        tests.args(["--test", &name]);
    }
    for (kind, name, path) in artifacts(&mut tests)? {
        if kind == "test" {
            programs.push((Path::new("device-tests").join(name), path));
        }
    }
    let mut binaries = release("build", test::PACKAGE);
    let mut command_line = release("build", "hopper-attention");
    for command in [binaries.arg("--bins"), command_line.args(["--bins", "--features", "cli"])] {
        for (kind, name, path) in artifacts(command)? {
            if kind == "bin" {
                programs.push((Path::new("bin").join(name), path));
            }
        }
    }
    // In an invocation of its own: together with the others it would get their feature `cust`, and export the import shim's symbols.
    for (kind, _, path) in artifacts(&mut release("build", "hopper-attention-capi"))? {
        if kind == "cdylib" {
            let name = path.file_name().context("a library without a name")?.to_owned();
            programs.push((Path::new("lib").join(name), path));
        }
    }
    Ok(programs)
}

/// `cargo <subcommand> --release` of one package, with stripped binaries.
fn release(subcommand: &str, package: &str) -> Command {
    let mut command = cargo();
    command.args([subcommand, "--release", "--package", package, "--message-format", "json-render-diagnostics"]);
    command.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    command
}

/// (kind, name, path) of the programs and libraries that a cargo command made.
fn artifacts(command: &mut Command) -> Result<Vec<(String, String, PathBuf)>> {
    Ok(parse_artifacts(&stdout_of(command)?))
}

fn parse_artifacts(messages: &str) -> Vec<(String, String, PathBuf)> {
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

fn copy(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a file without a folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Copies the files of one folder that end in one of `extensions`.
fn copy_files(from: &Path, to: &Path, extensions: &[&str]) -> Result<()> {
    for file in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = file?.path();
        let wanted = path.extension().and_then(|extension| extension.to_str()).is_some_and(|extension| extensions.contains(&extension));
        if let (true, Some(name)) = (wanted, path.file_name()) {
            copy(&path, &to.join(name))?;
        }
    }
    Ok(())
}

fn write_script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// The commit that the programs were built from, and whether files differed from it.
fn commit() -> Result<String> {
    let git = |arguments: &[&str]| stdout_of(Command::new("git").args(arguments).current_dir(root()));
    let head = git(&["rev-parse", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Ok(if changed.is_empty() { head } else { format!("{head}with uncommitted changes:\n{changed}") })
}

fn weigh(folder: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let inner = if entry.file_type()?.is_dir() { weigh(&entry.path())? } else { (1, entry.metadata()?.len()) };
        files += inner.0;
        bytes += inner.1;
    }
    Ok((files, bytes))
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
        assert_eq!(parse_artifacts(messages), expected.map(|(kind, name, path)| (kind.to_owned(), name.to_owned(), PathBuf::from(path))));
    }
}
