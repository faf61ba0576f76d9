//! The mask: what a row does not see becomes -inf, by select (a conditional store would send the accumulator to local memory).
//!
//! ```text
//! S_ij = -inf    where j >= seqlen_k, or causal and j > i + seqlen_k - seqlen_q
//! ```

use super::Kernel;
use crate::layout::fragment::{ROW_STEP, ROWS_PER_THREAD, column_of, first_column, row_of};
use crate::params::ForwardParams;
use crate::ptx::wgmma::Accumulator;

/// Masks the scores of key tile `n_block` in a thread whose first row is query row `row`.
#[inline(always)]
pub(super) fn mask<K: Kernel>(acc_s: &mut K::Scores, params: &ForwardParams, n_block: u32, row: u32, lane_idx: u32) {
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

#[inline(always)]
fn min(a: i32, b: i32) -> i32 {
    if a < b { a } else { b }
}
