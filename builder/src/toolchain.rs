//! The cargo and rustc that compile a crate, in an environment that says nothing else.

use crate::error::Error;
use crate::process::{failed, stdout_of};
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The rustc that the project's own kernels are made and tested with.
pub const TESTED_RUSTC: &str = "1.95.0";

/// Variables of cargo that stay: where crates come from, and what cargo writes to the terminal. All others could change what is compiled, or
/// how, and a build script or a program under `cargo run` has many of them.
const KEPT: [&str; 9] = [
    "CARGO_HOME",
    "CARGO_HTTP_",
    "CARGO_NET_",
    "CARGO_REGISTRY_",
    "CARGO_REGISTRIES_",
    "CARGO_SOURCE_",
    "CARGO_RESOLVER_",
    "CARGO_TERM_",
    "CARGO_LOG",
];

/// What cargo tells build scripts, and what users set, that the compilation of the kernels must not see. Of a jobserver's two ends, one may
/// have been closed on the way here.
const REMOVED: [&str; 15] = [
    "RUSTC",
    "RUSTDOC",
    "RUSTC_LINKER",
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "MAKEFLAGS",
    "MFLAGS",
    "OUT_DIR",
    "TARGET",
    "HOST",
    "NUM_JOBS",
    "OPT_LEVEL",
    "PROFILE",
    "DEBUG",
    "RUSTUP_TOOLCHAIN_SOURCE",
];

/// The toolchain of a crate's folder.
#[derive(Clone, Debug)]
pub(crate) struct Toolchain {
    /// Where the programs are started.
    folder: PathBuf,
    /// The name that rustup is told, instead of what the folder and the environment say.
    name: Option<String>,
}

impl Toolchain {
    pub fn of(folder: &Path, name: Option<&str>) -> Self {
        Self { folder: folder.to_path_buf(), name: name.map(str::to_owned) }
    }

    /// `cargo`, to be run in the crate's folder.
    pub fn cargo(&self) -> Command {
        self.command("cargo", "CARGO")
    }

    /// The version of rustc, such as `1.95.0`.
    pub fn rustc_version(&self) -> Result<String, Error> {
        let mut rustc = self.rustc();
        let text = stdout_of(rustc.arg("--version"))?;
        let version = text.split_whitespace().nth(1).map(str::to_owned);
        version.ok_or_else(|| failed(&rustc, format!("names no version: {}", text.trim())))
    }

    /// The toolchain's own library source, if it is installed.
    pub fn rust_src(&self) -> Result<Option<PathBuf>, Error> {
        let sysroot = stdout_of(self.rustc().args(["--print", "sysroot"]))?;
        let library = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
        Ok(library.join("core/src/lib.rs").is_file().then_some(library).filter(|library| library.join("Cargo.lock").is_file()))
    }

    fn rustc(&self) -> Command {
        self.command("rustc", "RUSTC")
    }

    /// `program` from PATH, where rustup's proxy looks at the folder, or else the one that `variable` names: cargo sets it for build scripts.
    fn program(program: &str, variable: &str) -> PathBuf {
        let in_path = env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|folder| folder.join(program).is_file()));
        let named = || env::var_os(variable).map(PathBuf::from).filter(|path| path.is_file());
        if in_path { PathBuf::from(program) } else { named().unwrap_or_else(|| PathBuf::from(program)) }
    }

    /// That program, in the crate's folder and with what may change its result out of the way.
    fn command(&self, program: &str, variable: &str) -> Command {
        let mut command = Command::new(Self::program(program, variable));
        command.current_dir(&self.folder);
        for (name, _) in env::vars_os().filter(|(name, _)| is_removed(name)) {
            command.env_remove(name);
        }
        // These override what the user's configuration says, too; an empty name is none.
        command.env("RUSTC", Self::program("rustc", "RUSTC")).env("RUSTC_WRAPPER", "").env("RUSTC_WORKSPACE_WRAPPER", "");
        match &self.name {
            Some(name) => _ = command.env("RUSTUP_TOOLCHAIN", name),
            // Cargo's own environment holds the toolchain of the folder where cargo was started; this folder may pin another.
            None if pins_a_toolchain(&self.folder) => _ = command.env_remove("RUSTUP_TOOLCHAIN"),
            None => {}
        }
        command
    }
}

fn is_removed(name: &OsStr) -> bool {
    // What is not Unicode is no variable of cargo's.
    let Some(name) = name.to_str() else { return false };
    let of_cargo = name.starts_with("CARGO_") && !KEPT.iter().any(|kept| name.starts_with(kept));
    of_cargo || name == "CARGO" || name.starts_with("__CARGO_") || name.starts_with("DEP_") || REMOVED.contains(&name)
}

/// Whether rustup finds a toolchain file for the folder.
fn pins_a_toolchain(folder: &Path) -> bool {
    folder.ancestors().any(|folder| ["rust-toolchain", "rust-toolchain.toml"].iter().any(|file| folder.join(file).is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_tested_rustc_is_the_pinned_one() {
        let pinned = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../rust-toolchain.toml")).unwrap();
        assert!(pinned.contains(&format!("channel = \"{TESTED_RUSTC}\"")), "{pinned}");
    }

    #[test]
    fn what_would_change_the_result_is_removed() {
        let removed = |name: &str| is_removed(OsStr::new(name));
        for name in [
            "CARGO",
            "CARGO_ENCODED_RUSTFLAGS",
            "CARGO_BUILD_TARGET",
            "CARGO_PROFILE_RELEASE_OPT_LEVEL",
            "CARGO_MAKEFLAGS",
            "CARGO_TARGET_DIR",
            "__CARGO_TESTS_ONLY_SRC_ROOT",
            "RUSTC",
            "RUSTFLAGS",
            "DEP_Z_ROOT",
        ] {
            assert!(removed(name), "{name}");
        }
        for name in ["PATH", "HOME", "CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_REGISTRIES_OWN_TOKEN", "CARGOLIKE", "RUSTUP_HOME"] {
            assert!(!removed(name), "{name}");
        }
    }
}
