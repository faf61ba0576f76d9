//! The arrays of a call, as slices of cust.

use cust::memory::{DeviceCopy, DeviceSlice};

use crate::raw::{self, Array};

/// The arrays that [`Attention::forward_with`](crate::Attention::forward_with) takes, in device memory; see [`raw::Arrays`] for what each
/// one means. None of them is there by default.
///
/// ```no_run
/// # use half::bf16;
/// use cust::memory::DeviceBuffer;
/// use hopper_attention::{Arrays, Attention, Layout, Tensor};
///
/// # let _context = cust::quick_init()?;
/// // Three sequences of 100, 0 and 900 tokens, packed one behind the other.
/// let x = Tensor::<bf16>::zeroed(Layout::bshd([1, 1000, 16, 128]))?;
/// let cu_seqlens = DeviceBuffer::from_slice(&[0, 100, 100, 1000])?;
/// let arrays = Arrays::new().cu_seqlens_q(&cu_seqlens).cu_seqlens_k(&cu_seqlens);
/// let output = Attention::new().causal(true).forward_with(&x, &x, &x, &arrays)?;
/// assert_eq!(output.o.shape(), [1, 1000, 16, 128]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
#[must_use]
pub struct Arrays<'a> {
    /// `[num_heads]`: a logit a head that joins the sum of each row.
    pub sinks: Option<&'a DeviceSlice<f32>>,
    /// `[num_heads]`: the slopes of ALiBi.
    pub alibi_slopes: Option<&'a DeviceSlice<f32>>,
    /// `[batch + 1]`: at which row each sequence of Q and O begins, and the last one ends.
    pub cu_seqlens_q: Option<&'a DeviceSlice<i32>>,
    /// `[batch + 1]`: the same for K and V.
    pub cu_seqlens_k: Option<&'a DeviceSlice<i32>>,
    /// `[batch]`: how many of each sequence's rows are queries.
    pub seqused_q: Option<&'a DeviceSlice<i32>>,
    /// `[batch]`: how many of each sequence's rows are keys.
    pub seqused_k: Option<&'a DeviceSlice<i32>>,
}

impl<'a> Arrays<'a> {
    /// The default: none.
    pub fn new() -> Self {
        Self::default()
    }

    /// With other [`Arrays::sinks`].
    pub fn sinks(self, sinks: &'a DeviceSlice<f32>) -> Self {
        Self { sinks: Some(sinks), ..self }
    }

    /// With other [`Arrays::alibi_slopes`].
    pub fn alibi_slopes(self, alibi_slopes: &'a DeviceSlice<f32>) -> Self {
        Self { alibi_slopes: Some(alibi_slopes), ..self }
    }

    /// With other [`Arrays::cu_seqlens_q`].
    pub fn cu_seqlens_q(self, cu_seqlens_q: &'a DeviceSlice<i32>) -> Self {
        Self { cu_seqlens_q: Some(cu_seqlens_q), ..self }
    }

    /// With other [`Arrays::cu_seqlens_k`].
    pub fn cu_seqlens_k(self, cu_seqlens_k: &'a DeviceSlice<i32>) -> Self {
        Self { cu_seqlens_k: Some(cu_seqlens_k), ..self }
    }

    /// With other [`Arrays::seqused_q`].
    pub fn seqused_q(self, seqused_q: &'a DeviceSlice<i32>) -> Self {
        Self { seqused_q: Some(seqused_q), ..self }
    }

    /// With other [`Arrays::seqused_k`].
    pub fn seqused_k(self, seqused_k: &'a DeviceSlice<i32>) -> Self {
        Self { seqused_k: Some(seqused_k), ..self }
    }

    /// Addresses and lengths, for the [`raw`] layer.
    pub fn as_raw(&self) -> raw::Arrays {
        let mut arrays = raw::Arrays::new();
        arrays.sinks = self.sinks.map(raw_array);
        arrays.alibi_slopes = self.alibi_slopes.map(raw_array);
        arrays.cu_seqlens_q = self.cu_seqlens_q.map(raw_array);
        arrays.cu_seqlens_k = self.cu_seqlens_k.map(raw_array);
        arrays.seqused_q = self.seqused_q.map(raw_array);
        arrays.seqused_k = self.seqused_k.map(raw_array);
        arrays
    }
}

pub(crate) fn raw_array<T: DeviceCopy>(slice: &DeviceSlice<T>) -> Array {
    Array { address: slice.as_device_ptr().as_raw(), len: slice.len() }
}
