//! Runs rust-cuda on the kernels: finds what its builder (kernels/rust-cuda/builder) needs, or says what is missing and how to get it.

use crate::toolchain;
use crate::workspace::{output_of, root, run, target};
use anyhow::{Context, Result, bail, ensure};
use std::env;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The glam that rust-cuda's `cuda_std` compiles with; its manifest takes later ones, too.
const GLAM: &str = "0.30.9";

/// Where a CUDA toolkit is looked for, in the order in which rust-cuda does.
const CUDA_VARIABLES: [&str; 4] = ["CUDA_PATH", "CUDA_ROOT", "CUDA_TOOLKIT_ROOT_DIR", "CUDA_HOME"];
const CUDA_FOLDERS: [&str; 3] = ["/usr/lib/cuda", "/usr/local/cuda", "/opt/cuda"];
/// What of it is used: to generate bindings, to link, to compile.
const CUDA_FILES: [&str; 5] =
    ["include/cuda.h", "include/cuda_runtime_api.h", "nvvm/include/nvvm.h", "nvvm/lib64/libnvvm.so", "nvvm/libdevice/libdevice.10.bc"];

fn folder() -> PathBuf {
    root().join("kernels/rust-cuda")
}

/// Each thing that rust-cuda needs, and what was found or how to get it.
pub fn needs() -> [(&'static str, Result<String>); 3] {
    [
        ("rust-cuda: toolchain", toolchain()),
        ("rust-cuda: LLVM 7", llvm_config()),
        ("rust-cuda: CUDA", cuda().map(|path| path.display().to_string())),
    ]
}

/// Compiles the kernels and returns the PTX module as libNVVM wrote it. It stays in `out/raw`, with what says how it was made.
pub fn compile(out: &Path) -> Result<String> {
    let (toolchain, llvm_config, cuda) = match (toolchain(), llvm_config(), cuda()) {
        (Ok(toolchain), Ok(llvm_config), Ok(cuda)) => (toolchain, llvm_config, cuda),
        _ => {
            let missing = needs().into_iter().filter_map(|(what, found)| Some(format!("{what}: {:#}", found.err()?)));
            bail!("rust-cuda needs what is missing here (kernels/rust-cuda/README.md):\n  {}", missing.collect::<Vec<_>>().join("\n  "))
        }
    };
    println!("rust-cuda: {toolchain}, {llvm_config}, {}", cuda.display());
    hold_glam(&toolchain)?;
    let raw = out.join("raw");
    fs::create_dir_all(&raw).with_context(|| format!("cannot make {}", raw.display()))?;
    let module = raw.join("rust_cuda.ptx");
    let mut builder = cargo(&toolchain, "builder");
    builder.args(["run", "--release", "--"]).arg(std::path::absolute(&module)?);
    builder
        .env("LLVM_CONFIG", &llvm_config)
        .env("CUDA_PATH", &cuda)
        // In place of the stub in .cargo/config.toml.
        .env("CUDA_LIBRARY_PATH", cuda.join("lib64"))
        .env("LD_LIBRARY_PATH", library_path(&cuda)?);
    run(&mut builder).context("rust-cuda's builder failed: kernels/rust-cuda/README.md names what its first build needs")?;
    for part in ["kernels", "builder"] {
        let lock = folder().join(part).join("Cargo.lock");
        fs::copy(&lock, raw.join(format!("{part}.Cargo.lock"))).with_context(|| format!("cannot copy {}", lock.display()))?;
    }
    fs::read_to_string(&module).with_context(|| format!("cannot read {}", module.display()))
}

/// cargo of rust-cuda's toolchain in one of its folders. Its target folder must be known by name: the builder looks there for the code
/// generator.
fn cargo(toolchain: &str, part: &str) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(folder().join(part)).env("RUSTUP_TOOLCHAIN", toolchain).env("CARGO_TARGET_DIR", target().join("rust-cuda-build"));
    command
}

/// Writes the glam that compiles into the lock file.
fn hold_glam(toolchain: &str) -> Result<()> {
    let lock = fs::read_to_string(folder().join("kernels/Cargo.lock")).unwrap_or_default();
    if lock.contains(&format!("name = \"glam\"\nversion = \"{GLAM}\"")) {
        return Ok(());
    }
    run(cargo(toolchain, "kernels").args(["update", "glam", "--precise", GLAM])).context("rust-cuda and its dependencies cannot be fetched")
}

/// libNVVM's folder before what is there already: the code generator is linked to it.
fn library_path(cuda: &Path) -> Result<std::ffi::OsString> {
    let old = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::iter::once(cuda.join("nvvm/lib64")).chain(env::split_paths(&old).filter(|folder| !folder.as_os_str().is_empty()));
    Ok(env::join_paths(folders)?)
}

/// The toolchain that kernels/rust-cuda/rust-toolchain.toml pins, if it is installed with its components.
fn toolchain() -> Result<String> {
    let (channel, components) = toolchain::pinned(&folder())?;
    let install = format!("rustup toolchain install {channel} --profile minimal --component {}", components.join(","));
    let installed = rustup(&["toolchain", "list"])?;
    ensure!(installed.lines().any(|line| line.starts_with(&channel)), "{install}");
    let list = rustup(&["component", "list", "--installed", "--toolchain", &channel])?;
    let has = |component: &String| list.lines().any(|line| line.starts_with(component.as_str()));
    ensure!(components.iter().all(has), "{install}");
    Ok(channel)
}

fn rustup(arguments: &[&str]) -> Result<String> {
    let output = output_of(Command::new("rustup").args(arguments)).context("install rustup (rustup.rs)")?;
    ensure!(output.status.success(), "rustup {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// llvm-config of an LLVM 7 that knows NVPTX.
fn llvm_config() -> Result<String> {
    const PLACES: [&str; 4] = ["llvm-config-7", "/opt/llvm-7/bin/llvm-config", "/usr/lib/llvm-7/bin/llvm-config", "llvm-config"];
    let named = env::var("LLVM_CONFIG").ok();
    let places = named.as_deref().map_or(PLACES.to_vec(), |path| vec![path]);
    let ask = |path: &str, question: &str| {
        let output = output_of(Command::new(path).arg(question)).ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let found: Vec<(&str, String)> = places.into_iter().filter_map(|path| Some((path, ask(path, "--version")?))).collect();
    let get = "build LLVM 7.1.0 with the targets NVPTX and the machine's own (kernels/rust-cuda/README.md), and set LLVM_CONFIG to its llvm-config";
    let Some((path, _)) = found.iter().find(|(_, version)| version.starts_with("7.")) else {
        bail!("{get}; found {}", list(found.iter().map(|(path, version)| format!("{path} ({version})"))))
    };
    let targets = ask(path, "--targets-built").unwrap_or_default();
    ensure!(targets.split_whitespace().any(|target| target == "NVPTX"), "{path} was built for {targets}, without NVPTX: {get}");
    // A name without a folder is looked for in PATH, by whoever starts it.
    Ok(if path.contains('/') { std::path::absolute(path)?.display().to_string() } else { (*path).to_owned() })
}

/// The folder of a CUDA toolkit with libNVVM.
fn cuda() -> Result<PathBuf> {
    let named = CUDA_VARIABLES.iter().filter_map(env::var_os).map(PathBuf::from);
    cuda_in(&named.chain(CUDA_FOLDERS.iter().map(PathBuf::from)).collect::<Vec<_>>())
}

fn cuda_in(folders: &[PathBuf]) -> Result<PathBuf> {
    let lacks = |folder: &Path| CUDA_FILES.into_iter().filter(|file| !folder.join(file).exists()).collect::<Vec<_>>();
    if let Some(complete) = folders.iter().find(|folder| lacks(folder).is_empty()) {
        return Ok(std::path::absolute(complete)?);
    }
    let partial = folders
        .iter()
        .filter(|folder| folder.is_dir())
        .map(|folder| format!("{}, which lacks {}", folder.display(), lacks(folder).join(", ")));
    bail!("install a CUDA toolkit, 12 or 13, with libNVVM, and set CUDA_PATH to its folder; found {}", list(partial))
}

fn list(items: impl Iterator<Item = impl Display>) -> String {
    let items: Vec<String> = items.map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pinned_toolchain_has_components() {
        let (channel, components) = toolchain::pinned(&folder()).unwrap();
        assert!(channel.starts_with("nightly-"), "{channel}");
        assert_eq!(components, ["rust-src", "rustc-dev", "llvm-tools"]);
    }

    #[test]
    fn one_revision_of_rust_cuda() {
        let revision = |part: &str| {
            let manifest = fs::read_to_string(folder().join(part).join("Cargo.toml")).unwrap();
            manifest.split_once("rev = \"").and_then(|(_, rest)| rest.split_once('"')).map(|(revision, _)| revision.to_owned())
        };
        assert_eq!(revision("kernels"), revision("builder"));
        assert!(revision("kernels").is_some());
    }

    #[test]
    fn a_toolkit_is_complete_or_says_what_it_lacks() {
        let folder = env::temp_dir().join(format!("xtask-cuda-{}", std::process::id()));
        let error = |folders: &[PathBuf]| format!("{:#}", cuda_in(folders).unwrap_err());
        assert!(error(std::slice::from_ref(&folder)).ends_with("found none"));
        for file in CUDA_FILES {
            fs::create_dir_all(folder.join(file).parent().unwrap()).unwrap();
            fs::write(folder.join(file), "").unwrap();
        }
        assert_eq!(cuda_in(&[PathBuf::from("/nonexistent"), folder.clone()]).unwrap(), folder);
        fs::remove_file(folder.join("nvvm/lib64/libnvvm.so")).unwrap();
        assert!(error(std::slice::from_ref(&folder)).ends_with("which lacks nvvm/lib64/libnvvm.so"));
        fs::remove_dir_all(folder).unwrap();
    }
}
