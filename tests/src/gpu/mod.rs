//! The device as the tests use it: contexts, guarded memory, streams, graphs, straight on the driver.

mod context;
mod memory;
mod stream;

pub use context::{Gpu, OwnContext, PrimaryContext, free_bytes, gpus, no_current_context};
pub use memory::{Buffer, GUARD_BYTES, Guarded, POISON};
pub use stream::{Graph, Stream};

use crate::Failure;
use hopper_attention_driver::{CUresult, Driver};

/// The driver, or why there is none.
pub(crate) fn driver() -> Result<&'static Driver, Failure> {
    Driver::get().map_err(|error| Failure(error.to_string()))
}

pub(crate) fn check(call: &str, code: CUresult) -> Result<(), Failure> {
    code.ok().map_err(|code| Failure(format!("{call} returned {code}")))
}

/// A handle of the driver, which any thread may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle<T>(pub(crate) T);
// SAFETY: the CUDA driver API allows the use of its handles from any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}
