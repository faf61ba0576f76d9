//! Runs cargo on the kernel crate for `nvptx64-nvidia-cuda`, without a linker and without touching any toolchain.

use super::Options;
use crate::toolchain;
use crate::workspace::{self, cargo, root, stdout_of, target};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package that holds the kernels.
const PACKAGE: &str = "hopper-attention-kernels";
/// The target that they are compiled for.
const TARGET: &str = "nvptx64-nvidia-cuda";

/// Flags of the device code; part of what makes the committed PTX reproducible.
const RUSTFLAGS: [&str; 4] = [
    "-Ctarget-cpu=sm_90a",
    // PTX 8.3 has fence.proxy.tensormap.
    "-Ctarget-feature=+ptx83",
    // One module, so that everything can be inlined into the entries.
    "-Ccodegen-units=1",
    // All loops over accumulators are unrolled, or they would be arrays in local memory: 1000 is too little for some kernels.
    "-Cllvm-args=-unroll-threshold=20000",
];

/// What rust-cuda's builder passes to rustc beside its code generator: the tool of the attribute `nvvm_internal::kernel`, and how to panic.
const NVVM_RUSTFLAGS: [&str; 4] =
    ["-Zunstable-options", "-Zcrate-attr=feature(register_tool)", "-Zcrate-attr=register_tool(nvvm_internal)", "-Cpanic=immediate-abort"];

/// Compiles the kernels and returns the PTX module as rustc wrote it.
pub fn compile(options: &Options) -> Result<String> {
    let version = toolchain::require_pinned()?;
    let mut command = device_cargo("rustc", &version, options.core, &options.rustflags)?;
    if let Some(features) = &options.features {
        command.args(["--features", features]);
    }
    assembly(&mut command)
}

/// Compiles what rust-cuda compiles, the feature `nvvm`, with a stand-in for its `cuda_std`.
pub fn stand_in(core: toolchain::CoreSource) -> Result<String> {
    let version = toolchain::require_pinned()?;
    let mut command = device_cargo("rustc", &version, core, &NVVM_RUSTFLAGS.map(str::to_owned))?;
    command.arg("--manifest-path").arg(root().join("kernels/rust-cuda/stand-in/Cargo.toml"));
    assembly(&mut command)
}

/// Runs `cargo rustc` and returns the assembly that it leaves.
fn assembly(command: &mut Command) -> Result<String> {
    command.args(["--crate-type", "lib", "--message-format", "json-render-diagnostics", "--", "--emit=asm"]);
    let messages = stdout_of(command).context("the kernels do not compile")?;
    let assembly = assembly_path(&messages).context("cargo named no library of the kernel crate")?;
    fs::read_to_string(&assembly).with_context(|| format!("rustc left no {}", assembly.display()))
}

/// `cargo <subcommand>` on the kernel crate, for the device.
pub fn device_cargo(subcommand: &str, version: &str, core: toolchain::CoreSource, rustflags: &[String]) -> Result<Command> {
    let mut command = cargo();
    if let Some(library) = toolchain::core_source(version, core)? {
        command.env("__CARGO_TESTS_ONLY_SRC_ROOT", library);
    }
    let flags: Vec<&str> = RUSTFLAGS.into_iter().chain(rustflags.iter().map(String::as_str)).collect();
    command
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_DIR", target().join("ptx-build"));
    // Whatever the profiles of the workspace or of the user's configuration say.
    let profile = [
        ("OPT_LEVEL", "3"),
        ("DEBUG", "0"),
        ("DEBUG_ASSERTIONS", "false"),
        ("OVERFLOW_CHECKS", "false"),
        ("LTO", "false"),
        ("PANIC", "abort"),
    ];
    command.envs(profile.map(|(name, value)| (format!("CARGO_PROFILE_RELEASE_{name}"), value)));
    command.args([subcommand, "--package", PACKAGE, "--lib", "--release", "--target", TARGET, "-Zbuild-std=core"]);
    Ok(command)
}

/// The assembly of the kernel crate, beside the metadata that cargo reports.
fn assembly_path(messages: &str) -> Option<PathBuf> {
    let artifacts = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let crate_name = PACKAGE.replace('-', "_");
    let files: Vec<String> = artifacts
        .filter(|message| message["reason"] == "compiler-artifact" && message["target"]["name"] == crate_name.as_str())
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|file| file.as_str().map(str::to_owned))
        .collect();
    let metadata = Path::new(files.iter().find(|file| file.ends_with(".rmeta"))?);
    let stem = metadata.file_stem()?.to_str()?.strip_prefix("lib")?;
    Some(metadata.with_file_name(format!("{stem}.s")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assembly_lies_beside_the_metadata() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"core"},"filenames":["/t/libcore-1.rmeta"]}
{"reason":"compiler-artifact","target":{"name":"hopper_attention_kernels"},"filenames":["/t/libhopper_attention_kernels.rlib","/t/deps/libhopper_attention_kernels-12ab.rmeta"]}
{"reason":"build-finished","success":true}"#;
        assert_eq!(assembly_path(messages), Some(PathBuf::from("/t/deps/hopper_attention_kernels-12ab.s")));
        assert_eq!(assembly_path(""), None);
    }
}
