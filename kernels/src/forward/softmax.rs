//! The online softmax, in the log2 domain (FlashAttention-2, Algorithm 1, lines 9 to 13, with exp2).
//!
//! ```text
//! m' = max(m, scale_log2 * rowmax S)                    m is kept scaled and rounded: p and the LSE refer to the same number
//! P  = exp2(scale_log2 * S - m')
//! l' = l * exp2(m - m') + rowsum P
//! O' = O * exp2(m - m')
//! ```
//!
//! Three refinements:
//! - A row that has seen nothing has m = -inf. The subtraction then takes 0 for m, so that exp2(-inf - 0) = 0 and no NaN arises.
//! - While m is at most `rescale_threshold` too small it is left as it is: exp2(m - m') = 1, and O need not be touched. P then grows to at
//!   most 2^threshold, which costs no precision, since P is a floating-point number and l is summed on the same scale.
//! - The subtraction is fused with the multiplication. Where |m| is so large that m's own rounding would move P by a factor of more than
//!   sqrt 2, the product is rounded first instead, as m was.

use super::Kernel;
use crate::config::ROUND_FIRST;
use crate::layout::fragment::{ROWS_PER_THREAD, row_of};
use crate::ptx::wgmma::Accumulator;
use crate::ptx::{math, warp};

/// The running state of a thread's two rows.
pub(super) struct Softmax {
    /// m: maximum of the scaled scores so far, in log2 units.
    row_max: [f32; ROWS_PER_THREAD],
    /// l: this thread's part of the sum.
    row_sum: [f32; ROWS_PER_THREAD],
}

/// What O has to be multiplied by.
#[derive(Clone, Copy)]
pub(super) struct Rescale {
    row_scale: [f32; ROWS_PER_THREAD],
    /// Whether a factor in this warp differs from 1.
    needed: bool,
}

impl Softmax {
    pub(super) const EMPTY: Self = Self { row_max: [f32::NEG_INFINITY; ROWS_PER_THREAD], row_sum: [0.0; ROWS_PER_THREAD] };

    /// Takes in one tile: replaces its scores by P (in f32), and returns what O has to be multiplied by.
    ///
    /// # Safety
    /// All lanes of the warp are converged.
    #[inline(always)]
    pub(super) unsafe fn update<K: Kernel>(&mut self, acc_s: &mut K::Scores, scale_log2: f32) -> Rescale {
        // SAFETY: scope: all lanes come here, as promised.
        let tile_max = unsafe { row_max::<K>(acc_s) };
        let mut row_scale = [1.0; ROWS_PER_THREAD];
        let mut reference = [0.0; ROWS_PER_THREAD];
        let mut huge = false;
        let mut kept = true;
        for row in 0..ROWS_PER_THREAD {
            let new_max = math::max(self.row_max[row], tile_max[row] * scale_log2);
            // False where the row saw nothing before: inf, and NaN where it still sees nothing.
            let keep = new_max - self.row_max[row] <= K::TILE.rescale_threshold;
            let new_max = if keep { self.row_max[row] } else { new_max };
            kept &= keep;
            reference[row] = if new_max == f32::NEG_INFINITY { 0.0 } else { new_max };
            row_scale[row] = math::exp2(self.row_max[row] - reference[row]);
            huge |= reference[row].abs() >= ROUND_FIRST;
            self.row_max[row] = new_max;
        }
        let mut scale = scale_log2;
        if huge {
            for i in 0..K::Scores::REGISTERS {
                acc_s[i] = (f32::from_bits(acc_s[i]) * scale_log2).to_bits();
            }
            scale = 1.0;
        }
        let tile_sum = exponentials::<K>(acc_s, scale, reference);
        for row in 0..ROWS_PER_THREAD {
            self.row_sum[row] = math::fma(self.row_sum[row], row_scale[row], tile_sum[row]);
        }
        // SAFETY: scope: all lanes, as promised; those that branched on `huge` have met the others again.
        Rescale { row_scale, needed: unsafe { warp::any(!kept) } }
    }

    /// The reciprocal of each row's sum, 0 for a row that saw nothing, and each row's LSE in natural units.
    ///
    /// # Safety
    /// All lanes of the warp are converged.
    #[inline(always)]
    pub(super) unsafe fn finish(&self) -> ([f32; ROWS_PER_THREAD], [f32; ROWS_PER_THREAD]) {
        let mut inverse = [0.0; ROWS_PER_THREAD];
        let mut lse = [0.0; ROWS_PER_THREAD];
        for row in 0..ROWS_PER_THREAD {
            // SAFETY: scope: all lanes, as promised.
            let sum = unsafe { quad_reduce(self.row_sum[row], |a, b| a + b) };
            inverse[row] = if sum == 0.0 { 0.0 } else { math::reciprocal(sum) };
            // A row that saw nothing: -inf + log2 0 = -inf.
            lse[row] = (self.row_max[row] + math::log2(sum)) * core::f32::consts::LN_2;
        }
        (inverse, lse)
    }
}

/// Multiplies O by the rows' factors, if any of them differs from 1.
#[inline(always)]
pub(super) fn rescale<K: Kernel>(acc_o: &mut K::Output, rescale: Rescale) {
    if rescale.needed {
        for i in 0..K::Output::REGISTERS {
            acc_o[i] = (f32::from_bits(acc_o[i]) * rescale.row_scale[row_of(i)]).to_bits();
        }
    }
}

/// The maximum of each of the thread's rows over the whole tile.
///
/// # Safety
/// All lanes of the warp are converged.
#[inline(always)]
unsafe fn row_max<K: Kernel>(acc_s: &K::Scores) -> [f32; ROWS_PER_THREAD] {
    let mut result = [f32::NEG_INFINITY; ROWS_PER_THREAD];
    for row in 0..ROWS_PER_THREAD {
        let score = |i: usize| f32::from_bits(acc_s[i]);
        // Registers 4 j + 2 row and the one after it are the row's. Two chains, for latency.
        let mut chains = [f32::NEG_INFINITY; 2];
        for j in 0..K::Scores::REGISTERS / 4 {
            let i = 4 * j + 2 * row;
            chains[j % 2] = math::max(chains[j % 2], math::max(score(i), score(i + 1)));
        }
        // SAFETY: scope: all lanes, as promised.
        result[row] = unsafe { quad_reduce(math::max(chains[0], chains[1]), math::max) };
    }
    result
}

/// Replaces scores by exp2(scale * score - reference), and returns the sums over the thread's elements of each row.
#[inline(always)]
fn exponentials<K: Kernel>(acc_s: &mut K::Scores, scale: f32, reference: [f32; ROWS_PER_THREAD]) -> [f32; ROWS_PER_THREAD] {
    let mut sums = [[0.0; 2]; ROWS_PER_THREAD];
    for i in 0..K::Scores::REGISTERS {
        let row = row_of(i);
        let p = math::exp2(math::fma(f32::from_bits(acc_s[i]), scale, -reference[row]));
        acc_s[i] = p.to_bits();
        sums[row][i % 2] += p;
    }
    [sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]]
}

/// Combines the values of the four lanes that share a row.
///
/// # Safety
/// All lanes of the warp are converged.
#[inline(always)]
unsafe fn quad_reduce(x: f32, combine: impl Fn(f32, f32) -> f32) -> f32 {
    // SAFETY: scope: all lanes, as promised.
    unsafe {
        let x = combine(x, warp::shuffle_xor::<1>(x));
        combine(x, warp::shuffle_xor::<2>(x))
    }
}
