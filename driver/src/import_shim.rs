//! Stands in for libcuda at link time: defines every `cu*` function that the crate `cust` imports (through cust_raw), and forwards each
//! to the driver that is opened at the first call.
//!
//! cust links `libcuda` directly, so that a program with it neither links without the CUDA toolkit nor starts without the driver. With
//! these definitions in the program the linker needs no libcuda, and a machine without a driver gets an error from the call:
//!
//! - no driver: 100 (`CUDA_ERROR_NO_DEVICE`), and `cuGetErrorString` says why it could not be opened;
//! - a driver without that function: 500 (`CUDA_ERROR_NOT_FOUND`);
//! - a code that cust's enum does not list: 999 (`CUDA_ERROR_UNKNOWN`), since an enum of any other value is undefined behaviour.
//!
//! Outputs are not written on failure. cust 0.3.2 reads none then, but for `cuGraphKernelNodeGetParams`, which it can only call with a
//! graph, and so not without a driver.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

use crate::CUresult;
use crate::library::Library;

#[macro_use]
mod signatures;
#[cfg(test)]
pub(crate) mod tests;

type Ptr = *mut c_void;

/// A structure of 64 bytes that is passed by value: `CUipcMemHandle`, `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Bytes64([c_char; 64]);

/// A function of the driver, looked up at its first call.
struct Import {
    name: &'static CStr,
    address: OnceLock<Option<usize>>,
}

impl Import {
    const fn new(name: &'static [u8]) -> Self {
        match CStr::from_bytes_with_nul(name) {
            Ok(name) => Self { name, address: OnceLock::new() },
            Err(_) => panic!("no NUL at the end"),
        }
    }

    /// The driver's function, or what its caller is to get instead. `own` is the address of the shim's function of this name.
    fn resolve(&self, own: *const c_void) -> Result<*const c_void, CUresult> {
        let library = Library::get().map_err(|_| CUresult::NO_DEVICE)?;
        // A library that holds this shim, named as its own driver, would forward to itself for ever.
        let look_up = || library.address(self.name).map(|address| address as usize).filter(|&address| address != own as usize);
        self.address.get_or_init(look_up).map(|address| address as *const c_void).ok_or(CUresult::NOT_FOUND)
    }
}

macro_rules! forward {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        unsafe extern "C" fn $name($($arg: $type),*) -> CUresult {
            static IMPORT: Import = Import::new(concat!(stringify!($name), "\0").as_bytes());
            match IMPORT.resolve($name as *const c_void) {
                Ok(address) => {
                    // SAFETY: the driver's function of this name has this type: the signatures are those that cust_raw declares.
                    let call = unsafe { std::mem::transmute::<*const c_void, unsafe extern "C" fn($($type),*) -> CUresult>(address) };
                    // SAFETY: the caller's arguments, under the conditions that the caller answers for.
                    listed_in_cust(unsafe { call($($arg),*) })
                }
                Err(code) => code,
            }
        }
    )*};
}

for_each_import!(forward);

/// `code`, or `CUDA_ERROR_UNKNOWN` where cust_raw's enum (that of CUDA 11.4) has no such value.
fn listed_in_cust(code: CUresult) -> CUresult {
    match code.0 {
        0..=8 | 34 | 100..=102 | 200..=202 | 205..=224 | 300..=304 | 400..=401 | 500 | 600 => code,
        700..=705 | 708..=720 | 800..=809 | 900..=911 | 999 => code,
        _ => CUresult::UNKNOWN,
    }
}

/// The description of an error: the driver's where there is one, else why there is none. cust's `Display` calls this, and takes a failure
/// for a failure to print (on which `to_string` panics).
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult {
    static IMPORT: Import = Import::new(b"cuGetErrorString\0");
    static WITHOUT_DRIVER: OnceLock<CString> = OnceLock::new();
    match IMPORT.resolve(cuGetErrorString as *const c_void) {
        Ok(address) => {
            type Call = unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult;
            // SAFETY: the driver's function of this name has this type.
            let call = unsafe { std::mem::transmute::<*const c_void, Call>(address) };
            // SAFETY: the caller's arguments, under the conditions that the caller answers for.
            listed_in_cust(unsafe { call(error, text) })
        }
        Err(_) => {
            let reason = || match Library::get() {
                Err(error) => CString::new(error.to_string()).unwrap_or_default(),
                Ok(_) => c"the library opened as driver describes no errors".into(),
            };
            // SAFETY: `text` is writable, as the caller promises.
            unsafe { *text = WITHOUT_DRIVER.get_or_init(reason).as_ptr() };
            CUresult::SUCCESS
        }
    }
}
