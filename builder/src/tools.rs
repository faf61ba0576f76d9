//! NVIDIA's assembler and disassembler: optional, they judge the PTX and are not needed to make it.

use crate::error::Error;
use crate::process::{failed, stdout_of};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// ptxas and nvdisasm of one installation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Assembler {
    /// The assembler.
    pub ptxas: PathBuf,
    /// The disassembler; without it no instructions are counted.
    pub nvdisasm: Option<PathBuf>,
    /// The assembler's release, such as `13.5.37`.
    pub release: String,
}

impl Assembler {
    /// The first installation that has a ptxas, or `None`; [`find_program`] says where it is looked for.
    ///
    /// # Errors
    /// [`Error::Program`] if it does not say its release.
    pub fn find(folders: &[PathBuf]) -> Result<Option<Self>, Error> {
        let Some(ptxas) = find_program("ptxas", folders) else { return Ok(None) };
        let mut command = Command::new(&ptxas);
        let text = stdout_of(command.arg("--version"))?;
        let release = parse_release(&text).ok_or_else(|| failed(&command, format!("names no release: {}", text.trim())))?;
        let beside = ptxas.with_file_name("nvdisasm");
        let nvdisasm = if beside.is_file() { Some(beside) } else { find_program("nvdisasm", folders) };
        Ok(Some(Self { ptxas, nvdisasm, release }))
    }
}

/// The path of one of NVIDIA's programs, from the given folders or Python environments, then `target/tools` of the repository that this crate
/// was compiled in (where `cargo xtask setup` installs them), then `CUDA_HOME`, then `PATH`.
#[must_use]
pub fn find_program(program: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target").join("tools");
    let mut places: Vec<PathBuf> =
        folders.iter().chain([&own]).flat_map(|folder| wheel_folders(folder).into_iter().chain([folder.clone()])).collect();
    places.extend(env::var_os("CUDA_HOME").map(|home| Path::new(&home).join("bin")));
    places.extend(env::var_os("PATH").iter().flat_map(env::split_paths));
    places.into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
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
