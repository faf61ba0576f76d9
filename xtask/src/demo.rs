//! `cargo xtask demo`: attention on activations of a real model.

use anyhow::Result;

/// Runs the command.
pub fn run() -> Result<()> {
    anyhow::bail!("the command line is not there yet")
}
