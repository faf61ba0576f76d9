//! How far two results are apart, and whether rounding explains it.

use std::fmt;

use hopper_attention::Layout;

use crate::file::{FileElement, Tensors, in_order_bshd};
use crate::{Order, Result};

/// What o and lse should be; o in the order [batch, seqlen, heads, head_dim].
pub struct Expected {
    pub o: Vec<f64>,
    pub lse: Option<Vec<f64>>,
}

impl Expected {
    /// The tensors o and, if there is one, lse of a file, for a problem whose o has `shape`.
    pub fn read(tensors: &Tensors, shape: [usize; 4], order: Order) -> Result<Self> {
        let [batch, seqlen, heads, _] = shape;
        let (o, o_shape) = tensors.floats("o")?;
        let layout = order.layout("o", &o_shape)?;
        if layout.shape != shape {
            return Err(format!("o of the file has the shape {o_shape:?}, which does not fit q").into());
        }
        let lse = tensors.has("lse").then(|| tensors.floats("lse")).transpose()?;
        if let Some((_, lse_shape)) = lse.as_ref().filter(|(_, lse_shape)| *lse_shape != [batch, heads, seqlen]) {
            return Err(format!("lse of the file has the shape {lse_shape:?}, but must have {:?}", [batch, heads, seqlen]).into());
        }
        Ok(Self { o: in_order_bshd(&o, &layout), lse: lse.map(|(lse, _)| lse) })
    }
}

/// The differences of one tensor, where both are finite.
struct Difference {
    name: &'static str,
    /// The largest, as a share of what rounding explains there; with it the difference and what rounding explains.
    worst: (f64, f64, f64),
    rms: f64,
    /// Values that are NaN or infinite on one side only, or infinities of unlike sign.
    unlike: usize,
}

impl Difference {
    /// Of triples: got, expected, and the difference that rounding explains.
    fn new(name: &'static str, values: impl Iterator<Item = (f64, f64, f64)>) -> Self {
        let (mut worst, mut squares, mut count, mut unlike) = ((0f64, 0f64, 0f64), 0f64, 0usize, 0);
        for (got, expected, tolerance) in values {
            if got.is_finite() && expected.is_finite() {
                let difference = (got - expected).abs();
                let share = if difference == 0.0 { 0.0 } else { difference / tolerance };
                if count == 0 || share > worst.0 {
                    worst = (share, difference, tolerance);
                }
                squares += difference * difference;
                count += 1;
            } else if got != expected && !(got.is_nan() && expected.is_nan()) {
                unlike += 1;
            }
        }
        Self { name, worst, rms: (squares / count.max(1) as f64).sqrt(), unlike }
    }

    fn agrees(&self) -> bool {
        self.unlike == 0 && self.worst.0 <= 1.0
    }
}

/// The outcome of a comparison.
pub struct Comparison(Vec<Difference>);

impl Comparison {
    /// Compares results, o of the given shape, with what is expected; `v` sets the scale of o.
    ///
    /// A row of o is an average of rows of V of one batch entry and key head, so with unit roundoff u the rounding of the weights, of the
    /// result and of a stored expectation each move it by at most u * max|V| of those; f32 arithmetic adds little, together less than
    /// 4 u * max|V|. LSE is f32: 1e-3, and 1e-5 of the largest value of its batch entry and head.
    pub fn new<T: FileElement>(o: &[T], lse: &[f32], shape: [usize; 4], expected: &Expected, v: &(Vec<T>, Layout)) -> Self {
        let [_, seqlen, heads, head_dim] = shape;
        let float = |value: &T| f64::from(value.to_f32());
        let (v, Layout { shape: [_, seqlen_k, heads_k, _], .. }) = (in_order_bshd(&v.0, &v.1), v.1);
        let group = heads.checked_div(heads_k).unwrap_or(1).max(1);
        // [batch, heads_k]
        let largest_v = largest_of(v.iter().map(float), |i| i / (seqlen_k * heads_k * head_dim) * heads_k + i / head_dim % heads_k);
        let o_tolerance = |i: usize| {
            let (batch_idx, head_idx) = (i / (seqlen * heads * head_dim), i / head_dim % heads);
            4.0 * T::UNIT_ROUNDOFF * largest_v.get(batch_idx * heads_k + head_idx / group).copied().unwrap_or(0.0)
        };
        let pairs = o.iter().map(float).zip(&expected.o).enumerate();
        let mut differences = vec![Difference::new("o", pairs.map(|(i, (got, &expected))| (got, expected, o_tolerance(i))))];
        if let Some(expected) = &expected.lse {
            // [batch, heads]
            let largest = largest_of(expected.iter().copied(), |i| i / seqlen);
            let pairs = lse.iter().map(|&lse| f64::from(lse)).zip(expected).enumerate();
            let values = pairs.map(|(i, (got, &expected))| (got, expected, 1e-3 + 1e-5 * largest[i / seqlen]));
            differences.push(Difference::new("lse", values));
        }
        Self(differences)
    }

    /// Whether every difference is one that rounding explains.
    pub fn agrees(&self) -> bool {
        self.0.iter().all(Difference::agrees)
    }
}

/// The largest finite magnitude of each group, where `group` says which the value at an index belongs to.
fn largest_of(values: impl Iterator<Item = f64>, group: impl Fn(usize) -> usize) -> Vec<f64> {
    let mut largest = Vec::new();
    for (i, value) in values.enumerate() {
        let group = group(i);
        if group >= largest.len() {
            largest.resize(group + 1, 0.0);
        }
        if value.is_finite() {
            largest[group] = value.abs().max(largest[group]);
        }
    }
    largest
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Difference { name, worst: (_, difference, tolerance), rms, unlike } in &self.0 {
            writeln!(
                f,
                "{name:>3}: largest difference {difference:.2e} (rounding explains {tolerance:.2e} there), root mean square {rms:.2e}, \
                 NaN or inf on one side only: {unlike}"
            )?;
        }
        write!(f, "{}", if self.agrees() { "agrees" } else { "DIFFERS" })
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    fn compare(o: f32, lse: f32, expected_o: f64, expected_lse: Option<f64>) -> bool {
        let expected = Expected { o: vec![expected_o], lse: expected_lse.map(|lse| vec![lse]) };
        let v = (vec![bf16::ONE, bf16::NEG_INFINITY], Layout::bshd([1, 2, 1, 1]));
        let comparison = Comparison::new(&[bf16::from_f32(o)], &[lse], [1, 1, 1, 1], &expected, &v);
        assert_eq!(comparison.to_string().ends_with("agrees"), comparison.agrees());
        comparison.agrees()
    }

    #[test]
    fn rounding_agrees_and_more_does_not() {
        assert!(compare(0.5, 3.0, 0.51, Some(3.0005)));
        assert!(!compare(0.5, 3.0, 0.52, Some(3.0)));
        assert!(!compare(0.5, 3.0, 0.5, Some(3.002)));
        assert!(compare(0.5, 3.0, 0.5, None));
    }

    /// o that should be 1 is wrong in one place only, beside another batch entry or key head whose V is large.
    #[test]
    fn every_key_head_has_its_own_scale() {
        // [batch, seqlen, heads, head_dim]; each of two key heads serves two heads.
        let (shape, shape_v) = ([2, 1, 4, 1], [2, 3, 2, 1]);
        for large in 0..4 {
            let scale = |batch_and_key_head: usize| if batch_and_key_head == large { 1e4 } else { 1.0 };
            let v = (0..12).map(|i| bf16::from_f32(scale(i / 6 * 2 + i % 2))).collect();
            let v = (v, Layout::bshd(shape_v));
            let expected = Expected { o: (0..8).map(|i| f64::from(scale(i / 2))).collect(), lse: None };
            for wrong in 0..8 {
                let o: Vec<_> = (0..8).map(|i| bf16::from_f32(scale(i / 2) - if i == wrong { 31.0 } else { 0.0 })).collect();
                let comparison = Comparison::new(&o, &[], shape, &expected, &v);
                assert_eq!(comparison.agrees(), wrong / 2 == large, "{comparison}");
            }
        }
    }

    #[test]
    fn what_is_not_finite_must_be_alike() {
        assert!(compare(f32::NAN, f32::NEG_INFINITY, f64::NAN, Some(f64::NEG_INFINITY)));
        assert!(!compare(f32::NAN, 0.0, 0.0, None));
        assert!(!compare(0.0, 0.0, f64::NAN, None));
        assert!(!compare(0.0, f32::NEG_INFINITY, 0.0, Some(f64::INFINITY)));
    }
}
