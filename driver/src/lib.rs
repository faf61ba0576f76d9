//! The CUDA driver, opened at run time: nothing links libcuda, so a program starts on a machine without it and is told what is missing.
//!
//! - [`Driver::get`] opens `libcuda.so.1`, or the library that the environment variable [`DRIVER_VARIABLE`] names, and looks up the
//!   functions that this project calls: those of the library `hopper-attention`, and those by which its tests, benchmark and examples make
//!   contexts, memory, streams, events and graphs. It is no general binding: what none of them calls is not there.
//! - The feature `import-shim` serves the crate `cust`, which links libcuda directly: this crate then defines the functions that cust imports
//!   (all that `cust::sys` declares), and forwards each to the same library. Without a driver they return `CUDA_ERROR_NO_DEVICE` (100).
//!
//! A program that uses cust with this feature must refer to this crate or to one that does (`use hopper_attention_driver as _;` is enough),
//! or rustc leaves it out and the linker misses `cuInit` and others. A shared library (`cdylib`) that holds the shim exports those names:
//! load it with `RTLD_LOCAL`, or build it without the shim.

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
