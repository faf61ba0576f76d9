//! Runs cargo on a crate of kernels for `nvptx64-nvidia-cuda`, without a linker and without touching any toolchain.

use crate::core_source::CoreSource;
use crate::entry::{Kernel, finish};
use crate::error::{Error, file};
use crate::process::{failed, output_of};
use crate::toolchain::{TESTED_RUSTC, Toolchain};
use serde_json::Value;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The target that kernels are compiled for.
pub const TARGET: &str = "nvptx64-nvidia-cuda";

/// Flags of the device code; part of what makes PTX reproducible.
const RUSTFLAGS: [&str; 6] = [
    "-Ctarget-cpu=sm_90a",
    // PTX 8.3 has fence.proxy.tensormap.
    "-Ctarget-feature=+ptx83",
    // One module, so that everything can be inlined into the entries.
    "-Ccodegen-units=1",
    // All loops over accumulators are unrolled, or they would be arrays in local memory: 1000 is too little for some kernels.
    "-Cllvm-args=-unroll-threshold=20000",
    // A `match` becomes branches: neither an indirect one, nor a table in global memory. (-Cjump-tables=no says both, from Rust 1.93 on.)
    "-Cllvm-args=-min-jump-table-entries=1000000",
    "-Cllvm-args=-switch-to-lookup=false",
];

/// The release profile, whatever those of the workspace or of the user's configuration say.
const PROFILE: [(&str, &str); 6] =
    [("OPT_LEVEL", "3"), ("DEBUG", "0"), ("DEBUG_ASSERTIONS", "false"), ("OVERFLOW_CHECKS", "false"), ("LTO", "false"), ("PANIC", "abort")];

/// How a crate of kernels is built.
///
/// Its result depends on the crate, what it depends on, and rustc; not on variables of the environment, nor on flags of the user's
/// configuration. It can be used in a build script: the target folder is another one than cargo's own, whose lock cargo holds meanwhile.
#[derive(Clone, Debug)]
pub struct Builder {
    manifest_dir: PathBuf,
    package: Option<String>,
    features: Vec<String>,
    target_dir: Option<PathBuf>,
    core_source: CoreSource,
    toolchain: Option<String>,
    rustflags: Vec<String>,
    made_by: Option<String>,
}

/// What was built.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Built {
    /// The kernels, in the order of their names; at least one.
    pub kernels: Vec<Kernel>,
    /// The version of the rustc that compiled them.
    pub rustc: String,
}

impl Built {
    /// What should be known of the result: that another rustc than [`TESTED_RUSTC`] compiled it, whose PTX nobody may have seen yet.
    #[must_use]
    pub fn warning(&self) -> Option<String> {
        (self.rustc != TESTED_RUSTC)
            .then(|| format!("the kernels are compiled by rustc {}; the project's own are made and tested with {TESTED_RUSTC}", self.rustc))
    }

    /// Writes `<name>.ptx` for each kernel, and makes the folder if need be. A file that holds the text already is left alone, and so are files of other
    /// names.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, folder: impl AsRef<Path>) -> Result<(), Error> {
        let folder = folder.as_ref();
        fs::create_dir_all(folder).map_err(file("make", folder))?;
        self.kernels.iter().try_for_each(|kernel| kernel.write(folder))
    }
}

/// A library of a package, as `cargo metadata` describes it.
struct Package {
    name: String,
    id: String,
    manifest: PathBuf,
    library: String,
    target_dir: PathBuf,
}

impl Builder {
    /// Builds the library of the package whose Cargo.toml lies in `manifest_dir`.
    #[must_use]
    pub fn new(manifest_dir: impl Into<PathBuf>) -> Self {
        Self {
            manifest_dir: manifest_dir.into(),
            package: None,
            features: Vec::new(),
            target_dir: None,
            core_source: CoreSource::Auto,
            toolchain: None,
            rustflags: Vec::new(),
            made_by: None,
        }
    }

    /// Another package of the workspace that the folder belongs to.
    #[must_use]
    pub fn package(mut self, name: impl Into<String>) -> Self {
        self.package = Some(name.into());
        self
    }

    /// Features to turn on, beside the default ones.
    #[must_use]
    pub fn features(mut self, features: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.features = features.into_iter().map(Into::into).collect();
        self
    }

    /// Cargo's target folder. By default `ptx-build` in `OUT_DIR` for a build script, or else in the target folder of the crate's workspace.
    #[must_use]
    pub fn target_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.target_dir = Some(folder.into());
        self
    }

    /// Where the source of `core` comes from.
    #[must_use]
    pub fn core_source(mut self, source: CoreSource) -> Self {
        self.core_source = source;
        self
    }

    /// A toolchain by its name for rustup. By default the one of the crate's folder: what a toolchain file there or above says, or else
    /// `RUSTUP_TOOLCHAIN`, which in a build script is the toolchain that runs it, or else rustup's default.
    #[must_use]
    pub fn toolchain(mut self, name: impl Into<String>) -> Self {
        self.toolchain = Some(name.into());
        self
    }

    /// More flags for rustc, which come last.
    #[must_use]
    pub fn rustflags(mut self, flags: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.rustflags = flags.into_iter().map(Into::into).collect();
        self
    }

    /// What the first line of each text names as its maker, instead of this crate and the package: `// Made by <name>: do not edit.`
    #[must_use]
    pub fn made_by(mut self, name: impl Into<String>) -> Self {
        self.made_by = Some(name.into());
        self
    }

    /// Compiles the crate, and makes a self-contained PTX text of each of its kernels. Cargo's progress and the compiler's warnings go to
    /// stderr.
    ///
    /// # Errors
    /// [`Error::Package`], [`Error::CoreSource`], [`Error::Compile`] and [`Error::Program`] where it does not get as far as PTX;
    /// [`Error::Kernels`] where kernels use local memory, calls, globals or static shared memory, or have no launch bounds;
    /// [`Error::NoKernels`] where there is none.
    pub fn build(&self) -> Result<Built, Error> {
        let package = self.find_package()?;
        let module = self.module_of(&package)?;
        let maker = self.made_by.clone().unwrap_or_else(|| format!("hopper-attention-builder from {}", package.name));
        let kernels = finish(&module, "", &maker)?;
        if kernels.is_empty() {
            return Err(Error::NoKernels { package: package.name });
        }
        Ok(Built { kernels, rustc: self.rustc_version()? })
    }

    /// Compiles the crate, and returns its PTX module as rustc wrote it; [`finish`] makes kernels of it.
    ///
    /// # Errors
    /// As [`Builder::build`], as far as it gets.
    pub fn module(&self) -> Result<String, Error> {
        self.module_of(&self.find_package()?)
    }

    /// `cargo <subcommand>` on the crate's library, as it is compiled for the device: `clippy` or `doc`, for instance.
    ///
    /// # Errors
    /// [`Error::Package`], [`Error::CoreSource`] and [`Error::Program`].
    pub fn cargo(&self, subcommand: &str) -> Result<Command, Error> {
        self.cargo_on(&self.find_package()?, subcommand)
    }

    /// The version of the rustc that compiles the crate.
    ///
    /// # Errors
    /// [`Error::Package`] where there is no folder, [`Error::Program`] where there is no rustc.
    pub fn rustc_version(&self) -> Result<String, Error> {
        self.toolchain_of(&self.folder()?).rustc_version()
    }

    /// The toolchain's own source of `core`, if it is installed.
    ///
    /// # Errors
    /// As [`Builder::rustc_version`].
    pub fn rust_src(&self) -> Result<Option<PathBuf>, Error> {
        self.toolchain_of(&self.folder()?).rust_src()
    }

    fn toolchain_of(&self, folder: &Path) -> Toolchain {
        Toolchain::of(folder, self.toolchain.as_deref())
    }

    fn bad_package(&self, problem: impl Into<String>) -> Error {
        Error::Package { folder: self.manifest_dir.clone(), problem: problem.into() }
    }

    /// The manifest's folder, once it is one.
    fn folder(&self) -> Result<PathBuf, Error> {
        let folder = self.manifest_dir.canonicalize().map_err(|error| self.bad_package(error.to_string()))?;
        if folder.join("Cargo.toml").is_file() { Ok(folder) } else { Err(self.bad_package("the folder holds no Cargo.toml")) }
    }

    fn find_package(&self) -> Result<Package, Error> {
        let folder = self.folder()?;
        let mut command = self.toolchain_of(&folder).cargo();
        if let Some(target_dir) = env::var_os("CARGO_TARGET_DIR") {
            // Cargo would take it from its own folder, and the user meant his.
            command.env("CARGO_TARGET_DIR", std::path::absolute(&target_dir).map_err(file("find", Path::new(&target_dir)))?);
        }
        command.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(folder.join("Cargo.toml"));
        let output = output_of(&mut command)?;
        if !output.status.success() {
            return Err(self.bad_package(String::from_utf8_lossy(&output.stderr).trim()));
        }
        let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|error| failed(&command, error.to_string()))?;
        self.choose(&metadata, &folder).map_err(|problem| self.bad_package(problem))
    }

    /// The package among those of the workspace.
    fn choose(&self, metadata: &Value, folder: &Path) -> Result<Package, String> {
        let packages = metadata["packages"].as_array().map_or(&[] as &[Value], Vec::as_slice);
        let is_here = |package: &&Value| {
            let manifest = Path::new(package["manifest_path"].as_str().unwrap_or_default());
            // Cargo may have come here by a link.
            manifest.parent().and_then(|parent| parent.canonicalize().ok()).is_some_and(|parent| parent == folder)
        };
        let found = match &self.package {
            Some(name) => packages.iter().find(|package| package["name"] == name.as_str()),
            None => packages.iter().find(is_here),
        };
        let names = || packages.iter().filter_map(|package| package["name"].as_str()).collect::<Vec<_>>().join(", ");
        let package = found.ok_or_else(|| match &self.package {
            Some(name) => format!("the workspace has no package {name}; it has {}", names()),
            None => format!("Cargo.toml describes a workspace and no package; name one of {}", names()),
        })?;
        let text = |value: &Value| value.as_str().map(str::to_owned).ok_or("`cargo metadata` leaves out what was expected");
        let name = text(&package["name"])?;
        let is_library = |target: &&Value| {
            let kinds = target["kind"].as_array().map_or(&[] as &[Value], Vec::as_slice);
            kinds.iter().any(|kind| ["lib", "rlib", "dylib", "cdylib", "staticlib"].iter().any(|library| kind == library))
        };
        let library = package["targets"].as_array().and_then(|targets| targets.iter().find(is_library));
        let library = library.ok_or_else(|| format!("the package {name} has no library (src/lib.rs), and kernels belong there"))?;
        Ok(Package {
            name,
            id: text(&package["id"])?,
            manifest: text(&package["manifest_path"])?.into(),
            library: text(&library["name"])?,
            target_dir: text(&metadata["target_directory"])?.into(),
        })
    }

    fn cargo_on(&self, package: &Package, subcommand: &str) -> Result<Command, Error> {
        let folder = self.folder()?;
        let toolchain = self.toolchain_of(&folder);
        let target_dir = match (&self.target_dir, env::var_os("OUT_DIR")) {
            (Some(folder), _) => std::path::absolute(folder).map_err(file("find", folder))?,
            (None, Some(folder)) => Path::new(&folder).join("ptx-build"),
            (None, None) => package.target_dir.join("ptx-build"),
        };
        let mut command = toolchain.cargo();
        if let Some(library) = self.core_source.locate(&toolchain, &toolchain.rustc_version()?, &target_dir)? {
            command.env("__CARGO_TESTS_ONLY_SRC_ROOT", library);
        }
        let flags: Vec<&str> = RUSTFLAGS.into_iter().chain(self.rustflags.iter().map(String::as_str)).collect();
        command
            .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
            .env("RUSTC_BOOTSTRAP", "1")
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_TARGET_DIR", &target_dir)
            // Where the user's configuration sets it apart from the target folder.
            .env("CARGO_BUILD_BUILD_DIR", &target_dir)
            .envs(PROFILE.map(|(name, value)| (format!("CARGO_PROFILE_RELEASE_{name}"), value)));
        command.args([subcommand, "--manifest-path"]).arg(&package.manifest);
        command.args(["--package", &package.name, "--lib", "--release", "--target", TARGET, "-Zbuild-std=core"]);
        if !self.features.is_empty() {
            command.args(["--features", &self.features.join(",")]);
        }
        Ok(command)
    }

    fn module_of(&self, package: &Package) -> Result<String, Error> {
        let mut command = self.cargo_on(package, "rustc")?;
        command.args(["--crate-type", "lib", "--message-format", "json", "--", "--emit=asm"]);
        let output = output_of(command.stderr(Stdio::inherit()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let (errors, others) = diagnostics(&messages);
        eprint!("{others}");
        if !output.status.success() {
            let messages = if errors.is_empty() { format!("cargo: {} (its reason is above)", output.status) } else { errors };
            return Err(Error::Compile { package: package.name.clone(), messages: messages.trim_end().to_owned() });
        }
        let assembly = assembly_path(&messages, package);
        let assembly = assembly.ok_or_else(|| failed(&command, format!("named no library of {}", package.name)))?;
        fs::read_to_string(&assembly).map_err(file("read", &assembly))
    }
}

/// What the compiler says of our own flags in each crate, and nobody can act on.
const OF_OUR_FLAGS: &str = "unstable feature specified for `-Ctarget-feature`: `ptx83`";

/// The compiler's errors and its other messages, as it would print them.
fn diagnostics(messages: &[Value]) -> (String, String) {
    let (mut errors, mut others) = (String::new(), String::new());
    for message in messages.iter().filter(|message| message["reason"] == "compiler-message").map(|message| &message["message"]) {
        if message["message"] == OF_OUR_FLAGS {
            continue;
        }
        let is_error = message["level"].as_str().is_some_and(|level| level.starts_with("error"));
        let text = if is_error { &mut errors } else { &mut others };
        text.push_str(message["rendered"].as_str().unwrap_or_default());
    }
    (errors, others)
}

/// The assembly of the package's library, beside the metadata that cargo reports.
fn assembly_path(messages: &[Value], package: &Package) -> Option<PathBuf> {
    let files: Vec<&str> = messages
        .iter()
        .filter(|message| message["reason"] == "compiler-artifact" && message["package_id"] == package.id.as_str())
        .filter(|message| message["target"]["name"] == package.library.as_str())
        .flat_map(|message| message["filenames"].as_array().map_or(&[] as &[Value], Vec::as_slice))
        .filter_map(Value::as_str)
        .collect();
    let metadata = Path::new(files.iter().find(|file| file.ends_with(".rmeta"))?);
    let stem = metadata.file_stem()?.to_str()?.strip_prefix("lib")?;
    Some(metadata.with_file_name(format!("{stem}.s")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package() -> Package {
        let path = PathBuf::from("/w");
        Package {
            name: "some-kernels".into(),
            id: "path+file:///w#1".into(),
            manifest: path.clone(),
            library: "k".into(),
            target_dir: path,
        }
    }

    #[test]
    fn assembly_lies_beside_the_metadata() {
        let messages = [
            json!({"reason": "compiler-artifact", "package_id": "core", "target": {"name": "core"}, "filenames": ["/t/libcore-1.rmeta"]}),
            json!({"reason": "compiler-artifact", "package_id": "path+file:///w#1", "target": {"name": "build-script-build"}, "filenames": ["/t/b.rmeta"]}),
            json!({"reason": "compiler-artifact", "package_id": "path+file:///w#1", "target": {"name": "k"}, "filenames": ["/t/libk.rlib", "/t/deps/libk-12ab.rmeta"]}),
            json!({"reason": "build-finished", "success": true}),
        ];
        assert_eq!(assembly_path(&messages, &package()), Some(PathBuf::from("/t/deps/k-12ab.s")));
        assert_eq!(assembly_path(&[], &package()), None);
    }

    #[test]
    fn errors_are_told_from_warnings() {
        let message = |level: &str| json!({"reason": "compiler-message", "message": {"level": level, "rendered": format!("{level}!\n")}});
        let ours = json!({"reason": "compiler-message", "message": {"level": "warning", "message": OF_OUR_FLAGS, "rendered": "ours"}});
        let messages = [message("warning"), ours, message("error"), message("error: internal compiler error"), message("failure-note")];
        let expected = ("error!\nerror: internal compiler error!\n".to_owned(), "warning!\nfailure-note!\n".to_owned());
        assert_eq!(diagnostics(&messages), expected);
    }

    #[test]
    fn the_package_is_chosen_and_has_a_library() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
        let target = |kind: &str| json!({"name": "k", "kind": [kind]});
        let packages = |manifest: &Path, kind| json!({"target_directory": "/t", "packages": [{"name": "some-kernels", "id": "1", "manifest_path": manifest, "targets": [target(kind)]}]});
        let here = folder.join("Cargo.toml");
        let builder = Builder::new(&folder);
        assert_eq!(builder.choose(&packages(&here, "cdylib"), &folder).map(|package| package.library).unwrap(), "k");
        let error = |builder: &Builder, metadata| builder.choose(&metadata, &folder).err().unwrap();
        assert!(error(&builder, packages(&here, "bin")).contains("some-kernels has no library"));
        assert!(error(&builder, packages(Path::new("/Cargo.toml"), "lib")).ends_with("name one of some-kernels"));
        assert!(error(&builder.clone().package("other"), packages(&here, "lib")).ends_with("no package other; it has some-kernels"));
        assert!(builder.package("some-kernels").choose(&packages(Path::new("/Cargo.toml"), "lib"), &folder).is_ok());
    }

    #[test]
    fn without_a_manifest_nothing_is_built() {
        for (folder, words) in [("/nonexistent", "No such file"), (concat!(env!("CARGO_MANIFEST_DIR"), "/src"), "holds no Cargo.toml")] {
            let error = Builder::new(folder).build().unwrap_err();
            assert!(matches!(error, Error::Package { .. }), "{error:?}");
            assert!(error.to_string().contains(words) && error.to_string().contains(folder), "{error}");
        }
    }

    #[test]
    fn another_rustc_is_worth_a_warning() {
        let built = |rustc: &str| Built { kernels: Vec::new(), rustc: rustc.to_owned() };
        assert_eq!(built(TESTED_RUSTC).warning(), None);
        assert!(built("1.0.0").warning().unwrap().contains("rustc 1.0.0"));
    }
}
