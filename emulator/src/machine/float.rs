//! Floating-point pieces that PTX defines differently from Rust.

use half::{bf16, f16};

use crate::lower::op::{Rounding, UnaryOp};
use crate::ptx::Type;

/// Denormals become zeros of the same sign.
#[inline]
pub fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0f32.copysign(x) } else { x }
}

/// `max`: a NaN loses against a number, and -0 is below +0.
#[inline]
pub fn max(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a > b {
        a
    } else if b > a {
        b
    } else {
        f32::from_bits(a.to_bits() & b.to_bits())
    }
}

/// `min`, likewise.
#[inline]
pub fn min(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b {
        a
    } else if b < a {
        b
    } else {
        f32::from_bits(a.to_bits() | b.to_bits())
    }
}

/// Functions of one f32. The approximate ones are computed more precisely than the hardware does, within the manual's error bounds.
#[inline]
pub fn unary(f: UnaryOp, x: f32) -> f32 {
    match f {
        UnaryOp::Ex2 => x.exp2(),
        UnaryOp::Lg2 => x.log2(),
        UnaryOp::Rcp => 1.0 / x,
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => (1.0 / f64::from(x).sqrt()) as f32,
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
    }
}

/// The value of a floating-point type's bits.
pub fn decode(ty: Type, bits: u64) -> f64 {
    match ty {
        Type::F16 => f16::from_bits(bits as u16).to_f64(),
        Type::BF16 => bf16::from_bits(bits as u16).to_f64(),
        Type::F32 => f64::from(f32::from_bits(bits as u32)),
        _ => f64::from_bits(bits),
    }
}

/// `value` as an f32 that rounds on to f16 and bf16 as `value` itself does: inexact ones go to the neighbour whose last bit is 1.
fn round_to_odd(value: f64) -> f32 {
    let nearest = value as f32;
    let found = f64::from(nearest);
    if found == value || value.is_nan() {
        return nearest;
    }
    let toward_zero = if found.abs() > value.abs() { nearest.to_bits() - 1 } else { nearest.to_bits() };
    f32::from_bits(toward_zero | 1)
}

/// Bits of `value`, rounded once to nearest even.
pub fn encode(ty: Type, value: f64) -> u64 {
    match ty {
        Type::F16 => u64::from(f16::from_f32(round_to_odd(value)).to_bits()),
        Type::BF16 => u64::from(bf16::from_f32(round_to_odd(value)).to_bits()),
        Type::F32 => u64::from((value as f32).to_bits()),
        _ => value.to_bits(),
    }
}

/// Bits of `value` in a rounding direction.
pub fn encode_rounded(ty: Type, value: f64, rounding: Rounding) -> u64 {
    let nearest = encode(ty, value);
    let error = decode(ty, nearest) - value;
    let too_high = error > 0.0;
    let step_back = match rounding {
        Rounding::Zero => error != 0.0 && (decode(ty, nearest).abs() > value.abs()),
        Rounding::Down => too_high,
        Rounding::Up => error < 0.0,
        _ => false,
    };
    if !step_back || value.is_nan() {
        return nearest;
    }
    let negative = decode(ty, nearest).is_sign_negative();
    match rounding {
        // Toward smaller magnitude.
        Rounding::Zero => nearest - 1,
        Rounding::Down if negative => nearest + 1,
        Rounding::Down => nearest - 1,
        Rounding::Up if negative => nearest - 1,
        _ => nearest + 1,
    }
}

/// An f32 rounded to tf32: 10 bits of mantissa, ties away from zero, or to even.
pub fn to_tf32(x: f32, away: bool) -> u32 {
    let bits = x.to_bits();
    if !x.is_finite() {
        return bits;
    }
    let half = if away { 0x1000 } else { 0xfff + (bits >> 13 & 1) };
    bits.wrapping_add(half) & !0x1fff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_and_nans_of_min_and_max() {
        assert_eq!(max(-0.0, 0.0).to_bits(), 0);
        assert_eq!(min(0.0, -0.0).to_bits(), (-0.0f32).to_bits());
        assert_eq!(max(f32::NAN, 1.0), 1.0);
        assert_eq!(min(2.0, f32::NAN), 2.0);
        assert!(max(f32::NAN, f32::NAN).is_nan());
    }

    #[test]
    fn doubles_are_rounded_once_to_halves() {
        assert_eq!(encode(Type::F16, f64::from_bits(0x3ff0_0200_0000_0001)), 0x3c01);
        assert_eq!(encode(Type::F16, f64::from_bits(0x3ff0_0200_0000_0000)), 0x3c00);
        assert_eq!(encode(Type::BF16, f64::from_bits(0x3ff0_1000_0000_0001)), 0x3f81);
        assert_eq!(encode(Type::F16, 65519.999), 0x7bff);
        assert_eq!(encode(Type::F16, 1e300), 0x7c00);
        assert_eq!(encode(Type::F16, -1e-300), 0x8000);
    }

    #[test]
    fn directed_roundings_bracket_the_value() {
        for value in [1.0 + 1e-9, -1.0 - 1e-9, 3.3, -3.3] {
            let down = decode(Type::F32, encode_rounded(Type::F32, value, Rounding::Down));
            let up = decode(Type::F32, encode_rounded(Type::F32, value, Rounding::Up));
            let zero = decode(Type::F32, encode_rounded(Type::F32, value, Rounding::Zero));
            assert!(down <= value && value <= up && zero.abs() <= value.abs(), "{value}");
        }
        assert_eq!(to_tf32(1.0, true), 1f32.to_bits());
    }
}
