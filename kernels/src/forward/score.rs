//! What becomes of a score between Q K^T and the softmax.
//!
//! ```text
//! S_ij = score(score_scale * S_ij, i, j)      in the units that softmax_scale_log2 brings to log2
//! ```

use super::{Cta, Kernel};
use crate::layout::fragment::{ROW_STEP, column_of, first_column, row_of};
use crate::params::FeatureParams;
use crate::ptx::wgmma::Accumulator;
use crate::ptx::{math, memory};

/// A score function, with what it needs to know of a head.
pub trait ScoreMod: Copy {
    /// Whether scores stay as they are, scale and all.
    const IS_IDENTITY: bool = false;

    /// The function for the query head `head_idx`.
    ///
    /// # Safety
    /// `features` is as the launch promises.
    unsafe fn of_head(features: &FeatureParams, head_idx: u32) -> Self;

    /// The new score of a query and a key, `distance` keys before the query's diagonal.
    fn score(self, score: f32, distance: i32) -> f32;
}

/// Scores as they are.
#[derive(Clone, Copy)]
pub struct Identity;

impl ScoreMod for Identity {
    const IS_IDENTITY: bool = true;

    #[inline(always)]
    unsafe fn of_head(_: &FeatureParams, _: u32) -> Self {
        Self
    }

    #[inline(always)]
    fn score(self, score: f32, _: i32) -> f32 {
        score
    }
}

/// `tanh(score)`: the host has divided the scale by the cap, and multiplies what follows by it.
#[derive(Clone, Copy)]
pub struct SoftCap;

impl ScoreMod for SoftCap {
    #[inline(always)]
    unsafe fn of_head(_: &FeatureParams, _: u32) -> Self {
        Self
    }

    #[inline(always)]
    fn score(self, score: f32, _: i32) -> f32 {
        math::tanh(score)
    }
}

/// `score - slope * |distance|` (ALiBi, arXiv 2108.12409).
#[derive(Clone, Copy)]
pub struct Alibi {
    slope: f32,
}

impl ScoreMod for Alibi {
    #[inline(always)]
    unsafe fn of_head(features: &FeatureParams, head_idx: u32) -> Self {
        // SAFETY: address: a slope for each head, as the launch promises, and nobody writes them.
        Self { slope: unsafe { memory::load_global_f32(features.alibi_slopes + 4 * head_idx as u64) } }
    }

    #[inline(always)]
    fn score(self, score: f32, distance: i32) -> f32 {
        math::fma(-self.slope, (distance as f32).abs(), score)
    }
}

/// Applies the score function to the scores of key tile `n_block`, in a thread whose first row has its diagonal at key `diagonal`.
#[inline(always)]
pub(super) fn apply<K: Kernel>(cta: &Cta, score: K::Score, acc_s: &mut K::Scores, n_block: u32, diagonal: i32, lane_idx: u32) {
    if K::Score::IS_IDENTITY {
        return;
    }
    let scale = cta.features.score_scale;
    let first_key = (n_block * K::TILE.tile_n + first_column(lane_idx)) as i32;
    for i in 0..K::Scores::REGISTERS {
        let distance = diagonal - first_key + (ROW_STEP as usize * row_of(i)) as i32 - column_of(i) as i32;
        acc_s[i] = score.score(f32::from_bits(acc_s[i]) * scale, distance).to_bits();
    }
}
