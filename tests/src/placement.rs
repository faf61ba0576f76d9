//! Where a tensor lies in memory: order of the dimensions, gaps, broadcasts, alignment.

use hopper_attention::Layout;
use serde::{Deserialize, Serialize};

/// Indices of the strided dimensions in a shape `[batch, seqlen, heads, head_dim]`.
const BATCH: usize = 0;
const SEQLEN: usize = 1;
const HEADS: usize = 2;

/// How a tensor is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The dimensions batch (0), seqlen (1) and heads (2), the outermost first.
    pub order: [usize; 3],
    /// Unused elements behind each entry of `[batch, seqlen, heads]`; multiples of 8.
    pub gaps: [usize; 3],
    /// One batch entry serves all.
    pub broadcast_batch: bool,
    /// One head serves all.
    pub broadcast_heads: bool,
    /// Elements between a multiple of 256 bytes and the first element: a multiple of 8 below 128.
    pub offset: usize,
    /// Dimensions of extent 1 get an absurd stride, which nobody may read.
    pub wild_strides: bool,
}

impl Placement {
    /// Contiguous `[batch, seqlen, heads, head_dim]`.
    pub const BSHD: Self = Self {
        order: [BATCH, SEQLEN, HEADS],
        gaps: [0; 3],
        broadcast_batch: false,
        broadcast_heads: false,
        offset: 0,
        wild_strides: false,
    };
    /// Contiguous `[batch, heads, seqlen, head_dim]`.
    pub const BHSD: Self = Self { order: [BATCH, HEADS, SEQLEN], ..Self::BSHD };

    /// Extents of what is stored: 1 where one entry serves all.
    pub fn stored(&self, shape: [usize; 4]) -> [usize; 4] {
        let [batch, seqlen, heads, head_dim] = shape;
        let once = |broadcast: bool, extent: usize| if broadcast { extent.min(1) } else { extent };
        [once(self.broadcast_batch, batch), seqlen, once(self.broadcast_heads, heads), head_dim]
    }

    /// Shape and strides of a tensor of `shape` that lies this way.
    pub fn layout(&self, shape: [usize; 4]) -> Layout {
        let stored = self.stored(shape);
        let mut strides = [0; 3];
        let mut span = shape[3];
        for &dim in self.order.iter().rev() {
            let stride = span + self.gaps[dim];
            span = stride * stored[dim].max(1);
            let broadcast = stored[dim] != shape[dim];
            strides[dim] = match shape[dim] {
                1 if self.wild_strides => usize::MAX / 3,
                _ if broadcast => 0,
                _ => stride,
            };
        }
        Layout { shape, strides }
    }

    /// Shape and strides of the same tensor when only what is stored is kept, contiguous `[batch, seqlen, heads, head_dim]`.
    pub fn compact(&self, shape: [usize; 4]) -> Layout {
        let stored = self.stored(shape);
        let mut layout = Layout { shape, ..Layout::bshd(stored) };
        for dim in [BATCH, HEADS] {
            if stored[dim] != shape[dim] {
                layout.strides[dim] = 0;
            }
        }
        layout
    }
}

/// First element of each stored row `[batch, seqlen, heads]`, in the order of [`Placement::compact`].
pub fn row_starts(layout: &Layout, stored: [usize; 4]) -> impl Iterator<Item = usize> + use<> {
    let [batch_stride, seqlen_stride, head_stride] = layout.strides;
    let [batch, seqlen, heads, _] = stored;
    (0..batch)
        .flat_map(move |b| (0..seqlen).flat_map(move |s| (0..heads).map(move |h| b * batch_stride + s * seqlen_stride + h * head_stride)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SHAPE: [usize; 4] = [2, 5, 3, 8];

    #[test]
    fn named_placements_are_the_librarys() {
        assert_eq!(Placement::BSHD.layout(SHAPE), Layout::bshd(SHAPE));
        assert_eq!(Placement::BHSD.layout(SHAPE), Layout::bhsd(SHAPE));
    }

    #[test]
    fn rows_never_meet() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            for gaps in [[0; 3], [8, 16, 24], [0, 0, 40]] {
                let placement = Placement { order, gaps, ..Placement::BSHD };
                let layout = placement.layout(SHAPE);
                let starts: Vec<usize> = row_starts(&layout, SHAPE).collect();
                let elements: HashSet<usize> = starts.iter().flat_map(|&start| start..start + 8).collect();
                assert_eq!(elements.len(), 2 * 5 * 3 * 8);
                assert_eq!(starts.iter().max().unwrap() + 8, layout.span().unwrap());
            }
        }
    }

    #[test]
    fn broadcasts_store_one_entry() {
        let placement = Placement { broadcast_batch: true, broadcast_heads: true, ..Placement::BHSD };
        assert_eq!(placement.stored(SHAPE), [1, 5, 1, 8]);
        assert_eq!(placement.layout(SHAPE).strides, [0, 8, 0]);
        assert_eq!(placement.compact(SHAPE), Layout { shape: SHAPE, strides: [0, 8, 0] });
        assert_eq!(placement.layout(SHAPE).span(), Some(40));
    }

    #[test]
    fn wild_strides_where_nobody_reads() {
        let placement = Placement { wild_strides: true, ..Placement::BSHD };
        let layout = placement.layout([1, 5, 1, 8]);
        assert_eq!((layout.strides[1], layout.span()), (8, Some(40)));
        assert!(layout.strides[0] > 1 << 40 && layout.strides[2] > 1 << 40);
    }
}
