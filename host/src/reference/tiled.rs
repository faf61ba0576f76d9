//! Attention in the kernel's own order and precision (FlashAttention-2's online softmax, arXiv 2307.08691, Algorithm 1).
//!
//! ```text
//! for each 64 queries, a math warpgroup's tile, for each of them:
//!     ms = -inf, l = 0, O = 0
//!     for each tile of tile_n keys that the query tile visits, the last first:
//!         S      = Q K^T                                    f32; keys beyond the sequence are rows of zeros
//!         S      = score(S)                                 -inf where masked
//!         P      = exp2(S * scale_log2 - ms)                a fused multiply-add
//!         where ms = -inf, or |ms| >= 2^23, or a lane's part of sum(P) exceeds 2^12:
//!             ms'   = max(ms, max(S) * scale_log2)          0 instead of -inf in what follows
//!             P     = exp2(S * scale_log2 - ms')            where |ms'| >= 2^23 the product is rounded first
//!             l, O  = exp2(ms - ms') * l, O
//!             ms    = ms'
//!         l      = l + sum(P)                               of P before it is rounded
//!         O      = O + round(P) V                           P rounded to the element type
//!     ms'    = max(ms, sink * log2(e))                      without a sink, sink = -inf; again 0 instead of -inf
//!     alpha  = exp2(ms - ms')
//!     l      = alpha * l + exp2(sink * log2(e) - ms')
//!     O      = round(O * (alpha / l)),  lse = (ms' + log2 l) * ln 2     where l = 0, 1 / l counts as 0
//! ```
//!
//! The host hands over constants, rounded from f64 to f32, that depend on the score function:
//!
//! ```text
//!                score(S)                                  score_scale              scale_log2
//! identity       S                                                                  softmax_scale * log2(e)
//! soft cap       tanh(S * score_scale)                     softmax_scale / cap      cap * log2(e)
//! ALiBi          S * score_scale - slope * distance        softmax_scale            log2(e)
//! ```
//!
//! The tensor core multiplies every P of a tile by its V, also where P = 0 by the mask. So NaN or infinity in V reaches every query whose
//! tile visits that key tile, here as in the kernel, even a query that sees no key; in Q and K it reaches the queries that see it. Three things of the
//! kernels are not modelled, and tell them from this for V alone: query heads that share a row tile, whose tiles have fewer queries and may visit
//! fewer key tiles; the key tiles that the bounds of a mask function leave out; and that a window which hides nothing is dropped, so that the kernel is
//! one without windows, whose key tiles may have another size.

use super::Problem;
use super::problem::{Score, ScoreFunction};
use super::rows::{self, Attention, Row};
use crate::Element;
use crate::Error;
use hopper_attention_kernels::config::{
    self, MAX_SUM, ROUND_FIRST, TileConfig, WARPGROUP_ROWS, config_of_lengths, custom_config, general_config,
};
use hopper_attention_kernels::key_range::{Window, key_range};
use hopper_attention_kernels::params::MAX_SEQLEN;
use std::f64::consts::LOG2_E;
use std::num::NonZeroU32;
use std::ops::Range;

/// The largest relative error of the instruction that a soft cap takes, `tanh.approx.f32` (PTX ISA, "tanh"): a capped logit may be off by
/// this share of itself.
pub const TANH_ERROR: f64 = 1.0 / (1 << 11) as f64;

/// O `[batch, seqlen_q, num_heads, head_dim_v]` and the log-sum-exp `[batch, num_heads, seqlen_q]`.
///
/// # Errors
///
/// [`Error::Unsupported`] if no kernel has this head_dim or head_dim_v.
pub fn attention<T: Element>(problem: &Problem<'_, T>) -> Result<Attention<T, f32>, Error> {
    let config = config_of(problem)?;
    Ok(rows::all(problem, |all| with_config(problem, &config, all)))
}

/// The given rows of O `[rows, head_dim_v]` and of the log-sum-exp `[rows]`, for problems too large to compute whole.
///
/// # Errors
///
/// As [`attention`].
///
/// # Panics
///
/// If a row lies outside of the problem.
pub fn attention_rows<T: Element>(problem: &Problem<'_, T>, rows: &[Row]) -> Result<Attention<T, f32>, Error> {
    Ok(with_config(problem, &config_of(problem)?, rows))
}

/// The tiles of the kernel that serves a problem.
pub(super) fn config_of<T: Element>(problem: &Problem<'_, T>) -> Result<TileConfig, Error> {
    let size =
        |field, size| u32::try_from(size).ok().filter(|&size| size <= 256).ok_or_else(|| Error::unsupported(field, size, "at most 256"));
    let (head_dim, head_dim_v) = (size("q.head_dim", problem.head_dim())?, size("v.head_dim", problem.head_dim_v())?);
    let general = |scores| general_config(head_dim, head_dim_v, scores);
    let has_window = (problem.window_left, problem.window_right) != (None, None);
    let config = match problem.score {
        // A kernel of the caller's own functions, which may take other keys a step than the table's.
        Score::Function(_) => custom_config(head_dim.max(head_dim_v)),
        Score::Identity if problem.mask.is_some() => custom_config(head_dim.max(head_dim_v)),
        Score::Identity if has_window || problem.sinks.is_some() => general(config::ScoreFunction::Identity),
        Score::Identity => config_of_lengths(head_dim, head_dim_v, problem.causal, problem.seqlen_q(), problem.seqlen_k()),
        Score::SoftCap(_) => general(config::ScoreFunction::SoftCap),
        Score::Alibi(_) => general(config::ScoreFunction::Alibi),
    };
    let config = config.expect("a kernel for all head dims up to 256");
    Ok(TileConfig { tile_n: problem.tile_n.map_or(config.tile_n, NonZeroU32::get), ..config })
}

pub(super) fn with_config<T: Element>(problem: &Problem<'_, T>, config: &TileConfig, rows: &[Row]) -> Attention<T, f32> {
    rows::in_parallel(problem, rows, WARPGROUP_ROWS as usize, |run| compute(problem, config, run))
}

/// Rows of one query tile.
fn compute<T: Element>(problem: &Problem<'_, T>, config: &TileConfig, rows: &[Row]) -> Attention<T, f32> {
    let Row { batch_idx, head_idx, position } = rows[0];
    let head_idx_k = problem.head_idx_k(head_idx);
    let (head_dim, head_dim_v) = (problem.head_dim(), problem.head_dim_v());
    let tile_n = config.tile_n as usize;

    let mut queries = vec![0.0; rows.len() * head_dim];
    for (query, row) in queries.chunks_exact_mut(head_dim).zip(rows) {
        T::widen(problem.q.row(batch_idx, row.position, head_idx), query);
    }
    let scales = Scales::new(problem);
    let mut states: Vec<RowState> = rows.iter().map(|_| RowState::new(head_dim_v)).collect();
    let mut keys = vec![0.0; tile_n * head_dim];
    let mut values = vec![0.0; tile_n * head_dim_v];
    let mut p = vec![0.0; tile_n];
    for n_block in visited_tiles(problem, config.tile_n, position).rev() {
        let first_key = n_block * tile_n;
        for (j, (key, value)) in keys.chunks_exact_mut(head_dim).zip(values.chunks_exact_mut(head_dim_v)).enumerate() {
            if first_key + j < problem.seqlen_k() {
                T::widen(problem.k.row(batch_idx, first_key + j, head_idx_k), key);
                T::widen(problem.v.row(batch_idx, first_key + j, head_idx_k), value);
            } else {
                key.fill(0.0);
                value.fill(0.0);
            }
        }
        for ((state, query), row) in states.iter_mut().zip(queries.chunks_exact(head_dim)).zip(rows) {
            let visible = problem.visible_keys(row.position);
            for ((j, s), key) in (first_key..).zip(&mut p).zip(keys.chunks_exact(head_dim)) {
                *s = if visible.contains(&j) && problem.sees(*row, j) {
                    score(problem, &scales, *row, j, dot(query, key))
                } else {
                    f32::NEG_INFINITY
                };
            }
            state.step(&mut p, scales.log2);
            state.accumulate::<T>(&p, &values);
        }
    }
    let mut attention = Attention { o: Vec::with_capacity(rows.len() * head_dim_v), lse: Vec::with_capacity(rows.len()) };
    states.into_iter().for_each(|state| state.finish(problem.sink(head_idx), &mut attention));
    attention
}

/// The key tiles that the math warpgroup of query `position` visits.
fn visited_tiles<T: Element>(problem: &Problem<'_, T>, tile_n: u32, position: usize) -> Range<usize> {
    let bound = |side: Option<usize>| side.map_or(MAX_SEQLEN, |side| side.min(MAX_SEQLEN as usize) as u32);
    let window = Window { left: bound(problem.window_left), right: bound(problem.right_bound()) };
    let first_row = position as u32 / WARPGROUP_ROWS * WARPGROUP_ROWS;
    let range = key_range(window, WARPGROUP_ROWS, tile_n, first_row, problem.seqlen_q() as u32, problem.seqlen_k() as u32);
    range.begin as usize..range.end as usize
}

/// What the host hands to the kernel.
struct Scales {
    /// Factor of Q K^T before the score function.
    score: f32,
    /// From the score function's result to log2 units.
    log2: f32,
}

impl Scales {
    fn new<T: Element>(problem: &Problem<'_, T>) -> Self {
        let softmax_scale = f64::from(problem.softmax_scale);
        let (score, natural) = match problem.score {
            Score::Identity => (1.0, softmax_scale),
            Score::SoftCap(cap) => (softmax_scale / f64::from(cap), f64::from(cap)),
            Score::Alibi(_) | Score::Function(_) => (softmax_scale, 1.0),
        };
        Self { score: score as f32, log2: (natural * LOG2_E) as f32 }
    }
}

/// What the softmax gets of an element of Q K^T.
fn score<T: Element>(problem: &Problem<'_, T>, scales: &Scales, row: Row, key: usize, s: f32) -> f32 {
    match problem.score {
        Score::Identity => s,
        Score::SoftCap(_) => tanh(s * scales.score),
        Score::Function(ScoreFunction(function)) => function(f64::from(s * scales.score), row, key) as f32,
        Score::Alibi(slopes) => {
            let distance = problem.distance(row.position, key) as f32;
            (-slopes[row.head_idx]).mul_add(distance, s * scales.score)
        }
    }
}

/// tanh with an error such as that of `tanh.approx.f32` may be, whose bits no document states: cut off to 12 significant bits, it is up to
/// [`TANH_ERROR`] too small.
///
/// Cutting rather than rounding: errors of one sign add up over the keys, as those of an approximation that is smooth do for equal logits,
/// and shift the log-sum-exp by up to the bound, where rounding errors would cancel. Two logits of the instruction may be off by the bound
/// in opposite directions; cut, they come half as far apart, which is what a rule that allows twice this model's error takes.
pub(super) fn tanh(x: f32) -> f32 {
    const CUT: u32 = (1 << 12) - 1;
    f32::from_bits(x.tanh().to_bits() & !CUT)
}

/// What a thread of the kernel keeps for one query.
struct RowState {
    /// The maximum, scaled to log2 units and rounded; perhaps of the first key tiles only.
    ms: f32,
    /// The sum of P in the four lanes that share a row of the tensor core's accumulator.
    row_sum: [f32; 4],
    acc_o: Vec<f32>,
}

impl RowState {
    fn new(head_dim_v: usize) -> Self {
        Self { ms: f32::NEG_INFINITY, row_sum: [0.0; 4], acc_o: vec![0.0; head_dim_v] }
    }

    /// Turns the logits of one key tile into P, and rescales what came before.
    fn step(&mut self, s: &mut [f32], scale_log2: f32) {
        if self.ms.abs() < ROUND_FIRST {
            let sums = lane_sums(s.iter().map(|s| s.mul_add(scale_log2, -self.ms).exp2()));
            // False for NaN.
            if sums.iter().all(|&sum| sum <= MAX_SUM) {
                s.iter_mut().for_each(|s| *s = s.mul_add(scale_log2, -self.ms).exp2());
                self.row_sum.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
                return;
            }
        }
        // `f32::max` passes over NaN, like PTX `max`: NaN comes back through P and the row sum.
        let tile_max = s.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let ms = self.ms.max(tile_max * scale_log2);
        // A row that has seen nothing subtracts 0, so that exp2(-inf - 0) = 0 instead of NaN.
        let subtrahend = if ms == f32::NEG_INFINITY { 0.0 } else { ms };
        let alpha = (self.ms - subtrahend).exp2();
        self.ms = ms;
        self.acc_o.iter_mut().for_each(|o| *o *= alpha);

        let round_first = subtrahend.abs() >= ROUND_FIRST;
        for s in s.iter_mut() {
            let scaled = if round_first { *s * scale_log2 - subtrahend } else { s.mul_add(scale_log2, -subtrahend) };
            *s = scaled.exp2();
        }
        let sums = lane_sums(s.iter().copied());
        self.row_sum.iter_mut().zip(sums).for_each(|(total, sum)| *total = total.mul_add(alpha, sum));
    }

    /// O += round(P) V.
    fn accumulate<T: Element>(&mut self, p: &[f32], values: &[f32]) {
        for (&p, value) in p.iter().zip(values.chunks_exact(self.acc_o.len())) {
            let p = T::from_f32(p).to_f32();
            self.acc_o.iter_mut().zip(value).for_each(|(o, &v)| *o += p * v);
        }
    }

    fn finish<T: Element>(self, sink: f32, attention: &mut Attention<T, f32>) {
        let sink_log2 = sink * std::f32::consts::LOG2_E;
        let ms = self.ms.max(sink_log2);
        let subtrahend = if ms == f32::NEG_INFINITY { 0.0 } else { ms };
        let alpha = (self.ms - subtrahend).exp2();
        let row_sum = (self.row_sum[0] + self.row_sum[1]) + (self.row_sum[2] + self.row_sum[3]);
        let row_sum = row_sum.mul_add(alpha, (sink_log2 - subtrahend).exp2());
        let row_scale = if row_sum == 0.0 { 0.0 } else { alpha * (1.0 / row_sum) };
        attention.o.extend(self.acc_o.iter().map(|&o| T::from_f32(o * row_scale)));
        attention.lse.push((ms + row_sum.log2()) * std::f32::consts::LN_2);
    }
}

/// The sums of the four lanes that share a row: columns 8 j + 2 lane + {0, 1} lie in one lane, which sums even and odd columns apart.
fn lane_sums(p: impl Iterator<Item = f32>) -> [f32; 4] {
    let mut sums = [[0.0; 2]; 4];
    p.enumerate().for_each(|(column, p)| sums[column / 2 % 4][column % 2] += p);
    sums.map(|[even, odd]| even + odd)
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Several sums at once, so that the compiler can use vector instructions.
    let mut sums = [0.0; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f32 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + tail
}
