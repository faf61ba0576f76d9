//! `cargo xtask bench`: measures, records and draws. What is measured, and how, is in benches/README.md.

use crate::chart;
use crate::device;
use crate::test::PACKAGE;
use crate::workspace::{cargo, output_of, root, run as run_command, shown, target};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Options of `cargo xtask bench`.
#[derive(clap::Args)]
pub struct Options {
    /// Beside FlashAttention-2 and 3 and cuDNN, in one Python process with PyTorch
    #[arg(long)]
    pub peers: bool,
    /// Cells in words (`d128,causal,4k,bf16`), or grid, shapes, sustained
    #[arg(long, num_args = 1.., value_name = "CELLS", default_values = ["grid"])]
    pub cells: Vec<String>,
    /// burst: cool and in turns; sustained: at the card's power limit
    #[arg(long, value_parser = ["burst", "sustained"], default_value = "burst")]
    pub protocol: String,
    /// The JSON file; the chart goes beside it as .svg [default: benches/recorded/DEVICE/DATE-peers.json or DATE-own.json]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Measure nothing: draw this recording
    #[arg(long, value_name = "FILE", conflicts_with_all = ["peers", "cells", "protocol", "out"])]
    pub draw: Option<PathBuf>,
    /// Further arguments for benches/peers.py or the program `bench`
    #[arg(last = true, value_name = "ARGUMENTS")]
    pub rest: Vec<String>,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    if let Some(recording) = &options.draw {
        return draw(recording);
    }
    let gpus = device::gpus();
    let Some(gpu) = gpus.first() else {
        bail!("no NVIDIA GPU found (nvidia-smi names none): `cargo xtask bundle` makes a folder to run on a machine that has one");
    };
    let what = if options.peers { "peers" } else { "own" };
    let out = match &options.out {
        Some(path) => std::path::absolute(path)?,
        None => unused(&root().join("benches/recorded").join(gpu.slug()), &format!("{}-{what}", today()?)),
    };
    if let Some(folder) = out.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut command = if options.peers { peers()? } else { own() };
    command.arg("--cells").args(&options.cells).args(["--protocol", &options.protocol]).arg("--out").arg(&out).args(&options.rest);
    let measured = run_command(&mut command);
    // The cells before a failure are drawn too.
    if out.is_file() {
        draw(&out)?;
    }
    measured
}

fn own() -> Command {
    let mut command = cargo();
    command.args(["run", "--release", "--package", PACKAGE, "--bin", "bench", "--"]);
    command
}

fn peers() -> Result<Command> {
    let torch = output_of(Command::new("python3").args(["-c", "import torch"]))?;
    ensure!(torch.status.success(), "python3 has no PyTorch (python3 -m pip install torch); `cargo xtask doctor` lists what --peers needs");
    // In an invocation of its own, so that no other package's features reach it.
    run_command(cargo().args(["build", "--release", "--package", "hopper-attention-capi"]))?;
    let mut command = Command::new("python3");
    command.current_dir(root()).arg("benches/peers.py").arg("--ours").arg(target().join("release/libhopper_attention_capi.so"));
    Ok(command)
}

fn draw(recording: &Path) -> Result<()> {
    let text = fs::read_to_string(recording).with_context(|| format!("cannot read {}", recording.display()))?;
    let svg = chart::draw(&serde_json::from_str(&text)?).with_context(|| recording.display().to_string())?;
    let picture = recording.with_extension("svg");
    ensure!(picture != recording, "{} is a picture already", recording.display());
    fs::write(&picture, svg).with_context(|| format!("cannot write {}", picture.display()))?;
    println!("{}\n{}", shown(recording), shown(&picture));
    Ok(())
}

/// `<folder>/<stem>.json`, or `<stem>-2.json` and so on: recordings are never overwritten.
fn unused(folder: &Path, stem: &str) -> PathBuf {
    let names = std::iter::once(format!("{stem}.json")).chain((2..).map(|number| format!("{stem}-{number}.json")));
    let mut paths = names.map(|name| folder.join(name));
    paths.find(|path| !path.exists()).expect("endless")
}

fn today() -> Result<String> {
    let (year, month, day) = civil(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() / 86_400);
    Ok(format!("{year}-{month:02}-{day:02}"))
}

/// The Gregorian date of a day since 1970-01-01.
fn civil(mut day: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    (year, month as u64 + 1, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_786), (2026, 11, 29));
        assert_eq!(civil(20_818), (2026, 12, 31));
    }

    #[test]
    fn recordings_are_not_overwritten() {
        let folder = root().join("xtask");
        assert_eq!(unused(&folder, "new"), folder.join("new.json"));
    }
}
