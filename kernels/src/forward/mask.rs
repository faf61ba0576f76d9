//! The mask: what a row does not see becomes -inf, by select (a conditional store would send the accumulator to local memory).
//!
//! ```text
//! S_ij = -inf    where j >= seqlen_k, or causal and j > i + seqlen_k - seqlen_q
//!                general: also where j lies outside of the window around i + seqlen_k - seqlen_q, or the mask function hides it
//! ```

use super::score::Positions;
use super::sequence::RowTile;
use super::{Cta, Kernel, window};
use crate::function::MaskMod;
use crate::layout::fragment::{ROW_STEP, ROWS_PER_THREAD, column_of, first_column, row_of};
use crate::ptx::warp;
use crate::ptx::wgmma::Accumulator;

/// Masks the scores of key tile `n_block` in a thread whose rows are those of these `queries`.
///
/// # Safety
/// By the whole warp, whose lanes hold one tile's scores.
#[inline(always)]
pub(super) unsafe fn mask<K: Kernel>(
    acc_s: &mut K::Scores,
    cta: &Cta<K::Args>,
    tile: &RowTile,
    n_block: u32,
    queries: [u32; ROWS_PER_THREAD],
    lane_idx: u32,
) {
    if K::GENERAL {
        mask_window::<K>(acc_s, cta, tile, n_block, queries, lane_idx);
        // SAFETY: passed on to the caller.
        return unsafe { mask_by_function::<K>(acc_s, cta, tile, n_block, queries[0], lane_idx) };
    }
    let row = queries[0];
    let params = cta.params;
    // Columns from the thread's first one on that a row still sees; signed, since a row may see none of the tile.
    let first_key = (n_block * K::TILE.tile_n + first_column(lane_idx)) as i32;
    let in_sequence = params.seqlen_k as i32 - first_key;
    let mut visible = [in_sequence; ROWS_PER_THREAD];
    if K::TILE.causal {
        // Rows beyond the last one would see more than there is.
        let after_row = (row + 1) as i32 - params.seqlen_q as i32;
        visible = [in_sequence + min(after_row, 0), in_sequence + min(after_row + ROW_STEP as i32, 0)];
    }
    for i in 0..K::Scores::REGISTERS {
        let hidden = column_of(i) as i32 >= visible[row_of(i)];
        acc_s[i] = if hidden { f32::NEG_INFINITY.to_bits() } else { acc_s[i] };
    }
}

/// The same under a window: a row sees the keys from one on and before another.
#[inline(always)]
fn mask_window<K: Kernel>(
    acc_s: &mut K::Scores,
    cta: &Cta<K::Args>,
    tile: &RowTile,
    n_block: u32,
    queries: [u32; ROWS_PER_THREAD],
    lane_idx: u32,
) {
    let window = window::<K>(cta);
    let (seqlen_q, seqlen_k) = (tile.seqlen_q::<K>(cta), tile.seqlen_k::<K>(cta));
    let first_key = n_block * K::TILE.tile_n + first_column(lane_idx);
    // The first column that a row sees, and how many. Before the thread's first column the difference wraps round: a large number, like any
    // column's distance from it.
    let mut first = [0; ROWS_PER_THREAD];
    let mut count = [0; ROWS_PER_THREAD];
    for i in 0..ROWS_PER_THREAD {
        let (begin, end) = window.keys(queries[i], seqlen_q, seqlen_k);
        first[i] = begin.wrapping_sub(first_key);
        count[i] = end.saturating_sub(begin);
    }
    for i in 0..K::Scores::REGISTERS {
        let hidden = column_of(i).wrapping_sub(first[row_of(i)]) >= count[row_of(i)];
        acc_s[i] = if hidden { f32::NEG_INFINITY.to_bits() } else { acc_s[i] };
    }
}

/// The mask function, for what the window lets through. (Within the window a key is one of the sequence.)
///
/// # Safety
/// As [`mask`].
#[inline(always)]
unsafe fn mask_by_function<K: Kernel>(acc_s: &mut K::Scores, cta: &Cta<K::Args>, tile: &RowTile, n_block: u32, row: u32, lane_idx: u32) {
    if K::Mask::IS_OPEN {
        return;
    }
    // SAFETY: the arguments are as the launch promises.
    let mask = unsafe { K::Mask::of_head(cta.args, tile.head::<K>(cta)) };
    let positions = Positions::<true>::new::<K>(cta, tile, n_block, row, lane_idx);
    for i in 0..K::Scores::REGISTERS {
        // SAFETY: positions lie within the tile's head, which the mask was made for.
        acc_s[i] = if unsafe { mask.sees(positions.of(i)) } { acc_s[i] } else { f32::NEG_INFINITY.to_bits() };
    }
    // SAFETY: scope: the whole warp, as promised; in the function its lanes may have parted.
    unsafe { warp::sync() };
}

#[inline(always)]
fn min(a: i32, b: i32) -> i32 {
    if a < b { a } else { b }
}
