//! Attention on the tensors of [`crate::Tensor`] and the streams of cust.

use std::ptr;

use cust::memory::{CopyDestination, DeviceBuffer, DeviceSlice};
use cust::stream::Stream;

use crate::arrays::raw_array;
use crate::custom::Custom;
use crate::error::{check, check_cust, driver};
use crate::plan::{CombinePlan, Plan};
use crate::{Arrays, CustomKernel, Element, Error, HeadDims, Layout, Tensor, TensorView, TensorViewMut, memory, raw, tensor};

/// What to compute: `O = softmax(softmax_scale * Q K^T + mask) V`, with the options set one by one.
///
/// ```no_run
/// use half::bf16;
/// use hopper_attention::{Attention, Layout, Tensor};
///
/// let _context = cust::quick_init()?;
/// let x = Tensor::<bf16>::zeroed(Layout::bshd([2, 1000, 16, 128]))?; // [batch, seqlen, heads, head_dim]
/// let output = Attention::new().causal(true).forward(&x, &x, &x)?;
/// assert_eq!(output.o.shape(), [2, 1000, 16, 128]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[must_use]
pub struct Attention {
    options: raw::Options,
}

/// What attention computes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Output<T> {
    /// `[batch, seqlen_q, num_heads, head_dim_v]`, or `[1, total_q, num_heads, head_dim_v]` where queries are packed; contiguous. A row
    /// that sees no key is 0.
    pub o: Tensor<T>,
    /// Log-sum-exp of each row's logits (scaled, and a sink among them where there are sinks), natural logarithm,
    /// `[batch, num_heads, seqlen_q]` or `[num_heads, total_q]`. A row that sees neither key nor sink has -inf.
    pub lse: DeviceBuffer<f32>,
}

impl Attention {
    /// Without a mask, and with a softmax_scale of `1 / sqrt(head_dim)`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether query `i` sees only the keys `j <= i + seqlen_k - seqlen_q`: aligned to the bottom right.
    pub fn causal(self, causal: bool) -> Self {
        Self { options: self.options.causal(causal) }
    }

    /// The factor of the logits, finite and above 0.
    pub fn softmax_scale(self, softmax_scale: f32) -> Self {
        Self { options: self.options.softmax_scale(softmax_scale) }
    }

    /// How many keys before and behind its own, which is key `i + seqlen_k - seqlen_q`, query `i` sees; `None` for all of them. See
    /// [`raw::Options::window_left`] and [`raw::Options::window_right`].
    pub fn window(self, left: Option<usize>, right: Option<usize>) -> Self {
        Self { options: self.options.window(left, right) }
    }

    /// Makes `softcap * tanh(s / softcap)` of each scaled logit `s`, see [`raw::Options::softcap`].
    pub fn softcap(self, softcap: f32) -> Self {
        Self { options: self.options.softcap(softcap) }
    }

    /// Whether [`Attention::forward_into`] asks the driver of every address, see [`raw::Options::check_addresses`].
    /// [`Attention::forward`] always does.
    pub fn check_addresses(self, check_addresses: bool) -> Self {
        Self { options: self.options.check_addresses(check_addresses) }
    }

    /// The options, for the [`raw`] layer.
    pub fn as_raw(&self) -> &raw::Options {
        &self.options
    }

    /// Loads the kernel for a head_dim, or for a pair `(head_dim, head_dim_v)` where that of V differs, into the current context, if it is not
    /// there yet: 0.2 to 1.3 seconds a kernel, which the first call saves. A plain kernel is loaded together with
    /// those that serve few queries and few row tiles, up to three in all, see [`raw::prepare`].
    ///
    /// # Errors
    ///
    /// Those of [`raw::prepare`].
    pub fn prepare<T: Element>(&self, head_dims: impl Into<HeadDims>) -> Result<(), Error> {
        raw::prepare(head_dims, T::DTYPE, &self.options)
    }

    /// [`Attention::prepare`] for [`Attention::forward_with`].
    ///
    /// # Errors
    ///
    /// Those of [`raw::prepare_with`].
    pub fn prepare_with<T: Element>(&self, head_dims: impl Into<HeadDims>, arrays: &Arrays<'_>) -> Result<(), Error> {
        raw::prepare_with(head_dims, T::DTYPE, &self.options, &arrays.as_raw())
    }

    /// Computes attention into new tensors of the current context, and returns when the work is done.
    ///
    /// Shapes: `q` is `[batch, seqlen_q, num_heads, head_dim]`, `k` and `v` are `[batch, seqlen_k, num_heads_k, head_dim]`, where `v` may
    /// have another head_dim; see [`raw::forward`]. The work runs on the legacy default stream, so it follows whatever was enqueued before
    /// on cust's streams, but for those that were made `NON_BLOCKING`, and it cannot be captured into a graph.
    ///
    /// # Errors
    ///
    /// Those of [`raw::forward`]; [`Error::Driver`] also if the work fails, or there is no memory for the output, which is asked for once
    /// shapes and options are known to be right.
    pub fn forward<'a, T: Element>(
        &self,
        q: impl Into<TensorView<'a, T>>,
        k: impl Into<TensorView<'a, T>>,
        v: impl Into<TensorView<'a, T>>,
    ) -> Result<Output<T>, Error> {
        self.forward_with(q, k, v, &Arrays::new())
    }

    /// [`Attention::forward`] with packed or padded sequences of several lengths, attention sinks or ALiBi; see [`raw::forward_with`].
    ///
    /// Lengths are checked first, see [`raw::check_lengths`]. Rows of O that are no queries are 0, and their LSE is -inf.
    ///
    /// # Errors
    ///
    /// Those of [`Attention::forward`], [`raw::forward_with`] and [`raw::check_lengths`].
    pub fn forward_with<'a, T: Element>(
        &self,
        q: impl Into<TensorView<'a, T>>,
        k: impl Into<TensorView<'a, T>>,
        v: impl Into<TensorView<'a, T>>,
        arrays: &Arrays<'_>,
    ) -> Result<Output<T>, Error> {
        // SAFETY: no kernel, nothing to answer for.
        unsafe { self.compute(None, [q.into(), k.into(), v.into()], arrays) }
    }

    /// [`Attention::forward_with`] by a kernel of the caller's own score and mask functions, to which `args` is handed; see
    /// [`raw::forward_custom`].
    ///
    /// # Errors
    ///
    /// Those of [`Attention::forward_with`] and [`raw::forward_custom`].
    ///
    /// # Safety
    ///
    /// The kernel is what [`CustomKernel::from_ptx`] describes, and `args` is what its functions ask for: memory that they read, for instance, is
    /// allocated, of the current context, and written by nobody until this returns.
    pub unsafe fn forward_custom<'a, T: Element, A: ?Sized>(
        &self,
        kernel: &CustomKernel<A>,
        args: &A,
        q: impl Into<TensorView<'a, T>>,
        k: impl Into<TensorView<'a, T>>,
        v: impl Into<TensorView<'a, T>>,
        arrays: &Arrays<'_>,
    ) -> Result<Output<T>, Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.compute(Some(Custom::new(kernel, args)?), [q.into(), k.into(), v.into()], arrays) }
    }

    /// [`Attention::forward_with`], or [`Attention::forward_custom`] by `custom`.
    ///
    /// # Safety
    ///
    /// If there is `custom`, that of [`Attention::forward_custom`].
    unsafe fn compute<T: Element>(
        &self,
        custom: Option<Custom<'_>>,
        [q, k, v]: [TensorView<'_, T>; 3],
        arrays: &Arrays<'_>,
    ) -> Result<Output<T>, Error> {
        let (options, arrays) = (self.options.check_addresses(true), arrays.as_raw());
        let null_stream = ptr::null_mut();
        // First, so that on a full device a wrong shape is not called a lack of memory.
        Plan::check_inputs(custom.as_ref().map(|custom| custom.kernel), [q.as_raw(), k.as_raw(), v.as_raw()], &options, &arrays)?;
        // SAFETY: the arrays are borrowed until the end of this function, and the stream is the legacy default stream.
        unsafe { raw::check_lengths(q.as_raw(), k.as_raw(), &arrays, null_stream)? };
        let [batch, seqlen_q, num_heads, _] = q.layout().shape;
        let ([.., head_dim_v], all_written) = (v.layout().shape, arrays.cu_seqlens_q.is_none() && arrays.seqused_q.is_none());
        // SAFETY: the kernel writes every element, or they are written here; where either fails, the tensors are dropped unread.
        let (mut o, lse) = unsafe { Output::uninitialized([batch, seqlen_q, num_heads, head_dim_v], all_written)? };
        // SAFETY: the tensors are borrowed until the end of this function, which waits for the work; their views were checked against
        // the memory they borrow, and the addresses are checked to be of this context. For `custom` the caller answers.
        unsafe {
            let (o, lse) = (o.view_mut(), Some(raw_lse(&lse)));
            raw::enqueue(custom.as_ref(), [q.as_raw(), k.as_raw(), v.as_raw(), o.as_raw()], lse, &options, &arrays, null_stream)?;
            check("cuStreamSynchronize", driver()?.cuStreamSynchronize(null_stream))?;
        }
        Ok(Output { o, lse })
    }

    /// Enqueues attention on `stream`, into the caller's memory, and returns without waiting. `lse` has room for an f32 for each query of
    /// each head; see [`raw::forward`], which this calls.
    ///
    /// ```no_run
    /// # use half::bf16;
    /// # use hopper_attention::{Attention, Layout, Tensor};
    /// use cust::stream::{Stream, StreamFlags};
    ///
    /// # let _context = cust::quick_init()?;
    /// # let x = Tensor::<bf16>::zeroed(Layout::bshd([2, 1000, 16, 128]))?;
    /// let stream = Stream::new(StreamFlags::DEFAULT, None)?;
    /// let mut o = Tensor::zeroed(*x.layout())?;
    /// // SAFETY: `x` and `o` outlive the work, which is waited for below, and nothing else touches them.
    /// unsafe { Attention::new().forward_into(&x, &x, &x, &mut o, None, &stream)? };
    /// stream.synchronize()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`raw::forward`].
    ///
    /// # Safety
    ///
    /// Until the work on `stream` is done (in every replay, if `stream` is being captured) all tensors stay allocated, nothing else
    /// writes `q`, `k` and `v`, and nothing else reads or writes `o` and `lse`; their borrows end with this call, so the compiler does
    /// not see to it. Work enqueued earlier counts too, unless `stream` follows it: cust's `DeviceBuffer::zeroed` works on the legacy default
    /// stream, which a `NON_BLOCKING` stream does not follow ([`Tensor::zeroed`] and [`Tensor::from_slice`] have waited for it). All tensors,
    /// and `stream`, belong to the context that is current on this thread.
    pub unsafe fn forward_into<'a, 'o, T: Element>(
        &self,
        q: impl Into<TensorView<'a, T>>,
        k: impl Into<TensorView<'a, T>>,
        v: impl Into<TensorView<'a, T>>,
        o: impl Into<TensorViewMut<'o, T>>,
        lse: Option<&mut DeviceSlice<f32>>,
        stream: &Stream,
    ) -> Result<(), Error> {
        // SAFETY: passed on to the caller; there are no arrays.
        unsafe { self.forward_into_with(q, k, v, o, lse, &Arrays::new(), stream) }
    }

    /// [`Attention::forward_into`] with packed or padded sequences of several lengths, attention sinks or ALiBi; see [`raw::forward_with`].
    /// Lengths are not checked, and rows of O and LSE that are no queries keep what they held.
    ///
    /// # Errors
    ///
    /// Those of [`raw::forward_with`].
    ///
    /// # Safety
    ///
    /// That of [`Attention::forward_into`], with the arrays as inputs.
    #[expect(clippy::too_many_arguments, reason = "those of `forward_into`, and the arrays")]
    pub unsafe fn forward_into_with<'a, 'o, T: Element>(
        &self,
        q: impl Into<TensorView<'a, T>>,
        k: impl Into<TensorView<'a, T>>,
        v: impl Into<TensorView<'a, T>>,
        o: impl Into<TensorViewMut<'o, T>>,
        lse: Option<&mut DeviceSlice<f32>>,
        arrays: &Arrays<'_>,
        stream: &Stream,
    ) -> Result<(), Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.enqueue(None, [q.into(), k.into(), v.into()], o.into(), lse, arrays, stream) }
    }

    /// [`Attention::forward_into_with`] by a kernel of the caller's own score and mask functions, to which `args` is handed; see
    /// [`raw::forward_custom`].
    ///
    /// # Errors
    ///
    /// Those of [`raw::forward_custom`].
    ///
    /// # Safety
    ///
    /// That of [`Attention::forward_into_with`]; and that of [`Attention::forward_custom`], until the work on `stream` is done.
    #[expect(clippy::too_many_arguments, reason = "those of `forward_into_with`, the kernel and its parameter")]
    pub unsafe fn forward_custom_into<'a, 'o, T: Element, A: ?Sized>(
        &self,
        kernel: &CustomKernel<A>,
        args: &A,
        q: impl Into<TensorView<'a, T>>,
        k: impl Into<TensorView<'a, T>>,
        v: impl Into<TensorView<'a, T>>,
        o: impl Into<TensorViewMut<'o, T>>,
        lse: Option<&mut DeviceSlice<f32>>,
        arrays: &Arrays<'_>,
        stream: &Stream,
    ) -> Result<(), Error> {
        // SAFETY: passed on to the caller.
        unsafe { self.enqueue(Some(Custom::new(kernel, args)?), [q.into(), k.into(), v.into()], o.into(), lse, arrays, stream) }
    }

    /// [`Attention::forward_into_with`], or [`Attention::forward_custom_into`] by `custom`.
    ///
    /// # Safety
    ///
    /// That of [`Attention::forward_into_with`], or of [`Attention::forward_custom_into`].
    unsafe fn enqueue<T: Element>(
        &self,
        custom: Option<Custom<'_>>,
        [q, k, v]: [TensorView<'_, T>; 3],
        o: TensorViewMut<'_, T>,
        lse: Option<&mut DeviceSlice<f32>>,
        arrays: &Arrays<'_>,
        stream: &Stream,
    ) -> Result<(), Error> {
        let tensors = [q.as_raw(), k.as_raw(), v.as_raw(), o.as_raw()];
        let (lse, stream) = (lse.map(|lse| raw_lse(lse)), stream.as_inner().cast());
        // SAFETY: passed on to the caller. The views were checked against the memory they borrow.
        unsafe { raw::enqueue(custom.as_ref(), tensors, lse, &self.options, &arrays.as_raw(), stream) }
    }
}

impl<T: Element> Output<T> {
    /// New memory for O of this shape and its LSE; unless `all_written` says that a kernel writes every row, with what rows that see
    /// nothing have.
    ///
    /// # Safety
    ///
    /// Unless everything is initialised here, every element is written before anything reads it.
    unsafe fn uninitialized(shape: [usize; 4], all_written: bool) -> Result<(Tensor<T>, DeviceBuffer<f32>), Error> {
        let [batch, seqlen_q, num_heads, _] = shape;
        if all_written {
            // SAFETY: passed on to the caller.
            let o = unsafe { Tensor::uninitialized(shape)? };
            // No overflow: where O is not empty, it was allocated with at least as many elements.
            let rows = if o.layout().is_empty() { 0 } else { batch * num_heads * seqlen_q };
            // SAFETY: passed on to the caller.
            return Ok((o, unsafe { tensor::uninitialized(rows)? }));
        }
        let o = Tensor::zeroed(Layout::bshd(shape))?;
        let rows = if o.layout().is_empty() { 0 } else { batch * num_heads * seqlen_q };
        // SAFETY: written on the next line.
        let mut lse = unsafe { tensor::uninitialized(rows)? };
        check_cust("cuMemcpyHtoD_v2", lse.copy_from(vec![f32::NEG_INFINITY; rows].as_slice()))?;
        Ok((o, lse))
    }

    /// Merges attention over disjoint sets of keys into attention over all of them, in new tensors of the current context, and returns when the
    /// work is done: see [`raw::combine`]. From 1 to 64 parts, all of one shape.
    ///
    /// ```no_run
    /// # use half::bf16;
    /// use hopper_attention::{Attention, Dim, Layout, Output, Tensor};
    ///
    /// # let _context = cust::quick_init()?;
    /// let x = Tensor::<bf16>::zeroed(Layout::bshd([1, 4096, 16, 128]))?;
    /// let keys = |range| x.view().slice(Dim::Seqlen, range);
    /// let prefix = Attention::new().forward(&x, keys(0..1000)?, keys(0..1000)?)?;
    /// let suffix = Attention::new().forward(&x, keys(1000..4096)?, keys(1000..4096)?)?;
    /// let whole = Output::combine(&[&prefix, &suffix])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`raw::combine`]; [`Error::Invalid`] also for a part that is not memory of the current context; [`Error::Driver`] also if the work
    /// fails, or there is no memory for the output.
    pub fn combine(parts: &[&Self]) -> Result<Self, Error> {
        Self::merge(parts, None)
    }

    /// [`Output::combine`] with `sinks`, `[num_heads]`: a logit a head that joins the sum of each row once. The parts are computed without
    /// them.
    ///
    /// # Errors
    ///
    /// Those of [`Output::combine`] and [`raw::combine_with_sinks`].
    pub fn combine_with_sinks(parts: &[&Self], sinks: &DeviceSlice<f32>) -> Result<Self, Error> {
        Self::merge(parts, Some(sinks))
    }

    fn merge(parts: &[&Self], sinks: Option<&DeviceSlice<f32>>) -> Result<Self, Error> {
        let raw_parts: Vec<_> = parts.iter().map(|part| raw::Part { o: *part.o.view().as_raw(), lse: raw_lse(&part.lse) }).collect();
        let Some(first) = parts.first() else {
            return Err(CombinePlan::wrong_count(0));
        };
        CombinePlan::check_parts(&raw_parts, first.o.view().as_raw())?;
        // SAFETY: the kernel writes every element; where it fails, the tensors are dropped unread.
        let (mut o, lse) = unsafe { Self::uninitialized(first.o.shape(), true)? };
        let null_stream = ptr::null_mut();
        // SAFETY: parts and sinks are borrowed until the end of this function, which waits for the work, and the addresses are checked to
        // be of this context.
        unsafe {
            raw::combine_after(
                &raw_parts,
                o.view_mut().as_raw(),
                Some(raw_lse(&lse)),
                sinks.map(raw_array),
                null_stream,
                memory::check_combine,
            )?;
            check("cuStreamSynchronize", driver()?.cuStreamSynchronize(null_stream))?;
        }
        Ok(Self { o, lse })
    }
}

/// The same options as for the [`raw`] layer.
impl From<raw::Options> for Attention {
    fn from(options: raw::Options) -> Self {
        Self { options }
    }
}

fn raw_lse(lse: &DeviceSlice<f32>) -> raw::Lse {
    raw::Lse { address: lse.as_device_ptr().as_raw(), len: lse.len() }
}
