//! Whether a result is right: where it is NaN or infinite first, how far it is off second.
//!
//! The rule for O, of FlashAttention-3's own tests, made so that it cannot be vacuous. With E the largest error of `tiled` (the same
//! computation in the kernel's precision, on the CPU) against `exact` (f64) over all judged elements, an element may be off by
//!
//! ```text
//! 2 E + half an ulp of the exact value + delta * max|v| + seqlen_k / 16 * 2^-23 * max|o of the row|
//! ```
//!
//! E itself must be explained by the roundings that the computation has: P and O to the element type (half an ulp each), and sums in f32.
//! The last two terms are for the tensor core, which adds 16 products at a time and cuts the sum off to f32 where the CPU rounds it, up
//! to an ulp (2^-23) a step, always towards 0. `delta` is what that costs a logit: head_dim / 16 steps, at least 4, of the largest product
//! of norms `softmax_scale * |q| |k|`; 0 where the inputs make every sum exact. O takes seqlen_k / 16 steps, in which it grows to what it
//! is. `delta` has besides what a score function and a sink cost: the error of the tanh instruction where there is a soft cap, the rounding
//! of the sum of logit and bias with ALiBi, that of the sink in units of log2.
//!
//! The rule for the log-sum-exp is the same with f32 in place of the element type: a key forgotten among a thousand is far outside.
//!
//! A second look is at `tiled` alone, whose roundings the kernel shares: nearly all elements agree to one ulp of the largest in their row.

use crate::case::{Case, TestElement};
use crate::features::{PerHead, Score};
use crate::values::Inputs;
use crate::{Failure, ensure};
use hopper_attention::reference::{Attention, HostTensor, Row, exact, tiled};
use rayon::prelude::*;
use std::collections::HashMap;

/// What one case showed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Rows that were compared.
    pub rows: usize,
    /// Largest error of O.
    pub o_error: f64,
    /// Largest error of O, as a share of what the rule allows that element.
    pub o_ratio: f64,
    /// Largest error of the log-sum-exp.
    pub lse_error: f64,
    /// Largest error of the log-sum-exp, as a share of what the rule allows.
    pub lse_ratio: f64,
    /// Elements of O that differ from `tiled` by more than an ulp of their row's largest.
    pub unlike_tiled: usize,
}

/// The rows of a case that are judged: all of them, or a sample with the first, the last and those beside tile edges.
pub fn judged_rows(case: &Case) -> Vec<Row> {
    let total = case.batch * case.num_heads * case.seqlen_q;
    let row = |index: usize| {
        let (head, position) = (index / case.seqlen_q, index % case.seqlen_q);
        Row { batch_idx: head / case.num_heads, head_idx: head % case.num_heads, position }
    };
    let Some(count) = case.judged_rows.filter(|&count| count < total) else {
        return (0..total).map(row).collect();
    };
    let mut rows = vec![row(0), row(total - 1)];
    let random = |index: usize| crate::values::random_bits(case.seed ^ 0xa5a5, index as u64) as usize;
    // A run of rows shares its references' conversion of K and V, so the sample is made of runs; half of them begin just before a tile's
    // edge.
    let run = 8;
    for index in 0..count / run {
        let start = random(index) % total;
        let before_edge = start / case.seqlen_q * case.seqlen_q + (start % case.seqlen_q / 64 * 64).saturating_sub(run / 2);
        let start = if index % 2 == 0 { start } else { before_edge };
        rows.extend((start..(start + run).min(total)).map(row));
    }
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// Judges `got`, which holds O `[rows, head_dim_v]` and, if the case asks for it, the log-sum-exp `[rows]`.
pub fn judge<T: TestElement>(case: &Case, inputs: &Inputs<T>, rows: &[Row], got: &Attention<T, f32>) -> Result<Judgement, Failure> {
    let comparison = Comparison::new(case, inputs, rows, got)?;
    comparison.check_kinds(case.lse)?;
    let mut judgement = Judgement { rows: rows.len(), ..Judgement::default() };
    comparison.judge_o(&mut judgement)?;
    // No document says which bits the tanh instruction gives, so there is no model to compare with.
    if !matches!(case.features.score, Score::SoftCap(_)) {
        comparison.compare_with_tiled(&mut judgement)?;
    }
    if case.lse {
        comparison.judge_lse(&mut judgement)?;
    }
    Ok(judgement)
}

/// What the inputs allow, for each judged row.
struct Bounds {
    /// Error of a logit by the rounding of its sum, and by what the score function makes of it.
    delta: Vec<f64>,
    /// Largest finite |v|.
    max_v: Vec<f64>,
    /// Whether all of V is finite.
    v_is_finite: Vec<bool>,
    seqlen_k: usize,
}

impl Bounds {
    fn new<T: TestElement>(case: &Case, inputs: &Inputs<T>, per_head: &PerHead, rows: &[Row]) -> Self {
        let [q, k, v] = inputs.tensors(case);
        let ratio = case.num_heads.checked_div(case.num_heads_k).unwrap_or(1).max(1);
        let head_of = |row: &Row| (row.batch_idx, row.head_idx / ratio);
        let mut heads: HashMap<(usize, usize), (f64, f64, bool)> = rows.iter().map(|row| (head_of(row), (0.0, 0.0, true))).collect();
        for (&(batch_idx, head_idx), (max_k, max_v, v_is_finite)) in &mut heads {
            let largest = |tensor: &HostTensor<'_, T>, size: fn(&[T]) -> f64| {
                (0..case.seqlen_k).into_par_iter().map(|key| size(tensor.row(batch_idx, key, head_idx))).reduce(|| 0.0, f64::max)
            };
            *max_k = largest(&k, norm);
            *max_v = largest(&v, max_abs);
            *v_is_finite = largest(&v, |row| f64::from(row.iter().any(|x| !x.to_f32().is_finite()))) == 0.0;
        }
        let delta = |row: &Row| {
            let largest = f64::from(case.scale()) * norm(q.row(row.batch_idx, row.position, row.head_idx)) * heads[&head_of(row)].0;
            let of_sum = if case.values.logits_are_exact() { 0.0 } else { cuts(case.head_dim.max(64)) * largest };
            of_sum + of_features(case, per_head, row.head_idx, largest)
        };
        Self {
            delta: rows.iter().map(delta).collect(),
            max_v: rows.iter().map(|row| heads[&head_of(row)].1).collect(),
            v_is_finite: rows.iter().map(|row| heads[&head_of(row)].2).collect(),
            seqlen_k: case.seqlen_k,
        }
    }

    /// The largest error of O that the roundings of `tiled` explain.
    fn explained<T: TestElement>(&self) -> f64 {
        let (mut delta, mut max_v) = (0.0f64, 0.0f64);
        for row in 0..self.delta.len() {
            delta = delta.max(self.delta[row]);
            max_v = max_v.max(self.max_v[row]);
        }
        // P and O, half an ulp each; P below the smallest normal number; sums of so many terms; logits.
        let keys = self.seqlen_k as f64;
        let elements = T::EPSILON + keys * T::SMALLEST / 2.0;
        max_v * (1.01 * elements + keys.sqrt() / (1u64 << 22) as f64 + 2.0 * delta) + T::SMALLEST
    }
}

/// Error of a logit of at most `largest` by the score function, and that of the sink, which is one more logit.
fn of_features(case: &Case, per_head: &PerHead, head_idx: usize, largest: f64) -> f64 {
    let ulp = 1.0 / (1u64 << 23) as f64;
    let of_score = match (case.features.score, &per_head.alibi_slopes) {
        (Score::SoftCap(softcap), _) => tiled::TANH_ERROR * largest.min(f64::from(softcap)),
        // The scaled logit and its sum with the bias are rounded, half an ulp each.
        (_, Some(slopes)) => ulp * (largest + f64::from(slopes[head_idx]) * case.seqlen_q.max(case.seqlen_k) as f64),
        // Likewise, with whatever a function of its own adds.
        _ => per_head.functions.as_ref().map_or(0.0, |functions| 2.0 * ulp * (largest + functions.largest_term)),
    };
    let sink = per_head.sinks.as_ref().map(|sinks| f64::from(sinks[head_idx]).abs()).filter(|sink| sink.is_finite());
    of_score + ulp * sink.unwrap_or(0.0)
}

/// What the tensor core may cut off a sum of so many products, as a share of the largest partial sum.
fn cuts(products: usize) -> f64 {
    products.div_ceil(16) as f64 / (1u64 << 23) as f64
}

fn norm<T: TestElement>(row: &[T]) -> f64 {
    let squares: f64 = row.iter().map(|x| f64::from(x.to_f32()).powi(2)).sum();
    if squares.is_finite() { squares.sqrt() } else { 0.0 }
}

fn max_abs<T: TestElement>(row: &[T]) -> f64 {
    row.iter().map(|x| f64::from(x.to_f32()).abs()).filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// Half the distance between `T`s around `x`.
fn half_ulp<T: TestElement>(x: f64) -> f64 {
    if x == 0.0 { T::SMALLEST / 2.0 } else { (x.abs().log2().floor().exp2() * T::EPSILON).max(T::SMALLEST) / 2.0 }
}

/// NaN, the infinities, or a number.
fn kind(x: f64) -> i8 {
    if x.is_nan() {
        2
    } else if x.is_infinite() {
        x.signum() as i8
    } else {
        0
    }
}

/// A result beside what it must be; all are of the same rows.
struct Comparison<'a, T> {
    head_dim_v: usize,
    rows: &'a [Row],
    got: &'a Attention<T, f32>,
    exact: Attention<f64, f64>,
    tiled: Attention<T, f32>,
    bounds: Bounds,
}

impl<'a, T: TestElement> Comparison<'a, T> {
    fn new(case: &Case, inputs: &Inputs<T>, rows: &'a [Row], got: &'a Attention<T, f32>) -> Result<Self, Failure> {
        let per_head = case.per_head();
        let problem = inputs.problem(case, &per_head);
        Ok(Self {
            head_dim_v: case.o_head_dim(),
            rows,
            got,
            exact: exact::attention_rows(&problem, rows),
            tiled: tiled::attention_rows(&problem, rows)?,
            bounds: Bounds::new(case, inputs, &per_head, rows),
        })
    }

    fn got_o(&self, i: usize) -> f64 {
        f64::from(self.got.o[i].to_f32())
    }

    fn tiled_o(&self, i: usize) -> f64 {
        f64::from(self.tiled.o[i].to_f32())
    }

    fn place(&self, i: usize) -> String {
        format!("O of {:?}, column {}", self.rows[i / self.head_dim_v], i % self.head_dim_v)
    }

    /// NaN and the infinities are where the kernel's model has them, which agrees with the definition but for NaN and infinity in V.
    fn check_kinds(&self, lse: bool) -> Result<(), Failure> {
        for (i, &exact) in self.exact.o.iter().enumerate() {
            let (got, tiled) = (self.got_o(i), self.tiled_o(i));
            ensure!(kind(got) == kind(tiled), "{} is {got}, but must be {tiled} (exact: {exact})", self.place(i));
            // What is not finite in V reaches more rows in the model than it should; the reverse never happens.
            let as_defined = kind(tiled) == kind(exact) || (kind(tiled) != 0 && !self.bounds.v_is_finite[i / self.head_dim_v]);
            ensure!(as_defined, "{} is {tiled} in the kernel's model, but {exact} exactly", self.place(i));
        }
        for (i, row) in self.rows.iter().enumerate().filter(|_| lse) {
            let (got, tiled, exact) = (f64::from(self.got.lse[i]), f64::from(self.tiled.lse[i]), self.exact.lse[i]);
            ensure!(
                kind(got) == kind(exact) && kind(tiled) == kind(exact),
                "LSE of {row:?} is {got}, but must be {exact} (model: {tiled})"
            );
        }
        Ok(())
    }

    fn judge_o(&self, judgement: &mut Judgement) -> Result<(), Failure> {
        let exact = &self.exact.o;
        let finite = || (0..exact.len()).filter(|&i| kind(self.tiled_o(i)) == 0);
        let same_precision = finite().map(|i| (self.tiled_o(i) - exact[i]).abs()).fold(0.0, f64::max);
        let explained = self.bounds.explained::<T>();
        ensure!(
            same_precision <= explained,
            "O in the kernel's precision is off by {same_precision:e}, but its roundings explain {explained:e}"
        );
        let largest_of = |row: &[f64]| row.iter().filter(|o| o.is_finite()).fold(0.0, |most: f64, o| most.max(o.abs()));
        let largest: Vec<f64> = exact.chunks_exact(self.head_dim_v).map(largest_of).collect();
        let mut worst = (0.0, 0);
        for i in finite() {
            let row = i / self.head_dim_v;
            let error = (self.got_o(i) - exact[i]).abs();
            let uncertain = self.bounds.delta[row] * self.bounds.max_v[row] + cuts(self.bounds.seqlen_k) * largest[row];
            let allowed = 2.0 * same_precision + half_ulp::<T>(exact[i]) + uncertain;
            judgement.o_error = judgement.o_error.max(error);
            if error > 0.0 && error / allowed > worst.0 {
                worst = (error / allowed, i);
            }
        }
        let (ratio, i) = worst;
        judgement.o_ratio = ratio;
        let value = || format!("{} is {}, exactly {}", self.place(i), self.got_o(i), exact[i]);
        let model = || format!("in the kernel's precision {}, off by {same_precision:e} at most", self.tiled_o(i));
        ensure!(ratio <= 1.0, "{}: off by {ratio:.2} times what is allowed ({})", value(), model());
        Ok(())
    }

    /// The roundings are shared: what differs is P on the edge between two numbers, which seldom moves O by more than an ulp.
    fn compare_with_tiled(&self, judgement: &mut Judgement) -> Result<(), Failure> {
        let (mut compared, mut moved) = (0, 0.0);
        for (row, tiled) in self.tiled.o.chunks_exact(self.head_dim_v).enumerate() {
            // Where logits are uncertain by more than P's rounding, P differs everywhere; and O, where its sum is.
            let uncertain = self.bounds.delta[row].max(cuts(self.bounds.seqlen_k));
            if uncertain > T::EPSILON / 16.0 {
                continue;
            }
            // A weight below the normal numbers of f32, beside a large sink for instance, is 0 on the device, and here it is not.
            let flushed = f64::from(f32::MIN_POSITIVE) * self.bounds.max_v[row];
            let ulp = (2.0 * half_ulp::<T>(max_abs(tiled))).max(flushed);
            let elements = row * self.head_dim_v..(row + 1) * self.head_dim_v;
            compared += self.head_dim_v;
            judgement.unlike_tiled += elements.filter(|&i| (self.got_o(i) - self.tiled_o(i)).abs() > ulp).count();
            // P near an edge between two numbers moves all columns of its row. Of one weight it would be this share of rows if each logit were
            // off by all that it may be; the most that was seen is an eighth.
            moved += self.head_dim_v as f64 * uncertain / T::EPSILON / 4.0;
        }
        // One row in any case, and what else may come together.
        let (unlike, allowed) = (judgement.unlike_tiled, self.head_dim_v.max(4) + compared / 5000 + moved as usize);
        ensure!(
            unlike <= allowed,
            "{unlike} of {compared} elements of O differ from the kernel's model by more than an ulp of their row, more than {allowed}"
        );
        Ok(())
    }

    fn judge_lse(&self, judgement: &mut Judgement) -> Result<(), Failure> {
        let exact = &self.exact.lse;
        let finite = || (0..exact.len()).filter(|&i| kind(exact[i]) == 0);
        let same_precision = finite().map(|i| (f64::from(self.tiled.lse[i]) - exact[i]).abs()).fold(0.0, f64::max);
        // exp2 and log2 of the device are within 2^-22 (log2 relatively); the sum of so many terms; the logits; the rounding of the result.
        let keys = self.bounds.seqlen_k.max(1) as f64;
        let sums = 2.0 + keys.sqrt() / 64.0 + keys.ln();
        let explained = |i: usize| (sums + exact[i].abs()) / (1u64 << 22) as f64 + self.bounds.delta[i];
        let most = finite().map(explained).fold(0.0, f64::max);
        ensure!(same_precision <= most, "LSE in the kernel's precision is off by {same_precision:e}, but its roundings explain {most:e}");
        for i in finite() {
            let (row, got, exact) = (self.rows[i], self.got.lse[i], exact[i]);
            let (error, allowed) = ((f64::from(got) - exact).abs(), 2.0 * same_precision + explained(i));
            judgement.lse_error = judgement.lse_error.max(error);
            judgement.lse_ratio = judgement.lse_ratio.max(error / allowed);
            ensure!(error <= allowed, "LSE of {row:?} is {got}, exactly {exact}: off by {error:e}, more than {allowed:e}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
