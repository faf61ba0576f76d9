//! The arguments of a call.

use crate::custom::CustomCall;
use crate::gpu::Stream;
use hopper_attention::{Error, raw};

/// What [`raw::forward_with`] or [`raw::forward_custom`] is called with.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Queries.
    pub q: raw::Tensor4,
    /// Keys.
    pub k: raw::Tensor4,
    /// Values.
    pub v: raw::Tensor4,
    /// Output.
    pub o: raw::Tensor4,
    /// Log-sum-exp.
    pub lse: Option<raw::Lse>,
    /// What is computed.
    pub options: raw::Options,
    /// Lengths, sinks and slopes.
    pub arrays: raw::Arrays,
    /// By which kernel, if it is none of those that ship.
    pub custom: Option<CustomCall>,
}

impl Call {
    /// Enqueues the attention.
    ///
    /// # Safety
    ///
    /// That of [`raw::forward_with`] or [`raw::forward_custom`], unless the call is refused.
    pub unsafe fn enqueue(&self, stream: &Stream) -> Result<(), Error> {
        let Self { q, k, v, o, lse, options, arrays, custom } = self;
        // SAFETY: passed on to the caller.
        unsafe {
            match custom {
                Some(custom) => custom.enqueue(self, stream),
                None => raw::forward_with(q, k, v, o, *lse, options, arrays, stream.raw()),
            }
        }
    }
}
