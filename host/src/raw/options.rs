//! What is computed, beside the tensors: by value, and by arrays in device memory.

use hopper_attention_driver::CUdeviceptr;

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
    /// Query `i` sees key `j` only if `j >= i + seqlen_k - seqlen_q - window_left`; `None` leaves that side open.
    pub window_left: Option<usize>,
    /// Query `i` sees key `j` only if `j <= i + seqlen_k - seqlen_q + window_right`; `None` leaves that side open. With
    /// [`Options::causal`], which is a bound of 0, the smaller of the two holds.
    pub window_right: Option<usize>,
    /// Makes `softcap * tanh(s / softcap)` of each scaled logit `s`. Above 0, and `softmax_scale / softcap` and `softcap * log2(e)` are
    /// normal numbers of f32. Not together with [`Arrays::alibi_slopes`].
    pub softcap: Option<f32>,
    /// Asks the driver of each tensor whether it lies in memory of the current context, from its first byte to its last, and returns
    /// [`Error::Invalid`](crate::Error::Invalid) where it does not, instead of a fault that ruins the context. Off by default, since it
    /// asks the driver three things a tensor.
    ///
    /// In memory of `cuMemAlloc` a tensor has to lie within its allocation. In that of stream-ordered pools and `cuMemMap` only its first
    /// and its last byte have to be memory of the device: what lies between them may be one piece or several, and the driver does not say
    /// whose. Memory of another device is refused, even where peer access would allow it.
    pub check_addresses: bool,
    /// For tests: whether kernels of fewer rows run where there are such, instead of where each tile has a multiprocessor of its own.
    #[doc(hidden)]
    pub fewer_rows: Option<bool>,
}

impl Options {
    /// The default: without a mask, with a softmax_scale of `1 / sqrt(head_dim)`.
    pub const fn new() -> Self {
        Self {
            causal: false,
            softmax_scale: None,
            window_left: None,
            window_right: None,
            softcap: None,
            check_addresses: false,
            fewer_rows: None,
        }
    }

    /// With another [`Options::causal`].
    pub const fn causal(self, causal: bool) -> Self {
        Self { causal, ..self }
    }

    /// With another [`Options::softmax_scale`].
    pub const fn softmax_scale(self, softmax_scale: f32) -> Self {
        Self { softmax_scale: Some(softmax_scale), ..self }
    }

    /// With another window: [`Options::window_left`] and [`Options::window_right`].
    pub const fn window(self, left: Option<usize>, right: Option<usize>) -> Self {
        Self { window_left: left, window_right: right, ..self }
    }

    /// With another [`Options::softcap`].
    pub const fn softcap(self, softcap: f32) -> Self {
        Self { softcap: Some(softcap), ..self }
    }

    /// With another [`Options::check_addresses`].
    pub const fn check_addresses(self, check_addresses: bool) -> Self {
        Self { check_addresses, ..self }
    }
}

/// Numbers of 4 bytes, f32 or i32, side by side in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Array {
    /// Device address of the first, a multiple of 4 bytes.
    pub address: CUdeviceptr,
    /// How many there are.
    pub len: usize,
}

/// The arrays that a call may bring along, in device memory, owned by the caller. None of them is there by default.
///
/// The number of sequences, `batch`, is that of the lengths where there are any, and else of the tensors; all that says it has to agree.
///
/// ```
/// use hopper_attention::raw::{Array, Arrays};
///
/// # let cu_seqlens = 0x10000;
/// // Three sequences, packed one behind the other.
/// let cu_seqlens = Array { address: cu_seqlens, len: 3 + 1 };
/// let arrays = Arrays::new().cu_seqlens_q(cu_seqlens).cu_seqlens_k(cu_seqlens);
/// assert!(arrays.sinks.is_none());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Arrays {
    /// f32 `[num_heads]`: a logit a head, in natural units and not scaled, that joins the sum of each row as if it were one more key with a
    /// V of 0. Finite ones stay below 2^128 / log2(e) = 2.35e38; -inf is none. The LSE has it, too. A row that sees no key then has `o = 0` and `lse = sink`. (Attention sinks, arXiv 2309.17453, as
    /// learned numbers.)
    pub sinks: Option<Array>,
    /// f32 `[num_heads]`: a slope a head, `slope * |i + seqlen_k - seqlen_q - j|` is subtracted from the scaled logit of query `i` and key
    /// `j` (ALiBi, arXiv 2108.12409). Not together with [`Options::softcap`].
    pub alibi_slopes: Option<Array>,
    /// i32 `[batch + 1]`, ascending: at which row of `q`, `o` and `lse` each sequence begins, and the last one ends. `q` and `o` then are
    /// `[1, total_q, num_heads, _]`, and `lse` is `[num_heads, total_q]`.
    pub cu_seqlens_q: Option<Array>,
    /// i32 `[batch + 1]`, ascending: the same for `k` and `v`, which then are `[1, total_k, num_heads_k, _]`.
    pub cu_seqlens_k: Option<Array>,
    /// i32 `[batch]`: how many of each sequence's rows of `q` are queries, from its first on.
    pub seqused_q: Option<Array>,
    /// i32 `[batch]`: how many of each sequence's rows of `k` and `v` are keys, from its first on.
    pub seqused_k: Option<Array>,
}

impl Arrays {
    /// The default: none.
    pub const fn new() -> Self {
        Self { sinks: None, alibi_slopes: None, cu_seqlens_q: None, cu_seqlens_k: None, seqused_q: None, seqused_k: None }
    }

    /// With other [`Arrays::sinks`].
    pub const fn sinks(self, sinks: Array) -> Self {
        Self { sinks: Some(sinks), ..self }
    }

    /// With other [`Arrays::alibi_slopes`].
    pub const fn alibi_slopes(self, alibi_slopes: Array) -> Self {
        Self { alibi_slopes: Some(alibi_slopes), ..self }
    }

    /// With other [`Arrays::cu_seqlens_q`].
    pub const fn cu_seqlens_q(self, cu_seqlens_q: Array) -> Self {
        Self { cu_seqlens_q: Some(cu_seqlens_q), ..self }
    }

    /// With other [`Arrays::cu_seqlens_k`].
    pub const fn cu_seqlens_k(self, cu_seqlens_k: Array) -> Self {
        Self { cu_seqlens_k: Some(cu_seqlens_k), ..self }
    }

    /// With other [`Arrays::seqused_q`].
    pub const fn seqused_q(self, seqused_q: Array) -> Self {
        Self { seqused_q: Some(seqused_q), ..self }
    }

    /// With other [`Arrays::seqused_k`].
    pub const fn seqused_k(self, seqused_k: Array) -> Self {
        Self { seqused_k: Some(seqused_k), ..self }
    }
}
