//! A stand-in for the CUDA driver: a `libcuda.so.1` that executes PTX on the CPU and checks Hopper's asynchronous hand-overs.
//!
//! The library is a cdylib with the driver's own functions; programs find it through the loader's path, or through a variable that names it
//! as the driver. Nothing here depends on the kernels or on the library that launches them: they meet at the driver's ABI and in PTX text.

mod check;
mod driver;
pub mod harness;
mod lower;
mod machine;
pub mod mutate;
mod ptx;

pub use driver::exports;
pub use ptx::PtxError;
