//! The CUDA driver, opened at run time: nothing links libcuda, so a program starts on a machine without it and is told what is missing.
//!
//! - [`Driver::get`] opens `libcuda.so.1`, or the library that the environment variable [`DRIVER_VARIABLE`] names, and looks up the
//!   functions that `hopper-attention` calls.
//! - The feature `import-shim` serves crates that link libcuda directly, such as `cust`.

#[cfg(any(feature = "import-shim", test))]
mod import_shim;
mod library;
mod table;
#[cfg(test)]
mod test_support;
mod types;

pub use library::{DRIVER_VARIABLE, LoadError};
pub use table::Driver;
pub use types::*;
