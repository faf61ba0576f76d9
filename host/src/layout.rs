//! Where the elements of a tensor lie.

use std::ops::Range;

use crate::Error;

/// A dimension of a tensor; the order is that of every shape of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Batch entries.
    Batch,
    /// Queries or keys.
    Seqlen,
    /// Query heads or key heads.
    Heads,
    /// The elements of a head, always contiguous.
    HeadDim,
}

impl Dim {
    /// The name as errors spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Seqlen => "seqlen",
            Self::Heads => "heads",
            Self::HeadDim => "head_dim",
        }
    }
}

/// Shape and strides of a tensor `[batch, seqlen, heads, head_dim]`, whatever the order of its dimensions in memory.
///
/// Element `[b, s, h, d]` lies at `b * strides[0] + s * strides[1] + h * strides[2] + d` elements from the tensor's address.
///
/// ```
/// use hopper_attention::{Dim, Layout};
///
/// // A packed [batch, seqlen, 3, heads, head_dim] is a tensor of 3 * heads heads, and K is a slice of it.
/// let packed = Layout::bshd([2, 1000, 3 * 16, 128]);
/// let (offset, k) = packed.slice(Dim::Heads, 16..32)?;
/// assert_eq!((offset, k.shape), (16 * 128, [2, 1000, 16, 128]));
/// assert_eq!(k.strides, packed.strides);
/// # Ok::<(), hopper_attention::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Layout {
    /// `[batch, seqlen, heads, head_dim]`.
    pub shape: [usize; 4],
    /// Elements between neighbours along `[batch, seqlen, heads]`. Not read along a dimension of extent 0 or 1.
    pub strides: [usize; 3],
}

impl Layout {
    /// Contiguous, in the order `[batch, seqlen, heads, head_dim]`: that of FlashAttention.
    pub const fn bshd(shape: [usize; 4]) -> Self {
        let [_, seqlen, heads, head_dim] = shape;
        // Saturated strides describe no memory, so what checks a layout refuses them.
        let row = heads.saturating_mul(head_dim);
        Self { shape, strides: [seqlen.saturating_mul(row), row, head_dim] }
    }

    /// Contiguous, in the order `[batch, heads, seqlen, head_dim]`: that of PyTorch's SDPA. The shape is given as everywhere,
    /// `[batch, seqlen, heads, head_dim]`.
    pub const fn bhsd(shape: [usize; 4]) -> Self {
        let [_, seqlen, heads, head_dim] = shape;
        let head = seqlen.saturating_mul(head_dim);
        Self { shape, strides: [heads.saturating_mul(head), head_dim, head] }
    }

    /// The extent of a dimension.
    pub const fn extent(&self, dim: Dim) -> usize {
        self.shape[dim as usize]
    }

    /// How many elements there are, a broadcast one counted as often as it is repeated; `None` beyond `usize::MAX`.
    pub fn elements(&self) -> Option<usize> {
        if self.is_empty() {
            return Some(0);
        }
        self.shape.into_iter().try_fold(1usize, usize::checked_mul)
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Elements from the first to behind the last: what a buffer must hold from the tensor's address on. `None` beyond `usize::MAX`.
    pub fn span(&self) -> Option<usize> {
        if self.is_empty() {
            return Some(0);
        }
        let [outer @ .., head_dim] = self.shape;
        let strided = outer.into_iter().zip(self.strides).filter(|&(extent, _)| extent > 1);
        strided.map(|(extent, stride)| (extent - 1).checked_mul(stride)).try_fold(head_dim, |sum, term| sum.checked_add(term?))
    }

    /// Part of a dimension: how many elements behind this tensor's address the part begins, and its layout.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless `range` lies within the extent.
    pub fn slice(&self, dim: Dim, range: Range<usize>) -> Result<(usize, Self), Error> {
        let extent = self.extent(dim);
        if range.start > range.end || range.end > extent {
            return Err(Error::invalid("range", format!("{range:?}"), format!("within 0..{extent}, the extent of {}", dim.name())));
        }
        let mut part = *self;
        part.shape[dim as usize] = range.end - range.start;
        if part.is_empty() {
            return Ok((0, part));
        }
        let stride = self.strides.get(dim as usize).copied().unwrap_or(1);
        let offset = range.start.checked_mul(stride);
        let offset = offset.ok_or_else(|| Error::invalid("stride", stride, "such that the slice begins within the address space"))?;
        Ok((offset, part))
    }

    /// Repeats the one entry of `dim` (batch or heads) `extent` times, by a stride of 0.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless the extent of `dim` is 1; [`Error::Unsupported`] for the other dimensions, which the copy engine
    /// cannot repeat.
    pub fn broadcast(&self, dim: Dim, extent: usize) -> Result<Self, Error> {
        if !matches!(dim, Dim::Batch | Dim::Heads) {
            return Err(Error::unsupported("the dimension to broadcast", dim.name(), "batch or heads"));
        }
        if self.extent(dim) != 1 {
            return Err(Error::invalid(dim.name(), self.extent(dim), "1 to be broadcast"));
        }
        let mut repeated = *self;
        repeated.shape[dim as usize] = extent;
        repeated.strides[dim as usize] = 0;
        Ok(repeated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_layouts() {
        let shape = [2, 5, 3, 8];
        assert_eq!(Layout::bshd(shape).strides, [120, 24, 8]);
        assert_eq!(Layout::bhsd(shape).strides, [120, 8, 40]);
        for layout in [Layout::bshd(shape), Layout::bhsd(shape)] {
            assert_eq!(layout.span(), Some(240));
            assert_eq!(layout.elements(), Some(240));
        }
    }

    #[test]
    fn empty_layouts_span_nothing() {
        for dim in 0..4 {
            let mut shape = [usize::MAX; 4];
            shape[dim] = 0;
            assert_eq!((Layout::bshd(shape).span(), Layout::bshd(shape).elements()), (Some(0), Some(0)));
        }
    }

    #[test]
    fn absurd_layouts_overflow_without_panic() {
        for shape in [[usize::MAX; 4], [2, usize::MAX / 2, 1, 8], [1, 1, usize::MAX, 2]] {
            assert_eq!(Layout::bshd(shape).span(), None);
            assert_eq!(Layout::bhsd(shape).elements(), None);
        }
        let layout = Layout { shape: [1, 3, 1, 8], strides: [0, usize::MAX / 2 + 1, 0] };
        assert_eq!(layout.span(), None);
        assert!(matches!(layout.slice(Dim::Seqlen, 2..3), Err(Error::Invalid { .. })));
    }

    #[test]
    fn strides_of_single_entries_do_not_count() {
        let layout = Layout { shape: [1, 4, 1, 8], strides: [usize::MAX, 16, usize::MAX] };
        assert_eq!(layout.span(), Some(3 * 16 + 8));
    }

    #[test]
    fn slices() {
        let layout = Layout::bshd([2, 5, 6, 8]);
        assert_eq!(layout.slice(Dim::Batch, 1..2).unwrap(), (240, Layout { shape: [1, 5, 6, 8], strides: [240, 48, 8] }));
        assert_eq!(layout.slice(Dim::Seqlen, 2..5).unwrap().0, 96);
        assert_eq!(layout.slice(Dim::HeadDim, 3..8).unwrap(), (3, Layout { shape: [2, 5, 6, 5], strides: [240, 48, 8] }));
        // An empty part at the very end begins nowhere, not behind the buffer.
        assert_eq!(layout.slice(Dim::Heads, 6..6).unwrap().0, 0);
        #[expect(clippy::reversed_empty_ranges)]
        let reversed = 3..2;
        for range in [0..7, 7..7, reversed] {
            assert!(matches!(layout.slice(Dim::Heads, range), Err(Error::Invalid { field, .. }) if field == "range"));
        }
    }

    #[test]
    fn broadcasts() {
        let layout = Layout::bshd([1, 5, 1, 8]);
        let repeated = layout.broadcast(Dim::Heads, 7).unwrap().broadcast(Dim::Batch, 9).unwrap();
        assert_eq!(repeated, Layout { shape: [9, 5, 7, 8], strides: [0, 8, 0] });
        assert_eq!((repeated.span(), repeated.elements()), (Some(40), Some(9 * 5 * 7 * 8)));
        assert!(matches!(repeated.broadcast(Dim::Heads, 7), Err(Error::Invalid { field, .. }) if field == "heads"));
        assert!(matches!(layout.broadcast(Dim::Seqlen, 7), Err(Error::Unsupported { .. })));
    }
}
