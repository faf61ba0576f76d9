//! One attention to compute, described so completely that its text replays it.

use crate::features::Features;
use crate::placement::Placement;
use crate::values::Values;
use half::{bf16, f16};
use hopper_attention::{DType, Element, HeadDims};
use hopper_attention_kernels::config::TileConfig;
use serde::{Deserialize, Serialize};

/// Element type, as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ElementType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl ElementType {
    /// Both.
    pub const ALL: [Self; 2] = [Self::F16, Self::Bf16];

    /// The library's name of it.
    pub fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::Bf16 => DType::Bf16,
        }
    }

    /// As kernel entries spell it.
    pub fn name(self) -> &'static str {
        self.dtype().name()
    }
}

/// What the tests need of an element type.
pub trait TestElement: Element {
    /// Distance from 1 to the next larger number: an element is off by at most half of it, relatively.
    const EPSILON: f64;
    /// Distance between subnormal numbers.
    const SMALLEST: f64;
}

impl TestElement for f16 {
    const EPSILON: f64 = 1.0 / (1u64 << 10) as f64;
    const SMALLEST: f64 = 1.0 / (1u64 << 24) as f64;
}

impl TestElement for bf16 {
    const EPSILON: f64 = 1.0 / (1u64 << 7) as f64;
    // 2^-133: below what any sum of the tests resolves.
    const SMALLEST: f64 = 0.0;
}

/// Runs the same generic function on the type that an [`ElementType`] names.
#[macro_export]
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        match $dtype {
            $crate::ElementType::F16 => {
                type $element = half::f16;
                $body
            }
            $crate::ElementType::Bf16 => {
                type $element = half::bf16;
                $body
            }
        }
    };
}

/// The head dims that a kernel is made for.
pub fn native_head_dims(kernel: &TileConfig) -> HeadDims {
    HeadDims { head_dim: kernel.head_dim as usize, head_dim_v: kernel.head_dim_v as usize }
}

/// Which input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operand {
    /// Queries.
    Q,
    /// Keys.
    K,
    /// Values.
    V,
}

/// A number that JSON may not know.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Number {
    /// NaN.
    Nan,
    /// Infinity.
    Infinity,
    /// Minus infinity.
    NegativeInfinity,
    /// Any other.
    Finite(f32),
}

impl Number {
    /// Its value.
    pub fn value(self) -> f32 {
        match self {
            Self::Nan => f32::NAN,
            Self::Infinity => f32::INFINITY,
            Self::NegativeInfinity => f32::NEG_INFINITY,
            Self::Finite(value) => value,
        }
    }
}

/// Elements that are set after the inputs were drawn; `None` means every index.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Edit {
    /// Which input.
    pub operand: Operand,
    /// Batch entry.
    pub batch_idx: Option<usize>,
    /// Query or key.
    pub position: Option<usize>,
    /// Head of that input.
    pub head_idx: Option<usize>,
    /// Element of the head.
    pub column: Option<usize>,
    /// What it is set to.
    pub value: Number,
}

impl Edit {
    /// One element of the first head of the first batch entry.
    pub fn one(operand: Operand, position: usize, column: usize, value: Number) -> Self {
        Self { operand, batch_idx: Some(0), position: Some(position), head_idx: Some(0), column: Some(column), value }
    }
}

/// One attention to compute.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Element type of Q, K, V and O.
    pub dtype: ElementType,
    /// Batch entries.
    pub batch: usize,
    /// Queries.
    pub seqlen_q: usize,
    /// Keys.
    pub seqlen_k: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key heads.
    pub num_heads_k: usize,
    /// Elements of a head of Q and K; of V and O too, unless the features say otherwise.
    pub head_dim: usize,
    /// Whether the causal mask is on.
    pub causal: bool,
    /// What else is computed.
    #[serde(default, skip_serializing_if = "Features::is_none")]
    pub features: Features,
    /// `None`: the default of the library.
    pub softmax_scale: Option<f32>,
    /// How the inputs are drawn.
    pub values: Values,
    /// What is changed in them.
    pub edits: Vec<Edit>,
    /// Where Q lies; not read if `packed`.
    pub q: Placement,
    /// Where K lies; not read if `packed`.
    pub k: Placement,
    /// Where V lies; not read if `packed`.
    pub v: Placement,
    /// Where O lies.
    pub o: Placement,
    /// Q, K and V are slices of one `[batch, seqlen, num_heads + 2 * num_heads_k, head_dim]`; needs seqlen_q = seqlen_k.
    pub packed: bool,
    /// Whether the log-sum-exp is asked for.
    pub lse: bool,
    /// How many rows are judged: `None` for all.
    pub judged_rows: Option<usize>,
    /// What the inputs are drawn from.
    pub seed: u64,
}

impl Case {
    /// One batch entry, one head, standard normal inputs, contiguous `[batch, seqlen, heads, head_dim]`.
    pub fn new(dtype: ElementType, head_dims: impl Into<HeadDims>, seqlen_q: usize, seqlen_k: usize) -> Self {
        let HeadDims { head_dim, head_dim_v } = head_dims.into();
        Self {
            dtype,
            batch: 1,
            seqlen_q,
            seqlen_k,
            num_heads: 1,
            num_heads_k: 1,
            head_dim,
            causal: false,
            features: Features { head_dim_v: (head_dim_v != head_dim).then_some(head_dim_v), ..Features::default() },
            softmax_scale: None,
            values: Values::Normal { factor: 1.0 },
            edits: Vec::new(),
            q: Placement::BSHD,
            k: Placement::BSHD,
            v: Placement::BSHD,
            o: Placement::BSHD,
            packed: false,
            lse: true,
            judged_rows: None,
            seed: 1,
        }
    }

    /// [`Case::new`] of the head dims and the mask of a kernel.
    pub fn native(dtype: ElementType, kernel: &TileConfig, seqlen_q: usize, seqlen_k: usize) -> Self {
        Self::new(dtype, native_head_dims(kernel), seqlen_q, seqlen_k).causal(kernel.causal)
    }

    /// With the causal mask, or without it.
    #[must_use]
    pub fn causal(self, causal: bool) -> Self {
        Self { causal, ..self }
    }

    /// With so many batch entries, query heads and key heads.
    #[must_use]
    pub fn heads(self, batch: usize, num_heads: usize, num_heads_k: usize) -> Self {
        Self { batch, num_heads, num_heads_k, ..self }
    }

    /// With inputs drawn otherwise.
    #[must_use]
    pub fn values(self, values: Values) -> Self {
        Self { values, ..self }
    }

    /// With all four tensors placed alike.
    #[must_use]
    pub fn placed(self, placement: Placement) -> Self {
        Self { q: placement, k: placement, v: placement, o: placement, ..self }
    }

    /// With so few rows judged that the references take no more than about this many pairs of query and key.
    #[must_use]
    pub fn judging_pairs(self, pairs: usize) -> Self {
        let rows = self.batch * self.num_heads * self.seqlen_q;
        let affordable = (pairs / self.seqlen_k.max(1)).max(32);
        Self { judged_rows: (rows > affordable).then_some(affordable), ..self }
    }

    /// Shape of Q.
    pub fn q_shape(&self) -> [usize; 4] {
        [self.batch, self.seqlen_q, self.num_heads, self.head_dim]
    }

    /// Shape of K.
    pub fn k_shape(&self) -> [usize; 4] {
        [self.batch, self.seqlen_k, self.num_heads_k, self.head_dim]
    }

    /// Shape of V.
    pub fn v_shape(&self) -> [usize; 4] {
        [self.batch, self.seqlen_k, self.num_heads_k, self.o_head_dim()]
    }

    /// Shape of O.
    pub fn o_shape(&self) -> [usize; 4] {
        [self.batch, self.seqlen_q, self.num_heads, self.o_head_dim()]
    }

    /// Elements of a head of V and O.
    pub fn o_head_dim(&self) -> usize {
        self.features.head_dim_v.unwrap_or(self.head_dim)
    }

    /// The factor of the logits.
    pub fn scale(&self) -> f32 {
        self.softmax_scale.unwrap_or_else(|| (1.0 / (self.head_dim as f64).sqrt()) as f32)
    }

    /// The case as one line of JSON, which replays it.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|error| format!("{self:?} ({error})"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::custom::Function;
    use crate::features::{Score, Sinks};

    #[test]
    fn text_replays() {
        let mut case = Case::new(ElementType::Bf16, 72, 3, 5).causal(true).heads(2, 6, 3).placed(Placement::BHSD);
        case.softmax_scale = Some(0.1);
        case.edits.push(Edit::one(Operand::K, 4, 71, Number::NegativeInfinity));
        case.edits.push(Edit { column: None, value: Number::Finite(1e-7), ..case.edits[0] });
        let replayed: Case = serde_json::from_str(&case.text()).unwrap();
        assert_eq!(replayed, case);
        // What is not asked for is not in the text, so that texts from before it could be asked for stay valid.
        assert!(!case.text().contains("features"));
        let case = case.window(Some(3), None).score(Score::SoftCap(15.0)).sinks(Sinks::All(Number::NegativeInfinity)).head_dim_v(8);
        let case = case.function(Function::Prefix { bounds: 4, slope: 0.5 });
        let replayed: Case = serde_json::from_str(&case.text()).unwrap();
        assert_eq!(replayed, case);
    }

    #[test]
    fn few_rows_for_long_sequences() {
        let case = |seqlen| Case::new(ElementType::F16, 64, seqlen, seqlen).judging_pairs(1 << 20);
        assert_eq!(case(1000).judged_rows, None);
        assert_eq!(case(1 << 12).judged_rows, Some(256));
        assert_eq!(case(1 << 20).judged_rows, Some(32));
    }
}
