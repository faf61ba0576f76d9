//! The project's own kernels, as the crate builder compiles them.

use crate::toolchain::{self, CoreSource};
use crate::workspace::{self, root, target};
use anyhow::{Context, Result, bail};
use hopper_attention_builder::Builder;
use std::fs;
use std::path::{Path, PathBuf};

/// What the committed files name as their maker.
pub const MADE_BY: &str = "`cargo xtask ptx` from kernels/";

/// What rust-cuda's builder passes to rustc beside its code generator: the tool of the attribute `nvvm_internal::kernel`, and how to panic.
const NVVM_RUSTFLAGS: [&str; 4] =
    ["-Zunstable-options", "-Zcrate-attr=feature(register_tool)", "-Zcrate-attr=register_tool(nvvm_internal)", "-Cpanic=immediate-abort"];

/// Builds the kernel crate with the pinned rustc.
///
/// # Errors
/// Another rustc is in use.
pub fn builder(core: CoreSource) -> Result<Builder> {
    builder_of("kernels", core)
}

/// Builds the kernels of the device tests, as `tests/build.rs` does.
///
/// # Errors
/// As [`builder`].
pub fn test_kernels(core: CoreSource) -> Result<Builder> {
    builder_of("tests/kernels", core)
}

/// Builds the kernels of examples/document-mask, those of the benchmark among them.
///
/// # Errors
/// As [`builder`].
pub fn benchmark_kernels(core: CoreSource) -> Result<Builder> {
    Ok(builder_of("examples/document-mask/kernels", core)?.features(["benchmark"]))
}

/// Builds what rust-cuda compiles, the feature `nvvm`, with a stand-in for its `cuda_std`.
///
/// # Errors
/// As [`builder`].
pub fn stand_in(core: CoreSource) -> Result<Builder> {
    // By name: the folder belongs to rust-cuda's toolchain.
    Ok(builder_of("kernels/rust-cuda/stand-in", core)?.rustflags(NVVM_RUSTFLAGS).toolchain(toolchain::pinned_version()?))
}

fn builder_of(folder: &str, core: CoreSource) -> Result<Builder> {
    let version = toolchain::require_pinned()?;
    Ok(Builder::new(root().join(folder)).target_dir(scratch()).core_source(core.of(&version)))
}

/// Cargo's target folder for the device; what is assembled lies there, too.
pub fn scratch() -> PathBuf {
    target().join("ptx-build")
}

/// Where committed PTX lies.
pub fn committed() -> PathBuf {
    root().join("host/ptx")
}

/// Reads a module that another compiler wrote.
pub fn read(path: &Path) -> Result<String> {
    if !path.is_file() {
        bail!("{} is no file", workspace::shown(path));
    }
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
