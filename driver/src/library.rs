//! The driver's shared library, opened once for the process and never closed.

use std::error::Error;
use std::ffi::{CStr, OsString, c_int, c_void};
use std::sync::OnceLock;

use libloading::Library as SharedObject;

use crate::CUresult;

/// Environment variable that names the library to open instead of the system's CUDA driver; empty counts as unset.
pub const DRIVER_VARIABLE: &str = "HOPPER_ATTENTION_DRIVER";

#[cfg(not(windows))]
const SYSTEM_DRIVER: &str = "libcuda.so.1";
#[cfg(windows)]
const SYSTEM_DRIVER: &str = "nvcuda.dll";

/// Why there is no driver to call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The system has no CUDA driver, or one that cannot be loaded.
    #[error(
        "no CUDA driver: cannot open {SYSTEM_DRIVER} ({reason}); install the NVIDIA driver (no CUDA toolkit is needed), or set \
             {DRIVER_VARIABLE} to the path of its library; in a container, start it with the GPU made visible"
    )]
    NoDriver {
        /// The loader's own message.
        reason: String,
    },
    /// The library that the environment names cannot be loaded.
    #[error(
        "{DRIVER_VARIABLE} names '{path}', which cannot be opened ({reason}); correct the path, or unset the variable to use the \
             system's {SYSTEM_DRIVER}"
    )]
    Named {
        /// The variable's value.
        path: String,
        /// The loader's own message.
        reason: String,
    },
    /// The library lacks a function that this crate calls.
    #[error("driver too old: '{library}'{} has no {symbol}; install a driver for CUDA 12.3 or newer", version_suffix(.version))]
    MissingSymbol {
        /// The library that was opened.
        library: String,
        /// The function's name.
        symbol: &'static str,
        /// What the library says is the newest CUDA version it supports, as (major, minor), if it says so.
        version: Option<(u32, u32)>,
    },
    /// The library is another one than a CUDA driver: it lacks `cuDriverGetVersion`, which every driver has.
    #[error("'{library}' is no CUDA driver: it has no cuDriverGetVersion; set {DRIVER_VARIABLE} to the path of one, or unset it")]
    NotADriver {
        /// The library that was opened.
        library: String,
    },
}

fn version_suffix(version: &Option<(u32, u32)>) -> String {
    version.map_or(String::new(), |(major, minor)| format!(" (CUDA {major}.{minor})"))
}

/// An opened driver library.
pub(crate) struct Library {
    object: SharedObject,
    name: String,
}

impl Library {
    /// The process's driver: opened by the first call, whose outcome every later call repeats.
    pub(crate) fn get() -> Result<&'static Self, LoadError> {
        static LIBRARY: OnceLock<Result<Library, LoadError>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::open(std::env::var_os(DRIVER_VARIABLE).filter(|name| !name.is_empty()))).as_ref().map_err(Clone::clone)
    }

    pub(crate) fn open(named: Option<OsString>) -> Result<Self, LoadError> {
        let file = named.clone().unwrap_or_else(|| SYSTEM_DRIVER.into());
        let name = file.to_string_lossy().into_owned();
        // SAFETY: loading runs the library's initialisers. The system's driver is made to be loaded at any time; a library named by
        // the environment is the user's to answer for.
        match unsafe { SharedObject::new(&file) } {
            Ok(object) => Ok(Self { object, name }),
            Err(error) => {
                // libloading's own words only say which call failed; the loader's are in the source.
                let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
                Err(if named.is_some() { LoadError::Named { path: name, reason } } else { LoadError::NoDriver { reason } })
            }
        }
    }

    /// The address of a function, or `None` where the library has none of that name.
    pub(crate) fn address(&self, symbol: &CStr) -> Option<*mut c_void> {
        // SAFETY: only the address is taken; who calls it answers for its type.
        let address = unsafe { self.object.get::<*mut c_void>(symbol.to_bytes_with_nul()) }.ok()?;
        Some(*address).filter(|address| !address.is_null())
    }

    /// As [`Library::address`], with the error that explains what is missing.
    pub(crate) fn require(&self, symbol: &'static CStr) -> Result<*mut c_void, LoadError> {
        self.address(symbol).ok_or_else(|| {
            let library = self.name.clone();
            if self.address(c"cuDriverGetVersion").is_none() {
                return LoadError::NotADriver { library };
            }
            let symbol = symbol.to_str().expect("names of functions are ASCII");
            LoadError::MissingSymbol { library, symbol, version: self.version() }
        })
    }

    fn version(&self) -> Option<(u32, u32)> {
        let address = self.address(c"cuDriverGetVersion")?;
        // SAFETY: this is the type that the driver's ABI gives the function of that name.
        let call = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> CUresult>(address) };
        let mut version = 0;
        // SAFETY: `version` is writable; the call needs no cuInit.
        unsafe { call(&mut version) }.ok().ok()?;
        let version = u32::try_from(version).ok()?;
        Some((version / 1000, version % 1000 / 10))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_library_that_is_missing() {
        let error = Library::open(Some("/nowhere/libcuda.so.1".into())).err().expect("no such file");
        assert!(matches!(&error, LoadError::Named { path, .. } if path == "/nowhere/libcuda.so.1"), "{error:?}");
        assert!(error.to_string().starts_with("HOPPER_ATTENTION_DRIVER names '/nowhere/libcuda.so.1', which cannot be opened"), "{error}");
        assert!(error.to_string().contains("No such file"), "the loader's own words: {error}");
    }
}
