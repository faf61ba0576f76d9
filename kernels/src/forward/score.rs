//! The score functions that ship, and how any of them is applied to a tile of scores.
//!
//! ```text
//! S_ij = score(score_scale * S_ij, i, j)      in the units that softmax_scale_log2 brings to log2
//! ```

use super::sequence::RowTile;
use super::{Cta, Kernel};
use crate::block_range::min;
use crate::function::{Head, Position, ScoreMod};
use crate::layout::fragment::{ROW_STEP, ROWS_PER_THREAD, column_of, first_column, row_of};
use crate::params::FeatureParams;
use crate::ptx::wgmma::Accumulator;
use crate::ptx::{math, memory, warp};

/// `tanh(score)`: the host has divided the scale by the cap, and multiplies what follows by it.
#[derive(Clone, Copy)]
pub struct SoftCap;

impl<Args> ScoreMod<Args> for SoftCap {
    const IS_OF_SCORE_ALONE: bool = true;

    #[inline(always)]
    unsafe fn of_head(_: &Args, _: Head) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn score(self, score: f32, _: Position) -> f32 {
        math::tanh(score)
    }
}

/// `score - slope * |distance|` (ALiBi, arXiv 2108.12409).
#[derive(Clone, Copy)]
pub struct Alibi {
    slope: f32,
}

impl ScoreMod<FeatureParams> for Alibi {
    #[inline(always)]
    unsafe fn of_head(features: &FeatureParams, head: Head) -> Self {
        // SAFETY: address: a slope for each head, as the launch promises, and nobody writes them.
        Self { slope: unsafe { memory::load_global_f32(features.alibi_slopes + 4 * head.head_idx as u64) } }
    }

    #[inline(always)]
    unsafe fn score(self, score: f32, at: Position) -> f32 {
        math::fma(-self.slope, (at.distance() as f32).abs(), score)
    }
}

/// Applies the score function to the scores of key tile `n_block`, in a thread whose first row is query row `row`. Keys behind the last one are
/// among those of a `MASKED` tile only; the function is asked for the last one instead, as it is for queries behind the last.
///
/// # Safety
/// By the whole warp.
#[inline(always)]
pub(super) unsafe fn apply<K: Kernel, const MASKED: bool>(
    cta: &Cta<K::Args>,
    score: K::Score,
    acc_s: &mut K::Scores,
    tile: &RowTile,
    n_block: u32,
    row: u32,
    lane_idx: u32,
) {
    if K::Score::IS_IDENTITY {
        return;
    }
    let scale = cta.features.score_scale;
    let positions = Positions::<MASKED>::new::<K>(cta, tile, n_block, row, lane_idx);
    for i in 0..K::Scores::REGISTERS {
        // SAFETY: positions lie within the tile's head, which the function was made for.
        acc_s[i] = unsafe { score.score(f32::from_bits(acc_s[i]) * scale, positions.of(i)) }.to_bits();
    }
    if K::CUSTOM {
        // SAFETY: scope: the whole warp, as promised; here its lanes meet again.
        unsafe { warp::sync() };
    }
}

/// The queries and keys that a thread holds the scores of.
pub(super) struct Positions<const MASKED: bool> {
    head: Head,
    queries: [u32; ROWS_PER_THREAD],
    first_key: u32,
}

impl<const MASKED: bool> Positions<MASKED> {
    #[inline(always)]
    pub(super) fn new<K: Kernel>(cta: &Cta<K::Args>, tile: &RowTile, n_block: u32, row: u32, lane_idx: u32) -> Self {
        let head = tile.head::<K>(cta);
        let queries = [min(row, head.seqlen_q - 1), min(row + ROW_STEP, head.seqlen_q - 1)];
        Self { head, queries, first_key: n_block * K::TILE.tile_n + first_column(lane_idx) }
    }

    /// That of register `i`.
    #[inline(always)]
    pub(super) fn of(&self, i: usize) -> Position {
        let key = self.first_key + column_of(i);
        self.head.at(self.queries[row_of(i)], if MASKED { min(key, self.head.seqlen_k - 1) } else { key })
    }
}
