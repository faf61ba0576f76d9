//! What the references compute, and on what.

use crate::Element;
use crate::{Error, Layout};

/// A tensor `[batch, seqlen, heads, head_dim]` in host memory.
#[derive(Clone, Copy, Debug)]
pub struct HostTensor<'a, T> {
    data: &'a [T],
    layout: Layout,
}

impl<'a, T> HostTensor<'a, T> {
    /// A view of `data`, from its first element on. Strides may be 0 (the same data for every index), and elements may overlap.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if an element of the view lies beyond `data`.
    pub fn new(data: &'a [T], layout: Layout) -> Result<Self, Error> {
        match layout.span() {
            Some(span) if span <= data.len() => Ok(Self { data, layout }),
            span => {
                let needed = span.map_or("more than a usize counts".to_string(), |span| span.to_string());
                Err(Error::invalid("data.len", data.len(), format!("at least the elements that the layout spans: {needed}")))
            }
        }
    }

    /// `[batch, seqlen, heads, head_dim]`.
    pub fn shape(&self) -> [usize; 4] {
        self.layout.shape
    }

    /// The head_dim elements of one position.
    ///
    /// # Panics
    ///
    /// If an index is not below its extent.
    pub fn row(&self, batch_idx: usize, position: usize, head_idx: usize) -> &'a [T] {
        let Layout { shape: [batch, seqlen, heads, head_dim], strides: [batch_stride, seqlen_stride, head_stride] } = self.layout;
        assert!(batch_idx < batch && position < seqlen && head_idx < heads, "index outside of the tensor");
        let start = batch_idx * batch_stride + position * seqlen_stride + head_idx * head_stride;
        &self.data[start..start + head_dim]
    }
}

/// Q, K, V and what to compute from them.
#[derive(Clone, Copy, Debug)]
pub struct Problem<'a, T> {
    pub(super) q: HostTensor<'a, T>,
    pub(super) k: HostTensor<'a, T>,
    pub(super) v: HostTensor<'a, T>,
    pub(super) causal: bool,
    pub(super) softmax_scale: f32,
}

impl<'a, T: Element> Problem<'a, T> {
    /// Attention of `q` `[batch, seqlen_q, num_heads, head_dim]` to `k` and `v` `[batch, seqlen_k, num_heads_k, head_dim]`, without a mask
    /// and with a scale of 1/sqrt(head_dim).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the shapes disagree, num_heads is no multiple of num_heads_k, head_dim is 0, or O would not fit in the address
    /// space.
    pub fn new(q: HostTensor<'a, T>, k: HostTensor<'a, T>, v: HostTensor<'a, T>) -> Result<Self, Error> {
        let [batch, _, num_heads, head_dim] = q.shape();
        let [batch_k, _, num_heads_k, head_dim_k] = k.shape();
        if head_dim == 0 {
            return Err(Error::invalid("q.head_dim", head_dim, "at least 1"));
        }
        if v.shape() != k.shape() {
            return Err(Error::invalid("v.shape", format!("{:?}", v.shape()), format!("that of k: {:?}", k.shape())));
        }
        if (batch_k, head_dim_k) != (batch, head_dim) {
            let requirement = format!("of the batch and head_dim of q: {batch} and {head_dim}");
            return Err(Error::invalid("k.shape", format!("{:?}", k.shape()), requirement));
        }
        // Repeated by strides of 0, a small Q can have more rows than O has room for.
        let bytes = q.layout.elements().and_then(|elements| elements.checked_mul(size_of::<f64>()));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::invalid("q.shape", format!("{:?}", q.shape()), "such that O as f64 has at most isize::MAX bytes"));
        }
        // Only 0 is a multiple of 0.
        if !num_heads.is_multiple_of(num_heads_k) {
            return Err(Error::invalid("q.heads", num_heads, format!("a multiple of k.heads: {num_heads_k}")));
        }
        Ok(Self { q, k, v, causal: false, softmax_scale: (1.0 / (head_dim as f64).sqrt()) as f32 })
    }

    /// Whether query i sees only the keys `j <= i + seqlen_k - seqlen_q`.
    #[must_use]
    pub fn causal(self, causal: bool) -> Self {
        Self { causal, ..self }
    }

    /// The factor of Q K^T.
    #[must_use]
    pub fn softmax_scale(self, softmax_scale: f32) -> Self {
        Self { softmax_scale, ..self }
    }

    /// Queries of each batch entry.
    pub fn seqlen_q(&self) -> usize {
        self.q.shape()[1]
    }

    /// Keys of each batch entry.
    pub fn seqlen_k(&self) -> usize {
        self.k.shape()[1]
    }

    pub(super) fn head_dim(&self) -> usize {
        self.q.shape()[3]
    }

    /// The key head that query head `head_idx` reads.
    pub(super) fn head_idx_k(&self, head_idx: usize) -> usize {
        let (num_heads, num_heads_k) = (self.q.shape()[2], self.k.shape()[2]);
        head_idx / (num_heads / num_heads_k)
    }

    /// How many keys query `position` sees: the first so many.
    pub fn visible_keys(&self, position: usize) -> usize {
        let later_queries = self.seqlen_q().saturating_sub(position).saturating_sub(1);
        if self.causal { self.seqlen_k().saturating_sub(later_queries) } else { self.seqlen_k() }
    }
}
