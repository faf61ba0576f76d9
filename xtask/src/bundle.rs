//! `cargo xtask bundle`: one folder that runs the device tests and the benchmark on a GPU machine without Rust.
//!
//! ```text
//! run.sh COMMIT                  device tests, one after the other, with a log each
//! device-tests/<name>            the test programs
//! bin/                           hopper-attention (command line), bench
//! lib/                           libhopper_attention_capi.so, for benches/peers.py
//! benches/                       the Python side of the benchmark
//! benches/ptx/                   kernels with functions of their own, which it measures too
//! data/                          activations of a real model, for the command line
//! ```

use crate::ptx;
use crate::test;
use crate::toolchain::CoreSource;
use crate::workspace::{artifacts, cargo, root, shown, stdout_of, target};
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
const MAX_BYTES: u64 = 100 << 20;
/// Marks a folder as a bundle, which may be replaced.
const COMMIT: &str = "COMMIT";

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let folder = options.folder.clone().unwrap_or_else(|| target().join("gpu"));
    claim(&folder)?;
    // Before the build: what is edited meanwhile may be in it, but what was there is for certain.
    let commit = commit()?;
    let programs = build()?;
    let kernels = ptx::benchmark_kernels(CoreSource::Auto)?.build()?;
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot replace {}", folder.display()))?;
    }
    for (place, program) in &programs {
        copy(program, &folder.join(place))?;
    }
    copy_files(&root().join("benches"), &folder.join("benches"), &["py", "json"])?;
    kernels.write(folder.join("benches/ptx"))?;
    copy_files(&root().join("tests/data"), &folder.join("data"), &["safetensors"])?;
    write_script(&folder.join("run.sh"), include_str!("bundle/run.sh"))?;
    fs::write(folder.join(COMMIT), commit).with_context(|| format!("cannot write {}", folder.join(COMMIT).display()))?;
    let (files, bytes) = weigh(&folder)?;
    ensure!(bytes <= MAX_BYTES, "{} weighs {} MiB, more than {}", folder.display(), bytes >> 20, MAX_BYTES >> 20);
    println!("{}: {files} files, {:.1} MiB. On the GPU machine: ./run.sh LOG_DIR", shown(&folder), bytes as f64 / (1 << 20) as f64);
    Ok(())
}

/// Makes the folder, unless it is there, and refuses one that holds something else than a bundle: before the build, which takes minutes.
fn claim(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let mut entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let is_empty = entries.next().is_none();
    ensure!(is_empty || folder.join(COMMIT).is_file(), "{} is there and is no bundle: name another folder", folder.display());
    Ok(())
}

/// Builds the programs; each with its place in the bundle.
fn build() -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut programs = Vec::new();
    for (kind, name, path) in built(release("test", test::PACKAGE).args(["--no-run", "--tests"]))? {
        if kind == "test" {
            programs.push((Path::new("device-tests").join(name), path));
        }
    }
    let mut binaries = release("build", test::PACKAGE);
    let mut command_line = release("build", "hopper-attention");
    for command in [binaries.arg("--bins"), command_line.args(["--bins", "--features", "cli"])] {
        for (kind, name, path) in built(command)? {
            if kind == "bin" {
                programs.push((Path::new("bin").join(name), path));
            }
        }
    }
    // In an invocation of its own: together with the others it would get their feature `cust`, and export the import shim's symbols.
    for (kind, _, path) in built(&mut release("build", "hopper-attention-capi"))? {
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

fn built(command: &mut Command) -> Result<Vec<(String, String, PathBuf)>> {
    Ok(artifacts(&stdout_of(command)?))
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
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
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
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
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
    fn only_an_empty_folder_or_a_bundle_is_replaced() {
        let folder = std::env::temp_dir().join(format!("hopper-attention-bundle-{}", std::process::id()));
        claim(&folder.join("inner")).unwrap();
        claim(&folder.join("inner")).unwrap();
        let refused = format!("{:#}", claim(&folder).unwrap_err());
        assert!(refused.contains("is no bundle"), "{refused}");
        fs::write(folder.join(COMMIT), "").unwrap();
        claim(&folder).unwrap();
        // A file is no folder, and the message says which.
        for path in [folder.join(COMMIT), folder.join(COMMIT).join("below")] {
            let refused = format!("{:#}", claim(&path).unwrap_err());
            assert!(refused.contains(&path.display().to_string()), "{refused}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
