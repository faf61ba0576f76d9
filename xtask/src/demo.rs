//! `cargo xtask demo`: attention on activations of a real model, by the command line of the library.

use crate::device::{Device, Wanted, shield};
use crate::workspace::{artifacts, cargo, line, root, shown, stdout_of};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Options of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Options {
    /// What computes; for auto and gpu HOPPER_ATTENTION_DRIVER may name another driver
    #[arg(long, value_enum, default_value_t = Wanted::Auto)]
    pub device: Wanted,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    let device = Device::find(options.device)?;
    println!("attention on {device}, compared with results computed in float64");
    let environment = device.environment()?;
    let mut build = cargo();
    build.args(["build", "--release", "--package", "hopper-attention", "--features", "cli", "--message-format", "json-render-diagnostics"]);
    let built = artifacts(&stdout_of(&mut build)?);
    let (_, _, program) = built.iter().find(|(kind, _, _)| kind == "bin").context("cargo built no command line")?;
    let files = files()?;
    let mut failed = Vec::new();
    for file in &files {
        let mut command = Command::new(program);
        shield(&mut command).arg(file).args(["--compare", "file"]).envs(environment.iter().cloned());
        println!("\n{}", line(&command));
        if !command.status().with_context(|| format!("cannot start {}", program.display()))?.success() {
            failed.push(shown(file));
        }
    }
    if !failed.is_empty() {
        bail!("{} of {} files failed: {}", failed.len(), files.len(), failed.join(", "));
    }
    println!("\n{} of {} files agree, computed on {device}", files.len(), files.len());
    Ok(())
}

/// The activations: each file holds q, k, v, and o and lse to compare with.
fn files() -> Result<Vec<PathBuf>> {
    let folder = root().join("tests/data");
    let entries = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "safetensors"));
    ensure!(!files.is_empty(), "{} holds no .safetensors file", folder.display());
    files.sort();
    Ok(files)
}
