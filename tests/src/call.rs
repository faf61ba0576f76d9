//! The arguments of a call.

use crate::custom::CustomCall;
use crate::gpu::Stream;
use hopper_attention::{Dim, Error, raw};

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
    /// Each query head by itself, with the key head that it reads, and each batch entry of Q by itself: all together they write what this call
    /// writes.
    pub fn heads_alone(&self) -> Result<Vec<Self>, Error> {
        let [entries, _, heads, _] = self.q.layout.shape;
        (0..entries * heads).map(|index| self.alone(index / heads, index % heads)).collect()
    }

    fn alone(&self, entry: usize, head_idx: usize) -> Result<Self, Error> {
        let ([_, rows, heads, _], heads_k) = (self.q.layout.shape, self.k.layout.extent(Dim::Heads));
        let numbers = |array: raw::Array, first: usize, len: usize| raw::Array { address: array.address + 4 * first as u64, len };
        let mut call = *self;
        for (tensor, head_idx) in [(&mut call.q, head_idx), (&mut call.o, head_idx)] {
            *tensor = tensor.slice(Dim::Batch, entry..entry + 1)?.slice(Dim::Heads, head_idx..head_idx + 1)?;
        }
        let head_idx_k = head_idx / (heads / heads_k);
        for tensor in [&mut call.k, &mut call.v] {
            *tensor = tensor.slice(Dim::Heads, head_idx_k..head_idx_k + 1)?;
        }
        let row = (entry * heads + head_idx) * rows;
        call.lse = self.lse.map(|lse| raw::Lse { address: lse.address + 4 * row as u64, len: rows });
        let arrays = &mut call.arrays;
        for array in [&mut arrays.sinks, &mut arrays.alibi_slopes] {
            *array = array.map(|array| numbers(array, head_idx, 1));
        }
        if arrays.cu_seqlens_q.is_some() {
            // All sequences are in the one entry.
            return Ok(call);
        }
        if arrays.cu_seqlens_k.is_none() {
            call.k = call.k.slice(Dim::Batch, entry..entry + 1)?;
            call.v = call.v.slice(Dim::Batch, entry..entry + 1)?;
        }
        arrays.cu_seqlens_k = arrays.cu_seqlens_k.map(|array| numbers(array, entry, 2));
        arrays.seqused_q = arrays.seqused_q.map(|array| numbers(array, entry, 1));
        arrays.seqused_k = arrays.seqused_k.map(|array| numbers(array, entry, 1));
        Ok(call)
    }

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
