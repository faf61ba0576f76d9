//! What the references compute, and on what.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::Range;

use hopper_attention_kernels::config;
use hopper_attention_kernels::params::MAX_SEQLEN;

use super::Row;
use crate::Element;
use crate::plan::{Family, Scales};
use crate::{Error, Layout, raw};

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
    pub(super) window_left: Option<usize>,
    pub(super) window_right: Option<usize>,
    pub(super) softmax_scale: f32,
    pub(super) score: Score<'a>,
    pub(super) sinks: Option<&'a [f32]>,
    pub(super) mask: Option<MaskFunction<'a>>,
    pub(super) tile_n: Option<NonZeroU32>,
}

/// A score function of the caller's own: the new score in natural units, of `softmax_scale * q . k`, query and key.
#[derive(Clone, Copy)]
pub(super) struct ScoreFunction<'a>(pub &'a (dyn Fn(f64, Row, usize) -> f64 + Sync));

/// A mask function of the caller's own: whether the query sees the key.
#[derive(Clone, Copy)]
pub(super) struct MaskFunction<'a>(pub &'a (dyn Fn(Row, usize) -> bool + Sync));

impl fmt::Debug for ScoreFunction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a function")
    }
}

impl fmt::Debug for MaskFunction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a function")
    }
}

/// What a logit, `softmax_scale * q . k`, becomes before the softmax.
#[derive(Clone, Copy, Debug)]
pub(super) enum Score<'a> {
    Identity,
    /// The cap.
    SoftCap(f32),
    /// The slope of each query head.
    Alibi(&'a [f32]),
    Function(ScoreFunction<'a>),
}

impl<'a, T: Element> Problem<'a, T> {
    /// Attention of `q` `[batch, seqlen_q, num_heads, head_dim]` to `k` `[batch, seqlen_k, num_heads_k, head_dim]` and `v`
    /// `[batch, seqlen_k, num_heads_k, head_dim_v]`, without a mask and with a scale of 1/sqrt(head_dim). O is
    /// `[batch, seqlen_q, num_heads, head_dim_v]`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the shapes disagree, num_heads is no multiple of num_heads_k, head_dim or head_dim_v is 0, or the rows or O would not
    /// fit in the address space; [`Error::Unsupported`] if a sequence is longer than those of the kernels, 2^31 - 1025.
    ///
    /// Whether this machine has the memory is not known before it is asked for, and a reference ends the process where it has not: O and its rows
    /// take `8 * head_dim_v + 24` bytes a row and more, [`super::exact`] 8 bytes a key besides, on each thread.
    pub fn new(q: HostTensor<'a, T>, k: HostTensor<'a, T>, v: HostTensor<'a, T>) -> Result<Self, Error> {
        let [batch, seqlen_q, num_heads, head_dim] = q.shape();
        let [batch_k, seqlen_k, num_heads_k, head_dim_k] = k.shape();
        let [batch_v, seqlen_v, num_heads_v, head_dim_v] = v.shape();
        for (field, head_dim) in [("q.head_dim", head_dim), ("v.head_dim", head_dim_v)] {
            if head_dim == 0 {
                return Err(Error::invalid(field, head_dim, "at least 1"));
            }
        }
        if (batch_v, seqlen_v, num_heads_v) != (batch_k, seqlen_k, num_heads_k) {
            let requirement = format!("that of k, {:?}, but for head_dim", k.shape());
            return Err(Error::invalid("v.shape", format!("{:?}", v.shape()), requirement));
        }
        if (batch_k, head_dim_k) != (batch, head_dim) {
            let requirement = format!("of the batch and head_dim of q: {batch} and {head_dim}");
            return Err(Error::invalid("k.shape", format!("{:?}", k.shape()), requirement));
        }
        for (field, seqlen) in [("q.seqlen", seqlen_q), ("k.seqlen", seqlen_k)] {
            if seqlen > MAX_SEQLEN as usize {
                return Err(Error::unsupported(field, seqlen, format!("at most {MAX_SEQLEN}: the kernels count in 32 bits")));
            }
        }
        // Repeated by strides of 0, a small Q can have more rows than there is room for, or O.
        let rows = Layout::bshd([batch, seqlen_q, num_heads, size_of::<Row>()]).elements();
        if rows.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::invalid("q.shape", format!("{:?}", q.shape()), "such that a list of its rows has at most isize::MAX bytes"));
        }
        let elements = Layout::bshd([batch, seqlen_q, num_heads, head_dim_v]).elements();
        let bytes = elements.and_then(|elements| elements.checked_mul(size_of::<f64>()));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            let requirement = format!("such that O, with a head_dim of {head_dim_v}, has at most isize::MAX bytes as f64");
            return Err(Error::invalid("q.shape", format!("{:?}", q.shape()), requirement));
        }
        // Only 0 is a multiple of 0.
        if !num_heads.is_multiple_of(num_heads_k) {
            return Err(Error::invalid("q.heads", num_heads, format!("a multiple of k.heads: {num_heads_k}")));
        }
        Ok(Self {
            q,
            k,
            v,
            causal: false,
            window_left: None,
            window_right: None,
            softmax_scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            score: Score::Identity,
            sinks: None,
            mask: None,
            tile_n: None,
        })
    }

    /// Whether query i sees only the keys `j <= i + seqlen_k - seqlen_q`.
    #[must_use]
    pub fn causal(self, causal: bool) -> Self {
        Self { causal, ..self }
    }

    /// How many keys query i sees to the left and to the right of key `i + seqlen_k - seqlen_q`, which it sees too, if there is one:
    /// the keys j with `i + seqlen_k - seqlen_q - left <= j <= i + seqlen_k - seqlen_q + right`. `None` is no bound. With
    /// [`causal`](Self::causal), `right` counts as 0.
    #[must_use]
    pub fn window(self, left: Option<usize>, right: Option<usize>) -> Self {
        Self { window_left: left, window_right: right, ..self }
    }

    /// The factor of Q K^T.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless it is above 0 and finite, also when multiplied by log2(e); or if it is out of proportion to the soft cap, see
    /// [`softcap`](Self::softcap).
    pub fn softmax_scale(self, softmax_scale: f32) -> Result<Self, Error> {
        Self { softmax_scale, ..self }.with_scales_checked()
    }

    /// Bounds the logits: each `s = softmax_scale * q . k` becomes `cap * tanh(s / cap)`. A logit of -inf is no mask then: it becomes -cap.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless `cap` is above 0, and softmax_scale / cap and cap * log2(e) are normal numbers of f32; [`Error::Unsupported`]
    /// together with ALiBi.
    pub fn softcap(self, cap: f32) -> Result<Self, Error> {
        if let Score::Alibi(_) = self.score {
            return Err(Error::unsupported("softcap", cap, NOT_BOTH));
        }
        Self { score: Score::SoftCap(cap), ..self }.with_scales_checked()
    }

    /// Attention with linear biases (ALiBi, arXiv 2108.12409): each `s = softmax_scale * q . k` of query head h becomes
    /// `s - slopes[h] * |i + seqlen_k - seqlen_q - j|`. `slopes` is `[num_heads]`, in natural units.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless there is a slope for each query head; [`Error::Unsupported`] together with a soft cap.
    pub fn alibi_slopes(self, slopes: &'a [f32]) -> Result<Self, Error> {
        self.check_one_a_head("alibi_slopes.len", slopes)?;
        if let Score::SoftCap(_) = self.score {
            return Err(Error::unsupported("alibi_slopes", format!("{slopes:?}"), NOT_BOTH));
        }
        Ok(Self { score: Score::Alibi(slopes), ..self })
    }

    /// A logit for each query head, `[num_heads]`, that joins the denominator of all its rows, as of a key whose V is 0. It is in natural
    /// units: neither softmax_scale nor the soft cap nor ALiBi applies to it. -inf is none.
    ///
    /// ```text
    /// lse_i = ln(exp(sinks[h]) + sum_j exp(S_ij))      o_i = sum_j exp(S_ij - lse_i) v_j
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless there is a sink for each query head.
    pub fn sinks(self, sinks: &'a [f32]) -> Result<Self, Error> {
        self.check_one_a_head("sinks.len", sinks)?;
        Ok(Self { sinks: Some(sinks), ..self })
    }

    /// A score function of one's own, in the place of soft cap and ALiBi: what becomes of `softmax_scale * q . k`, for a query and a key.
    #[must_use]
    pub fn score_function(self, score: &'a (dyn Fn(f64, Row, usize) -> f64 + Sync)) -> Self {
        Self { score: Score::Function(ScoreFunction(score)), ..self }
    }

    /// A mask function of one's own: whether a query sees a key, of those within the window.
    #[must_use]
    pub fn mask_function(self, sees: &'a (dyn Fn(Row, usize) -> bool + Sync)) -> Self {
        Self { mask: Some(MaskFunction(sees)), ..self }
    }

    /// How many keys the kernel takes a step, which only [`super::tiled`] looks at. Unless it is said, as many as the kernel that ships; with
    /// functions of one's own, as many as a kernel of them of the smallest native head_dim (see `CustomKernel::tile_n`).
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless it is a multiple of 16 up to 256.
    pub fn tile_n(self, tile_n: usize) -> Result<Self, Error> {
        match u32::try_from(tile_n).ok().and_then(NonZeroU32::new) {
            Some(keys) if tile_n <= 256 && tile_n.is_multiple_of(16) => Ok(Self { tile_n: Some(keys), ..self }),
            _ => Err(Error::invalid("tile_n", tile_n, "a multiple of 16 up to 256")),
        }
    }

    /// By the rule of the kernels' calls: with other factors the two references would differ from each other, and from the kernels.
    fn with_scales_checked(self) -> Result<Self, Error> {
        let options = raw::Options::new().softmax_scale(self.softmax_scale);
        let (options, scores) = match self.score {
            Score::SoftCap(cap) => (options.softcap(cap), config::ScoreFunction::SoftCap),
            Score::Identity => (options, config::ScoreFunction::Identity),
            // Functions get scores in natural units, as ALiBi does.
            Score::Alibi(_) | Score::Function(_) => (options, config::ScoreFunction::Alibi),
        };
        Scales::of(&options, self.head_dim(), Family::General(scores)).map(|_| self)
    }

    fn check_one_a_head(&self, field: &str, values: &[f32]) -> Result<(), Error> {
        let num_heads = self.q.shape()[2];
        if values.len() == num_heads {
            return Ok(());
        }
        Err(Error::invalid(field, values.len(), format!("the number of query heads: {num_heads}")))
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

    /// That of V and O.
    pub(super) fn head_dim_v(&self) -> usize {
        self.v.shape()[3]
    }

    /// The key head that query head `head_idx` reads.
    pub(super) fn head_idx_k(&self, head_idx: usize) -> usize {
        let (num_heads, num_heads_k) = (self.q.shape()[2], self.k.shape()[2]);
        head_idx / (num_heads / num_heads_k)
    }

    /// The sink of query head `head_idx`; -inf if there is none.
    pub(super) fn sink(&self, head_idx: usize) -> f32 {
        self.sinks.map_or(f32::NEG_INFINITY, |sinks| sinks[head_idx])
    }

    /// Whether the query sees the key, which is one of [`Problem::visible_keys`].
    pub(super) fn sees(&self, row: Row, key: usize) -> bool {
        self.mask.is_none_or(|MaskFunction(sees)| sees(row, key))
    }

    /// `|i + seqlen_k - seqlen_q - j|` for query i and key j.
    pub(super) fn distance(&self, position: usize, key: usize) -> usize {
        (position + self.seqlen_k()).abs_diff(key + self.seqlen_q())
    }

    /// The largest `j - (i + seqlen_k - seqlen_q)` that query i sees; `None` is no bound.
    pub(super) fn right_bound(&self) -> Option<usize> {
        if self.causal { Some(0) } else { self.window_right }
    }

    /// The keys that query `position`, below seqlen_q, sees, as far as the window is concerned.
    pub fn visible_keys(&self, position: usize) -> Range<usize> {
        // Both sides of each bound are moved by seqlen_q, so that nothing is negative.
        let (seqlen_q, seqlen_k) = (self.seqlen_q(), self.seqlen_k());
        let aligned = position.saturating_add(seqlen_k);
        let begin = self.window_left.map_or(0, |left| aligned.saturating_sub(seqlen_q.saturating_add(left)));
        let behind = |right: usize| aligned.saturating_add(right).saturating_add(1).saturating_sub(seqlen_q);
        let end = self.right_bound().map_or(seqlen_k, |right| behind(right).min(seqlen_k));
        begin..end
    }
}

const NOT_BOTH: &str = "without the other: no kernel has both a soft cap and ALiBi";
