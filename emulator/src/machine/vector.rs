//! The fast path: 32-bit and 64-bit operations over all lanes at once, written so that the compiler turns them into vector code.

use half::{bf16, f16};

use super::float;
use super::warp::{FULL, LANES, Warp};
use crate::lower::op::{Compare, CompareAs, FloatOp, IntOp, Slot, UnaryOp};

type Words = [u32; LANES];

#[inline(always)]
fn map2(a: &Words, b: &Words, f: impl Fn(u32, u32) -> u32) -> Words {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

#[inline(always)]
fn float2(a: &Words, b: &Words, ftz: bool, f: impl Fn(f32, f32) -> f32) -> Words {
    if ftz {
        map2(a, b, |x, y| float::flush(f(float::flush(f32::from_bits(x)), float::flush(f32::from_bits(y)))).to_bits())
    } else {
        map2(a, b, |x, y| f(f32::from_bits(x), f32::from_bits(y)).to_bits())
    }
}

/// One 32-bit integer operation.
pub fn int32(f: IntOp, a: &Words, b: &Words) -> Words {
    match f {
        IntOp::Add => map2(a, b, u32::wrapping_add),
        IntOp::Sub => map2(a, b, u32::wrapping_sub),
        IntOp::MulLo => map2(a, b, u32::wrapping_mul),
        IntOp::And => map2(a, b, |x, y| x & y),
        IntOp::Or => map2(a, b, |x, y| x | y),
        IntOp::Xor => map2(a, b, |x, y| x ^ y),
        IntOp::Shl => map2(a, b, |x, y| if y < 32 { x << (y & 31) } else { 0 }),
        IntOp::ShrU => map2(a, b, |x, y| if y < 32 { x >> (y & 31) } else { 0 }),
        IntOp::ShrS => map2(a, b, |x, y| ((x as i32) >> y.min(31)) as u32),
        IntOp::MinS => map2(a, b, |x, y| (x as i32).min(y as i32) as u32),
        IntOp::MinU => map2(a, b, u32::min),
        IntOp::MaxS => map2(a, b, |x, y| (x as i32).max(y as i32) as u32),
        IntOp::MaxU => map2(a, b, u32::max),
    }
}

/// One 64-bit integer operation.
pub fn int64(f: IntOp, a: &[u64; LANES], b: &[u64; LANES]) -> [u64; LANES] {
    let map = |f: fn(u64, u64) -> u64| std::array::from_fn(|lane| f(a[lane], b[lane]));
    match f {
        IntOp::Add => map(u64::wrapping_add),
        IntOp::Sub => map(u64::wrapping_sub),
        IntOp::MulLo => map(u64::wrapping_mul),
        IntOp::And => map(|x, y| x & y),
        IntOp::Or => map(|x, y| x | y),
        IntOp::Xor => map(|x, y| x ^ y),
        IntOp::Shl => map(|x, y| if y < 64 { x << y } else { 0 }),
        IntOp::ShrU => map(|x, y| if y < 64 { x >> y } else { 0 }),
        IntOp::ShrS => map(|x, y| ((x as i64) >> y.min(63)) as u64),
        IntOp::MinS => map(|x, y| (x as i64).min(y as i64) as u64),
        IntOp::MinU => map(u64::min),
        IntOp::MaxS => map(|x, y| (x as i64).max(y as i64) as u64),
        IntOp::MaxU => map(u64::max),
    }
}

/// One f32 operation of two operands.
pub fn float32(f: FloatOp, ftz: bool, a: &Words, b: &Words) -> Words {
    match f {
        FloatOp::Add => float2(a, b, ftz, |x, y| x + y),
        FloatOp::Sub => float2(a, b, ftz, |x, y| x - y),
        FloatOp::Mul => float2(a, b, ftz, |x, y| x * y),
        FloatOp::Min => float2(a, b, ftz, float::min),
        FloatOp::Max => float2(a, b, ftz, float::max),
    }
}

/// Fused multiply-add.
pub fn fma32(ftz: bool, a: &Words, b: &Words, c: &Words) -> Words {
    let mut out = [0; LANES];
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("avx2") {
        // SAFETY: the features were just detected.
        unsafe { fma32_avx2(a, b, c, &mut out) };
        return if ftz { fma_flushed(a, b, c) } else { out };
    }
    if ftz {
        return fma_flushed(a, b, c);
    }
    for lane in 0..LANES {
        out[lane] = f32::from_bits(a[lane]).mul_add(f32::from_bits(b[lane]), f32::from_bits(c[lane])).to_bits();
    }
    out
}

fn fma_flushed(a: &Words, b: &Words, c: &Words) -> Words {
    let value = |bits: u32| float::flush(f32::from_bits(bits));
    std::array::from_fn(|lane| float::flush(value(a[lane]).mul_add(value(b[lane]), value(c[lane]))).to_bits())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn fma32_avx2(a: &Words, b: &Words, c: &Words, out: &mut Words) {
    for lane in 0..LANES {
        out[lane] = f32::from_bits(a[lane]).mul_add(f32::from_bits(b[lane]), f32::from_bits(c[lane])).to_bits();
    }
}

/// One f32 function of one operand.
pub fn unary32(f: UnaryOp, ftz: bool, a: &Words) -> Words {
    let each = |f: fn(f32) -> f32| -> Words {
        if ftz {
            std::array::from_fn(|lane| float::flush(f(float::flush(f32::from_bits(a[lane])))).to_bits())
        } else {
            std::array::from_fn(|lane| f(f32::from_bits(a[lane])).to_bits())
        }
    };
    match f {
        UnaryOp::Neg => each(|x| -x),
        UnaryOp::Abs => each(f32::abs),
        UnaryOp::Rcp => each(|x| 1.0 / x),
        UnaryOp::Ex2 => each(f32::exp2),
        UnaryOp::Lg2 => each(f32::log2),
        UnaryOp::Sqrt => each(f32::sqrt),
        UnaryOp::Rsqrt => each(|x| float::unary(UnaryOp::Rsqrt, x)),
        UnaryOp::Sin => each(f32::sin),
        UnaryOp::Cos => each(f32::cos),
        UnaryOp::Tanh => each(f32::tanh),
    }
}

#[inline(always)]
fn bits_of(f: impl Fn(usize) -> bool) -> u32 {
    let mut bits = 0;
    for lane in 0..LANES {
        bits |= u32::from(f(lane)) << lane;
    }
    bits
}

/// Whether a comparison holds for two floating-point numbers.
pub fn compare_float(compare: Compare, a: f64, b: f64) -> bool {
    let unordered = a.is_nan() || b.is_nan();
    match compare {
        Compare::Eq => a == b,
        Compare::Ne => !unordered && a != b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
        Compare::Equ => unordered || a == b,
        Compare::Neu => a != b,
        Compare::Ltu => unordered || a < b,
        Compare::Leu => unordered || a <= b,
        Compare::Gtu => unordered || a > b,
        Compare::Geu => unordered || a >= b,
        Compare::Num => !unordered,
        Compare::Nan => unordered,
    }
}

/// Whether a comparison holds for two integers.
pub fn compare_int<T: Ord>(compare: Compare, a: T, b: T) -> bool {
    match compare {
        Compare::Eq => a == b,
        Compare::Ne => a != b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
        _ => false,
    }
}

/// A comparison of words, a bit for each lane.
pub fn set32(compare: Compare, class: CompareAs, ftz: bool, a: &Words, b: &Words) -> u32 {
    match (class, compare) {
        (CompareAs::Float, _) => {
            let value = |bits: u32| f64::from(if ftz { float::flush(f32::from_bits(bits)) } else { f32::from_bits(bits) });
            bits_of(|lane| compare_float(compare, value(a[lane]), value(b[lane])))
        }
        (CompareAs::Signed, Compare::Gt) => bits_of(|lane| a[lane] as i32 > b[lane] as i32),
        (CompareAs::Signed, _) => bits_of(|lane| compare_int(compare, a[lane] as i32, b[lane] as i32)),
        (CompareAs::Unsigned, _) => bits_of(|lane| compare_int(compare, a[lane], b[lane])),
    }
}

/// `cvt.rn.{f16x2,bf16x2}.f32`
pub fn pack_half(is_bf16: bool, hi: &Words, lo: &Words) -> Words {
    let half = |bits: u32| {
        let x = f32::from_bits(bits);
        u32::from(if is_bf16 { bf16::from_f32(x).to_bits() } else { f16::from_f32(x).to_bits() })
    };
    map2(hi, lo, |h, l| half(h) << 16 | half(l))
}

impl Warp {
    /// Writes a binary result of two words.
    #[inline(always)]
    pub fn words2(&mut self, mask: u32, d: Slot, a: Slot, b: Slot, f: impl FnOnce(&Words, &Words) -> Words) {
        let value = f(&self.words[a as usize], &self.words[b as usize]);
        self.set_words(d, mask, &value);
    }

    /// `selp`
    pub fn select32(&mut self, mask: u32, d: Slot, a: Slot, b: Slot, chosen: u32) {
        let (x, y) = (&self.words[a as usize], &self.words[b as usize]);
        let value = match chosen {
            FULL => *x,
            0 => *y,
            _ => std::array::from_fn(|lane| if chosen >> lane & 1 != 0 { x[lane] } else { y[lane] }),
        };
        self.set_words(d, mask, &value);
    }

    /// `selp` of double words.
    pub fn select64(&mut self, mask: u32, d: Slot, a: Slot, b: Slot, chosen: u32) {
        let (x, y) = (&self.doubles[a as usize], &self.doubles[b as usize]);
        let value = std::array::from_fn(|lane| if chosen >> lane & 1 != 0 { x[lane] } else { y[lane] });
        self.set_doubles(d, mask, &value);
    }
}
