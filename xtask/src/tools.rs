//! NVIDIA's assembler and disassembler: optional, they judge the PTX and are not needed to make it.

use crate::workspace::{self, target};
use anyhow::{Context, Result};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The release of the tools that host/ptx/resources.txt was recorded with.
pub const RELEASE: &str = "13.5.37";

/// Where `cargo xtask setup` installs them.
pub fn venv() -> PathBuf {
    target().join("tools")
}

/// ptxas and nvdisasm of one installation.
pub struct Tools {
    /// The assembler.
    pub ptxas: PathBuf,
    /// The disassembler; without it no instructions are counted.
    pub nvdisasm: Option<PathBuf>,
    /// The assembler's release, such as `13.5.37`.
    pub release: String,
}

impl Tools {
    /// The first installation that has a ptxas: `cargo xtask setup`'s, CUDA_HOME's, PATH's.
    pub fn find() -> Result<Option<Self>> {
        let Some(ptxas) = find("ptxas") else { return Ok(None) };
        let text = workspace::stdout_of(Command::new(&ptxas).arg("--version"))?;
        let release = parse_release(&text).with_context(|| format!("{} --version wrote {text:?}", ptxas.display()))?;
        let beside = ptxas.with_file_name("nvdisasm");
        let nvdisasm = if beside.is_file() { Some(beside) } else { find("nvdisasm") };
        Ok(Some(Self { ptxas, nvdisasm, release }))
    }
}

/// The path of `program`, from the folders where NVIDIA's tools are looked for.
pub fn find(program: &str) -> Option<PathBuf> {
    folders().into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn folders() -> Vec<PathBuf> {
    let mut folders = wheel_folders(&venv());
    folders.extend(env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin")));
    folders.extend(env::var_os("PATH").iter().flat_map(env::split_paths));
    folders
}

/// NVIDIA's wheels unpack to `lib/python3.*/site-packages/nvidia/cu13/bin` of a virtual environment.
fn wheel_folders(venv: &Path) -> Vec<PathBuf> {
    let pythons = fs::read_dir(venv.join("lib")).into_iter().flatten().flatten();
    pythons.map(|python| python.path().join("site-packages/nvidia/cu13/bin")).filter(|folder| folder.is_dir()).collect()
}

/// `13.5.37` from `Cuda compilation tools, release 13.5, V13.5.37`.
fn parse_release(text: &str) -> Option<String> {
    let version = text.split_once("release ")?.1.split_once(", V")?.1;
    Some(version.lines().next()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn release_of_ptxas() {
        let text = "ptxas: NVIDIA (R) Ptx optimizing assembler\nCuda compilation tools, release 13.5, V13.5.37\nBuild cuda_13.5\n";
        assert_eq!(parse_release(text).as_deref(), Some("13.5.37"));
        assert_eq!(parse_release("something else"), None);
    }
}
