//! `cargo xtask setup`: the optional tools, into target/tools.

use crate::tools::{self, RELEASE};
use crate::workspace::{run as run_command, shown};
use anyhow::{Context, Result};
use std::process::Command;

/// NVIDIA's wheels: ptxas, cuobjdump, nvdisasm.
const PACKAGES: [&str; 3] = ["nvidia-cuda-nvcc", "nvidia-cuda-cuobjdump", "nvidia-cuda-nvdisasm"];

/// Runs the command.
pub fn run() -> Result<()> {
    let venv = tools::venv();
    if is_complete() {
        println!("ptxas {RELEASE} and its companions are in {}", shown(&venv));
        return Ok(());
    }
    println!("installing NVIDIA's assembler and disassembler {RELEASE} to {}", shown(&venv));
    run_command(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv))
        .context("python3 cannot make a virtual environment (Debian and Ubuntu: apt-get install python3-venv)")?;
    let pinned = PACKAGES.map(|package| format!("{package}=={RELEASE}"));
    // Without their dependencies: the compiler itself is not wanted.
    run_command(
        Command::new(venv.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(pinned),
    )
    .context("pip cannot install NVIDIA's tools")?;
    println!("done");
    Ok(())
}

fn is_complete() -> bool {
    let venv = tools::venv();
    ["ptxas", "cuobjdump", "nvdisasm"].iter().all(|program| tools::find(program).is_some_and(|path| path.starts_with(&venv)))
}
