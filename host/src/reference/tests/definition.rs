//! The definition again, as short as it can be, for logits of a size that `exp` takes as they are.

use super::*;

/// Extents of Q `[1, seqlen_q, num_heads, head_dim]`, K `[1, seqlen_k, num_heads_k, head_dim]` and V
/// `[1, seqlen_k, num_heads_k, head_dim_v]`.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub seqlen_q: usize,
    pub seqlen_k: usize,
    pub head_dim: usize,
    pub head_dim_v: usize,
}

pub(super) const NUM_HEADS: usize = 4;
pub(super) const NUM_HEADS_K: usize = 2;
pub(super) const NO_SINKS: [f32; NUM_HEADS] = [f32::NEG_INFINITY; NUM_HEADS];

/// Normal Q (of the given magnitude), K and V.
pub(super) struct Data {
    shape: Shape,
    q: Vec<f16>,
    k: Vec<f16>,
    v: Vec<f16>,
}

impl Data {
    pub(super) fn new(shape: Shape, magnitude: f32) -> Self {
        let Shape { seqlen_q, seqlen_k, head_dim, head_dim_v } = shape;
        Self {
            shape,
            q: normal(21, seqlen_q * NUM_HEADS * head_dim, magnitude),
            k: normal(22, seqlen_k * NUM_HEADS_K * head_dim, 1.0),
            v: normal(23, seqlen_k * NUM_HEADS_K * head_dim_v, 1.0),
        }
    }

    /// With head dims of 8.
    pub(super) fn of_lengths(seqlen_q: usize, seqlen_k: usize, magnitude: f32) -> Self {
        Self::new(Shape { seqlen_q, seqlen_k, head_dim: 8, head_dim_v: 8 }, magnitude)
    }

    pub(super) fn problem(&self) -> Problem<'_, f16> {
        let Shape { seqlen_q, seqlen_k, head_dim, head_dim_v } = self.shape;
        let q = HostTensor::new(&self.q, Layout::bshd([1, seqlen_q, NUM_HEADS, head_dim])).unwrap();
        let k = HostTensor::new(&self.k, Layout::bshd([1, seqlen_k, NUM_HEADS_K, head_dim])).unwrap();
        let v = HostTensor::new(&self.v, Layout::bshd([1, seqlen_k, NUM_HEADS_K, head_dim_v])).unwrap();
        Problem::new(q, k, v).unwrap()
    }
}

/// One logit, and where it is.
#[derive(Clone, Copy)]
pub(super) struct Logit {
    pub head_idx: usize,
    /// `i + seqlen_k - seqlen_q`.
    pub diagonal: i64,
    pub key: i64,
    /// `softmax_scale * q . k`.
    pub s: f64,
}

pub(super) struct Expected {
    pub attention: Attention<f64, f64>,
    pub largest_score: f64,
}

/// Attention with the scores that `score` makes of the logits, `None` where a key is not visible.
pub(super) fn by_definition(problem: &Problem<'_, f16>, sinks: [f32; NUM_HEADS], score: impl Fn(Logit) -> Option<f64>) -> Expected {
    let widen = |row: &[f16]| row.iter().map(|x| x.to_f64()).collect::<Vec<_>>();
    let mut largest_score = 0.0f64;
    let attention = rows::all(problem, |rows| {
        let mut attention = Attention::default();
        for &Row { batch_idx, head_idx, position } in rows {
            let head_idx_k = head_idx / (NUM_HEADS / NUM_HEADS_K);
            let diagonal = position as i64 + problem.seqlen_k() as i64 - problem.seqlen_q() as i64;
            let q = widen(problem.q.row(batch_idx, position, head_idx));
            let score_of = |j: usize| {
                let k = widen(problem.k.row(batch_idx, j, head_idx_k));
                let s = f64::from(problem.softmax_scale) * q.iter().zip(&k).map(|(q, k)| q * k).sum::<f64>();
                Some((j, score(Logit { head_idx, diagonal, key: j as i64, s })?))
            };
            let scores: Vec<(usize, f64)> = (0..problem.seqlen_k()).filter_map(score_of).collect();
            let lse = (f64::from(sinks[head_idx]).exp() + scores.iter().map(|(_, s)| s.exp()).sum::<f64>()).ln();
            let mut o = vec![0.0; problem.head_dim_v()];
            for &(j, s) in &scores {
                let v = widen(problem.v.row(batch_idx, j, head_idx_k));
                o.iter_mut().zip(&v).for_each(|(o, v)| *o += (s - lse).exp() * v);
                largest_score = largest_score.max(s.abs());
            }
            attention.o.extend(o);
            attention.lse.push(lse);
        }
        attention
    });
    Expected { attention, largest_score }
}

/// `exact`, and `tiled` with the table's tiles and with small ones, against the definition. The scores of `tiled` may be off by
/// `score_error`, a share of the largest.
pub(super) fn check(problem: Problem<'_, f16>, expected: &Expected, score_error: f64) {
    let Expected { attention, largest_score } = expected;
    let max_v = expected_max_v(&problem);
    let exact = exact::attention(&problem);
    assert_eq!((exact.o.len(), exact.lse.len()), (attention.o.len(), attention.lse.len()));
    exact.o.iter().zip(&attention.o).for_each(|(&got, &expected)| close(got, expected, 1e-12));
    exact.lse.iter().zip(&attention.lse).for_each(|(&got, &expected)| close(got, expected, 1e-12));

    let uncertain = score_error * largest_score;
    let small = rows::all(&problem, |rows| tiled::with_config(&problem, &small_tiles(problem.causal), rows));
    for tiled in [tiled::attention(&problem).unwrap(), small] {
        assert_eq!((tiled.o.len(), tiled.lse.len()), (attention.o.len(), attention.lse.len()));
        for (got, &expected) in tiled.o.iter().zip(&attention.o) {
            // Weights are off by twice the scores at most: once for the score, once for the sum.
            let error = (got.to_f64() - expected).abs();
            assert!(error <= max_v * (f16::EPSILON.to_f64() + 2.0 * uncertain), "{got}, expected {expected}");
        }
        tiled.lse.iter().zip(&attention.lse).for_each(|(&got, &expected)| close(got.into(), expected, 1e-5 + uncertain));
    }
}

fn expected_max_v(problem: &Problem<'_, f16>) -> f64 {
    let [batch, seqlen_k, heads, _] = problem.v.shape();
    let rows = (0..batch * seqlen_k * heads).map(|i| problem.v.row(i / heads / seqlen_k, i / heads % seqlen_k, i % heads));
    rows.flatten().map(|v| v.to_f64().abs()).fold(0.0, f64::max)
}
