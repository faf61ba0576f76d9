//! Which kernel serves the options and arrays of a call, and what it is told of the mask and of the scores.

use hopper_attention_kernels::config::{ScoreFunction, TileConfig, forward_config, general_config};
use hopper_attention_kernels::params::MAX_SEQLEN;

use crate::Error;
use crate::custom::Kernel;
use crate::raw::{Arrays, Options};

/// A family of forward kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// One mask at most, and nothing else: `config::FORWARD`.
    Plain {
        /// Whether the mask is the causal one.
        causal: bool,
    },
    /// Masks of any window, ragged sequences, sinks, and a score function: `config::GENERAL`.
    General(ScoreFunction),
    /// The same with functions of the caller's own, for which there is this one kernel.
    Custom {
        /// Its shape.
        config: TileConfig,
        /// Whether it changes scores, and is given them in natural units.
        has_score: bool,
    },
}

impl Family {
    /// That of a kernel of the caller's own: it takes any window, lengths and sinks.
    pub fn of_custom(kernel: &Kernel, options: &Options, arrays: &Arrays) -> Result<Self, Error> {
        let refuse = |field: &str, value: String| {
            let requirement = format!("left out: the kernel {} has score functions of its own", kernel.entry());
            Err(Error::unsupported(field, value, requirement))
        };
        match (options.softcap, arrays.alibi_slopes) {
            (Some(softcap), _) => refuse("softcap", softcap.to_string()),
            (None, Some(slopes)) => refuse("alibi_slopes", format!("{} numbers at {:#x}", slopes.len, slopes.address)),
            (None, None) => Ok(Self::Custom { config: kernel.config(), has_score: kernel.has_score() }),
        }
    }

    /// What is asked for by the options, `window` among them, and by the arrays.
    pub fn of(window: Window, options: &Options, arrays: &Arrays) -> Result<Self, Error> {
        let scores = match (options.softcap, arrays.alibi_slopes) {
            (None, None) => ScoreFunction::Identity,
            (Some(_), None) => ScoreFunction::SoftCap,
            (None, Some(_)) => ScoreFunction::Alibi,
            (Some(softcap), Some(_)) => {
                let requirement =
                    "left out where there are slopes: each has a kernel, with any window, lengths and sinks, but not both together";
                return Err(Error::unsupported("softcap", format!("{softcap} together with alibi_slopes"), requirement));
            }
        };
        if scores != ScoreFunction::Identity || *arrays != Arrays::new() {
            return Ok(Self::General(scores));
        }
        Ok(match (window.left, window.right) {
            (None, None) => Self::Plain { causal: false },
            (None, Some(0)) => Self::Plain { causal: true },
            _ => Self::General(scores),
        })
    }

    /// The family that may run calls of few queries in this one's place, see [`super::packing`].
    pub fn of_few_queries(self) -> Self {
        if let Self::Plain { .. } = self { Self::General(ScoreFunction::Identity) } else { self }
    }

    /// Whether query heads may share a row tile: where the score function looks at no more than the score.
    pub fn packs_heads(self) -> bool {
        matches!(self, Self::General(ScoreFunction::Identity | ScoreFunction::SoftCap))
    }

    /// The shape that serves `head_dim` and `head_dim_v`, which [`super::check_head_dim`] has passed: the smallest that holds both.
    pub fn config(self, head_dim: u32, head_dim_v: u32) -> TileConfig {
        let config = match self {
            Self::Plain { causal } => forward_config(head_dim, head_dim_v, causal),
            Self::General(scores) => general_config(head_dim, head_dim_v, scores),
            Self::Custom { config, .. } => Some(config),
        };
        config.expect("every table serves head dims up to 256")
    }
}

/// How many keys a query sees on either side of its own, which is key `i + seqlen_k - seqlen_q`; `None` for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub left: Option<usize>,
    pub right: Option<usize>,
}

impl Window {
    /// As the options say; causal is a right bound of 0, the smallest.
    pub fn of(options: &Options) -> Self {
        Self { left: options.window_left, right: if options.causal { Some(0) } else { options.window_right } }
    }

    /// Without the bounds that hide nothing from sequences of at most these lengths: query 0 has its own key at `seqlen_k - seqlen_q`, the
    /// last query at `seqlen_k - 1`.
    ///
    /// A right bound of 0 stays even where it hides nothing, from a single query: so causal calls run the kernel that
    /// [`crate::raw::prepare`] loads, whatever their lengths.
    pub fn within(self, seqlen_q: usize, seqlen_k: usize) -> Self {
        Self {
            left: self.left.filter(|&left| left < seqlen_k.saturating_sub(1)),
            right: self.right.filter(|&right| right == 0 || right < seqlen_q.saturating_sub(1)),
        }
    }

    /// Whether it hides anything, and so makes row tiles differ in length.
    pub fn is_bounded(self) -> bool {
        self.left.is_some() || self.right.is_some()
    }

    /// The bounds, left and right, as the kernels take them.
    pub fn as_params(self) -> [u32; 2] {
        [self.left, self.right].map(|bound| bound.map_or(MAX_SEQLEN, |bound| bound.min(MAX_SEQLEN as usize) as u32))
    }
}

/// The factors before and behind the score function.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scales {
    /// Of Q K^T. The plain kernels and the identity do without.
    pub score: f32,
    /// Of what the score function makes of it; log2(e) is in it, since the kernels' exponentials are powers of two.
    pub softmax_log2: f32,
}

impl Scales {
    /// `softmax_scale` is by default that of `head_dim`.
    pub fn of(options: &Options, head_dim: usize, family: Family) -> Result<Self, Error> {
        use std::f64::consts::LOG2_E;
        let scale = options.softmax_scale.unwrap_or_else(|| (1.0 / (head_dim as f64).sqrt()) as f32);
        let identity = Self { score: 1.0, softmax_log2: (f64::from(scale) * LOG2_E) as f32 };
        if !(scale > 0.0 && identity.softmax_log2.is_finite()) {
            return Err(Error::invalid("softmax_scale", scale, "above 0 and finite, also when multiplied by log2(e) in f32"));
        }
        match (family, options.softcap) {
            (Family::General(ScoreFunction::Alibi) | Family::Custom { has_score: true, .. }, _) => {
                Ok(Self { score: scale, softmax_log2: LOG2_E as f32 })
            }
            // softcap * tanh(softmax_scale * s / softcap)
            (_, Some(softcap)) => {
                let cap = f64::from(softcap);
                let capped = Self { score: (f64::from(scale) / cap) as f32, softmax_log2: (cap * LOG2_E) as f32 };
                // What is subnormal may count as 0 on the device.
                if softcap > 0.0 && capped.score.is_normal() && capped.softmax_log2.is_normal() {
                    return Ok(capped);
                }
                let requirement =
                    format!("above 0, and softmax_scale / softcap (here {scale} / {softcap}) and softcap * log2(e) normal in f32");
                Err(Error::invalid("softcap", softcap, requirement))
            }
            (_, None) => Ok(identity),
        }
    }
}
