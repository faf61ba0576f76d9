//! Builds PTX for NVIDIA Hopper (sm_90a) from a Rust crate of kernels, with rustc alone.
//!
//! ```no_run
//! # fn main() -> Result<(), hopper_attention_builder::Error> {
//! use hopper_attention_builder::{Assembler, Builder};
//!
//! let built = Builder::new("../my-kernels").build()?;
//! for kernel in &built.kernels {
//!     println!("{}: {} bytes of PTX", kernel.name, kernel.ptx.len());
//! }
//! built.write("target/ptx")?;
//! // Where there is a ptxas: no kernel may spill, use local memory, or make it warn.
//! match Assembler::find(&[])? {
//!     Some(ptxas) => _ = ptxas.judge(&built.kernels, "target/assembled".as_ref(), None)?.resources()?,
//!     None => println!("there is no ptxas: the driver's compiler will be the first to see these kernels"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A kernel is a function of the crate itself,
//!
//! ```text
//! #[unsafe(no_mangle)]
//! pub unsafe extern "ptx-kernel" fn name(..) {
//!     // The threads of a CTA: no compiler can say launch bounds, so they are read from this comment in the assembly.
//!     unsafe { asm!("// launch_bounds {}", const 128, options(nomem, nostack)) };
//!     ..
//! }
//! ```
//!
//! and everything that it uses has to be inlined into it: code of the crate itself is, as far as the compiler sees fit, and so are generic
//! functions and `#[inline]` ones of the crates that it depends on. What remains outside is refused, with its name.

mod assemble;
mod builder;
mod core_source;
mod entry;
mod error;
mod finished;
mod module;
mod process;
mod toolchain;
mod tools;

pub use assemble::{Instructions, Judgement, Resources, table};
pub use builder::{Builder, Built, TARGET};
pub use core_source::{CoreSource, core_archive};
pub use entry::{Kernel, finish};
pub use error::{Error, Refused};
pub use finished::{Finished, inspect};
pub use toolchain::TESTED_RUSTC;
pub use tools::{Assembler, find_program};
