//! Moves, packing and conversion.

use super::bank_of;
use super::builder::{Builder, Lowered};
use super::modifiers::Modifiers;
use super::op::*;
use crate::ptx::Type;
use crate::ptx::ast::{Instruction, Operand};

/// Decodes `instruction` if it belongs here.
pub fn lower(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Option<Op>> {
    Ok(Some(match base {
        "mov" => mov(b, m, i)?,
        "cvt" => cvt(b, m, i)?,
        "cvta" => cvta(b, m, i)?,
        "isspacep" => {
            let Some(space) = m.take_map(space_named) else { return b.error("the space is missing") };
            let [d, a] = b.operands(i)?;
            let a = b.source(a, Type::U64)?.slot;
            Op::IsSpace { d: b.dest(d, Type::Pred)?.slot, a, space }
        }
        _ => return Ok(None),
    }))
}

fn space_named(name: &str) -> Option<Space> {
    Some(match name {
        "global" | "const" => Space::Global,
        "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
        "local" => Space::Local,
        "param" | "param::entry" => Space::Param,
        _ => return None,
    })
}

fn mov(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let Some(ty) = m.take_type() else { return b.error("the type is missing") };
    let [d, a] = b.operands(i)?;
    match (d, a) {
        (Operand::Vector(parts), a) => return unpack(b, ty, parts, a),
        (d, Operand::Vector(parts)) => return pack(b, ty, d, parts),
        (d, Operand::Name(name)) if matches!(name.as_str(), "%clock" | "%clock64" | "%globaltimer" | "%clock_hi" | "%globaltimer_lo") => {
            let d = b.dest(d, ty)?;
            return Ok(Op::Clock { d, nanoseconds: name.starts_with("%globaltimer") });
        }
        _ => {}
    }
    let a = b.source(a, ty)?.slot;
    let d = b.dest(d, ty)?.slot;
    Ok(match bank_of(ty) {
        Bank::Word => Op::Mov32 { d, a },
        Bank::Double => Op::Mov64 { d, a },
        Bank::Pred => Op::MovPred { d, a },
    })
}

fn pack(b: &mut Builder, ty: Type, d: &Operand, parts: &[Operand]) -> Lowered<Op> {
    let [lo, hi] = parts else { return b.error("packing takes two parts") };
    let part = match ty.bytes() {
        8 => Type::B32,
        4 => Type::B16,
        _ => return b.unsupported(),
    };
    let (lo, hi) = (b.source(lo, part)?.slot, b.source(hi, part)?.slot);
    let d = b.dest(d, ty)?.slot;
    Ok(if ty.bytes() == 8 { Op::Pack64 { d, lo, hi } } else { Op::Pack32 { d, lo, hi } })
}

fn unpack(b: &mut Builder, ty: Type, parts: &[Operand], a: &Operand) -> Lowered<Op> {
    let [lo, hi] = parts else { return b.error("unpacking takes two parts") };
    let a = b.source(a, ty)?.slot;
    let (lo, hi) = (b.dest_any(lo)?, b.dest_any(hi)?);
    if lo.into_iter().chain(hi).any(|reg| reg.bank != Bank::Word) {
        return b.error("the parts do not have the width of half the whole");
    }
    let (lo, hi) = (lo.map(|r| r.slot), hi.map(|r| r.slot));
    match ty.bytes() {
        8 => Ok(Op::Unpack64 { lo, hi, a }),
        4 => Ok(Op::Unpack32 { lo, hi, a }),
        _ => b.unsupported(),
    }
}

fn rounding(name: &str) -> Option<Rounding> {
    Some(match name {
        "rn" => Rounding::Nearest,
        "rz" => Rounding::Zero,
        "rm" => Rounding::Down,
        "rp" => Rounding::Up,
        "rni" => Rounding::IntNearest,
        "rzi" => Rounding::IntZero,
        "rmi" => Rounding::IntDown,
        "rpi" => Rounding::IntUp,
        "rna" => Rounding::Away,
        _ => return None,
    })
}

fn cvt(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let round = m.take_map(rounding);
    let (ftz, saturate, relu) = (m.take("ftz"), m.take("sat"), m.take("relu"));
    if m.take("tf32") {
        let [d, a] = b.operands(i)?;
        m.take("f32");
        let source = b.source(a, Type::F32)?;
        let dest = b.dest(d, Type::B32)?;
        let rounding = round.unwrap_or(Rounding::Nearest);
        let function = ScalarFn::Convert { from: Type::F32, rounding, saturate, relu };
        // A tf32 value is an f32 with 13 zero bits: the destination's type says so by being packed bits.
        return Ok(Op::Scalar(Box::new(Scalar {
            function,
            ty: Type::B32,
            ftz,
            saturate,
            dest,
            sources: [Some(source), None, None, None],
        })));
    }
    let (Some(to), Some(from)) = (m.take_type(), m.take_type()) else { return b.error("a conversion names two types") };
    if matches!(to, Type::F16x2 | Type::BF16x2) {
        return cvt_pair(b, to, from, round, ftz, relu, i);
    }
    let [d, a] = b.operands(i)?;
    let source = b.source_any(a, from)?;
    let Some(dest) = b.dest_any(d)? else { return b.error("a destination is missing") };
    if source.bank == Bank::Pred || dest.bank == Bank::Pred || from == Type::F16x2 || from == Type::BF16x2 {
        return b.unsupported();
    }
    let default = if to.is_float() { Rounding::Nearest } else { Rounding::IntZero };
    let function = ScalarFn::Convert { from, rounding: round.unwrap_or(default), saturate, relu };
    Ok(Op::Scalar(Box::new(Scalar { function, ty: to, ftz, saturate, dest, sources: [Some(source), None, None, None] })))
}

/// `cvt.rn.f16x2.f32 d, hi, lo`.
fn cvt_pair(b: &mut Builder, to: Type, from: Type, round: Option<Rounding>, ftz: bool, relu: bool, i: &Instruction) -> Lowered<Op> {
    if from != Type::F32 {
        return b.unsupported();
    }
    let [d, hi, lo] = b.operands(i)?;
    let (hi, lo) = (b.source(hi, from)?, b.source(lo, from)?);
    let dest = b.dest(d, to)?;
    let rounding = round.unwrap_or(Rounding::Nearest);
    if rounding == Rounding::Nearest && !relu {
        return Ok(Op::PackHalf { bf16: to == Type::BF16x2, d: dest.slot, hi: hi.slot, lo: lo.slot });
    }
    let function = ScalarFn::ConvertPair { rounding, relu };
    let sources = [Some(hi), Some(lo), None, None];
    Ok(Op::Scalar(Box::new(Scalar { function, ty: to, ftz, saturate: false, dest, sources })))
}

fn cvta(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let to_space = m.take("to");
    let Some(space) = m.take_map(space_named) else { return b.error("the space is missing") };
    let Some(ty) = m.take_type() else { return b.error("the type is missing") };
    let [d, a] = b.operands(i)?;
    let a = b.source(a, ty)?;
    Ok(Op::Cvta { d: b.dest(d, ty)?, a, space, to_space })
}
