//! Inputs: drawn from a seed, the same on every machine and for any number of threads.

use crate::case::{Case, Edit, Operand, TestElement};
use crate::features::{Features, PerHead, Score};
use crate::placement::Placement;
use hopper_attention::reference::{HostTensor, Problem};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// How inputs are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// Standard normal; Q times a factor.
    Normal {
        /// The factor.
        factor: f32,
    },
    /// Each query is a factor times one of its keys: one logit stands out of its row.
    Peaked {
        /// The factor.
        factor: f32,
    },
    /// Q and K are integers from -2 to 2, so that every logit is exact in f32, in whatever order it is summed up.
    Integers,
    /// Uniform between -1 and 1: cheap, for the largest tensors.
    Uniform,
    /// Standard normal times 2^-17: V, O and most of Q and K are subnormal in f16.
    Tiny,
}

impl Values {
    /// Whether the tensor core computes the logits without rounding.
    pub fn logits_are_exact(self) -> bool {
        self == Self::Integers
    }
}

/// Q, K and V, each as stored once: contiguous `[batch, seqlen, heads, head_dim]`, extents of 1 where an entry serves all.
#[derive(Clone, Debug)]
pub struct Inputs<T> {
    /// Queries.
    pub q: Vec<T>,
    /// Keys.
    pub k: Vec<T>,
    /// Values.
    pub v: Vec<T>,
}

impl<T: TestElement> Inputs<T> {
    /// Draws the inputs of a case.
    pub fn draw(case: &Case) -> Self {
        let [q_placement, k_placement, v_placement] = case.input_placements();
        let k_stored = k_placement.stored(case.k_shape());
        let count = |stored: [usize; 4]| stored.iter().product::<usize>();
        let mut k: Vec<T> = draw(case.values, case.seed ^ KEYS, count(k_stored), 1.0);
        let mut v: Vec<T> = match case.values {
            Values::Integers | Values::Peaked { .. } => {
                draw(Values::Normal { factor: 1.0 }, case.seed ^ VALUES, count(v_placement.stored(case.v_shape())), 1.0)
            }
            values => draw(values, case.seed ^ VALUES, count(v_placement.stored(case.v_shape())), 1.0),
        };
        let q_stored = q_placement.stored(case.q_shape());
        let mut q: Vec<T> = match case.values {
            Values::Peaked { factor } => peaked(case, &k, q_stored, k_stored, factor),
            Values::Normal { factor } => draw(case.values, case.seed ^ QUERIES, count(q_stored), factor),
            values => draw(values, case.seed ^ QUERIES, count(q_stored), 1.0),
        };
        for edit in &case.edits {
            let (data, stored) = match edit.operand {
                Operand::Q => (&mut q, q_stored),
                Operand::K => (&mut k, k_stored),
                Operand::V => (&mut v, v_placement.stored(case.v_shape())),
            };
            apply(edit, data, stored);
        }
        Self { q, k, v }
    }

    /// Q, K and V of the case's shapes.
    ///
    /// # Panics
    ///
    /// If these are not the inputs of that case.
    pub fn tensors(&self, case: &Case) -> [HostTensor<'_, T>; 3] {
        let [q, k, v] = case.input_placements();
        let tensor = |data, placement: Placement, shape| HostTensor::new(data, placement.compact(shape)).expect("the inputs of this case");
        [tensor(&self.q, q, case.q_shape()), tensor(&self.k, k, case.k_shape()), tensor(&self.v, v, case.v_shape())]
    }

    /// What the references compute.
    ///
    /// # Panics
    ///
    /// If these are not the inputs of that case, or not its numbers for each head.
    pub fn problem<'a>(&'a self, case: &Case, per_head: &'a PerHead) -> Problem<'a, T> {
        let [q, k, v] = self.tensors(case);
        let Features { window_left, window_right, score, .. } = case.features;
        let mut problem = Problem::new(q, k, v).expect("consistent shapes").causal(case.causal).window(window_left, window_right);
        problem = problem.softmax_scale(case.scale()).expect("a factor that calls take");
        if let Score::SoftCap(softcap) = score {
            problem = problem.softcap(softcap).expect("a positive number");
        }
        if let Some(slopes) = &per_head.alibi_slopes {
            problem = problem.alibi_slopes(slopes).expect("a slope a head, without a soft cap");
        }
        if let Some(sinks) = &per_head.sinks {
            problem = problem.sinks(sinks).expect("a sink a head");
        }
        if let Some(functions) = &per_head.functions {
            problem = functions.in_problem(problem, case.dtype);
        }
        problem
    }
}

impl Case {
    /// How Q, K and V are stored: a packed one has every entry of its own.
    pub fn input_placements(&self) -> [Placement; 3] {
        if self.packed { [Placement::BSHD; 3] } else { [self.q, self.k, self.v] }
    }
}

const QUERIES: u64 = 0x5851_f42d_4c95_7f2d;
const KEYS: u64 = 0x1405_7b7e_f767_814f;
const VALUES: u64 = 0x2545_f491_4f6c_dd1d;

/// 64 random bits for each index (SplitMix64, Steele et al. 2014).
pub fn random_bits(seed: u64, index: u64) -> u64 {
    let mut z = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn uniform(bits: u32) -> f32 {
    (bits as f32 + 0.5) / (1u64 << 32) as f32
}

fn draw<T: TestElement>(values: Values, seed: u64, count: usize, factor: f32) -> Vec<T> {
    let number = |index: usize| {
        let bits = random_bits(seed, index as u64);
        match values {
            Values::Uniform => 2.0 * uniform(bits as u32) - 1.0,
            Values::Integers => (bits % 5) as f32 - 2.0,
            Values::Tiny => normal(bits) / (1 << 17) as f32,
            Values::Normal { .. } | Values::Peaked { .. } => factor * normal(bits),
        }
    };
    (0..count).into_par_iter().map(|index| T::from_f32(number(index))).collect()
}

/// Box and Muller's transformation.
fn normal(bits: u64) -> f32 {
    let (radius, angle) = (uniform(bits as u32), uniform((bits >> 32) as u32));
    (-2.0 * radius.ln()).sqrt() * (std::f32::consts::TAU * angle).cos()
}

fn peaked<T: TestElement>(case: &Case, k: &[T], q_stored: [usize; 4], k_stored: [usize; 4], factor: f32) -> Vec<T> {
    let [batch, seqlen_q, heads, head_dim] = q_stored;
    let [batch_k, seqlen_k, heads_k, _] = k_stored;
    if batch_k * seqlen_k * heads_k == 0 {
        return draw(Values::Normal { factor }, case.seed ^ QUERIES, batch * seqlen_q * heads * head_dim, factor);
    }
    let mut q = Vec::with_capacity(batch * seqlen_q * heads * head_dim);
    for row in 0..batch * seqlen_q * heads {
        let (b, s, h) = (row / (seqlen_q * heads), row / heads % seqlen_q, row % heads);
        // Of the keys that the query sees, if there are any.
        let visible = case.visible_keys(s);
        let count = visible.len().max(1);
        let key = visible.start.min(seqlen_k - count) + random_bits(case.seed ^ QUERIES, row as u64) as usize % count;
        let start = ((b.min(batch_k - 1) * seqlen_k + key) * heads_k + h * heads_k / heads) * head_dim;
        q.extend(k[start..start + head_dim].iter().map(|k| T::from_f32(factor * k.to_f32())));
    }
    q
}

fn apply<T: TestElement>(edit: &Edit, data: &mut [T], stored: [usize; 4]) {
    let range = |index: Option<usize>, extent: usize| index.map_or(0..extent, |index| index..index + 1);
    let [batch, seqlen, heads, head_dim] = stored;
    for b in range(edit.batch_idx, batch) {
        for s in range(edit.position, seqlen) {
            for h in range(edit.head_idx, heads) {
                for column in range(edit.column, head_dim) {
                    data[((b * seqlen + s) * heads + h) * head_dim + column] = T::from_f32(edit.value.value());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::{ElementType, Number};
    use half::{bf16, f16};

    #[test]
    fn normal_numbers_are_normal() {
        let case = Case::new(ElementType::F16, 64, 1000, 1000).values(Values::Normal { factor: 4.0 });
        let inputs = Inputs::<f16>::draw(&case);
        for (data, deviation) in [(&inputs.q, 4.0), (&inputs.k, 1.0), (&inputs.v, 1.0)] {
            let count = data.len() as f64;
            let mean = data.iter().map(|x| x.to_f64()).sum::<f64>() / count;
            let variance = data.iter().map(|x| x.to_f64().powi(2)).sum::<f64>() / count;
            assert!(mean.abs() < 0.02 * deviation && (variance.sqrt() / deviation - 1.0).abs() < 0.02, "{mean} {variance}");
        }
        assert_ne!(inputs.k, inputs.v);
        assert_eq!(inputs.v, Inputs::<f16>::draw(&case).v);
    }

    #[test]
    fn a_peaked_query_has_one_key() {
        let case = Case::new(ElementType::Bf16, 64, 50, 30).heads(2, 6, 2).causal(true).values(Values::Peaked { factor: 2.0 });
        let inputs = Inputs::<bf16>::draw(&case);
        let lse = hopper_attention::reference::exact::attention(&inputs.problem(&case, &PerHead::default())).lse;
        // A key of its own has a logit of about 2 * 64 / 8; rows that see nothing have none.
        assert!(lse.iter().filter(|&&lse| lse > 8.0).count() >= 2 * 6 * 29, "{lse:?}");
    }

    #[test]
    fn edits_reach_their_elements() {
        let mut case = Case::new(ElementType::F16, 8, 3, 4).heads(1, 2, 2);
        case.k = Placement { broadcast_heads: true, ..Placement::BSHD };
        case.edits = vec![Edit::one(Operand::K, 3, 7, Number::Nan), Edit { column: None, ..Edit::one(Operand::Q, 1, 0, Number::Infinity) }];
        let inputs = Inputs::<f16>::draw(&case);
        assert_eq!(inputs.k.iter().positions_of_nan(), [31]);
        assert_eq!(inputs.q.iter().filter(|x| x.is_infinite()).count(), 8);
        assert!(inputs.q[16..24].iter().all(|x| x.is_infinite()));
    }

    trait PositionsOfNan {
        fn positions_of_nan(self) -> Vec<usize>;
    }

    impl<'a, I: Iterator<Item = &'a f16>> PositionsOfNan for I {
        fn positions_of_nan(self) -> Vec<usize> {
            self.enumerate().filter(|(_, x)| x.is_nan()).map(|(i, _)| i).collect()
        }
    }
}
