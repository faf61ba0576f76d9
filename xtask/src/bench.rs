//! `cargo xtask bench`: measures, records and draws. What is measured, and how, is in benches/README.md.

use crate::chart;
use crate::device;
use crate::ptx;
use crate::test::PACKAGE;
use crate::toolchain::CoreSource;
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
    /// Also with the PTX of this folder, beside the built-in one, in one Python process with PyTorch; may be given several times
    #[arg(long, value_name = "DIR")]
    pub ptx_dir: Vec<PathBuf>,
    /// Cells in words (`d128,causal,4k,bf16`), or grid, shapes, sustained; with --peers also features, functions
    #[arg(long, num_args = 1.., value_name = "CELLS", default_values = ["grid"])]
    pub cells: Vec<String>,
    /// burst: cool and in turns; sustained: at the card's power limit
    #[arg(long, value_parser = ["burst", "sustained"], default_value = "burst")]
    pub protocol: String,
    /// The JSON file; the chart goes beside it as .svg [default: benches/recorded/DEVICE/DATE-peers.json or DATE-own.json]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Measure nothing: draw this recording
    #[arg(long, value_name = "FILE", conflicts_with_all = ["peers", "ptx_dir", "cells", "protocol", "out"])]
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
    let what = match (options.peers, options.ptx_dir.is_empty()) {
        (true, _) => "peers",
        (false, false) => "ptx",
        (false, true) => "own",
    };
    let out = match &options.out {
        Some(path) => std::path::absolute(path)?,
        None => unused(&root().join("benches/recorded").join(gpu.slug()), &format!("{}-{what}", today()?)),
    };
    if let Some(folder) = out.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut command = if what == "own" { own() } else { in_turns(&options.ptx_dir, options.peers)? };
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

/// This library, with the built-in PTX and with that of each folder, and perhaps its peers.
fn in_turns(folders: &[PathBuf], peers: bool) -> Result<Command> {
    let contestants = contestants(folders)?;
    let torch = output_of(Command::new("python3").args(["-c", "import torch"]))?;
    ensure!(torch.status.success(), "python3 has no PyTorch (python3 -m pip install torch); `cargo xtask doctor` lists what --peers needs");
    // In an invocation of its own, so that no other package's features reach it.
    run_command(cargo().args(["build", "--release", "--package", "hopper-attention-capi"]))?;
    let kernels = target().join("bench-ptx");
    ptx::benchmark_kernels(CoreSource::Auto)?.build()?.write(&kernels)?;
    let mut command = Command::new("python3");
    command.current_dir(root()).arg("benches/peers.py").arg("--kernels").arg(kernels);
    let library = target().join("release/libhopper_attention_capi.so");
    for contestant in contestants {
        command.arg("--ours").arg(contestant.replace("LIBRARY", &library.to_string_lossy()));
    }
    if !peers {
        command.args(["--peers", "none"]);
    }
    Ok(command)
}

/// `--ours` of peers.py for the built-in PTX and for each folder, which lends its name; LIBRARY stands for the library's path.
fn contestants(folders: &[PathBuf]) -> Result<Vec<String>> {
    let mut names = vec!["ours".to_owned()];
    let mut contestants = vec!["LIBRARY".to_owned()];
    for folder in folders {
        let path = folder.canonicalize().with_context(|| format!("no folder {}", folder.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        ensure!(!names.contains(&name), "two contestants would be called {name}: rename a folder");
        ensure!(
            !name.contains(['=', '@']) && !path.to_string_lossy().contains('@'),
            "{}: peers.py takes no '=' or '@' in it",
            path.display()
        );
        contestants.push(format!("{name}=LIBRARY@{}", path.display()));
        names.push(name);
    }
    Ok(contestants)
}

fn draw(recording: &Path) -> Result<()> {
    let text = fs::read_to_string(recording).with_context(|| format!("cannot read {}", recording.display()))?;
    let document = serde_json::from_str(&text).context("no JSON");
    let svg = document.and_then(|document| chart::draw(&document)).with_context(|| recording.display().to_string())?;
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
    fn folders_lend_their_names() {
        let (folder, other) = (root().join("host/ptx"), root().join("tests/ptx"));
        assert_eq!(contestants(&[]).unwrap(), ["LIBRARY"]);
        let expected = ["LIBRARY".to_owned(), format!("ptx=LIBRARY@{}", folder.canonicalize().unwrap().display())];
        assert_eq!(contestants(std::slice::from_ref(&folder)).unwrap(), expected);
        assert!(contestants(&[folder, other]).is_err());
        assert!(contestants(&[root().join("no such folder")]).is_err());
    }

    #[test]
    fn the_help_names_every_set_of_cells() {
        let help = <Options as clap::Args>::augment_args(clap::Command::new("bench"));
        let help = help.get_arguments().find(|argument| argument.get_id() == "cells").unwrap().get_help().unwrap().to_string();
        let groups = fs::read_to_string(root().join("benches/groups.json")).unwrap();
        let groups: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&groups).unwrap();
        assert!(groups.len() >= 4);
        for group in groups.keys() {
            assert!(help.contains(group), "{group} is not in: {help}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_named() {
        let file = root().join("README.md");
        let error = format!("{:#}", draw(&file).unwrap_err());
        assert!(error.starts_with(&file.display().to_string()), "{error}");
    }

    #[test]
    fn recordings_are_not_overwritten() {
        let folder = root().join("xtask");
        assert_eq!(unused(&folder, "new"), folder.join("new.json"));
    }
}
