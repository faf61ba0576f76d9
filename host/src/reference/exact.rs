//! Attention by its definition, in f64.
//!
//! ```text
//! for each query i:
//!     s_j = softmax_scale * q_i . k_j              for the visible keys j
//!     s_j = softcap * tanh(s_j / softcap)          with a soft cap
//!     s_j = s_j - slope * |i + seqlen_k - seqlen_q - j|     with ALiBi
//!     m   = max(sink, max_j s_j)                   without a sink, sink = -inf
//!     p_j = exp(s_j - m)
//!     l   = exp(sink - m) + sum_j p_j
//!     o_i = sum_j p_j v_j / l
//!     lse = m + ln l
//! ```

use super::Problem;
use super::problem::{Score, ScoreFunction};
use super::rows::{self, Attention, Row};
use crate::Element;
use std::ops::Range;

/// Rows that one thread computes at a time: they share the conversion of each key.
const BLOCK: usize = 64;
/// Logits that one thread keeps.
const MAX_LOGITS: usize = 1 << 22;

/// O `[batch, seqlen_q, num_heads, head_dim_v]` and the log-sum-exp `[batch, num_heads, seqlen_q]`.
pub fn attention<T: Element>(problem: &Problem<'_, T>) -> Attention<f64, f64> {
    rows::all(problem, |all| attention_rows(problem, all))
}

/// The given rows of O `[rows, head_dim_v]` and of the log-sum-exp `[rows]`, for problems too large to compute whole.
///
/// # Panics
///
/// If a row lies outside of the problem.
pub fn attention_rows<T: Element>(problem: &Problem<'_, T>, rows: &[Row]) -> Attention<f64, f64> {
    let block = (MAX_LOGITS / problem.seqlen_k().max(1)).clamp(1, BLOCK);
    rows::in_parallel(problem, rows, block, |run| compute(problem, run))
}

/// Rows of one head.
fn compute<T: Element>(problem: &Problem<'_, T>, rows: &[Row]) -> Attention<f64, f64> {
    let (batch_idx, head_idx) = (rows[0].batch_idx, rows[0].head_idx);
    let head_idx_k = problem.head_idx_k(head_idx);
    let (head_dim, head_dim_v) = (problem.head_dim(), problem.head_dim_v());
    let mut visible: Vec<Range<usize>> = rows.iter().map(|row| problem.visible_keys(row.position)).collect();
    let keys = hull(&visible);

    let mut widened = Widened::new(head_dim);
    let mut queries = Vec::with_capacity(rows.len() * head_dim);
    for row in rows {
        queries.extend_from_slice(widened.load(problem.q.row(batch_idx, row.position, head_idx)));
    }
    // Logits first, -inf where a key is not visible.
    let mut weights = vec![f64::NEG_INFINITY; rows.len() * keys.len()];
    for (column, j) in keys.clone().enumerate() {
        let key = widened.load(problem.k.row(batch_idx, j, head_idx_k));
        for (r, query) in queries.chunks_exact(head_dim).enumerate() {
            if visible[r].contains(&j) && problem.sees(rows[r], j) {
                let logit = f64::from(problem.softmax_scale) * dot(query, key);
                weights[r * keys.len() + column] = score(problem, rows[r], j, logit);
            }
        }
    }

    let sink = f64::from(problem.sink(head_idx));
    let mut attention = Attention { o: Vec::with_capacity(rows.len() * head_dim_v), lse: Vec::with_capacity(rows.len()) };
    for (r, visible) in visible.iter_mut().enumerate() {
        let weights = &mut weights[r * keys.len()..][..keys.len()];
        if weights.iter().all(|&logit| logit == f64::NEG_INFINITY) {
            // A row that sees nothing takes no value, not even NaN.
            *visible = 0..0;
        }
        let lse = softmax(weights, sink);
        let o = if lse.is_nan() { f64::NAN } else { 0.0 };
        attention.o.resize((r + 1) * head_dim_v, o);
        attention.lse.push(lse);
    }

    let mut widened = Widened::new(head_dim_v);
    for (column, j) in keys.clone().enumerate() {
        let value = widened.load(problem.v.row(batch_idx, j, head_idx_k));
        for (r, o) in attention.o.chunks_exact_mut(head_dim_v).enumerate() {
            if visible[r].contains(&j) && problem.sees(rows[r], j) {
                let weight = weights[r * keys.len() + column];
                o.iter_mut().zip(value).for_each(|(o, &v)| *o += weight * v);
            }
        }
    }
    attention
}

/// From the first key that any row sees to the last.
fn hull(visible: &[Range<usize>]) -> Range<usize> {
    let some = || visible.iter().filter(|keys| !keys.is_empty());
    let begin = some().map(|keys| keys.start).min().unwrap_or(0);
    begin..some().map(|keys| keys.end).max().unwrap_or(begin)
}

/// What the softmax gets of a logit.
fn score<T: Element>(problem: &Problem<'_, T>, row: Row, key: usize, logit: f64) -> f64 {
    match problem.score {
        Score::Identity => logit,
        Score::SoftCap(cap) => f64::from(cap) * (logit / f64::from(cap)).tanh(),
        Score::Function(ScoreFunction(function)) => function(logit, row, key),
        Score::Alibi(slopes) => logit - f64::from(slopes[row.head_idx]) * problem.distance(row.position, key) as f64,
    }
}

/// Turns logits into weights, which add up to 1 with that of the sink, and returns the log-sum-exp: -inf if that is what they all are.
fn softmax(logits: &mut [f64], sink: f64) -> f64 {
    // `f64::max` passes over NaN; the sum does not.
    let row_max = logits.iter().copied().fold(sink, f64::max);
    // Of nothing but -inf, exp(-inf - 0) = 0 and 0 + ln 0 = -inf.
    let row_max = if row_max == f64::NEG_INFINITY { 0.0 } else { row_max };
    logits.iter_mut().for_each(|logit| *logit = (*logit - row_max).exp());
    let row_sum = logits.iter().sum::<f64>() + (sink - row_max).exp();
    logits.iter_mut().for_each(|weight| *weight /= row_sum);
    row_max + row_sum.ln()
}

/// One row of a tensor, as f64.
struct Widened {
    single: Vec<f32>,
    double: Vec<f64>,
}

impl Widened {
    fn new(head_dim: usize) -> Self {
        Self { single: vec![0.0; head_dim], double: vec![0.0; head_dim] }
    }

    fn load<T: Element>(&mut self, row: &[T]) -> &[f64] {
        T::widen(row, &mut self.single);
        self.double.iter_mut().zip(&self.single).for_each(|(double, &single)| *double = f64::from(single));
        &self.double
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Several sums at once, so that the compiler can use vector instructions.
    let mut sums = [0.0; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for lane in 0..8 {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + tail
}
