//! The pinned rustc, and the source of `core` that goes with it.

use crate::workspace::{self, root, target};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// The version of the rustc that cargo uses here.
pub fn rustc_version() -> Result<String> {
    let text = workspace::stdout_of(Command::new("rustc").arg("--version").current_dir(root()))?;
    text.split(' ').nth(1).map(str::to_owned).with_context(|| format!("`rustc --version` wrote {text:?}"))
}

/// Fails unless the rustc in use is the pinned one: another one makes other PTX.
pub fn require_pinned() -> Result<String> {
    let (pinned, found) = (pinned_version()?, rustc_version()?);
    if found != pinned {
        bail!(
            "the PTX is made by rustc {pinned}, and this is rustc {found}: install it (rustup toolchain install {pinned}) and unset RUSTUP_TOOLCHAIN"
        );
    }
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

/// The toolchain's own library source, if it is installed.
pub fn rust_src() -> Result<Option<PathBuf>> {
    let sysroot = workspace::stdout_of(Command::new("rustc").args(["--print", "sysroot"]).current_dir(root()))?;
    let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    Ok(library.join("core/src/lib.rs").is_file().then_some(library).filter(|library| library.join("Cargo.lock").is_file()))
}

/// The archive of the library source, for machines where rustup cannot install rust-src.
pub fn archive(version: &str) -> PathBuf {
    root().join(format!("third_party/rust-library-{version}.tar.xz"))
}

/// The folder to hand to cargo as the library's source, or `None` where cargo finds the toolchain's own.
pub fn core_source(version: &str, wanted: CoreSource) -> Result<Option<PathBuf>> {
    match (wanted, rust_src()?) {
        (CoreSource::Auto | CoreSource::Toolchain, Some(_)) => Ok(None),
        (CoreSource::Toolchain, None) => bail!("this toolchain has no rust-src: rustup component add rust-src --toolchain {version}"),
        (CoreSource::Auto | CoreSource::Archive, _) => unpack(version).map(Some),
    }
}

fn unpack(version: &str) -> Result<PathBuf> {
    let folder = target().join(format!("rust-library-{version}"));
    let library = folder.join("library");
    if library.is_dir() {
        return Ok(library);
    }
    let archive = archive(version);
    println!("unpacking {}", workspace::shown(&archive));
    let mut packed = std::io::BufReader::new(fs::File::open(&archive).with_context(|| {
        format!("no source of `core`: {} is missing, and so is rust-src (rustup component add rust-src)", archive.display())
    })?);
    let mut unpacked = Vec::new();
    lzma_rs::xz_decompress(&mut packed, &mut unpacked).map_err(|error| anyhow::anyhow!("{}: {error:?}", archive.display()))?;
    // Under another name first: a folder of the final name is complete.
    let partial = target().join(format!("rust-library-{version}.partial-{}", std::process::id()));
    tar::Archive::new(unpacked.as_slice()).unpack(&partial).with_context(|| format!("cannot unpack {}", archive.display()))?;
    fs::rename(&partial, &folder).with_context(|| format!("cannot rename {} to {}", partial.display(), folder.display()))?;
    Ok(library)
}
