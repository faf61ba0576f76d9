//! Bulk copies and warpgroup products.

use super::builder::{Builder, Lowered};
use super::memory::take_atomic_fn;
use super::modifiers::Modifiers;
use super::op::*;
use crate::ptx::Type;
use crate::ptx::ast::{Instruction, Operand};

/// Decodes `instruction` if it belongs here.
pub fn lower(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Option<Op>> {
    Ok(Some(match base {
        "cp" => copy(b, m, i)?,
        "wgmma" => wgmma(b, m, i)?,
        _ => return Ok(None),
    }))
}

fn constant(b: &Builder, operand: &Operand) -> Lowered<u32> {
    match operand {
        Operand::Int(value) if *value <= u64::from(u32::MAX) => Ok(*value as u32),
        _ => b.error("a constant is missing here"),
    }
}

fn copy(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let reduce = m.take("reduce");
    if !(m.take("async") && m.take("bulk")) {
        return b.error("cp.async without .bulk is not known to the emulator");
    }
    if m.take("commit_group") {
        return Ok(Op::BulkCommit);
    }
    if m.take("wait_group") {
        let read = m.take("read");
        let [pending] = b.operands(i)?;
        return Ok(Op::BulkWait { pending: constant(b, pending)?, read });
    }
    if m.take("prefetch") {
        while let Some(part) = m.peek() {
            m.take(part);
        }
        return Ok(Op::Nop);
    }
    if m.take("tensor") { tensor(b, reduce, m, i) } else { linear(b, reduce, m, i) }
}

/// Direction by the order of the spaces: destination first.
fn direction(b: &mut Builder, reduce: bool, m: &mut Modifiers) -> Lowered<Direction> {
    let spaces: Vec<_> = std::iter::from_fn(|| {
        m.take_map(|name| match name {
            "shared::cluster" => Some("cluster"),
            "shared::cta" => Some("cta"),
            "global" => Some("global"),
            _ => None,
        })
    })
    .collect();
    let function = if reduce { take_atomic_fn(m) } else { None };
    match (spaces.as_slice(), reduce, function) {
        (["cluster" | "cta", "global"], false, _) => Ok(Direction::Load),
        (["global", "cta"], false, _) => Ok(Direction::Store),
        (["global", "cta"], true, Some(function)) => Ok(Direction::Reduce(function)),
        _ => b.error("this pair of spaces is not known to the emulator"),
    }
}

fn completion(b: &Builder, direction: Direction, m: &mut Modifiers) -> Lowered<()> {
    let by_mbarrier = m.take("mbarrier::complete_tx::bytes");
    let by_group = m.take("bulk_group");
    if by_mbarrier == by_group || by_mbarrier != (direction == Direction::Load) {
        return b.error("the completion mechanism does not fit the direction");
    }
    Ok(())
}

fn tensor(b: &mut Builder, reduce: bool, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let rank = m.take_map(|name| match name {
        "1d" => Some(1),
        "2d" => Some(2),
        "3d" => Some(3),
        "4d" => Some(4),
        "5d" => Some(5),
        _ => None,
    });
    let Some(rank) = rank else { return b.error("the number of dimensions is missing") };
    let direction = direction(b, reduce, m)?;
    m.take("tile");
    completion(b, direction, m)?;
    let hinted = usize::from(m.take("L2::cache_hint"));
    let load = direction == Direction::Load;
    if i.operands.len() != if load { 3 } else { 2 } + hinted {
        return b.error("the number of operands does not fit");
    }
    if hinted == 1 {
        b.source(&i.operands[i.operands.len() - 1], Type::B64)?;
    }
    let (shared, tensor) = if load { (&i.operands[0], &i.operands[1]) } else { (&i.operands[1], &i.operands[0]) };
    let (shared, _) = b.address(shared, Space::Shared)?;
    let Operand::Address { coords, .. } = tensor else { return b.error("the tensor's address is missing") };
    if coords.len() != rank {
        return b.error("the number of coordinates differs from the number of dimensions");
    }
    let (map, _) = b.address(tensor, Space::Generic)?;
    let coords = coords.iter().map(|c| b.source(c, Type::S32).map(|reg| reg.slot)).collect::<Lowered<Vec<_>>>()?;
    let mbarrier = if load { Some(b.address(&i.operands[2], Space::Shared)?.0) } else { None };
    Ok(Op::BulkTensor(Box::new(BulkTensor { direction, shared, map, coords, mbarrier })))
}

fn linear(b: &mut Builder, reduce: bool, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let direction = direction(b, reduce, m)?;
    completion(b, direction, m)?;
    m.take("noftz");
    let ty = if reduce { m.take_type() } else { Some(Type::B8) };
    let Some(ty) = ty else { return b.error("the type is missing") };
    let hinted = usize::from(m.take("L2::cache_hint"));
    let load = direction == Direction::Load;
    if i.operands.len() != if load { 4 } else { 3 } + hinted {
        return b.error("the number of operands does not fit");
    }
    if hinted == 1 {
        b.source(&i.operands[i.operands.len() - 1], Type::B64)?;
    }
    let (shared, global) = if load { (&i.operands[0], &i.operands[1]) } else { (&i.operands[1], &i.operands[0]) };
    let (shared, _) = b.address(shared, Space::Shared)?;
    let (global, _) = b.address(global, Space::Global)?;
    let bytes = b.source(&i.operands[2], Type::U32)?.slot;
    let mbarrier = if load { Some(b.address(&i.operands[3], Space::Shared)?.0) } else { None };
    Ok(Op::BulkCopy(Box::new(BulkCopy { direction, ty, shared, global, bytes, mbarrier })))
}

fn wgmma(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let Some(what) = m.peek() else { return b.unsupported() };
    m.take(what);
    if !(m.take("sync") && m.take("aligned")) {
        return b.error("`.sync.aligned` is missing");
    }
    match what {
        "fence" => Ok(Op::WgmmaFence),
        "commit_group" => Ok(Op::WgmmaCommit),
        "wait_group" => {
            let [pending] = b.operands(i)?;
            Ok(Op::WgmmaWait { pending: constant(b, pending)? })
        }
        "mma_async" => product(b, m, i),
        _ => b.unsupported(),
    }
}

fn parse_shape(name: &str) -> Option<(u32, u32)> {
    let (n, k) = name.strip_prefix("m64n")?.split_once('k')?;
    Some((n.parse().ok()?, k.parse().ok()?))
}

fn product(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let Some((n, k)) = m.take_map(parse_shape) else { return b.error("the shape is missing") };
    if !m.take("f32") {
        return b.error("products are emulated with f32 accumulators only");
    }
    let input = if m.take("f16") && m.take("f16") {
        MatrixType::F16
    } else if m.take("bf16") && m.take("bf16") {
        MatrixType::BF16
    } else if m.take("tf32") && m.take("tf32") {
        MatrixType::TF32
    } else {
        return b.unsupported();
    };
    if !(8..=256).contains(&n) || n % 8 != 0 || k != if input == MatrixType::TF32 { 8 } else { 16 } {
        return b.error("no such shape");
    }
    let [Operand::Vector(d), a, descriptor, scale_d, rest @ ..] = i.operands.as_slice() else {
        return b.error("a product takes accumulators, A, B and scale-d");
    };
    if d.len() as u32 != n / 2 {
        return b.error(format!("{} accumulators are expected, {} are given", n / 2, d.len()));
    }
    let accumulators = d.iter().map(|d| b.dest(d, Type::F32).map(|reg| reg.slot)).collect::<Lowered<Vec<_>>>()?;
    let immediates = rest.iter().map(|operand| sign_or_flag(b, operand)).collect::<Lowered<Vec<_>>>()?;
    let from_registers = matches!(a, Operand::Vector(_));
    let halves = input != MatrixType::TF32;
    let transposes = if !halves {
        0
    } else if from_registers {
        1
    } else {
        2
    };
    if immediates.len() != 2 + transposes {
        return b.error(format!("{} immediates are expected, {} are given", 2 + transposes, immediates.len()));
    }
    let flag = |at: usize| immediates.get(at).copied().unwrap_or(0) == 1;
    let a = match a {
        Operand::Vector(parts) => {
            let [p, q, r, s] = parts.as_slice() else { return b.error("A takes four registers") };
            let mut regs = [0; 4];
            for (reg, operand) in regs.iter_mut().zip([p, q, r, s]) {
                *reg = b.source(operand, Type::B32)?.slot;
            }
            MatrixA::Registers(regs)
        }
        descriptor => MatrixA::Shared { descriptor: b.source(descriptor, Type::B64)?.slot, transposed: halves && flag(2) },
    };
    let b_descriptor = b.source(descriptor, Type::B64)?.slot;
    let (scale_d, scale_d_negated) = b.predicate(scale_d)?;
    let b_transposed = halves && flag(if from_registers { 2 } else { 3 });
    let (negate_a, negate_b) = (immediates[0] == -1, immediates[1] == -1);
    Ok(Op::Wgmma(Box::new(Wgmma { n, input, accumulators, a, b_descriptor, b_transposed, scale_d, scale_d_negated, negate_a, negate_b })))
}

fn sign_or_flag(b: &Builder, operand: &Operand) -> Lowered<i64> {
    match operand {
        Operand::Int(value) if matches!(*value as i64, -1..=1) => Ok(*value as i64),
        _ => b.error("an immediate of -1, 0 or 1 is missing here"),
    }
}
