//! A driver that a test scripts: every failure of a driver and a device, on any machine.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::Library;

/// The scripted driver, held by one test at a time. It starts out as a healthy H100 with one context.
pub struct Script {
    library: &'static Library,
    _alone: MutexGuard<'static, ()>,
}

impl Script {
    pub fn start() -> Self {
        static LIBRARY: OnceLock<Library> = OnceLock::new();
        static ALONE: Mutex<()> = Mutex::new(());
        let library = LIBRARY.get_or_init(open);
        let script = Self { library, _alone: ALONE.lock().unwrap_or_else(PoisonError::into_inner) };
        // SAFETY: the type is that of `library.rs`.
        unsafe { script.library.get::<extern "C" fn()>("script_reset").unwrap()() };
        script
    }

    /// A value that a call answers with, or the code that the function of that name returns.
    pub fn set(&self, name: &str, value: u64) {
        let name = CString::new(name).unwrap();
        // SAFETY: the type is that of `library.rs`; the name is copied.
        unsafe { self.library.get::<unsafe extern "C" fn(*const c_char, u64)>("script_set").unwrap()(name.as_ptr(), value) };
    }

    /// The calls since the last time.
    pub fn calls(&self) -> Vec<String> {
        // SAFETY: the type is that of `library.rs`; the string is never freed.
        let text = unsafe { CStr::from_ptr(self.library.get::<extern "C" fn() -> *const c_char>("script_take_notes").unwrap()()) };
        text.to_str().unwrap().lines().map(str::to_owned).collect()
    }

    /// Makes a context that nothing was done in yet the current one.
    pub fn new_context(&self) {
        static NEXT: Mutex<u64> = Mutex::new(1000);
        let mut next = NEXT.lock().unwrap();
        *next += 1;
        self.set("context_id", *next);
    }
}

/// Compiles the driver and names it to this process, before anything else here asks for a driver.
fn open() -> Library {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let name = format!("scripted_driver_{}", std::process::id());
    let (source, library) = (folder.join(&name).with_extension("rs"), folder.join(&name).with_extension("so"));
    std::fs::write(&source, text()).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let output = Command::new(rustc)
        .args(["--crate-type", "cdylib", "--edition", "2024", "-Adead_code", "-o"])
        .arg(&library)
        .arg(&source)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // SAFETY: every test begins by waiting for this function, so no other thread of theirs reads the environment.
    unsafe { std::env::set_var("HOPPER_ATTENTION_DRIVER", &library) };
    // SAFETY: the library's initialisers are those of Rust's standard library.
    let opened = unsafe { Library::new(&library) }.unwrap();
    // Opened it needs no name; the crate opens it by its name as soon as it is asked for a driver.
    hopper_attention::raw::prepare(64, hopper_attention::DType::F16, false).unwrap();
    std::fs::remove_file(&source).unwrap();
    std::fs::remove_file(&library).unwrap();
    opened
}

/// The source of the driver: `library.rs`, and the rest of the functions that the driver table wants.
fn text() -> String {
    let written = include_str!("library.rs");
    let table = include_str!("../../../driver/src/table.rs");
    let names = table.lines().filter_map(|line| line.trim().strip_prefix("fn cu")?.split_once('(').map(|(name, _)| format!("cu{name}")));
    let missing = names.filter(|name| !written.contains(&format!("fn {name}(")));
    let stubs = missing.map(|name| format!("#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> u32 {{ note(\"{name}\".into()) }}\n"));
    written.to_owned() + &stubs.collect::<String>()
}
