//! Every file of `tests/ptx`: those of `pass` compute what they say, those of `fail` are reported as they say.
//!
//! `HOPPER_CONFORMANCE_DRIVER=libcuda.so.1` runs the files of `pass` through a real driver instead.

use std::path::{Path, PathBuf};

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

fn main() {
    let mut arguments = Arguments::from_args();
    // One launch at a time: seeds and reports are the driver's.
    arguments.test_threads = Some(1);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/ptx");
    let real = std::env::var_os("HOPPER_CONFORMANCE_DRIVER").is_some();
    let mut trials = Vec::new();
    for kind in ["pass", "fail"] {
        for file in files(&root.join(kind)) {
            let name = format!("{kind}/{}", file.file_stem().unwrap_or_default().to_string_lossy());
            let trial = Trial::test(name, move || {
                let source = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
                match check(&link()?, &source) {
                    Verdict::Agrees => Ok(()),
                    Verdict::Differs(message) => Err(Failed::from(message)),
                }
            });
            // A fault that the emulator finds may pass unseen, or hang, on a device.
            trials.push(trial.with_ignored_flag(real && kind == "fail"));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
