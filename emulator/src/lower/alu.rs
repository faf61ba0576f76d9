//! Arithmetic, logic, comparison and selection.

use super::bank_of;
use super::builder::{Builder, Lowered};
use super::modifiers::Modifiers;
use super::op::*;
use crate::ptx::Type;
use crate::ptx::ast::{Instruction, Operand};

/// Decodes `instruction` if it belongs here.
pub fn lower(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Option<Op>> {
    Ok(Some(match base {
        "add" | "sub" | "addc" | "subc" => add_sub(b, base, m, i)?,
        "mul" | "mad" | "mul24" | "mad24" => multiply(b, base, m, i)?,
        "and" | "or" | "xor" => logic(b, base, m, i)?,
        "not" => not(b, m, i)?,
        "shl" | "shr" => shift(b, base, m, i)?,
        "min" | "max" => min_max(b, base, m, i)?,
        "fma" => fma(b, m, i)?,
        "ex2" | "lg2" | "rcp" | "sqrt" | "rsqrt" | "sin" | "cos" | "tanh" | "neg" | "abs" => unary(b, base, m, i)?,
        "setp" | "set" => compare(b, base, m, i)?,
        "selp" => select(b, m, i)?,
        "slct" => {
            let (ty, by) = (type_of(b, m)?, type_of(b, m)?);
            let [d, x, y, c] = b.operands(i)?;
            let sources = [Some(b.source(x, ty)?), Some(b.source(y, ty)?), Some(b.source(c, by)?), None];
            let ftz = m.take("ftz");
            Op::Scalar(Box::new(Scalar { function: ScalarFn::SelectBySign, ty: by, ftz, saturate: false, dest: b.dest(d, ty)?, sources }))
        }
        _ => match other(base, m) {
            Some((function, arity)) => scalar(b, function, arity, m, i)?,
            None => return Ok(None),
        },
    }))
}

fn type_of(b: &Builder, m: &mut Modifiers) -> Lowered<Type> {
    match m.take_type() {
        Some(ty) => Ok(ty),
        None => b.error("the instruction's type is missing"),
    }
}

/// Instructions that only the lane-by-lane path knows: function and number of sources.
fn other(base: &str, m: &mut Modifiers) -> Option<(ScalarFn, usize)> {
    Some(match base {
        "div" => {
            let _ = m.take("approx") || m.take("full") || m.take("rn");
            (ScalarFn::Div, 2)
        }
        "rem" => (ScalarFn::Rem, 2),
        "sad" => (ScalarFn::Sad, 3),
        "cnot" => (ScalarFn::Cnot, 1),
        "popc" => (ScalarFn::Popc, 1),
        "clz" => (ScalarFn::Clz, 1),
        "brev" => (ScalarFn::Brev, 1),
        "bfind" => (ScalarFn::Bfind { shift_amount: m.take("shiftamt") }, 1),
        "bfe" => (ScalarFn::Bfe, 3),
        "bfi" => (ScalarFn::Bfi, 4),
        "lop3" => (ScalarFn::Lop3 { table: 0 }, 4),
        "prmt" => (ScalarFn::Permute, 3),
        "copysign" => (ScalarFn::Copysign, 2),
        "shf" => {
            let left = m.take("l");
            let clamp = m.take("clamp");
            if !(left || m.take("r")) || !(clamp || m.take("wrap")) {
                return None;
            }
            (if left { ScalarFn::FunnelLeft { clamp } } else { ScalarFn::FunnelRight { clamp } }, 3)
        }
        _ => return None,
    })
}

fn scalar(b: &mut Builder, function: ScalarFn, arity: usize, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let (ftz, saturate) = (m.take("ftz"), m.take("sat"));
    let ty = type_of(b, m)?;
    let mut function = function;
    let mut operands = i.operands.as_slice();
    if let (ScalarFn::Lop3 { .. }, [.., Operand::Int(table)]) = (function, operands) {
        function = ScalarFn::Lop3 { table: *table as u8 };
        operands = &operands[..operands.len() - 1];
    }
    let arity = if matches!(function, ScalarFn::Lop3 { .. }) { 3 } else { arity };
    if operands.len() != arity + 1 {
        return b.error(format!("{} operands are expected, {} are given", arity + 1, operands.len()));
    }
    let dest_ty = match function {
        ScalarFn::Popc | ScalarFn::Clz | ScalarFn::Bfind { .. } => Type::U32,
        _ => ty,
    };
    let mut sources = [None; 4];
    for (at, operand) in operands[1..].iter().enumerate() {
        // Positions and lengths of bit fields are 32-bit, whatever the field.
        let narrow = matches!((function, at), (ScalarFn::Bfe, 1 | 2) | (ScalarFn::Bfi, 2 | 3));
        sources[at] = Some(b.source(operand, if narrow { Type::U32 } else { ty })?);
    }
    let dest = b.dest(&operands[0], dest_ty)?;
    Ok(Op::Scalar(Box::new(Scalar { function, ty, ftz, saturate, dest, sources })))
}

/// A scalar operation whose sources and destination all have type `ty`.
fn plain(b: &mut Builder, function: ScalarFn, ty: Type, ftz: bool, saturate: bool, operands: &[Operand]) -> Lowered<Op> {
    let mut sources = [None; 4];
    for (at, operand) in operands[1..].iter().enumerate() {
        sources[at] = Some(b.source(operand, ty)?);
    }
    let dest = b.dest(&operands[0], ty)?;
    Ok(Op::Scalar(Box::new(Scalar { function, ty, ftz, saturate, dest, sources })))
}

/// Takes `.rn`; other roundings of floating-point results are refused, because the host computes to nearest only.
fn nearest_only(b: &Builder, m: &mut Modifiers) -> Lowered<()> {
    m.take("rn");
    match m.peek() {
        Some("rz" | "rm" | "rp") => b.error("floating-point arithmetic is emulated with rounding to nearest only"),
        _ => Ok(()),
    }
}

fn add_sub(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let subtract = base.starts_with("sub");
    let carry_in = base.ends_with('c');
    let carry_out = m.take("cc");
    nearest_only(b, m)?;
    let (ftz, saturate) = (m.take("ftz"), m.take("sat"));
    let ty = type_of(b, m)?;
    let [d, x, y] = b.operands(i)?;
    if carry_in || carry_out {
        let (a, c, d) = (b.source(x, ty)?, b.source(y, ty)?, b.dest(d, ty)?);
        return Ok(Op::Carry { subtract, carry_in, carry_out, d, a, b: c });
    }
    let f = if subtract { IntOp::Sub } else { IntOp::Add };
    match ty {
        Type::U32 | Type::S32 if !saturate => int32(b, f, i),
        Type::U64 | Type::S64 => int64(b, f, i),
        Type::F32 if !saturate => float32(b, if subtract { FloatOp::Sub } else { FloatOp::Add }, ftz, i),
        _ => plain(b, if subtract { ScalarFn::Sub } else { ScalarFn::Add }, ty, ftz, saturate, &i.operands),
    }
}

fn int32(b: &mut Builder, f: IntOp, i: &Instruction) -> Lowered<Op> {
    let [d, x, y] = b.operands(i)?;
    let (a, c) = (b.source(x, Type::B32)?.slot, b.source(y, Type::B32)?.slot);
    Ok(Op::Int32 { f, d: b.dest(d, Type::B32)?.slot, a, b: c })
}

/// 64-bit operations; a shift's amount is 32-bit.
fn int64(b: &mut Builder, f: IntOp, i: &Instruction) -> Lowered<Op> {
    let [d, x, y] = b.operands(i)?;
    let (a, c) = (b.source(x, Type::B64)?.slot, b.source(y, Type::B64)?.slot);
    Ok(Op::Int64 { f, d: b.dest(d, Type::B64)?.slot, a, b: c })
}

fn float32(b: &mut Builder, f: FloatOp, ftz: bool, i: &Instruction) -> Lowered<Op> {
    let [d, x, y] = b.operands(i)?;
    let (a, c) = (b.source(x, Type::F32)?.slot, b.source(y, Type::F32)?.slot);
    Ok(Op::F32 { f, ftz, d: b.dest(d, Type::F32)?.slot, a, b: c })
}

fn multiply(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    if base.ends_with("24") {
        return b.unsupported();
    }
    let mad = base == "mad";
    let (lo, hi, wide) = (m.take("lo"), m.take("hi"), m.take("wide"));
    nearest_only(b, m)?;
    let (ftz, saturate) = (m.take("ftz"), m.take("sat"));
    let ty = type_of(b, m)?;
    if ty.is_float() {
        if mad {
            return fused(b, ty, ftz, saturate, i);
        }
        return match ty {
            Type::F32 if !saturate => float32(b, FloatOp::Mul, ftz, i),
            _ => plain(b, ScalarFn::MulLo, ty, ftz, saturate, &i.operands),
        };
    }
    if wide {
        return multiply_wide(b, mad, ty, i);
    }
    if !lo && !hi {
        return b.error("an integer product needs .lo, .hi or .wide");
    }
    if lo && matches!(ty, Type::U32 | Type::S32) {
        if !mad {
            return int32(b, IntOp::MulLo, i);
        }
        let [d, x, y, z] = b.operands(i)?;
        let (a, c, e) = (b.source(x, ty)?.slot, b.source(y, ty)?.slot, b.source(z, ty)?.slot);
        return Ok(Op::Mad32 { d: b.dest(d, ty)?.slot, a, b: c, c: e });
    }
    let function = match (mad, lo) {
        (false, true) => ScalarFn::MulLo,
        (false, false) => ScalarFn::MulHi,
        (true, true) => ScalarFn::MadLo,
        (true, false) => ScalarFn::MadHi,
    };
    plain(b, function, ty, false, saturate, &i.operands)
}

fn multiply_wide(b: &mut Builder, mad: bool, ty: Type, i: &Instruction) -> Lowered<Op> {
    let wide = match ty {
        Type::U16 => Type::U32,
        Type::S16 => Type::S32,
        Type::U32 => Type::U64,
        Type::S32 => Type::S64,
        _ => return b.error("a wide product takes 16- or 32-bit integers"),
    };
    if i.operands.len() != if mad { 4 } else { 3 } {
        return b.error("a wide product takes two factors, and an addend if it is a mad");
    }
    let (x, y) = (b.source(&i.operands[1], ty)?, b.source(&i.operands[2], ty)?);
    let z = if mad { Some(b.source(&i.operands[3], wide)?) } else { None };
    let dest = b.dest(&i.operands[0], wide)?;
    if !mad && ty.bytes() == 4 {
        return Ok(Op::MulWide32 { signed: ty.is_signed(), d: dest.slot, a: x.slot, b: y.slot });
    }
    let function = if mad { ScalarFn::MadWide } else { ScalarFn::MulWide };
    Ok(Op::Scalar(Box::new(Scalar { function, ty, ftz: false, saturate: false, dest, sources: [Some(x), Some(y), z, None] })))
}

fn logic(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let (f, int, logic) = match base {
        "and" => (ScalarFn::And, IntOp::And, Logic::And),
        "or" => (ScalarFn::Or, IntOp::Or, Logic::Or),
        _ => (ScalarFn::Xor, IntOp::Xor, Logic::Xor),
    };
    let ty = type_of(b, m)?;
    match ty {
        Type::Pred => {
            let [d, x, y] = b.operands(i)?;
            let ((a, negate_a), (c, negate_b)) = (b.predicate(x)?, b.predicate(y)?);
            Ok(Op::LogicPred { f: logic, d: b.dest(d, ty)?.slot, a, b: c, negate_a, negate_b })
        }
        Type::B32 => int32(b, int, i),
        Type::B64 => int64(b, int, i),
        _ => plain(b, f, ty, false, false, &i.operands),
    }
}

fn not(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let ty = type_of(b, m)?;
    let [d, x] = b.operands(i)?;
    if ty == Type::Pred {
        let a = b.source(x, ty)?.slot;
        return Ok(Op::NotPred { d: b.dest(d, ty)?.slot, a });
    }
    plain(b, ScalarFn::Not, ty, false, false, &i.operands)
}

fn shift(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let ty = type_of(b, m)?;
    let left = base == "shl";
    let [d, x, y] = b.operands(i)?;
    let (a, amount) = (b.source(x, ty)?, b.source(y, Type::U32)?);
    let dest = b.dest(d, ty)?;
    if ty.bytes() == 4 {
        let f = match (left, ty.is_signed()) {
            (true, _) => IntOp::Shl,
            (false, true) => IntOp::ShrS,
            (false, false) => IntOp::ShrU,
        };
        return Ok(Op::Int32 { f, d: dest.slot, a: a.slot, b: amount.slot });
    }
    let function = if left { ScalarFn::Shl } else { ScalarFn::Shr };
    let sources = [Some(a), Some(amount), None, None];
    Ok(Op::Scalar(Box::new(Scalar { function, ty, ftz: false, saturate: false, dest, sources })))
}

fn min_max(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let (ftz, nan) = (m.take("ftz"), m.take("NaN"));
    if m.take("xorsign") || m.take("relu") || nan {
        return b.unsupported();
    }
    let ty = type_of(b, m)?;
    let min = base == "min";
    if i.operands.len() != 3 {
        return b.error("minimum and maximum of three operands are not supported");
    }
    match ty {
        Type::S32 => int32(b, if min { IntOp::MinS } else { IntOp::MaxS }, i),
        Type::U32 => int32(b, if min { IntOp::MinU } else { IntOp::MaxU }, i),
        Type::F32 => float32(b, if min { FloatOp::Min } else { FloatOp::Max }, ftz, i),
        _ => plain(b, if min { ScalarFn::Min } else { ScalarFn::Max }, ty, ftz, false, &i.operands),
    }
}

fn fma(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    nearest_only(b, m)?;
    let (ftz, saturate) = (m.take("ftz"), m.take("sat"));
    let ty = type_of(b, m)?;
    fused(b, ty, ftz, saturate, i)
}

fn fused(b: &mut Builder, ty: Type, ftz: bool, saturate: bool, i: &Instruction) -> Lowered<Op> {
    let [d, x, y, z] = b.operands(i)?;
    if ty == Type::F32 && !saturate {
        let (a, c, e) = (b.source(x, ty)?.slot, b.source(y, ty)?.slot, b.source(z, ty)?.slot);
        return Ok(Op::Fma32 { ftz, d: b.dest(d, ty)?.slot, a, b: c, c: e });
    }
    plain(b, ScalarFn::Fma, ty, ftz, saturate, &i.operands)
}

fn unary(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let f = match base {
        "ex2" => UnaryOp::Ex2,
        "lg2" => UnaryOp::Lg2,
        "rcp" => UnaryOp::Rcp,
        "sqrt" => UnaryOp::Sqrt,
        "rsqrt" => UnaryOp::Rsqrt,
        "sin" => UnaryOp::Sin,
        "cos" => UnaryOp::Cos,
        "tanh" => UnaryOp::Tanh,
        "neg" => UnaryOp::Neg,
        _ => UnaryOp::Abs,
    };
    let _ = m.take("approx") || m.take("rn");
    let ftz = m.take("ftz");
    let ty = type_of(b, m)?;
    let [d, x] = b.operands(i)?;
    if ty == Type::F32 {
        let a = b.source(x, ty)?.slot;
        return Ok(Op::Unary32 { f, ftz, d: b.dest(d, ty)?.slot, a });
    }
    let function = match f {
        UnaryOp::Neg => ScalarFn::Neg,
        UnaryOp::Abs => ScalarFn::Abs,
        other if ty.is_float() => ScalarFn::Unary(other),
        _ => return b.unsupported(),
    };
    plain(b, function, ty, ftz, false, &i.operands)
}

fn parse_compare(name: &str) -> Option<(Compare, bool)> {
    Some(match name {
        "eq" => (Compare::Eq, false),
        "ne" => (Compare::Ne, false),
        "lt" => (Compare::Lt, false),
        "le" => (Compare::Le, false),
        "gt" => (Compare::Gt, false),
        "ge" => (Compare::Ge, false),
        // Unsigned comparisons of older PTX.
        "lo" => (Compare::Lt, true),
        "ls" => (Compare::Le, true),
        "hi" => (Compare::Gt, true),
        "hs" => (Compare::Ge, true),
        "equ" => (Compare::Equ, false),
        "neu" => (Compare::Neu, false),
        "ltu" => (Compare::Ltu, false),
        "leu" => (Compare::Leu, false),
        "gtu" => (Compare::Gtu, false),
        "geu" => (Compare::Geu, false),
        "num" => (Compare::Num, false),
        "nan" => (Compare::Nan, false),
        _ => return None,
    })
}

fn parse_logic(name: &str) -> Option<Logic> {
    Some(match name {
        "and" => Logic::And,
        "or" => Logic::Or,
        "xor" => Logic::Xor,
        _ => return None,
    })
}

fn compare(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let Some((compare, unsigned)) = m.take_map(parse_compare) else { return b.error("the comparison is missing") };
    let logic = m.take_map(parse_logic);
    let ftz = m.take("ftz");
    let set = if base == "set" { Some(type_of(b, m)?) } else { None };
    let ty = type_of(b, m)?;
    let ty = match (unsigned, ty) {
        (true, Type::S32 | Type::B32) => Type::U32,
        (true, Type::S64 | Type::B64) => Type::U64,
        _ => ty,
    };
    if i.operands.len() != if logic.is_some() { 4 } else { 3 } {
        return b.error("a comparison takes two operands, and a predicate if it combines");
    }
    let (x, y) = (b.source(&i.operands[1], ty)?, b.source(&i.operands[2], ty)?);
    let combine = match logic {
        Some(logic) => {
            let (slot, negated) = b.predicate(&i.operands[3])?;
            Some((logic, slot, negated))
        }
        None => None,
    };
    if let Some(result) = set {
        let dest = b.dest(&i.operands[0], result)?;
        let set = SetPredicate { compare, ty, ftz, dest: None, complement: None, a: x, b: y, combine, set: Some((result, dest)) };
        return Ok(Op::SetPred(Box::new(set)));
    }
    let (dest, complement) = match &i.operands[0] {
        Operand::Pair(p, q) => (b.dest_any(p)?.map(|r| r.slot), b.dest_any(q)?.map(|r| r.slot)),
        p => (Some(b.dest(p, Type::Pred)?.slot), None),
    };
    let class = match ty {
        Type::F32 => Some(CompareAs::Float),
        Type::S32 => Some(CompareAs::Signed),
        Type::U32 | Type::B32 => Some(CompareAs::Unsigned),
        _ => None,
    };
    if let (Some(class), Some(d), None, None) = (class, dest, complement, combine) {
        return Ok(Op::Set32 { compare, class, ftz, d, a: x.slot, b: y.slot });
    }
    Ok(Op::SetPred(Box::new(SetPredicate { compare, ty, ftz, dest, complement, a: x, b: y, combine, set: None })))
}

fn select(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let ty = type_of(b, m)?;
    let [d, x, y, p] = b.operands(i)?;
    let (a, c) = (b.source(x, ty)?.slot, b.source(y, ty)?.slot);
    let (p, negated) = b.predicate(p)?;
    let d = b.dest(d, ty)?.slot;
    Ok(match bank_of(ty) {
        Bank::Word => Op::Select32 { d, a, b: c, p, negated },
        Bank::Double => Op::Select64 { d, a, b: c, p, negated },
        Bank::Pred => return b.unsupported(),
    })
}
