//! What a case asks for beside plain attention: a window, a score function, sinks, another head_dim for V.

use crate::case::{Case, Number};
use crate::custom::{Custom, Function, Functions};
use crate::values::random_bits;
use hopper_attention::raw;
use hopper_attention_kernels::params::MAX_SEQLEN;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What a logit becomes before the softmax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Score {
    /// Itself.
    #[default]
    Identity,
    /// `softcap * tanh(s / softcap)`.
    SoftCap(f32),
    /// ALiBi, with the slopes of its authors: `2^(-8 (h + 1) / num_heads)` for query head h.
    Alibi,
}

/// The logit of each query head that joins its sums.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sinks {
    /// Uniform from -6 to 6, drawn from this seed.
    Drawn(u64),
    /// 0, 3.5, -inf, 10^4 and -10^4 in turns.
    Mixed,
    /// The same number for each.
    All(Number),
}

/// What the general kernels compute beside plain attention. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Features {
    /// How many keys before its own a query sees; `None` for all.
    pub window_left: Option<usize>,
    /// How many keys behind its own a query sees; `None` for all.
    pub window_right: Option<usize>,
    /// What a logit becomes.
    pub score: Score,
    /// Sinks, if there are any.
    pub sinks: Option<Sinks>,
    /// The head_dim of V and O, if it is not that of Q and K.
    pub head_dim_v: Option<usize>,
    /// Functions of the test kernels, if it is one of them that runs.
    pub custom: Option<Custom>,
}

/// The numbers that a case has for each query head, and its functions.
#[derive(Clone, Debug, Default)]
pub struct PerHead {
    /// `[num_heads]`.
    pub sinks: Option<Vec<f32>>,
    /// `[num_heads]`.
    pub alibi_slopes: Option<Vec<f32>>,
    /// Of a test kernel.
    pub functions: Option<Functions>,
}

impl Features {
    /// Whether there are none.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl Case {
    /// With another window.
    #[must_use]
    pub fn window(mut self, left: Option<usize>, right: Option<usize>) -> Self {
        (self.features.window_left, self.features.window_right) = (left, right);
        self
    }

    /// With another score function.
    #[must_use]
    pub fn score(mut self, score: Score) -> Self {
        self.features.score = score;
        self
    }

    /// With sinks.
    #[must_use]
    pub fn sinks(mut self, sinks: Sinks) -> Self {
        self.features.sinks = Some(sinks);
        self
    }

    /// With another head_dim for V and O.
    #[must_use]
    pub fn head_dim_v(mut self, head_dim_v: usize) -> Self {
        self.features.head_dim_v = Some(head_dim_v);
        self
    }

    /// With a test kernel's functions.
    #[must_use]
    pub fn function(mut self, function: Function) -> Self {
        self.features.custom = Some(Custom { function, first_sequence: 0 });
        self
    }

    /// With a left bound that hides nothing, where there is none: the `tiled` reference then takes the general kernels' tiles.
    #[must_use]
    pub fn as_general(mut self) -> Self {
        self.features.window_left = self.features.window_left.or(Some(MAX_SEQLEN as usize));
        self
    }

    /// What is asked of the library, but for arrays.
    pub fn options(&self) -> raw::Options {
        let Features { window_left, window_right, score, .. } = self.features;
        let mut options = raw::Options::new().causal(self.causal).window(window_left, window_right);
        options.softmax_scale = self.softmax_scale;
        if let Score::SoftCap(softcap) = score {
            options = options.softcap(softcap);
        }
        options
    }

    /// The numbers for each query head.
    pub fn per_head(&self) -> PerHead {
        let heads = 0..self.num_heads;
        let sink = |sinks: Sinks, head_idx: usize| match sinks {
            Sinks::Drawn(seed) => (random_bits(seed, head_idx as u64) >> 40) as f32 * (12.0 / (1 << 24) as f32) - 6.0,
            Sinks::Mixed => [0.0, 3.5, f32::NEG_INFINITY, 1e4, -1e4][head_idx % 5],
            Sinks::All(number) => number.value(),
        };
        let slope = |head_idx: usize| (-8.0 * (head_idx + 1) as f32 / self.num_heads as f32).exp2();
        PerHead {
            sinks: self.features.sinks.map(|sinks| heads.clone().map(|head_idx| sink(sinks, head_idx)).collect()),
            alibi_slopes: (self.features.score == Score::Alibi).then(|| heads.map(slope).collect()),
            functions: self.features.custom.map(|custom| custom.function.on_host(&self.sequences(), self.num_heads)),
        }
    }

    /// The keys that a query sees, as far as the window is concerned.
    pub fn visible_keys(&self, position: usize) -> Range<usize> {
        let bound = |keys: Option<usize>| keys.map_or(i64::MAX / 4, |keys| keys.min(MAX_SEQLEN as usize) as i64);
        let own = position as i64 + self.seqlen_k as i64 - self.seqlen_q as i64;
        let right = if self.causal { Some(0) } else { self.features.window_right };
        let clamp = |key: i64| key.clamp(0, self.seqlen_k as i64) as usize;
        clamp(own - bound(self.features.window_left))..clamp(own + bound(right) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::ElementType;

    #[test]
    fn windows_are_those_of_the_reference() {
        for (seqlen_q, seqlen_k) in [(5, 9), (9, 5), (1, 1), (7, 0)] {
            for (left, right) in [(None, None), (Some(0), Some(0)), (Some(2), None), (None, Some(3)), (Some(100), Some(1))] {
                for causal in [false, true] {
                    let case = Case::new(ElementType::F16, 8, seqlen_q, seqlen_k).causal(causal).window(left, right);
                    let (inputs, per_head) = (crate::Inputs::<half::f16>::draw(&case), case.per_head());
                    let problem = inputs.problem(&case, &per_head);
                    for position in 0..seqlen_q {
                        assert!(case.visible_keys(position).eq(problem.visible_keys(position)), "row {position} of {}", case.text());
                    }
                }
            }
        }
    }

    #[test]
    fn one_number_a_head() {
        let case = Case::new(ElementType::F16, 8, 1, 1).heads(1, 8, 1);
        let none = case.per_head();
        assert!(none.sinks.is_none() && none.alibi_slopes.is_none() && none.functions.is_none());
        let numbers = case.score(Score::Alibi).sinks(Sinks::Drawn(3)).per_head();
        assert_eq!(numbers.alibi_slopes.as_ref().map(|slopes| (slopes[0], slopes[7])), Some((0.5, 1.0 / 256.0)));
        let sinks = numbers.sinks.unwrap();
        assert!(sinks.len() == 8 && sinks.iter().all(|sink| sink.abs() <= 6.0) && sinks[0] != sinks[1], "{sinks:?}");
    }
}
