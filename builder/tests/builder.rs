//! Crates outside of the workspace, built as users build theirs.
//!
//! `core` is compiled once for all of them, from the archive in third_party, which a machine without rust-src has to do with.

use hopper_attention_builder::{Builder, CoreSource, Error, TESTED_RUSTC, core_archive};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A kernel that stores its launch's argument: `ret` alone would do for the text, and show less.
const KERNEL: &str = r#"
#[unsafe(no_mangle)]
pub unsafe extern "ptx-kernel" fn store(place: *mut u32, value: u32) {
    // SAFETY: the place is the launch's.
    unsafe {
        core::arch::asm!("// launch_bounds {}", const 128, options(nomem, nostack));
        *place = value;
    }
}
"#;

/// A folder for crates, outside of the workspace, that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("hopper-attention-builder-{test}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    /// Writes a crate without dependencies, and returns its folder.
    fn kernels(&self, name: &str, source: &str) -> PathBuf {
        let folder = self.0.join(name);
        fs::create_dir_all(folder.join("src")).unwrap();
        fs::write(folder.join("Cargo.toml"), format!("[package]\nname = \"{name}\"\nedition = \"2024\"\n")).unwrap();
        let head = "#![no_std]\n#![feature(abi_ptx, asm_experimental_arch)]\n";
        fs::write(folder.join("src/lib.rs"), format!("{head}{source}")).unwrap();
        folder
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Cargo's folder for all tests: it stays, with `core` in it.
fn target_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("ptx-build")
}

fn builder(folder: impl Into<PathBuf>) -> Builder {
    Builder::new(folder).core_source(CoreSource::Archive(core_archive(TESTED_RUSTC))).target_dir(target_dir())
}

#[test]
fn a_crate_elsewhere() {
    let scratch = Scratch::new("elsewhere");
    let built = builder(scratch.kernels("elsewhere", KERNEL)).build().unwrap();
    assert_eq!((built.rustc.as_str(), built.warning()), (TESTED_RUSTC, None));
    let [kernel] = built.kernels.as_slice() else { panic!("one kernel: {:?}", built.kernels) };
    assert_eq!(kernel.name, "store");
    let header = "// Made by hopper-attention-builder from elsewhere: do not edit.\n.version 8.3\n.target sm_90a\n.address_size 64\n\n.visible .entry store(\n";
    assert!(kernel.ptx.starts_with(header), "{}", kernel.ptx);
    for part in ["\n.maxntid 128, 1, 1\n.minnctapersm 1\n{\n", "st.global", "\tret;\n}\n"] {
        assert!(kernel.ptx.contains(part), "{part}: {}", kernel.ptx);
    }
    let out = scratch.0.join("out/ptx");
    built.write(&out).unwrap();
    let written = out.join("store.ptx");
    assert_eq!(fs::read_to_string(&written).unwrap(), kernel.ptx);
    // What is there already keeps its date.
    let date = || fs::metadata(&written).unwrap().modified().unwrap();
    let before = date();
    built.write(&out).unwrap();
    assert_eq!(date(), before);
}

/// Features turned on, the library under a name of its own, the maker named; flags reach cargo, behind ours.
#[test]
fn options() {
    let scratch = Scratch::new("options");
    let source = KERNEL.replace("value;", "value.wrapping_mul(factor());")
        + "#[cfg(feature = \"three\")]\nfn factor() -> u32 {\n    3\n}\n#[cfg(feature = \"five\")]\nfn factor() -> u32 {\n    5\n}\n";
    let folder = scratch.kernels("options", &source);
    let manifest = "[package]\nname = \"options\"\nedition = \"2024\"\n[lib]\nname = \"other\"\n[features]\nthree = []\nfive = []\n";
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    let text = |feature: &str| builder(&folder).features([feature]).made_by("a test").build().unwrap().kernels.remove(0).ptx;
    let (three, five) = (text("three"), text("five"));
    assert!(three.starts_with("// Made by a test: do not edit.\n"), "{three}");
    assert!(three.contains(", 3;") && !three.contains("call"), "{three}");
    assert!(five.contains(", 5;"), "{five}");
    let command = builder(&folder).rustflags(["--cfg", "some_flag"]).cargo("rustc").unwrap();
    let (_, flags) = command.get_envs().find(|(name, _)| *name == "CARGO_ENCODED_RUSTFLAGS").unwrap();
    let flags = flags.unwrap().to_str().unwrap();
    assert!(flags.starts_with("-Ctarget-cpu=sm_90a\x1f") && flags.ends_with("\x1f--cfg\x1fsome_flag"), "{flags}");
}

#[test]
fn what_is_wrong_is_named() {
    let scratch = Scratch::new("wrong");
    let error = |name: &str, source: &str| builder(scratch.kernels(name, source)).build().unwrap_err();

    let broken = error("broken", "pub fn f() -> u32 { true }\n");
    assert!(matches!(&broken, Error::Compile { package, .. } if package == "broken"), "{broken:?}");
    assert!(broken.to_string().contains("mismatched types"), "{broken}");

    let none = error("none", "pub fn f() {}\n");
    assert!(matches!(&none, Error::NoKernels { package, .. } if package == "none"), "{none:?}");

    let unbounded = error("unbounded", &KERNEL.replace("launch_bounds", "bounds"));
    assert!(matches!(&unbounded, Error::Kernels { refused, total: 1, .. } if refused[0].kernel == "store"), "{unbounded:?}");
    assert!(unbounded.to_string().contains("no launch bounds"), "{unbounded}");

    let outside = error("outside", &(KERNEL.replace("value;", "f(value);") + "#[inline(never)]\nfn f(x: u32) -> u32 { x ^ 1 }\n"));
    assert!(matches!(&outside, Error::Kernels { .. }) && outside.to_string().contains("not inlined"), "{outside}");

    let core = builder(scratch.kernels("core_source", KERNEL)).core_source(CoreSource::Folder(scratch.0.clone())).build().unwrap_err();
    assert!(matches!(&core, Error::CoreSource { rustc, .. } if rustc == TESTED_RUSTC), "{core:?}");
}

#[test]
fn folders_without_a_library() {
    let scratch = Scratch::new("folders");
    let refused = |folder: &Path, words: &str| {
        let error = builder(folder).build().unwrap_err();
        assert!(matches!(&error, Error::Package { folder: of, .. } if of == folder), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
    };
    refused(&scratch.0, "no Cargo.toml");
    refused(&scratch.0.join("nowhere"), "No such file");
    let folder = scratch.kernels("odd", "");
    fs::rename(folder.join("src/lib.rs"), folder.join("src/main.rs")).unwrap();
    refused(&folder, "the package odd has no library");
    fs::write(folder.join("Cargo.toml"), "[workspace]\n").unwrap();
    refused(&folder, "describes a workspace");
    fs::write(folder.join("Cargo.toml"), "[package]\nname = 7\n").unwrap();
    refused(&folder, "invalid type");
}

/// The command, in an environment in which all is set that cargo sets for a build script, and what users set, to values that would do harm.
#[test]
fn the_environment_changes_nothing() {
    let scratch = Scratch::new("environment");
    let folder = scratch.kernels("environment", KERNEL);
    let expected = builder(&folder).build().unwrap().kernels.remove(0).ptx;
    // A user's configuration: a wrapper that does not exist, a build folder apart, other flags, another profile.
    fs::create_dir(folder.join(".cargo")).unwrap();
    let configuration = "[build]\nrustc-wrapper = \"/nonexistent\"\nbuild-dir = \"{workspace-root}/elsewhere\"\nrustflags = [\"-Copt-level=0\"]\n[profile.release]\nopt-level = 0\ndebug = 2\nincremental = true\noverflow-checks = true\n";
    fs::write(folder.join(".cargo/config.toml"), configuration).unwrap();
    // So that the crate is compiled again.
    fs::write(folder.join("src/lib.rs"), fs::read_to_string(folder.join("src/lib.rs")).unwrap() + "// Changed.\n").unwrap();
    // Cargo knows no crate of any registry, and must not ask.
    let home = scratch.0.join("home");
    let harm = [
        ("CARGO", "/nonexistent"),
        ("CARGO_BUILD_BUILD_DIR", "/nonexistent"),
        ("CARGO_BUILD_TARGET", "/nonexistent"),
        ("CARGO_ENCODED_RUSTFLAGS", "-Cnonsense"),
        ("CARGO_INCREMENTAL", "1"),
        ("CARGO_MAKEFLAGS", "-j --jobserver-fds=98,99 --jobserver-auth=98,99"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "0"),
        ("CARGO_PROFILE_RELEASE_LTO", "nonsense"),
        ("CARGO_TARGET_DIR", "/nonexistent"),
        ("CARGO_UNSTABLE_BUILD_STD", "nonsense"),
        ("MAKEFLAGS", "-j --jobserver-auth=98,99"),
        ("RUSTC", "/nonexistent"),
        ("RUSTC_BOOTSTRAP", "0"),
        ("RUSTC_WORKSPACE_WRAPPER", "/nonexistent"),
        ("RUSTC_WRAPPER", "/nonexistent"),
        ("RUSTFLAGS", "-Cnonsense"),
        ("TARGET", "nonsense"),
        ("__CARGO_TESTS_ONLY_SRC_ROOT", "/nonexistent"),
    ];
    let incremental = target_dir().join("nvptx64-nvidia-cuda/release/incremental");
    // What an earlier run may have left.
    let _ = fs::remove_dir_all(&incremental);
    let out = scratch.0.join("out");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hopper-attention-build"));
    command.arg(&folder).arg("--out").arg(&out).arg("--target-dir").arg(target_dir()).arg("--core").arg(core_archive(TESTED_RUSTC));
    // With another home rustup's proxies would not find their toolchains.
    let rustup = std::env::var_os("RUSTUP_HOME").or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".rustup").into()));
    command.envs(rustup.map(|folder| ("RUSTUP_HOME", folder))).env("CARGO_HOME", &home).env("CARGO_NET_OFFLINE", "true");
    let output = command.envs(harm).output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.contains("\n1 kernels, 1 KiB\n") && stdout.contains(&format!("wrote 1 kernels to {}", out.display())), "{stdout}");
    assert_eq!(fs::read_to_string(out.join("store.ptx")).unwrap(), expected);
    assert!(!folder.join("elsewhere").exists());
    assert!(!fs::read_dir(&incremental).is_ok_and(|mut entries| entries.next().is_some()));
    assert!(!Path::new("/nonexistent").exists());
}
