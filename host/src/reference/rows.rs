//! Rows of the output: which, in what order, and how they are shared among threads.

use super::Problem;
use crate::Element;
use rayon::prelude::*;
use std::ops::Range;

/// One row of the output: a query of one head of one batch entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Row {
    /// Batch entry.
    pub batch_idx: usize,
    /// Query head.
    pub head_idx: usize,
    /// Query, below seqlen_q.
    pub position: usize,
}

/// O and the log-sum-exp, contiguous.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attention<O, L> {
    /// `[batch, seqlen_q, num_heads, head_dim_v]`, or `[rows, head_dim_v]` where rows were asked for.
    pub o: Vec<O>,
    /// `[batch, num_heads, seqlen_q]`, or `[rows]`; natural logarithm.
    pub lse: Vec<L>,
}

/// Computes `rows` with `compute`, which gets runs of rows that share a batch entry, a head and a block of `block` positions.
///
/// # Panics
///
/// If a row lies outside of the problem.
pub(super) fn in_parallel<T, O, L, F>(problem: &Problem<'_, T>, rows: &[Row], block: usize, compute: F) -> Attention<O, L>
where
    T: Element,
    O: Copy + Send,
    L: Copy + Send,
    F: Fn(&[Row]) -> Attention<O, L> + Sync,
{
    let [batch, seqlen_q, num_heads, _] = problem.q.shape();
    let inside = |row: &Row| row.batch_idx < batch && row.head_idx < num_heads && row.position < seqlen_q;
    assert!(rows.iter().all(inside), "a row outside of the problem");
    let parts: Vec<_> = runs(rows, block).into_par_iter().map(|run| compute(&rows[run])).collect();
    Attention {
        o: parts.iter().flat_map(|part| part.o.iter().copied()).collect(),
        lse: parts.iter().flat_map(|part| part.lse.iter().copied()).collect(),
    }
}

/// Neighbouring rows of the same batch entry, head and block of positions.
fn runs(rows: &[Row], block: usize) -> Vec<Range<usize>> {
    let place = |row: &Row| (row.batch_idx, row.head_idx, row.position / block);
    let mut start = 0;
    rows.chunk_by(|a, b| place(a) == place(b))
        .map(|run| {
            let range = start..start + run.len();
            start = range.end;
            range
        })
        .collect()
}

/// Computes all rows with `compute_rows` and brings O into `[batch, seqlen_q, num_heads, head_dim_v]`.
pub(super) fn all<T, O, L>(problem: &Problem<'_, T>, compute_rows: impl FnOnce(&[Row]) -> Attention<O, L>) -> Attention<O, L>
where
    T: Element,
    O: Copy,
{
    let [batch, seqlen_q, num_heads, _] = problem.q.shape();
    let head_dim_v = problem.head_dim_v();
    let mut rows = Vec::with_capacity(batch * num_heads * seqlen_q);
    for batch_idx in 0..batch {
        for head_idx in 0..num_heads {
            rows.extend((0..seqlen_q).map(|position| Row { batch_idx, head_idx, position }));
        }
    }
    let by_head = compute_rows(&rows);
    let mut o = Vec::with_capacity(by_head.o.len());
    for batch_idx in 0..batch {
        for position in 0..seqlen_q {
            for head_idx in 0..num_heads {
                let row = (batch_idx * num_heads + head_idx) * seqlen_q + position;
                o.extend_from_slice(&by_head.o[row * head_dim_v..(row + 1) * head_dim_v]);
            }
        }
    }
    Attention { o, lse: by_head.lse }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_share_a_block() {
        let row = |head_idx, position| Row { batch_idx: 0, head_idx, position };
        let rows = [row(0, 0), row(0, 3), row(0, 4), row(1, 5), row(1, 6), row(0, 7)];
        assert_eq!(runs(&rows, 4), [0..2, 2..3, 3..5, 5..6]);
        assert!(runs(&[], 4).is_empty());
    }
}
