//! The pinned rustc, and the source of `core` that goes with it.

use crate::workspace::root;
use anyhow::{Context, Result, ensure};
use hopper_attention_builder::{self as builder, Builder};
use std::fs;
use std::path::{Path, PathBuf};

/// The version that rust-toolchain.toml pins.
pub fn pinned_version() -> Result<String> {
    Ok(pinned(&root())?.0)
}

/// The channel and the components that the rust-toolchain.toml of a folder pins.
pub fn pinned(folder: &Path) -> Result<(String, Vec<String>)> {
    let file = folder.join("rust-toolchain.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let value = |key: &str| text.lines().find_map(|line| line.trim().strip_prefix(key)?.trim_start().strip_prefix('='));
    // Every second piece between quotes is a string.
    let strings = |value: &str| value.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let channel = value("channel").and_then(|value| strings(value).pop());
    let channel = channel.with_context(|| format!("{} names no channel", file.display()))?;
    Ok((channel, value("components").map(strings).unwrap_or_default()))
}

/// Fails unless the rustc of the kernels is the pinned one: another one makes other PTX.
pub fn require_pinned() -> Result<String> {
    let (pinned, found) = (pinned_version()?, Builder::new(root().join("kernels")).rustc_version()?);
    ensure!(
        found == pinned,
        "the PTX is made by rustc {pinned}, and this is rustc {found}: install rustup, and let it install the other (rustup toolchain install {pinned})"
    );
    Ok(pinned)
}

/// Where `core`'s source comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum CoreSource {
    /// The toolchain's rust-src, or else the archive
    #[default]
    Auto,
    /// The toolchain's rust-src
    Toolchain,
    /// third_party/rust-library-VERSION.tar.xz
    Archive,
}

impl CoreSource {
    /// What this means for the builder, with rustc of a version.
    pub fn of(self, version: &str) -> builder::CoreSource {
        match self {
            Self::Auto => builder::CoreSource::Auto,
            Self::Toolchain => builder::CoreSource::Toolchain,
            Self::Archive => builder::CoreSource::Archive(archive(version)),
        }
    }
}

/// The toolchain's own library source, if it is installed.
pub fn rust_src() -> Result<Option<PathBuf>> {
    Ok(Builder::new(root().join("kernels")).rust_src()?)
}

/// The archive of the library source, for machines where rustup cannot install rust-src.
pub fn archive(version: &str) -> PathBuf {
    builder::core_archive(version)
}
