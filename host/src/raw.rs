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

mod options;

use std::ops::Range;
use std::path::PathBuf;

pub use hopper_attention_driver::{CUdeviceptr, CUstream};

use hopper_attention_kernels::config::with_fewer_rows;

use crate::context::Context;
use crate::custom::Custom;
use crate::plan::{CombinePlan, Family, Plan, Scales, Window, check_head_dim};
use crate::{CustomKernel, DType, Dim, Error, HeadDims, Layout, kernels, launch, lengths, memory};
pub use options::{Array, Arrays, Options};

/// A tensor `[batch, seqlen, heads, head_dim]` in device memory, owned by the caller.
///
/// The address is a multiple of 16 bytes, every stride a multiple of 8 elements and below 2^39, of an input that of the sequence at least
/// head_dim, and head_dim contiguous: what the copy engine (TMA) asks for. An empty tensor may have any address, null included.
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

/// Where the log-sum-exp of each row goes: f32 `[batch, num_heads, seqlen_q]`, or `[num_heads, total_q]` where queries are packed;
/// contiguous, in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lse {
    /// Device address, a multiple of 4 bytes.
    pub address: CUdeviceptr,
    /// How many f32 there is room for, at least one for each query of each head; what lies beyond that is not written.
    pub len: usize,
}

/// What attention made of some of the keys, without sinks: one of the parts that [`combine`] merges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// O, `[batch, seqlen_q, num_heads, head_dim]`.
    pub o: Tensor4,
    /// Its log-sum-exp.
    pub lse: Lse,
}

/// Enqueues `o = softmax(softmax_scale * q k^T + mask) v` on `stream`, and returns without waiting.
///
/// Shapes: `q` is `[batch, seqlen_q, num_heads, head_dim]`, `k` `[batch, seqlen_k, num_heads_k, head_dim]`, `v`
/// `[batch, seqlen_k, num_heads_k, head_dim_v]` and `o` `[batch, seqlen_q, num_heads, head_dim_v]`, with `num_heads` a multiple of
/// `num_heads_k` (query head `h` reads key head `h / (num_heads / num_heads_k)`), both head dims multiples of 8 up to 256 (the kernel is
/// the smallest that holds both), and all of one dtype. There are at most 2^30 - 1 row tiles: those of 128 or 192 queries that a head's take, times
/// heads, times batch. Inputs may be broadcast over batch or heads by a stride of 0. `o` must overlap neither itself
/// nor an input. The whole of `o` and `lse` is written: a row that sees no key gets `o = 0` and `lse = -inf`. With batch, num_heads or
/// seqlen_q of 0 nothing is launched. Windows and soft caps are [`Options`]; [`forward_with`] has packed sequences, sinks and ALiBi
/// besides.
///
/// Numbers: products and sums are f32, so results are right as long as the logits, before softmax_scale and with it, also in units of log2, stay
/// within f32: below 2^128 / log2(e) = 2.35e38, sinks as well, of which finite ones beyond that give NaN. And so do 4096 times the sums of V over
/// the keys (P may grow to 4096 before O is divided by its sum: with bf16, V beyond 1e34 / seqlen_k may give infinity). A logit is an f32: from
/// 2^23 on, in units of log2, the product of S and softmax_scale is rounded, so that logits that differ by less than their last place count as
/// equal; and one beyond f32 counts as the infinity that f32 makes of it.
///
/// The kernel's module is loaded at its first use in a context, which takes 0.2 to 1.3 seconds, by kernel and host, and may
/// happen during stream capture; [`prepare`] does it ahead of time. After that a call allocates no memory, waits for nothing, and may be
/// captured into a graph.
///
/// Any thread may call this; the current context is the one that counts. `stream` belongs to it, and may be null or
/// `CU_STREAM_PER_THREAD`.
///
/// # Many streams
///
/// Launches of more tiles than multiprocessors whose tiles differ in length (causal, windows, sequences of several lengths) draw their
/// tiles from a counter that belongs to their stream, or to their capture. A context has 1024 counters for streams and 1024 for captures,
/// and takes none back: that a stream was destroyed does not tell when its last launch is done. Once a table is crowded, launches on
/// streams (or in captures) that are new to it compute the same bits in a fixed order of tiles, which takes up to 1.07 times as long at
/// head_dim 64, 1.2 times at 128 and 1.3 times at 256. So a program of many such launches does well to keep its streams instead of making
/// new ones.
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
    // SAFETY: passed on to the caller; there are no arrays.
    unsafe { forward_with(q, k, v, o, lse, options, &Arrays::new(), stream) }
}

/// [`forward`] with arrays: packed or padded sequences of lengths of their own, attention sinks, ALiBi.
///
/// # Sequences of several lengths
///
/// With [`Arrays::cu_seqlens_q`] all sequences lie in one batch entry of `q` and `o`, one behind the other; with [`Arrays::cu_seqlens_k`]
/// so do those of `k` and `v`. Each side may be packed, or padded to `[batch, seqlen, heads, head_dim]`, whatever the other. With
/// [`Arrays::seqused_q`] or [`Arrays::seqused_k`] only the first rows of a sequence count, of its part of a packed tensor or of its batch
/// entry. In every formula `seqlen_q` and `seqlen_k` are then those of the sequence; any of them may be 0.
///
/// The lengths stay on the device. No maximum of them is asked for, and a launch, or a captured graph, serves whatever lengths the arrays
/// hold when it runs. Rows of `o` and `lse` that are no queries are not written: behind the used queries of a sequence, and before or
/// behind all sequences, they keep what they held. What `k` and `v` hold behind the used keys, NaN included, reaches nothing.
///
/// The kernel bounds every length by the tensors, so wrong ones (decreasing, negative, beyond the end) make wrong results, but nothing
/// outside of the tensors is read or written. [`check_lengths`] finds them.
///
/// A tensor whose sequences have lengths of their own needs at most 2^30 rows from its first to its last, in steps of the sequence stride, and
/// heads that do not overlap, unless they are one (a stride of 0). A padded one also needs a batch stride that is a multiple of its sequence
/// stride: `[b, s, h, d]` and `[b, h, s, d]` have that.
///
/// # Which kernel
///
/// Without arrays and soft cap, and with no window or the causal one (`window_right` of 0, open on the left), the plain kernels run. Any
/// other bound that hides nothing (`window_left >= seqlen_k - 1`, `window_right >= seqlen_q - 1`) counts as none, and the results are the
/// same, bit by bit. All else is served by the general kernels, of which there are three for each head_dim and dtype: as they are, with a
/// soft cap, or with ALiBi; each takes any window, lengths and sinks. So a soft cap and ALiBi together are [`Error::Unsupported`]. Of the
/// kernels for head dims of 192 and 128 there is the first one only: with a soft cap or ALiBi those for 192 serve.
///
/// # Few queries
///
/// A kernel works on tiles of 128 or 192 rows. In the general kernels, but not those with ALiBi, the query heads of one key head share them
/// where that makes fewer tiles: 8 queries of 8 heads take as long as 64 queries of one. Of sequences with lengths of their own so many heads
/// do as a power of two that divides those of the key head. This needs query heads that lie apart in `q` (their stride is not 0). It moves no
/// bit of a result, unless V holds NaN or infinity, which reach the rows of a tile that do not see them, too.
///
/// For this, some calls run a general kernel that might run a plain one: those that have fewer key heads than query heads, more than 132 row
/// tiles, and half as many or fewer with shared ones. They get the same bits. Where the two kernels take keys in tiles of different sizes
/// (head_dim up to 64, and up to 128 without a mask), the lengths alone decide, so that results do not depend on the number of heads: up to 96
/// queries, or 64 for a head_dim above 96, on 1024 or more keys run the general kernel.
///
/// # Errors
///
/// As [`forward`]. An array whose length does not fit the tensors, or that overlaps `o` or `lse`, is [`Error::Invalid`].
///
/// # Safety
///
/// As [`forward`], with the arrays as inputs: they, too, stay allocated and unwritten until the work is done, or change only between the
/// replays of a graph.
#[expect(clippy::too_many_arguments, reason = "those of `forward`, and the arrays")]
pub unsafe fn forward_with(
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    o: &Tensor4,
    lse: Option<Lse>,
    options: &Options,
    arrays: &Arrays,
    stream: CUstream,
) -> Result<(), Error> {
    // SAFETY: passed on to the caller.
    unsafe { enqueue(None, [q, k, v, o], lse, options, arrays, stream) }
}

/// [`forward_with`], or [`forward_custom`] by `custom`.
///
/// # Safety
///
/// As [`forward_with`], or as [`forward_custom`].
pub(crate) unsafe fn enqueue(
    custom: Option<&Custom>,
    tensors: [&Tensor4; 4],
    lse: Option<Lse>,
    options: &Options,
    arrays: &Arrays,
    stream: CUstream,
) -> Result<(), Error> {
    let Some(plan) = Plan::new(custom.map(|custom| custom.kernel), tensors, lse, options, arrays)? else {
        return Ok(());
    };
    let context = Context::current()?;
    let plan = match options.fewer_rows {
        None => plan.with_fewer_rows(context.multiprocessors),
        Some(true) => plan.with_fewer_rows(u32::MAX),
        Some(false) => plan,
    };
    if options.check_addresses {
        memory::check(&context, &plan)?;
    }
    // SAFETY: the plan was made from the caller's tensors and for this kernel; for them and for `custom` the caller answers.
    unsafe { launch::enqueue(&context, &plan, custom, stream) }
}

/// [`forward_with`] by a kernel of the caller's own score and mask functions; `args` is the parameter that they are told.
///
/// Windows, the causal one among them, lengths and sinks work as with [`forward_with`]. Scores are changed, and keys hidden, before the softmax:
///
/// ```text
/// o_i = softmax over the keys j that i sees, by window, lengths and mask function, of score(softmax_scale * q_i . k_j, i, j), times v_j
/// ```
///
/// # Errors
///
/// As [`forward_with`]; [`Error::Unsupported`] for a head_dim or dtype that is not the kernel's, and for a soft cap or ALiBi;
/// [`Error::Invalid`] if `args` are [`crate::ArgsBytes`], and not as many as the kernel takes.
///
/// # Safety
///
/// As [`forward_with`]. The kernel is what [`CustomKernel::from_ptx`] describes, and `args` is what its functions ask for, until the work is
/// done. It is copied: the memory of `args` itself is free when this returns.
#[expect(clippy::too_many_arguments, reason = "those of `forward_with`, the kernel and its parameter")]
pub unsafe fn forward_custom<A: ?Sized>(
    kernel: &CustomKernel<A>,
    args: &A,
    q: &Tensor4,
    k: &Tensor4,
    v: &Tensor4,
    o: &Tensor4,
    lse: Option<Lse>,
    options: &Options,
    arrays: &Arrays,
    stream: CUstream,
) -> Result<(), Error> {
    // SAFETY: passed on to the caller.
    unsafe { enqueue(Some(&Custom::new(kernel, args)?), [q, k, v, o], lse, options, arrays, stream) }
}

/// Enqueues the merging of attention over disjoint sets of keys into attention over all of them, and returns without waiting:
/// `lse = ln sum_i exp(lse_i)`, `o = sum_i exp(lse_i - lse) o_i`. So a long context can be worked on in chunks, or by several devices, and the keys
/// of a common prefix once for many sequences.
///
/// From 1 to 64 parts, each of the shape and dtype of `o`; head_dim a multiple of 8 up to 256; at most 2^31 - 1 pieces of 8 elements in `o`, 32 GiB. A
/// part may be broadcast over batch or heads by
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
    unsafe { combine_after(parts, o, lse, None, stream, |_, _| Ok(())) }
}

/// [`combine`] with `sinks`, f32 `[num_heads]`: a logit a head that joins the sum of each row once, see [`Arrays::sinks`]. The parts are
/// computed without them. Where no part has seen a key, `o = 0` and `lse = sink`.
///
/// # Errors
///
/// As [`forward_with`].
///
/// # Safety
///
/// As [`forward_with`], with the parts as inputs.
pub unsafe fn combine_with_sinks(parts: &[Part], o: &Tensor4, lse: Option<Lse>, sinks: Array, stream: CUstream) -> Result<(), Error> {
    // SAFETY: passed on to the caller.
    unsafe { combine_after(parts, o, lse, Some(sinks), stream, |_, _| Ok(())) }
}

/// [`combine`], perhaps with sinks, once `check` has passed the plan.
///
/// # Safety
///
/// As [`combine_with_sinks`].
pub(crate) unsafe fn combine_after(
    parts: &[Part],
    o: &Tensor4,
    lse: Option<Lse>,
    sinks: Option<Array>,
    stream: CUstream,
    check: impl FnOnce(&Context, &CombinePlan) -> Result<(), Error>,
) -> Result<(), Error> {
    let Some(mut plan) = CombinePlan::new(parts, o, lse, sinks)? else {
        return Ok(());
    };
    let context = Context::current()?;
    check(&context, &plan)?;
    // SAFETY: the plan was made from the caller's tensors, for which the caller answers.
    unsafe { launch::combine(&context, &mut plan, stream) }
}

/// Loads the kernel that serves the head dims, `dtype` and `options` into the current context, if it is not there yet: `prepare(128, ..)`, or
/// `prepare((192, 128), ..)` where V and O have a head_dim of 128, and Q and K one of 192. A plain kernel is loaded together with the general
/// one that calls with few queries run, see [`forward_with`], and with that of fewer rows for problems of few row tiles, if there is one.
///
/// # Errors
///
/// [`Error::Unsupported`] for a head_dim that no kernel serves, else those of [`forward`] that say why there is no kernel.
pub fn prepare(head_dims: impl Into<HeadDims>, dtype: DType, options: &Options) -> Result<(), Error> {
    prepare_with(head_dims, dtype, options, &Arrays::new())
}

/// [`prepare`] for [`forward_with`]. Which of the `arrays` there are is all that counts; neither addresses nor lengths are looked at.
///
/// A call whose window turns out to hide nothing runs a kernel without one, see [`forward_with`]: whoever expects such calls prepares that,
/// too.
///
/// # Errors
///
/// Those of [`prepare`]; [`Error::Unsupported`] for a combination that has no kernel; [`Error::Invalid`] for options that every call refuses.
pub fn prepare_with(head_dims: impl Into<HeadDims>, dtype: DType, options: &Options, arrays: &Arrays) -> Result<(), Error> {
    let HeadDims { head_dim, head_dim_v } = head_dims.into();
    let family = Family::of(Window::of(options), options, arrays)?;
    let (head_dim, head_dim_v) = (check_head_dim("head_dim", head_dim)?, check_head_dim("head_dim_v", head_dim_v)?);
    Scales::of(options, head_dim as usize, family)?;
    let context = Context::current()?;
    let load = |family: Family| {
        let config = family.config(head_dim, head_dim_v);
        let shapes = [Some(config), with_fewer_rows(&config)];
        let mut indices = shapes.iter().flatten().map(|config| kernels::forward_index(family, config, dtype));
        indices.try_for_each(|index| context.kernel(index).map(|_| ()))
    };
    [family, family.of_few_queries()].into_iter().try_for_each(load)
}

/// Whether the lengths in `arrays` are right for `q` and `k`: copies them to the host, behind what was enqueued on `stream`, and waits. It
/// cannot be captured. Without lengths it does nothing.
///
/// # Errors
///
/// [`Error::Invalid`] that names array, index, value and requirement, such as `cu_seqlens_q[3]`: if `cu_seqlens` are negative, decrease, or
/// exceed the rows of the tensor, or if `seqused` are negative or exceed the rows of their sequence; also those of [`forward_with`] for
/// shapes and arrays. [`Error::Driver`] if the copy fails, which may be due to earlier work.
///
/// # Safety
///
/// The arrays describe allocated memory that the current context's device can reach, and `stream` is a live stream of the current context.
pub unsafe fn check_lengths(q: &Tensor4, k: &Tensor4, arrays: &Arrays, stream: CUstream) -> Result<(), Error> {
    // SAFETY: passed on to the caller.
    unsafe { lengths::check(q, k, arrays, stream) }
}

/// Takes the kernels from PTX files `<entry>.ptx` in a folder instead of those built into the library, for the whole process; the
/// environment variable `HOPPER_ATTENTION_PTX_DIR` does the same. They are made by this version of the project (`cargo xtask ptx`): tile
/// shapes and parameters are the library's own. A file whose kernel takes other parameters, or has other threads, is [`Error::PtxFile`] when it is
/// first needed; other tiles with the same threads go unnoticed, and so does whatever else the code does: name no folder that you do not trust.
///
/// # Errors
///
/// [`Error::Invalid`] when the source was already chosen: by an earlier call, or because a kernel has been loaded.
pub fn set_ptx_dir(dir: impl Into<PathBuf>) -> Result<(), Error> {
    kernels::set_ptx_dir(dir.into())
}
