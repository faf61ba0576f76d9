//! How far two results are apart, and whether rounding explains it.

use std::fmt;

use hopper_attention::{DType, Element};

use crate::file::{Tensors, in_order_bshd};
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
    max: f64,
    rms: f64,
    tolerance: f64,
    /// Values that are NaN or infinite on one side only, or infinities of unlike sign.
    unlike: usize,
}

impl Difference {
    fn new(name: &'static str, pairs: impl Iterator<Item = (f64, f64)>, tolerance: f64) -> Self {
        let (mut max, mut squares, mut count, mut unlike) = (0f64, 0f64, 0usize, 0);
        for (got, expected) in pairs {
            if got.is_finite() && expected.is_finite() {
                let difference = (got - expected).abs();
                max = max.max(difference);
                squares += difference * difference;
                count += 1;
            } else if got != expected && !(got.is_nan() && expected.is_nan()) {
                unlike += 1;
            }
        }
        Self { name, max, rms: (squares / count.max(1) as f64).sqrt(), tolerance, unlike }
    }

    fn agrees(&self) -> bool {
        self.unlike == 0 && self.max <= self.tolerance
    }
}

/// The outcome of a comparison.
pub struct Comparison(Vec<Difference>);

impl Comparison {
    /// Compares results with what is expected; `v` sets the scale of o.
    ///
    /// A row of o is an average of rows of V, so with unit roundoff u the rounding of the weights, of the result and of a stored
    /// expectation each move it by at most u * max|V|; f32 arithmetic adds little, together less than 4 u * max|V|. LSE is f32: 1e-3,
    /// and 1e-5 of its largest value.
    pub fn new<T: Element>(o: &[T], lse: &[f32], expected: &Expected, v: &[T]) -> Self {
        let largest = |values: &mut dyn Iterator<Item = f64>| values.map(f64::abs).filter(|value| value.is_finite()).fold(0.0, f64::max);
        let unit_roundoff = match T::DTYPE {
            DType::F16 => 2f64.powi(-11),
            DType::Bf16 => 2f64.powi(-8),
        };
        let float = |value: &T| f64::from(value.to_f32());
        let tolerance = 4.0 * unit_roundoff * largest(&mut v.iter().map(float));
        let mut differences = vec![Difference::new("o", o.iter().map(float).zip(expected.o.iter().copied()), tolerance)];
        if let Some(expected) = &expected.lse {
            let pairs = lse.iter().map(|&lse| f64::from(lse)).zip(expected.iter().copied());
            differences.push(Difference::new("lse", pairs, 1e-3 + 1e-5 * largest(&mut expected.iter().copied())));
        }
        Self(differences)
    }

    /// Whether every difference is one that rounding explains.
    pub fn agrees(&self) -> bool {
        self.0.iter().all(Difference::agrees)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Difference { name, max, rms, tolerance, unlike } in &self.0 {
            writeln!(
                f,
                "{name:>3}: largest difference {max:.2e} (rounding explains {tolerance:.2e}), root mean square {rms:.2e}, \
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
        let comparison = Comparison::new(&[bf16::from_f32(o)], &[lse], &expected, &[bf16::ONE, bf16::NEG_INFINITY]);
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

    #[test]
    fn what_is_not_finite_must_be_alike() {
        assert!(compare(f32::NAN, f32::NEG_INFINITY, f64::NAN, Some(f64::NEG_INFINITY)));
        assert!(!compare(f32::NAN, 0.0, 0.0, None));
        assert!(!compare(0.0, 0.0, f64::NAN, None));
        assert!(!compare(0.0, f32::NEG_INFINITY, 0.0, Some(f64::INFINITY)));
    }
}
