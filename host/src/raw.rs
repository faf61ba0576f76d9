//! The layer below every other: device addresses, a raw stream, the caller's current context. For users of candle, cudarc, burn or any
//! other owner of device memory; all that is left with `default-features = false`.
//!
//! ```no_run
//! use hopper_attention::{DType, Layout, raw};
//!
//! # let (q, k, v, o, stream) = (0u64, 0u64, 0u64, 0u64, std::ptr::null_mut());
//! // q, k, v, o: device addresses of [batch, seqlen, heads, head_dim] tensors of bf16; stream: the CUstream they belong to.
//! let tensor = |address, heads| raw::Tensor4 { address, dtype: DType::Bf16, layout: Layout::bshd([1, 4096, heads, 128]) };
//! let options = raw::Options::new().causal(true);
//! // SAFETY: the four tensors stay allocated and untouched by other work until this work is done.
//! unsafe { raw::forward(&tensor(q, 32), &tensor(k, 8), &tensor(v, 8), &tensor(o, 32), None, &options, stream)? };
//! # Ok::<(), hopper_attention::Error>(())
//! ```
//!
//! With the slices and streams of cudarc 0.19, which candle and burn use, an address and a stream are had like this (the guards live until
//! after the call; O is asked for by `device_ptr_mut`):
//!
//! ```ignore
//! stream.context().bind_to_thread()?;
//! let (address, _guard) = slice.device_ptr(&stream);
//! let q = raw::Tensor4 { address, dtype: DType::Bf16, layout };
//! unsafe { raw::forward(&q, &k, &v, &o, None, &options, stream.cu_stream().cast())? };
//! ```

use std::ops::Range;
use std::path::PathBuf;

pub use hopper_attention_driver::{CUdeviceptr, CUstream};

use crate::context::Context;
use crate::plan::{CombinePlan, Plan};
use crate::{DType, Dim, Error, Layout, kernels, launch, memory};

/// A tensor `[batch, seqlen, heads, head_dim]` in device memory, owned by the caller.
///
/// The address is a multiple of 16 bytes, every stride a multiple of 8 elements and below 2^39, and head_dim contiguous: what the copy
/// engine (TMA) asks for. An empty tensor may have any address, null included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tensor4 {
    /// Device address of element `[0, 0, 0, 0]`.
    pub address: CUdeviceptr,
    /// Type of the elements.
    pub dtype: DType,
    /// Shape and strides.
    pub layout: Layout,
}

impl Tensor4 {
    /// Part of a dimension, see [`Layout::slice`].
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless `range` lies within the extent, and the part within the address space.
    pub fn slice(&self, dim: Dim, range: Range<usize>) -> Result<Self, Error> {
        let (offset, layout) = self.layout.slice(dim, range)?;
        let bytes = (offset as u64).checked_mul(DType::BYTES as u64);
        let address = bytes.and_then(|bytes| self.address.checked_add(bytes));
        let address =
            address.ok_or_else(|| Error::invalid("address", self.address, "such that the slice begins within the address space"))?;
        Ok(Self { address, layout, ..*self })
    }

    /// Repeats the one entry of `dim` (batch or heads) `extent` times, see [`Layout::broadcast`].
    ///
    /// # Errors
    ///
    /// Those of [`Layout::broadcast`].
    pub fn broadcast(&self, dim: Dim, extent: usize) -> Result<Self, Error> {
        Ok(Self { layout: self.layout.broadcast(dim, extent)?, ..*self })
    }
}

/// Where the log-sum-exp of each row goes: f32 `[batch, num_heads, seqlen_q]`, contiguous, in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lse {
    /// Device address, a multiple of 4 bytes.
    pub address: CUdeviceptr,
    /// How many f32 there is room for, at least `batch * num_heads * seqlen_q`; what lies beyond that is not written.
    pub len: usize,
}

/// What attention made of some of the keys: one of the parts that [`combine`] merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// O, `[batch, seqlen_q, num_heads, head_dim]`.
    pub o: Tensor4,
    /// Its log-sum-exp.
    pub lse: Lse,
}

/// What is computed, beside the tensors. The default is attention without a mask, with a softmax_scale of `1 / sqrt(head_dim)`.
///
/// ```
/// let options = hopper_attention::raw::Options::new().causal(true).softmax_scale(0.125);
/// assert!(options.causal && options.softmax_scale == Some(0.125));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
#[must_use]
pub struct Options {
    /// Query `i` sees key `j` only if `j <= i + seqlen_k - seqlen_q`: the mask is aligned to the bottom right.
    pub causal: bool,
    /// Factor of the logits, finite and above 0; `None` means `1 / sqrt(head_dim)`.
    pub softmax_scale: Option<f32>,
    /// Asks the driver of each tensor whether it lies in memory of the current context, from its first byte to its last, and returns
    /// [`Error::Invalid`] where it does not, instead of a fault that ruins the context. Off by default, since it asks the driver three
    /// things a tensor.
    ///
    /// In memory of `cuMemAlloc` a tensor has to lie within its allocation. In that of stream-ordered pools and `cuMemMap` only its first
    /// and its last byte have to be memory of the device: what lies between them may be one piece or several, and the driver does not say
    /// whose. Memory of another device is refused, even where peer access would allow it.
    pub check_addresses: bool,
}

impl Options {
    /// The default: without a mask, with a softmax_scale of `1 / sqrt(head_dim)`.
    pub const fn new() -> Self {
        Self { causal: false, softmax_scale: None, check_addresses: false }
    }

    /// With another [`Options::causal`].
    pub const fn causal(self, causal: bool) -> Self {
        Self { causal, ..self }
    }

    /// With another [`Options::softmax_scale`].
    pub const fn softmax_scale(self, softmax_scale: f32) -> Self {
        Self { softmax_scale: Some(softmax_scale), ..self }
    }

    /// With another [`Options::check_addresses`].
    pub const fn check_addresses(self, check_addresses: bool) -> Self {
        Self { check_addresses, ..self }
    }
}

/// Enqueues `o = softmax(softmax_scale * q k^T + mask) v` on `stream`, and returns without waiting.
///
/// Shapes: `q` and `o` are `[batch, seqlen_q, num_heads, head_dim]`, `k` and `v` are `[batch, seqlen_k, num_heads_k, head_dim]`, with
/// `num_heads` a multiple of `num_heads_k` (query head `h` reads key head `h / (num_heads / num_heads_k)`), head_dim a multiple of 8 up
/// to 256, and all of one dtype. Inputs may be broadcast over batch or heads by a stride of 0. `o` must overlap neither itself nor
/// an input. The whole of `o` and `lse` is written: a row that sees no key gets `o = 0` and `lse = -inf`. With batch, num_heads or
/// seqlen_q of 0 nothing is launched.
///
/// Numbers: products and sums are f32, so results are right as long as the logits, with softmax_scale and before it, stay within f32, and so
/// do 4096 times the sums of V over the keys (P may grow to 4096 before O is divided by its sum: with bf16, V beyond 1e34 / seqlen_k may give
/// infinity). A logit is an f32: from 2^23 on, in units of log2, the product of S and softmax_scale is rounded, so that logits that differ by
/// less than their last place count as equal; and one beyond f32 counts as the infinity that f32 makes of it.
///
/// The kernel's module is loaded at its first use in a context, which takes some tenths of a second and may happen during stream
/// capture; [`prepare`] does it ahead of time. After that a call allocates no memory, waits for nothing, and may be captured into a graph.
///
/// Any thread may call this; the current context is the one that counts. `stream` belongs to it, and may be null or
/// `CU_STREAM_PER_THREAD`.
///
/// # Many streams
///
/// Causal launches of more tiles than multiprocessors draw their tiles from a counter that belongs to their stream, or to their capture. A
/// context has 1024 counters for streams and 1024 for captures, and takes none back: that a stream was destroyed does not tell when its
/// last launch is done. Once a table is crowded, launches on streams (or in captures) that are new to it compute the same bits in a fixed
/// order of tiles, which takes up to 1.07 times as long at head_dim 64, 1.2 times at 128 and 1.3 times at 256. So a program of many causal
/// launches does well to keep its streams instead of making new ones.
///
/// # Errors
///
/// [`Error::Invalid`] and [`Error::Unsupported`] name the argument that is at fault. They are found before the driver is touched, but for
/// what only the driver knows: [`Options::check_addresses`], and a stream of another context.
/// [`Error::NoDriver`], [`Error::NoContext`], [`Error::UnsuitableDevice`], [`Error::DriverTooOld`], [`Error::Load`] and [`Error::PtxFile`]
/// say why there is no kernel to launch; [`Error::Driver`] is any other failure of the driver.
///
/// # Safety
///
/// From this call until the work on `stream` is done, in every replay where it was captured:
/// - `q`, `k`, `v`, `o` and `lse` describe allocated memory that the current context's device can reach, all of it, strides included;
/// - nothing else writes the inputs, and nothing else reads or writes `o` and `lse`;
/// - what a capture records on `stream` stays in that order (nobody calls `cuStreamUpdateCaptureDependencies`);
///
/// and `stream` is a live stream.
pub unsafe fn forward(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    o: &Tensor4,
    lse: Option<Lse>,
    options: &Options,
    stream: CUstream,
) -> Result<(), Error> {
    let Some(plan) = Plan::new(q, k, v, o, lse, options)? else {
        return Ok(());
    };
    let context = Context::current()?;
    if options.check_addresses {
        memory::check(&context, &plan)?;
    }
    // SAFETY: the plan was made from the caller's tensors, for which the caller answers.
    unsafe { launch::enqueue(&context, &plan, stream) }
}

/// Enqueues the merging of attention over disjoint sets of keys into attention over all of them, and returns without waiting:
/// `lse = ln sum_i exp(lse_i)`, `o = sum_i exp(lse_i - lse) o_i`. So a long context can be worked on in chunks, or by several devices, and the keys
/// of a common prefix once for many sequences.
///
/// From 1 to 64 parts, each of the shape and dtype of `o`; head_dim a multiple of 8 up to 256. A part may be broadcast over batch or heads by
/// a stride of 0. `o` and `lse` must overlap neither each other nor a part. A part whose row has seen no key (`lse_i = -inf`) adds nothing to
/// it, whatever its `o_i` holds; where no part has seen a key, `o = 0` and `lse = -inf`. Sums are f32. The parts' O were rounded to their
/// dtype, which is the only thing that tells the result from that of one pass.
///
/// ```no_run
/// use hopper_attention::{Dim, raw};
/// # let (q, k, v, o, lse, stream): (raw::Tensor4, raw::Tensor4, raw::Tensor4, raw::Tensor4, raw::Lse, raw::CUstream) = todo!();
/// # let parts: [raw::Part; 2] = todo!();
/// // The keys before and after position 1000.
/// for (part, keys) in parts.iter().zip([0..1000, 1000..4096]) {
///     let (k, v) = (k.slice(Dim::Seqlen, keys.clone())?, v.slice(Dim::Seqlen, keys)?);
///     // SAFETY: the tensors stay allocated and untouched by other work until this work is done.
///     unsafe { raw::forward(&q, &k, &v, &part.o, Some(part.lse), &raw::Options::new(), stream)? };
/// }
/// // SAFETY: as above.
/// unsafe { raw::combine(&parts, &o, Some(lse), stream)? };
/// # Ok::<(), hopper_attention::Error>(())
/// ```
///
/// # Errors
///
/// As [`forward`].
///
/// # Safety
///
/// As [`forward`], with the parts as inputs.
pub unsafe fn combine(parts: &[Part], o: &Tensor4, lse: Option<Lse>, stream: CUstream) -> Result<(), Error> {
    // SAFETY: passed on to the caller.
    unsafe { combine_after(parts, o, lse, stream, |_, _| Ok(())) }
}

/// [`combine`], once `check` has passed the plan.
///
/// # Safety
///
/// As [`combine`].
pub(crate) unsafe fn combine_after(
    parts: &[Part],
    o: &Tensor4,
    lse: Option<Lse>,
    stream: CUstream,
    check: impl FnOnce(&Context, &CombinePlan) -> Result<(), Error>,
) -> Result<(), Error> {
    let Some(mut plan) = CombinePlan::new(parts, o, lse)? else {
        return Ok(());
    };
    let context = Context::current()?;
    check(&context, &plan)?;
    // SAFETY: the plan was made from the caller's tensors, for which the caller answers.
    unsafe { launch::combine(&context, &mut plan, stream) }
}

/// Loads the kernel that serves `head_dim`, `dtype` and `options` into the current context, if it is not there yet.
///
/// # Errors
///
/// [`Error::Unsupported`] for a head_dim that no kernel serves, else those of [`forward`] that say why there is no kernel.
pub fn prepare(head_dim: usize, dtype: DType, options: &Options) -> Result<(), Error> {
    let config = crate::plan::kernel_config("head_dim", head_dim, options.causal)?;
    Context::current()?.kernel(kernels::forward_index(&config, dtype)).map(|_| ())
}

/// Takes the kernels from PTX files `<entry>.ptx` in a folder instead of those built into the library, for the whole process; the
/// environment variable `HOPPER_ATTENTION_PTX_DIR` does the same. They are made by this version of the project (`cargo xtask ptx`): tile
/// shapes and parameters are the library's own.
///
/// # Errors
///
/// [`Error::Invalid`] when the source was already chosen: by an earlier call, or because a kernel has been loaded.
pub fn set_ptx_dir(dir: impl Into<PathBuf>) -> Result<(), Error> {
    kernels::set_ptx_dir(dir.into())
}
