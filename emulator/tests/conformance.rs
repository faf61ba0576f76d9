//! Every file of `tests/ptx`: those of `pass` compute what they say, those of `fail` are reported as they say.
//!
//! `HOPPER_CONFORMANCE_DRIVER=libcuda.so.1` runs the files of `pass` through a real driver instead, each in a process of its own: a device's
//! error stays with the process. `HOPPER_CONFORMANCE_FILES` names another folder than `tests/ptx`, which is also looked for under the
//! current directory, so that the binary runs where nothing was built.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};

use hopper_attention_emulator::harness::{Link, Verdict, check};
use libtest_mimic::{Arguments, Failed, Trial};

fn link() -> Result<Link, String> {
    let Some(path) = std::env::var_os("HOPPER_CONFORMANCE_DRIVER") else { return Ok(Link::emulator()) };
    // SAFETY: the library named by the environment is the user's to answer for.
    let library = unsafe { libloading::Library::new(path) }.map_err(|error| error.to_string())?;
    let library = Box::leak(Box::new(library));
    Link::new(|name| {
        // SAFETY: only the address is taken.
        let symbol = unsafe { library.get::<*mut std::ffi::c_void>(name.as_bytes()) }.ok()?;
        Some(*symbol as usize)
    })
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.extension().is_some_and(|e| e == "ptx")).collect();
    files.sort();
    files
}

fn folder() -> PathBuf {
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/ptx");
    match std::env::var_os("HOPPER_CONFORMANCE_FILES") {
        Some(named) => named.into(),
        None if built.is_dir() => built,
        None => "tests/ptx".into(),
    }
}

fn check_file(file: &Path) -> Result<(), String> {
    let source = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    match check(&link()?, &source) {
        Verdict::Agrees => Ok(()),
        Verdict::Differs(message) => Err(message),
    }
}

/// Set for the process of one file.
const ONE_FILE: &str = "HOPPER_CONFORMANCE_ONE_FILE";

fn check_in_process(file: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program).env(ONE_FILE, file).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn main() {
    if let Some(file) = std::env::var_os(ONE_FILE) {
        if let Err(message) = check_file(Path::new(&file)) {
            eprintln!("{message}");
            exit(1);
        }
        return;
    }
    let mut arguments = Arguments::from_args();
    // One launch at a time: seeds and reports are the driver's.
    arguments.test_threads = Some(1);
    let root = folder();
    let real = std::env::var_os("HOPPER_CONFORMANCE_DRIVER").is_some();
    let mut trials = Vec::new();
    for kind in ["pass", "fail"] {
        for file in files(&root.join(kind)) {
            let name = format!("{kind}/{}", file.file_stem().unwrap_or_default().to_string_lossy());
            let run = if real { check_in_process } else { check_file };
            let trial = Trial::test(name, move || run(&file).map_err(Failed::from));
            // A fault that the emulator finds may pass unseen, or hang, on a device.
            trials.push(trial.with_ignored_flag(real && kind == "fail"));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
