//! The extents of a problem, consistent with each other.

use hopper_attention_kernels::params::MAX_SEQLEN;

use crate::raw::{Array, Arrays, Tensor4};
use crate::{Dim, Error};

/// How the sequences of Q and O, or of K and V, lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    /// Rows of a batch entry of the tensor: what no sequence exceeds.
    pub rows: usize,
    /// Whether that is one batch entry with all sequences in it.
    pub packed: bool,
    /// Whether sequences have lengths of their own.
    pub ragged: bool,
}

impl Side {
    fn of(name: &str, tensor: &Tensor4, cu_seqlens: Option<Array>, seqused: Option<Array>) -> Result<Self, Error> {
        let rows = tensor.layout.extent(Dim::Seqlen);
        if rows > MAX_SEQLEN as usize {
            return Err(Error::unsupported(format!("{name}.seqlen"), rows, format!("at most {MAX_SEQLEN}")));
        }
        let batch = tensor.layout.extent(Dim::Batch);
        if cu_seqlens.is_some() && batch != 1 {
            return Err(Error::invalid(
                format!("{name}.batch"),
                batch,
                format!("1, as cu_seqlens_{name} packs all sequences in one entry"),
            ));
        }
        Ok(Self { rows, packed: cu_seqlens.is_some(), ragged: cu_seqlens.is_some() || seqused.is_some() })
    }
}

/// How many sequences there are, and how they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sequences {
    pub batch: usize,
    pub q: Side,
    pub k: Side,
}

impl Sequences {
    pub fn of(q: &Tensor4, k: &Tensor4, arrays: &Arrays) -> Result<Self, Error> {
        let sides = (Side::of("q", q, arrays.cu_seqlens_q, arrays.seqused_q)?, Side::of("k", k, arrays.cu_seqlens_k, arrays.seqused_k)?);
        Ok(Self { batch: batch(q, k, arrays)?, q: sides.0, k: sides.1 })
    }
}

/// What all that says how many sequences there are agrees on.
fn batch(q: &Tensor4, k: &Tensor4, arrays: &Arrays) -> Result<usize, Error> {
    // A field, what it holds, and how much that is above the number of sequences.
    let side = |tensor: &Tensor4, field, cu_seqlens: Option<Array>, cu_field| match cu_seqlens {
        Some(array) => (cu_field, array.len, 1),
        None => (field, tensor.layout.extent(Dim::Batch), 0),
    };
    let (first_field, first, above) = side(q, "q.batch", arrays.cu_seqlens_q, "cu_seqlens_q.len");
    let Some(batch) = first.checked_sub(above) else {
        return Err(Error::invalid(first_field, first, "at least 1, one more than there are sequences"));
    };
    let seqused = |field, array: Option<Array>| array.map(|array| (field, array.len, 0));
    let others = [
        Some(side(k, "k.batch", arrays.cu_seqlens_k, "cu_seqlens_k.len")),
        seqused("seqused_q.len", arrays.seqused_q),
        seqused("seqused_k.len", arrays.seqused_k),
    ];
    for (field, value, above) in others.into_iter().flatten() {
        if value.checked_sub(above) != Some(batch) {
            let expected = batch.saturating_add(above);
            return Err(Error::invalid(field, value, format!("{expected}, as {first_field} is {first}")));
        }
    }
    Ok(batch)
}

/// The extents of Q, K and V.
pub(crate) struct Shape {
    pub sequences: Sequences,
    pub heads: usize,
    pub heads_k: usize,
    /// Of Q and K.
    pub head_dim: usize,
    /// Of V and O.
    pub head_dim_v: usize,
}

impl Shape {
    pub fn of(q: &Tensor4, k: &Tensor4, v: &Tensor4, arrays: &Arrays) -> Result<Self, Error> {
        check_dtype("k", k, q)?;
        check_dtype("v", v, q)?;
        let sequences = Sequences::of(q, k, arrays)?;
        check_extents(("k", k), ("q", q), &[Dim::HeadDim])?;
        check_extents(("v", v), ("k", k), &[Dim::Batch, Dim::Seqlen, Dim::Heads])?;
        let [_, _, heads, head_dim] = q.layout.shape;
        let heads_k = k.layout.extent(Dim::Heads);
        // Only 0 is a multiple of 0.
        if !heads.is_multiple_of(heads_k) {
            return Err(Error::invalid("q.heads", heads, format!("a multiple of k.heads = {heads_k}")));
        }
        for (field, array) in [("sinks.len", arrays.sinks), ("alibi_slopes.len", arrays.alibi_slopes)] {
            if let Some(array) = array {
                check_one_a_head(field, array, heads)?;
            }
        }
        Ok(Self { sequences, heads, heads_k, head_dim, head_dim_v: v.layout.extent(Dim::HeadDim) })
    }

    /// O is like Q, but for the head_dim of V.
    pub fn check_output(q: &Tensor4, v: &Tensor4, o: &Tensor4) -> Result<(), Error> {
        check_dtype("o", o, q)?;
        check_extents(("o", o), ("q", q), &[Dim::Batch, Dim::Seqlen, Dim::Heads])?;
        check_extents(("o", o), ("v", v), &[Dim::HeadDim])
    }

    /// Rows of O, each with an LSE; `None` if there is no row.
    pub fn rows(&self) -> Result<Option<u64>, Error> {
        let Sequences { batch, q, .. } = self.sequences;
        if batch == 0 || self.heads == 0 || q.rows == 0 {
            return Ok(None);
        }
        let entries = if q.packed { 1 } else { batch };
        let rows = [self.heads, q.rows].into_iter().try_fold(entries as u64, |rows, extent| rows.checked_mul(extent as u64));
        rows.map(Some).ok_or_else(|| self.too_many("batch * num_heads * seqlen_q", u64::MAX))
    }

    /// Keys of a sequence: of all of them, or in the mean where they are packed.
    pub fn mean_seqlen_k(&self) -> u64 {
        let Sequences { batch, k, .. } = self.sequences;
        if k.packed { k.rows.div_ceil(batch.max(1)) as u64 } else { k.rows as u64 }
    }

    pub fn too_many(&self, field: &str, limit: u64) -> Error {
        let (Sequences { batch, q, .. }, heads) = (self.sequences, self.heads);
        let value = format!("too large for batch = {batch}, num_heads = {heads}, seqlen_q = {}", q.rows);
        Error::unsupported(field, value, format!("at most {limit}"))
    }
}

/// An array of one number for each query head; `field` is its length.
pub(crate) fn check_one_a_head(field: &str, array: Array, heads: usize) -> Result<(), Error> {
    if array.len == heads {
        return Ok(());
    }
    Err(Error::invalid(field, array.len, format!("{heads}, one for each query head")))
}

fn check_dtype(name: &str, tensor: &Tensor4, q: &Tensor4) -> Result<(), Error> {
    if tensor.dtype == q.dtype {
        return Ok(());
    }
    Err(Error::invalid(format!("{name}.dtype"), tensor.dtype.name(), format!("{}, the dtype of q", q.dtype.name())))
}

fn check_extents((name, tensor): (&str, &Tensor4), (other_name, other): (&str, &Tensor4), dims: &[Dim]) -> Result<(), Error> {
    let differs = dims.iter().find(|&&dim| tensor.layout.extent(dim) != other.layout.extent(dim));
    differs.map_or(Ok(()), |&dim| {
        let requirement = format!("{}, as in {other_name}", other.layout.extent(dim));
        Err(Error::invalid(format!("{name}.{}", dim.name()), tensor.layout.extent(dim), requirement))
    })
}
