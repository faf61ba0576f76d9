//! The general path: any function in any type, one lane at a time.

use super::float;
use super::vector::{compare_float, compare_int};
use crate::lower::op::{Compare, Rounding, Scalar, ScalarFn, UnaryOp};
use crate::ptx::Type;

/// `bits` as a signed number of type `ty`'s width.
pub fn sign_extend(ty: Type, bits: u64) -> i64 {
    match ty.bytes() {
        1 => i64::from(bits as i8),
        2 => i64::from(bits as i16),
        4 => i64::from(bits as i32),
        _ => bits as i64,
    }
}

/// `bits` without what lies above type `ty`'s width.
pub fn truncate(ty: Type, bits: u64) -> u64 {
    match ty.bytes() {
        1 => bits & 0xff,
        2 => bits & 0xffff,
        4 => bits & 0xffff_ffff,
        _ => bits,
    }
}

/// The result of `scalar` for one lane's operands.
pub fn evaluate(scalar: &Scalar, s: [u64; 4]) -> u64 {
    let ty = scalar.ty;
    match scalar.function {
        ScalarFn::Convert { from, rounding, saturate, relu } => convert(ty, from, rounding, saturate, relu, scalar.ftz, s[0]),
        ScalarFn::ConvertPair { rounding, relu } => {
            let half_ty = if ty == Type::F16x2 { Type::F16 } else { Type::BF16 };
            let half = |bits| convert(half_ty, Type::F32, rounding, false, relu, scalar.ftz, bits);
            half(s[0]) << 16 | half(s[1])
        }
        ScalarFn::SelectBySign => {
            let selector = f32::from_bits(s[2] as u32);
            let selector = if scalar.ftz { float::flush(selector) } else { selector };
            let second = if ty == Type::F32 { selector < 0.0 || selector.is_nan() } else { sign_extend(ty, s[2]) < 0 };
            if second { s[1] } else { s[0] }
        }
        _ if ty.is_float() => evaluate_float(scalar, s),
        _ => evaluate_int(scalar, s),
    }
}

fn evaluate_float(scalar: &Scalar, s: [u64; 4]) -> u64 {
    let (ty, function) = (scalar.ty, scalar.function);
    match ty {
        Type::F16x2 | Type::BF16x2 => {
            let half = Scalar { ty: if ty == Type::F16x2 { Type::F16 } else { Type::BF16 }, ..scalar.clone() };
            let lo = evaluate_float(&half, s.map(|x| x & 0xffff));
            let hi = evaluate_float(&half, s.map(|x| x >> 16 & 0xffff));
            return hi << 16 | lo;
        }
        Type::F32 => return evaluate_f32(scalar, s),
        _ => {}
    }
    let [a, b, c, _] = s.map(|x| float::decode(ty, x));
    let sign = 1u64 << (ty.bits() - 1);
    let value = match function {
        ScalarFn::Neg => return s[0] ^ sign,
        ScalarFn::Abs => return s[0] & !sign,
        ScalarFn::Copysign => return s[1] & !sign | s[0] & sign,
        ScalarFn::Add => a + b,
        ScalarFn::Sub => a - b,
        ScalarFn::MulLo => a * b,
        ScalarFn::Div => a / b,
        ScalarFn::Fma => a.mul_add(b, c),
        ScalarFn::Min if a.is_nan() || b < a => b,
        ScalarFn::Max if a.is_nan() || b > a => b,
        ScalarFn::Min | ScalarFn::Max => a,
        ScalarFn::Unary(f) => match f {
            UnaryOp::Ex2 => a.exp2(),
            UnaryOp::Lg2 => a.log2(),
            UnaryOp::Rcp => 1.0 / a,
            UnaryOp::Sqrt => a.sqrt(),
            UnaryOp::Rsqrt => 1.0 / a.sqrt(),
            UnaryOp::Sin => a.sin(),
            UnaryOp::Cos => a.cos(),
            UnaryOp::Tanh => a.tanh(),
            UnaryOp::Neg => -a,
            UnaryOp::Abs => a.abs(),
        },
        _ => f64::NAN,
    };
    let value = if scalar.saturate { saturate_unit(value) } else { value };
    float::encode(ty, value)
}

fn evaluate_f32(scalar: &Scalar, s: [u64; 4]) -> u64 {
    let flush = |x: f32| if scalar.ftz { float::flush(x) } else { x };
    let [a, b, c, _] = s.map(|x| flush(f32::from_bits(x as u32)));
    let value = match scalar.function {
        ScalarFn::Neg => -a,
        ScalarFn::Abs => a.abs(),
        ScalarFn::Copysign => b.copysign(a),
        ScalarFn::Add => a + b,
        ScalarFn::Sub => a - b,
        ScalarFn::MulLo => a * b,
        ScalarFn::Div => a / b,
        ScalarFn::Fma => a.mul_add(b, c),
        ScalarFn::Min => float::min(a, b),
        ScalarFn::Max => float::max(a, b),
        ScalarFn::Unary(f) => float::unary(f, a),
        _ => f32::NAN,
    };
    let value = if scalar.saturate { saturate_unit(f64::from(value)) as f32 } else { flush(value) };
    u64::from(value.to_bits())
}

/// `.sat`: into [0, 1], NaN to 0.
fn saturate_unit(x: f64) -> f64 {
    if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) }
}

fn evaluate_int(scalar: &Scalar, s: [u64; 4]) -> u64 {
    let ty = scalar.ty;
    let signed = ty.is_signed();
    let bits = ty.bits();
    let [a, b, c, _] = s;
    let wide = |x: u64| if signed { i128::from(sign_extend(ty, x)) } else { i128::from(truncate(ty, x)) };
    let (x, y, z) = (wide(a), wide(b), wide(c));
    let result = match scalar.function {
        ScalarFn::Add => saturate(scalar, x + y),
        ScalarFn::Sub => saturate(scalar, x - y),
        ScalarFn::MulLo => x.wrapping_mul(y) as u64,
        ScalarFn::MulHi => (x.wrapping_mul(y) >> bits) as u64,
        ScalarFn::MulWide => return x.wrapping_mul(y) as u64,
        ScalarFn::MadLo => x.wrapping_mul(y).wrapping_add(z) as u64,
        ScalarFn::MadHi => saturate(scalar, (x.wrapping_mul(y) >> bits) + z),
        ScalarFn::MadWide => return (x.wrapping_mul(y) as u64).wrapping_add(c),
        ScalarFn::Sad => (z + (x - y).abs()) as u64,
        // Division by zero gives unspecified bits; the hardware gives all ones.
        ScalarFn::Div => x.checked_div(y).map_or(u64::MAX, |q| q as u64),
        ScalarFn::Rem => x.checked_rem(y).map_or(a, |r| r as u64),
        ScalarFn::Abs => x.unsigned_abs() as u64,
        ScalarFn::Neg => x.wrapping_neg() as u64,
        ScalarFn::Min => x.min(y) as u64,
        ScalarFn::Max => x.max(y) as u64,
        ScalarFn::And => a & b,
        ScalarFn::Or => a | b,
        ScalarFn::Xor => a ^ b,
        ScalarFn::Not => !a,
        ScalarFn::Cnot => u64::from(truncate(ty, a) == 0),
        ScalarFn::Shl => shift_left(bits, a, b as u32),
        ScalarFn::Shr => shift_right(ty, a, b as u32),
        ScalarFn::FunnelLeft { clamp } => {
            let pair = b << 32 | a & 0xffff_ffff;
            let n = if clamp { (c as u32).min(32) } else { c as u32 & 31 };
            (pair << n) >> 32
        }
        ScalarFn::FunnelRight { clamp } => {
            let pair = b << 32 | a & 0xffff_ffff;
            let n = if clamp { (c as u32).min(32) } else { c as u32 & 31 };
            pair >> n
        }
        ScalarFn::Permute => permute(a, b, c),
        ScalarFn::Popc => return u64::from(truncate(ty, a).count_ones()),
        ScalarFn::Clz => return u64::from(truncate(ty, a).leading_zeros() - (64 - bits)),
        ScalarFn::Brev => truncate(ty, a).reverse_bits() >> (64 - bits),
        ScalarFn::Bfind { shift_amount } => return find_leading(ty, a, shift_amount),
        ScalarFn::Bfe => extract(ty, a, b as u32 & 0xff, c as u32 & 0xff),
        ScalarFn::Bfi => insert(bits, a, b, c as u32 & 0xff, s[3] as u32 & 0xff),
        ScalarFn::Lop3 { table } => lop3(a, b, c, table),
        _ => 0,
    };
    truncate(ty, result)
}

fn saturate(scalar: &Scalar, value: i128) -> u64 {
    if scalar.saturate && scalar.ty == Type::S32 {
        return value.clamp(i128::from(i32::MIN), i128::from(i32::MAX)) as u64;
    }
    value as u64
}

fn shift_left(bits: u32, a: u64, n: u32) -> u64 {
    if n >= bits { 0 } else { a << n }
}

fn shift_right(ty: Type, a: u64, n: u32) -> u64 {
    if ty.is_signed() {
        return (sign_extend(ty, a) >> n.min(63)) as u64;
    }
    if n >= ty.bits() { 0 } else { truncate(ty, a) >> n }
}

fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = (b << 32 | a & 0xffff_ffff).to_le_bytes();
    (0..4).fold(0, |result, i| {
        let select = selector >> (4 * i) & 0xf;
        let byte = bytes[(select & 7) as usize];
        let byte = if select & 8 != 0 { ((byte as i8) >> 7) as u8 } else { byte };
        result | u64::from(byte) << (8 * i)
    })
}

fn find_leading(ty: Type, a: u64, shift_amount: bool) -> u64 {
    let value = if ty.is_signed() && sign_extend(ty, a) < 0 { truncate(ty, !a) } else { truncate(ty, a) };
    if value == 0 {
        return 0xffff_ffff;
    }
    let position = 63 - value.leading_zeros();
    u64::from(if shift_amount { ty.bits() - 1 - position } else { position })
}

fn extract(ty: Type, a: u64, position: u32, length: u32) -> u64 {
    let bits = ty.bits();
    let a = truncate(ty, a);
    let field = if position >= bits { 0 } else { a >> position };
    let mask = if length >= 64 { u64::MAX } else { (1 << length) - 1 };
    if length == 0 {
        return 0;
    }
    if !ty.is_signed() {
        return field & mask;
    }
    let kept = length.min(bits - position.min(bits));
    let top = (position + length - 1).min(bits - 1);
    let low = if kept >= 64 { u64::MAX } else { (1 << kept) - 1 };
    if a >> top & 1 != 0 { field & low | !low } else { field & low }
}

fn insert(bits: u32, field: u64, into: u64, position: u32, length: u32) -> u64 {
    if position >= bits || length == 0 {
        return into;
    }
    let mask = (if length >= 64 { u64::MAX } else { (1 << length) - 1 }) << position;
    into & !mask | field << position & mask
}

fn lop3(a: u64, b: u64, c: u64, table: u8) -> u64 {
    (0..8).filter(|i| table >> i & 1 != 0).fold(0, |result, i| {
        let pick = |x: u64, bit: u32| if i >> bit & 1 != 0 { x } else { !x };
        result | pick(a, 2) & pick(b, 1) & pick(c, 0)
    })
}

fn convert(to: Type, from: Type, rounding: Rounding, saturate: bool, relu: bool, ftz: bool, bits: u64) -> u64 {
    match (from.is_float(), to.is_float()) {
        (true, true) => {
            let mut value = float::decode(from, bits);
            if ftz && from == Type::F32 {
                value = f64::from(float::flush(value as f32));
            }
            value = match rounding {
                Rounding::IntNearest => value.round_ties_even(),
                Rounding::IntZero => value.trunc(),
                Rounding::IntDown => value.floor(),
                Rounding::IntUp => value.ceil(),
                _ => value,
            };
            if saturate {
                value = saturate_unit(value);
            }
            if relu && (value < 0.0 || value.is_nan()) {
                value = 0.0;
            }
            let result = float::encode_rounded(to, value, rounding);
            if ftz && to == Type::F32 { u64::from(float::flush(f32::from_bits(result as u32)).to_bits()) } else { result }
        }
        (true, false) if to == Type::B32 => u64::from(float::to_tf32(f32::from_bits(bits as u32), rounding == Rounding::Away)),
        (true, false) => {
            let value = float::decode(from, bits);
            let value = if ftz && from == Type::F32 { f64::from(float::flush(value as f32)) } else { value };
            let value = match rounding {
                Rounding::IntNearest | Rounding::Nearest => value.round_ties_even(),
                Rounding::IntDown | Rounding::Down => value.floor(),
                Rounding::IntUp | Rounding::Up => value.ceil(),
                _ => value.trunc(),
            };
            float_to_int(to, from, value)
        }
        (false, true) => {
            let value = if from.is_signed() { i128::from(sign_extend(from, bits)) } else { i128::from(truncate(from, bits)) };
            int_to_float(to, value, rounding)
        }
        (false, false) => {
            let value = if from.is_signed() { i128::from(sign_extend(from, bits)) } else { i128::from(truncate(from, bits)) };
            let value = if saturate { clamp_to(to, value) } else { value };
            let result = truncate(to, value as u64);
            // A signed destination in a wider register is sign-extended.
            if to.is_signed() { sign_extend(to, result) as u64 } else { result }
        }
    }
}

fn clamp_to(ty: Type, value: i128) -> i128 {
    let bits = ty.bits();
    if ty.is_signed() { value.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1) } else { value.clamp(0, (1 << bits) - 1) }
}

/// Out of range clamps. NaN is 0, or the sign bit where a side has 64 bits (PTX ISA, cvt). A signed result is sign-extended.
fn float_to_int(to: Type, from: Type, value: f64) -> u64 {
    let result = match value.is_nan() {
        true if to.bits() == 64 || from == Type::F64 => 1 << (to.bits() - 1),
        true => 0,
        false => truncate(to, clamp_to(to, value as i128) as u64),
    };
    if to.is_signed() { sign_extend(to, result) as u64 } else { result }
}

fn int_to_float(to: Type, value: i128, rounding: Rounding) -> u64 {
    let nearest = value as f64;
    let exact = nearest as i128;
    // Rounded to odd, the 53 bits lead to the same second rounding, to 24 bits or fewer, as the integer itself.
    let toward_zero = if exact.abs() > value.abs() { nearest.to_bits() - 1 } else { nearest.to_bits() };
    let odd = if exact == value { nearest } else { f64::from_bits(toward_zero | 1) };
    if to != Type::F64 {
        return float::encode_rounded(to, odd, rounding);
    }
    let away = rounding == Rounding::Down && value < 0 || rounding == Rounding::Up && value > 0;
    match rounding {
        _ if exact == value => nearest.to_bits(),
        Rounding::Zero | Rounding::Down | Rounding::Up => toward_zero + u64::from(away),
        _ => nearest.to_bits(),
    }
}

/// Whether a comparison of type `ty` holds.
pub fn compare(compare: Compare, ty: Type, ftz: bool, a: u64, b: u64) -> bool {
    if ty.is_float() {
        let value = |bits| {
            let x = float::decode(ty, bits);
            if ftz && ty == Type::F32 { f64::from(float::flush(x as f32)) } else { x }
        };
        compare_float(compare, value(a), value(b))
    } else if ty.is_signed() {
        compare_int(compare, sign_extend(ty, a), sign_extend(ty, b))
    } else {
        compare_int(compare, truncate(ty, a), truncate(ty, b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::op::{Bank, Reg};

    fn eval(function: ScalarFn, ty: Type, s: [u64; 4]) -> u64 {
        let dest = Reg { bank: Bank::Word, slot: 0 };
        evaluate(&Scalar { function, ty, ftz: false, saturate: false, dest, sources: [None; 4] }, s)
    }

    #[test]
    fn integers() {
        assert_eq!(eval(ScalarFn::MulHi, Type::S32, [(-3i32) as u32 as u64, 5, 0, 0]), 0xffff_ffff);
        assert_eq!(eval(ScalarFn::MulWide, Type::S16, [0xffff, 3, 0, 0]) as u32, (-3i32) as u32);
        assert_eq!(eval(ScalarFn::Bfe, Type::U32, [0xabcd, 4, 8, 0]), 0xbc);
        assert_eq!(eval(ScalarFn::Bfe, Type::S32, [0x80, 4, 4, 0]), 0xffff_fff8);
        assert_eq!(eval(ScalarFn::Bfi, Type::B32, [0x5, 0xff00, 4, 3]), 0xff50);
        assert_eq!(eval(ScalarFn::Permute, Type::B32, [0x3322_1100, 0x7766_5544, 0x7410, 0]), 0x7744_1100);
        assert_eq!(eval(ScalarFn::Clz, Type::B32, [1, 0, 0, 0]), 31);
        assert_eq!(eval(ScalarFn::Lop3 { table: 0x80 }, Type::B32, [6, 3, 7, 0]), 2);
        assert_eq!(eval(ScalarFn::FunnelLeft { clamp: false }, Type::B32, [0x8000_0000, 1, 1, 0]), 3);
        assert_eq!(eval(ScalarFn::Shr, Type::S64, [(-8i64) as u64, 1, 0, 0]) as i64, -4);
    }

    #[test]
    fn a_selection_by_nan_takes_the_second() {
        for (selector, wanted) in [(f32::NAN, 2), (-1.0, 2), (-0.0, 1), (1.0, 1)] {
            assert_eq!(eval(ScalarFn::SelectBySign, Type::F32, [1, 2, u64::from(selector.to_bits()), 0]), wanted, "{selector}");
        }
    }

    #[test]
    fn integers_are_rounded_once() {
        let cvt = |to, from, rounding, bits| eval(ScalarFn::Convert { from, rounding, saturate: false, relu: false }, to, [bits, 0, 0, 0]);
        assert_eq!(cvt(Type::F32, Type::S64, Rounding::Zero, 0x7fff_ffff_ffff_ffff), 0x5eff_ffff);
        assert_eq!(cvt(Type::F32, Type::U64, Rounding::Zero, u64::MAX), 0x5f7f_ffff);
        assert_eq!(cvt(Type::F32, Type::U64, Rounding::Nearest, 0x8000_0080_0000_0001), 0x5f00_0001);
        assert_eq!(cvt(Type::F32, Type::S32, Rounding::Up, 16_777_217), 0x4b80_0001);
        assert_eq!(cvt(Type::F16, Type::S32, Rounding::Zero, 2051), 0x6801);
        assert_eq!(cvt(Type::F16, Type::U64, Rounding::Zero, 70000), 0x7bff);
        assert_eq!(cvt(Type::F16, Type::U64, Rounding::Nearest, 70000), 0x7c00);
        assert_eq!(cvt(Type::BF16, Type::S32, Rounding::Nearest, 0x0101_0001), 0x4b81);
        let (near, high) = ((1u64 << 53) + 1, (1u64 << 53) as f64);
        assert_eq!(cvt(Type::F64, Type::U64, Rounding::Up, near), high.to_bits() + 1);
        assert_eq!(cvt(Type::F64, Type::S64, Rounding::Down, near.wrapping_neg()), (-high).to_bits() + 1);
        assert_eq!(cvt(Type::F64, Type::U64, Rounding::Zero, u64::MAX), (u64::MAX as f64).to_bits() - 1);
    }

    #[test]
    fn conversions() {
        let cvt = |to, from, rounding, bits| eval(ScalarFn::Convert { from, rounding, saturate: false, relu: false }, to, [bits, 0, 0, 0]);
        assert_eq!(cvt(Type::S32, Type::F32, Rounding::IntZero, u64::from((-1.7f32).to_bits())) as u32, 0xffff_ffff);
        assert_eq!(cvt(Type::S16, Type::F32, Rounding::IntZero, u64::from((-32f32).to_bits())) as u32, 0xffff_ffe0);
        assert_eq!(cvt(Type::S32, Type::F64, Rounding::IntZero, f64::NAN.to_bits()) as u32, 0x8000_0000);
        assert_eq!(cvt(Type::U32, Type::F32, Rounding::IntZero, u64::from(f32::NAN.to_bits())), 0);
        assert_eq!(cvt(Type::U8, Type::F32, Rounding::IntZero, u64::from(300f32.to_bits())), 255);
        assert_eq!(cvt(Type::F32, Type::S32, Rounding::Nearest, 0xffff_ffff), u64::from((-1f32).to_bits()));
        assert_eq!(cvt(Type::F16, Type::F32, Rounding::Nearest, u64::from(1f32.to_bits())), 0x3c00);
        assert_eq!(cvt(Type::S64, Type::S32, Rounding::IntZero, 0xffff_fffe) as i64, -2);
        assert_eq!(cvt(Type::F32, Type::F32, Rounding::IntDown, u64::from(1.5f32.to_bits())), u64::from(1f32.to_bits()));
    }
}
