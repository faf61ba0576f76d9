//! A driver that a test scripts: every failure of a driver and a device, on any machine.

mod compile;

use std::ffi::{CStr, CString, c_char};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use hopper_attention::{DType, raw};
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
    let library = compile::compile();
    // SAFETY: every test begins by waiting for this function, so no other thread of theirs reads the environment.
    unsafe { std::env::set_var("HOPPER_ATTENTION_DRIVER", &library) };
    // SAFETY: the library's initialisers are those of Rust's standard library.
    let opened = unsafe { Library::new(&library) }.unwrap();
    // Opened it needs no name; the crate opens it by its name as soon as it is asked for a driver.
    raw::prepare(64, DType::F16, &raw::Options::new()).unwrap();
    std::fs::remove_file(&library).unwrap();
    opened
}
