//! NVIDIA's tools, as this repository uses them: which release, and where `cargo xtask setup` installs it.

use crate::workspace::target;
use anyhow::Result;
use hopper_attention_builder::{Assembler, find_program};
use std::path::PathBuf;

/// The release of the tools that host/ptx/resources.txt was recorded with.
pub const RELEASE: &str = "13.5.37";

/// Where `cargo xtask setup` installs them.
pub fn venv() -> PathBuf {
    target().join("tools")
}

/// The first installation that has a ptxas: `cargo xtask setup`'s, CUDA_HOME's, PATH's.
pub fn assembler() -> Result<Option<Assembler>> {
    Ok(Assembler::find(&[venv()])?)
}

/// The path of `program`, looked for in the same places.
pub fn find(program: &str) -> Option<PathBuf> {
    find_program(program, &[venv()])
}
