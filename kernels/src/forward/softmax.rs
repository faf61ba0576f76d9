//! The online softmax, in the log2 domain (FlashAttention-2, Algorithm 1, lines 9 to 13, with exp2).
//!
//! ```text
//! P  = exp2(scale_log2 * S - m)                          any m near the row's maximum serves: O / l does not depend on it
//! l  = l + rowsum P
//! where P has grown too large:
//!   m' = max(m, scale_log2 * rowmax S)                   m is kept scaled and rounded: P and the LSE refer to the same number
//!   P, l, O = the same with m';  what l and O held before, times exp2(m - m')
//! ```
//!
//! So the maximum is looked for only where it has to be: in a row tile's first key tile, and where later scores exceed it by so much that a
//! thread's part of rowsum P passes `MAX_SUM`. The search, where it was in every step, was a quarter of its instructions. Up to there a stale m
//! costs no precision: P is a floating-point number, and l and O are summed on the same scale. A row that fits keeps its m, whatever other rows
//! do, so that no row's result depends on another's.
//!
//! Some rows never fit, and send their warp through the careful form: those that hold NaN, and those whose reference is -inf, which makes rowsum P
//! infinite or NaN.
//! - A row that has seen nothing. Its m is -inf; the careful form takes 0 for it, so that exp2(-inf - 0) = 0 and no NaN arises.
//! - |m| so large that its own rounding would move P by a factor of more than sqrt 2, since the multiplication is fused with the
//!   subtraction. The careful form rounds the product first, as m was.

use super::Kernel;
use crate::config::{MAX_SUM, ROUND_FIRST};
use crate::layout::fragment::{ROWS_PER_THREAD, row_of};
use crate::ptx::wgmma::Accumulator;
use crate::ptx::{convert, math, warp};

type Rows = [f32; ROWS_PER_THREAD];
type Packed<K> = <<K as Kernel>::Scores as Accumulator>::Packed;

/// The running state of a thread's two rows.
pub(super) struct Softmax {
    /// m: the maximum, not necessarily the latest, of the scaled scores so far, in log2 units.
    row_max: Rows,
    /// l: this thread's part of the sum.
    row_sum: Rows,
}

impl Softmax {
    pub(super) const EMPTY: Self = Self { row_max: [f32::NEG_INFINITY; ROWS_PER_THREAD], row_sum: [0.0; ROWS_PER_THREAD] };

    /// P of a row tile's first key tile, of which O holds nothing yet; the scores may be lost. If `only_half`, no row sees the second half of the
    /// keys: their scores are -inf, since the maximum is taken of all, and their P is 0 without an exponential.
    ///
    /// # Safety
    /// All lanes of the warp are converged and agree on `only_half`; no product in flight uses the registers.
    #[inline(always)]
    pub(super) unsafe fn begin<K: Kernel>(&mut self, acc_s: &mut K::Scores, p: &mut Packed<K>, scale_log2: f32, only_half: bool) {
        // SAFETY: scope: as promised.
        unsafe { self.move_maximum::<K>(acc_s, p, scale_log2, [true; ROWS_PER_THREAD], only_half) };
    }

    /// P of one more key tile; O is rescaled where the maximum moves, and the scores may be lost.
    ///
    /// # Safety
    /// As [`Softmax::begin`].
    #[inline(always)]
    pub(super) unsafe fn update<K: Kernel>(&mut self, acc_s: &mut K::Scores, p: &mut Packed<K>, acc_o: &mut K::Output, scale_log2: f32) {
        let reference = self.row_max.map(|m| if m.abs() < ROUND_FIRST { m } else { f32::NEG_INFINITY });
        let sum = exponentials::<K>(acc_s, p, false, |score, row| math::fma(score, scale_log2, -reference[row]));
        // False for NaN.
        let fits = sum.map(|sum| sum <= MAX_SUM);
        // SAFETY: scope: all lanes, as promised; they agree on the branch.
        unsafe {
            if warp::any(!(fits[0] && fits[1])) {
                let moves = [quad_any(!fits[0]), quad_any(!fits[1])];
                let row_scale = self.move_maximum::<K>(acc_s, p, scale_log2, moves, false);
                for i in 0..K::Output::REGISTERS {
                    acc_o[i] = (f32::from_bits(acc_o[i]) * row_scale[row_of(i)]).to_bits();
                }
            } else {
                self.row_sum = [self.row_sum[0] + sum[0], self.row_sum[1] + sum[1]];
            }
        }
    }

    /// P, with the true maximum in the rows where it `moves`; returns what O has to be multiplied by. A row whose maximum stays gets the P and
    /// the sum of the fast form, bit by bit. The scores may be lost.
    ///
    /// # Safety
    /// As [`Softmax::begin`]; the lanes that share a row agree on `moves`.
    #[inline(always)]
    unsafe fn move_maximum<K: Kernel>(
        &mut self,
        acc_s: &mut K::Scores,
        p: &mut Packed<K>,
        scale_log2: f32,
        moves: [bool; ROWS_PER_THREAD],
        only_half: bool,
    ) -> Rows {
        // SAFETY: scope: all lanes come here, as promised.
        let tile_max = unsafe { row_max::<K>(acc_s) };
        let mut row_scale = [1.0; ROWS_PER_THREAD];
        let mut subtracted = [0.0; ROWS_PER_THREAD];
        let mut rounds_first = [false; ROWS_PER_THREAD];
        for row in 0..ROWS_PER_THREAD {
            let new_max = if moves[row] { math::max(self.row_max[row], tile_max[row] * scale_log2) } else { self.row_max[row] };
            subtracted[row] = if new_max == f32::NEG_INFINITY { 0.0 } else { new_max };
            rounds_first[row] = subtracted[row].abs() >= ROUND_FIRST;
            row_scale[row] = math::exp2(self.row_max[row] - subtracted[row]);
            self.row_max[row] = new_max;
        }
        // What scores are multiplied by within the fused multiply-add, and before it.
        let mut factor = [scale_log2; ROWS_PER_THREAD];
        // SAFETY: scope: all lanes, as promised; they agree on the branch.
        if unsafe { warp::any(rounds_first[0] || rounds_first[1]) } {
            factor = rounds_first.map(|rounds_first| if rounds_first { 1.0 } else { scale_log2 });
            let factor_before = rounds_first.map(|rounds_first| if rounds_first { scale_log2 } else { 1.0 });
            for i in 0..K::Scores::REGISTERS {
                acc_s[i] = (f32::from_bits(acc_s[i]) * factor_before[row_of(i)]).to_bits();
            }
        }
        let sum = exponentials::<K>(acc_s, p, only_half, |score, row| math::fma(score, factor[row], -subtracted[row]));
        for row in 0..ROWS_PER_THREAD {
            self.row_sum[row] = math::fma(self.row_sum[row], row_scale[row], sum[row]);
        }
        row_scale
    }

    /// The reciprocal of each row's sum, 0 for a row that saw nothing, and each row's LSE in natural units. In a general kernel a logit that
    /// belongs to no key joins each row's sum: `sink_log2`, -inf for none.
    ///
    /// # Safety
    /// All lanes of the warp are converged.
    #[inline(always)]
    pub(super) unsafe fn finish<K: Kernel>(&self, sink_log2: Rows) -> (Rows, Rows) {
        let mut inverse = [0.0; ROWS_PER_THREAD];
        let mut lse = [0.0; ROWS_PER_THREAD];
        for row in 0..ROWS_PER_THREAD {
            // SAFETY: scope: all lanes, as promised.
            let sum = unsafe { quad_reduce(self.row_sum[row], |a, b| a + b) };
            if K::GENERAL {
                (inverse[row], lse[row]) = with_sink(self.row_max[row], sum, sink_log2[row]);
                continue;
            }
            inverse[row] = if sum == 0.0 { 0.0 } else { math::reciprocal(sum) };
            // A row that saw nothing: -inf + log2 0 = -inf.
            lse[row] = (self.row_max[row] + math::log2(sum)) * core::f32::consts::LN_2;
        }
        (inverse, lse)
    }
}

/// What O, summed against the maximum `row_max`, has to be multiplied by, and the LSE, if `sink_log2` joins a row's sum.
#[inline(always)]
fn with_sink(row_max: f32, row_sum: f32, sink_log2: f32) -> (f32, f32) {
    let new_max = math::max(row_max, sink_log2);
    let subtracted = if new_max == f32::NEG_INFINITY { 0.0 } else { new_max };
    // Without a sink exactly 1, or 0 for a row that saw nothing.
    let row_scale = math::exp2(row_max - subtracted);
    let sum = math::fma(row_sum, row_scale, math::exp2(sink_log2 - subtracted));
    let inverse = if sum == 0.0 { 0.0 } else { row_scale * math::reciprocal(sum) };
    (inverse, (new_max + math::log2(sum)) * core::f32::consts::LN_2)
}

/// The maximum of each of the thread's rows over the whole tile.
///
/// # Safety
/// All lanes of the warp are converged.
#[inline(always)]
unsafe fn row_max<K: Kernel>(acc_s: &K::Scores) -> Rows {
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

/// P = exp2(exponent(score, row)) in the element type, as A operands, and the sums over the thread's elements of each row; if `only_half`, of the
/// first half of the keys, and 0 for the others. All lanes of the warp agree on that.
#[inline(always)]
fn exponentials<K: Kernel>(acc_s: &K::Scores, p: &mut Packed<K>, only_half: bool, exponent: impl Fn(f32, usize) -> f32) -> Rows {
    if only_half {
        *p = K::Scores::PACKED_ZERO;
    }
    let mut sums = [[0.0; 2]; ROWS_PER_THREAD];
    let mut exponentiate = |i: usize| {
        let row = row_of(2 * i);
        let pair = [2 * i, 2 * i + 1].map(|i| math::exp2(exponent(f32::from_bits(acc_s[i]), row)));
        sums[row][0] += pair[0];
        sums[row][1] += pair[1];
        p[i] = convert::pack(K::DTYPE, pair[0], pair[1]);
    };
    let pairs = K::Scores::REGISTERS / 2;
    for i in 0..pairs / 2 {
        exponentiate(i);
    }
    if !only_half {
        for i in pairs / 2..pairs {
            exponentiate(i);
        }
    }
    [sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]]
}

/// Whether `condition` holds in any of the four lanes that share a row.
///
/// # Safety
/// All lanes of the warp are converged.
#[inline(always)]
unsafe fn quad_any(condition: bool) -> bool {
    // SAFETY: scope: all lanes, as promised.
    unsafe { quad_reduce(condition as u32 as f32, math::max) != 0.0 }
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
