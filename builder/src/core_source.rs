//! Where the source of `core` comes from: no prebuilt `core` for nvptx64 is used.

use crate::error::{Error, file};
use crate::toolchain::Toolchain;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the source of `core` comes from. It has to be that of the rustc in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CoreSource {
    /// The toolchain's rust-src, or else the archive that comes with this crate's repository ([`core_archive`]).
    #[default]
    Auto,
    /// The toolchain's rust-src.
    Toolchain,
    /// An archive `NAME.tar.xz` of the folder `library` of Rust's sources.
    Archive(PathBuf),
    /// A folder `library` of Rust's sources.
    Folder(PathBuf),
}

/// The archive in the repository that this crate was compiled in, whether it is there or not.
#[must_use]
pub fn core_archive(rustc_version: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(""));
    repository.join(format!("third_party/rust-library-{rustc_version}.tar.xz"))
}

impl CoreSource {
    /// The folder to hand to cargo as the library's source, or `None` where cargo finds the toolchain's own. Archives are unpacked to `scratch`.
    pub(crate) fn locate(&self, toolchain: &Toolchain, version: &str, scratch: &Path) -> Result<Option<PathBuf>, Error> {
        let missing = |problem: String| Error::CoreSource { rustc: version.to_owned(), problem };
        match self {
            Self::Auto | Self::Toolchain if toolchain.rust_src()?.is_some() => Ok(None),
            Self::Toolchain => Err(missing(format!("this toolchain has no rust-src: rustup component add rust-src --toolchain {version}"))),
            Self::Auto => match core_archive(version) {
                archive if archive.is_file() => unpack(&archive, scratch).map(Some),
                archive => Err(missing(format!(
                    "this toolchain has no rust-src (rustup component add rust-src --toolchain {version}), and {} is missing",
                    archive.display()
                ))),
            },
            Self::Archive(archive) if archive.is_file() => unpack(archive, scratch).map(Some),
            Self::Archive(archive) => Err(missing(format!("{} is no file", archive.display()))),
            Self::Folder(folder) if folder.join("core/src/lib.rs").is_file() => {
                std::path::absolute(folder).map(Some).map_err(file("find", folder))
            }
            Self::Folder(folder) => Err(missing(format!("{} holds no core/src/lib.rs", folder.display()))),
        }
    }
}

/// A workspace of `core` and what cargo builds with it; cargo asks for these features of `sysroot`.
const WORKSPACE: &str = "[workspace]\nresolver = \"1\"\nmembers = [\"sysroot\"]\n";
const SYSROOT: &str = r#"[package]
name = "sysroot"
version = "0.0.0"
edition = "2024"

[dependencies]
core = { path = "../core" }
compiler_builtins = { path = "../compiler-builtins/compiler-builtins", features = ["rustc-dep-of-std"] }

[features]
default = []
backtrace = []
panic-unwind = []
"#;

/// Makes unpacked sources those of `core` alone: cargo looks up all that `std` depends on, and without a network may know none of it.
fn leave_out_std(library: &Path) -> Result<(), Error> {
    let expected = ["Cargo.toml", "core/Cargo.toml", "sysroot/Cargo.toml", "compiler-builtins/compiler-builtins/Cargo.toml"];
    // Another version's sources may lie otherwise, and then remain as they are.
    if expected.iter().all(|manifest| library.join(manifest).is_file()) {
        for (manifest, text) in [("Cargo.toml", WORKSPACE), ("sysroot/Cargo.toml", SYSROOT)] {
            let path = library.join(manifest);
            fs::write(&path, text).map_err(file("write", &path))?;
        }
    }
    Ok(())
}

fn unpack(archive: &Path, scratch: &Path) -> Result<PathBuf, Error> {
    let name = archive.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let folder = scratch.join(name.strip_suffix(".tar.xz").unwrap_or(&name));
    let library = folder.join("library");
    if library.is_dir() {
        return Ok(library);
    }
    fs::create_dir_all(scratch).map_err(file("make", scratch))?;
    let mut packed = BufReader::new(fs::File::open(archive).map_err(file("read", archive))?);
    let mut unpacked = Vec::new();
    let broken = |error| Error::File { action: "unpack", path: archive.to_path_buf(), problem: error };
    lzma_rs::xz_decompress(&mut packed, &mut unpacked).map_err(|error| broken(std::io::Error::other(format!("{error:?}"))))?;
    // Under a name of its own first: a folder of the final name is complete.
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let partial = scratch.join(format!("{name}.partial-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed)));
    tar::Archive::new(unpacked.as_slice()).unpack(&partial).map_err(broken)?;
    leave_out_std(&partial.join("library"))?;
    match fs::rename(&partial, &folder) {
        // Somebody else has unpacked it meanwhile.
        Err(_) if library.is_dir() => _ = fs::remove_dir_all(&partial),
        result => result.map_err(file("rename", &partial))?,
    }
    if library.is_dir() { Ok(library) } else { Err(broken(std::io::Error::other("it holds no folder `library`"))) }
}
