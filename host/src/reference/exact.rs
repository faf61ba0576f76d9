//! Attention by its definition, in f64.
//!
//! ```text
//! for each query i:
//!     s_j = softmax_scale * q_i . k_j              for the visible keys j
//!     m   = max_j s_j
//!     p_j = exp(s_j - m)
//!     o_i = sum_j p_j v_j / sum_j p_j
//!     lse = m + ln(sum_j p_j)
//! ```

use super::Problem;
use super::rows::{self, Attention, Row};
use crate::Element;

/// Rows that one thread computes at a time: they share the conversion of each key.
const BLOCK: usize = 64;
/// Logits that one thread keeps.
const MAX_LOGITS: usize = 1 << 22;

/// O `[batch, seqlen_q, num_heads, head_dim]` and the log-sum-exp `[batch, num_heads, seqlen_q]`.
pub fn attention<T: Element>(problem: &Problem<'_, T>) -> Attention<f64, f64> {
    rows::all(problem, |all| attention_rows(problem, all))
}

/// The given rows of O `[rows, head_dim]` and of the log-sum-exp `[rows]`, for problems too large to compute whole.
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
    let head_dim = problem.head_dim();
    let visible: Vec<usize> = rows.iter().map(|row| problem.visible_keys(row.position)).collect();
    let keys = visible.iter().copied().max().unwrap_or(0);
    let mut widened = Widened::new(head_dim);

    let mut queries = Vec::with_capacity(rows.len() * head_dim);
    for row in rows {
        queries.extend_from_slice(widened.load(problem.q.row(batch_idx, row.position, head_idx)));
    }
    let mut weights = vec![f64::NEG_INFINITY; rows.len() * keys];
    for j in 0..keys {
        let key = widened.load(problem.k.row(batch_idx, j, head_idx_k));
        for (r, query) in queries.chunks_exact(head_dim).enumerate() {
            if j < visible[r] {
                weights[r * keys + j] = f64::from(problem.softmax_scale) * dot(query, key);
            }
        }
    }

    // From logits to weights that add up to 1.
    let mut lse = vec![f64::NEG_INFINITY; rows.len()];
    for (r, lse) in lse.iter_mut().enumerate() {
        let weights = &mut weights[r * keys..][..visible[r]];
        // `f64::max` passes over NaN; the sum does not.
        let row_max = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if weights.iter().all(|&logit| logit == f64::NEG_INFINITY) {
            weights.fill(0.0);
            continue;
        }
        weights.iter_mut().for_each(|logit| *logit = (*logit - row_max).exp());
        let row_sum: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|weight| *weight /= row_sum);
        *lse = row_max + row_sum.ln();
    }

    let mut o = vec![0.0; rows.len() * head_dim];
    for j in 0..keys {
        let value = widened.load(problem.v.row(batch_idx, j, head_idx_k));
        for (r, o) in o.chunks_exact_mut(head_dim).enumerate() {
            // A row with lse = -inf sees no value, not even NaN.
            if j < visible[r] && lse[r] != f64::NEG_INFINITY {
                let weight = weights[r * keys + j];
                o.iter_mut().zip(value).for_each(|(o, &v)| *o += weight * v);
            }
        }
    }
    Attention { o, lse }
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
