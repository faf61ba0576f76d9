//! Loads, stores, atomics, fences, matrix moves.

use super::builder::{Builder, Lowered};
use super::modifiers::Modifiers;
use super::op::*;
use super::{Constant, bank_of};
use crate::ptx::Type;
use crate::ptx::ast::{Instruction, Operand};

/// Decodes `instruction` if it belongs here.
pub fn lower(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Option<Op>> {
    Ok(Some(match base {
        "ld" | "ldu" | "st" => access(b, base, m, i)?,
        "atom" | "red" => atomic(b, base, m, i)?,
        "membar" => {
            let scope = m.take_map(|name| match name {
                "cta" => Some(Scope::Cta),
                "gl" => Some(Scope::Gpu),
                "sys" => Some(Scope::Sys),
                _ => None,
            });
            match scope {
                Some(scope) => Op::Fence(Fence::Memory(scope)),
                None => return b.unsupported(),
            }
        }
        "fence" => fence(b, m)?,
        "ldmatrix" | "stmatrix" => matrix(b, base, m, i)?,
        // Hints of the caches change nothing here.
        "prefetch" | "prefetchu" | "discard" | "applypriority" => {
            while let Some(part) = m.peek() {
                m.take(part);
            }
            Op::Nop
        }
        _ => return Ok(None),
    }))
}

/// Takes the state space.
pub fn take_space(m: &mut Modifiers) -> Space {
    m.take_map(|name| {
        Some(match name {
            "global" | "const" => Space::Global,
            "shared" | "shared::cta" | "shared::cluster" => Space::Shared,
            "local" => Space::Local,
            "param" | "param::entry" | "param::func" => Space::Param,
            _ => return None,
        })
    })
    .unwrap_or(Space::Generic)
}

/// Takes the scope.
pub fn take_scope(m: &mut Modifiers) -> Option<Scope> {
    m.take_map(|name| {
        Some(match name {
            "cta" => Scope::Cta,
            "cluster" => Scope::Cluster,
            "gpu" => Scope::Gpu,
            "sys" => Scope::Sys,
            _ => return None,
        })
    })
}

fn take_order(m: &mut Modifiers) -> Option<Order> {
    m.take_map(|name| {
        Some(match name {
            "weak" => Order::Weak,
            "relaxed" | "volatile" | "mmio" => Order::Relaxed,
            "acquire" => Order::Acquire,
            "release" => Order::Release,
            "acq_rel" => Order::AcqRel,
            _ => return None,
        })
    })
}

fn take_cache_hints(m: &mut Modifiers) {
    let hint = |name: &str| {
        let known = matches!(name, "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt" | "nc")
            || name.starts_with("L1::")
            || name.starts_with("L2::") && name != "L2::cache_hint";
        known.then_some(())
    };
    while m.take_map(hint).is_some() {}
}

fn access(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let load = base != "st";
    let order = take_order(m).unwrap_or(Order::Weak);
    let scope = take_scope(m).unwrap_or(Scope::Cta);
    let space = take_space(m);
    take_cache_hints(m);
    let hinted = m.take("L2::cache_hint");
    let lanes = m.take_map(|name| match name {
        "v2" => Some(2),
        "v4" => Some(4),
        "v8" => Some(8),
        _ => None,
    });
    let Some(ty) = m.take_type() else { return b.error("the type is missing") };
    if ty == Type::Pred || ty == Type::B128 {
        return b.unsupported();
    }
    if i.operands.len() != 2 + usize::from(hinted) {
        return b.error("an access takes a register and an address");
    }
    let (value, at) = if load { (&i.operands[0], &i.operands[1]) } else { (&i.operands[1], &i.operands[0]) };
    let (address, space) = b.address(at, space)?;
    let parts = match value {
        Operand::Vector(parts) => parts.as_slice(),
        single => std::slice::from_ref(single),
    };
    if parts.len() != lanes.unwrap_or(1) {
        return b.error("the vector has another length than the instruction says");
    }
    let mut regs = Vec::with_capacity(parts.len());
    for part in parts {
        let reg = if load { b.dest_any(part)? } else { Some(b.source_any(part, ty)?) };
        if let Some(reg) = reg
            && (reg.bank == Bank::Pred || (bank_of(ty) == Bank::Double && reg.bank != Bank::Double))
        {
            return b.error("the register is narrower than the access");
        }
        regs.push(reg);
    }
    let access = Box::new(Access { space, ty, address, regs, order, scope });
    Ok(if load { Op::Load(access) } else { Op::Store(access) })
}

fn atomic_fn(name: &str) -> Option<AtomicFn> {
    Some(match name {
        "add" => AtomicFn::Add,
        "min" => AtomicFn::Min,
        "max" => AtomicFn::Max,
        "inc" => AtomicFn::Inc,
        "dec" => AtomicFn::Dec,
        "and" => AtomicFn::And,
        "or" => AtomicFn::Or,
        "xor" => AtomicFn::Xor,
        "exch" => AtomicFn::Exchange,
        "cas" => AtomicFn::CompareSwap,
        _ => return None,
    })
}

/// Takes the function of a reduction.
pub fn take_atomic_fn(m: &mut Modifiers) -> Option<AtomicFn> {
    m.take_map(atomic_fn)
}

fn atomic(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let order = take_order(m).unwrap_or(Order::Relaxed);
    let scope = take_scope(m).unwrap_or(Scope::Gpu);
    let space = take_space(m);
    m.take("noftz");
    let Some(function) = take_atomic_fn(m) else { return b.unsupported() };
    let Some(ty) = m.take_type() else { return b.error("the type is missing") };
    if matches!(ty, Type::Pred | Type::B128 | Type::B8 | Type::U8 | Type::S8) {
        return b.unsupported();
    }
    let returns = base == "atom";
    let operands = &i.operands[usize::from(returns).min(i.operands.len())..];
    let wanted = if function == AtomicFn::CompareSwap { 3 } else { 2 };
    if operands.len() != wanted || i.operands.len() != wanted + usize::from(returns) {
        return b.error("an atomic takes an address and its operands");
    }
    let (address, space) = b.address(&operands[0], space)?;
    let value = b.source(&operands[1], ty)?;
    let c = if wanted == 3 { Some(b.source(&operands[2], ty)?) } else { None };
    let dest = if returns { b.dest_any(&i.operands[0])? } else { None };
    Ok(Op::Atomic(Box::new(Atomic { function, space, ty, address, dest, b: value, c, order, scope })))
}

fn fence(b: &mut Builder, m: &mut Modifiers) -> Lowered<Op> {
    if m.take("mbarrier_init") {
        m.take("release");
        m.take("cluster");
        return Ok(Op::Fence(Fence::MbarrierInit));
    }
    if m.take("proxy") {
        let known = m.take_map(|name| match name {
            "async" | "async.shared::cta" => Some(Fence::ProxyAsync),
            "alias" => Some(Fence::ProxyOther),
            "tensormap::generic" => Some(Fence::ProxyOther),
            _ => None,
        });
        let Some(kind) = known else { return b.unsupported() };
        let space = m.take_map(|name| matches!(name, "global" | "shared::cta" | "shared::cluster").then(|| name == "global"));
        take_order(m);
        take_scope(m);
        // A fence of the global space alone leaves shared memory unordered.
        return Ok(Op::Fence(if kind == Fence::ProxyAsync && space == Some(true) { Fence::ProxyOther } else { kind }));
    }
    let _ = m.take("sc") || take_order(m).is_some();
    match take_scope(m) {
        Some(scope) => Ok(Op::Fence(Fence::Memory(scope))),
        None => b.error("the scope is missing"),
    }
}

fn matrix(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let load = base == "ldmatrix";
    if !(m.take("sync") && m.take("aligned") && m.take("m8n8")) {
        return b.unsupported();
    }
    let count = m.take_map(|name| match name {
        "x1" => Some(1),
        "x2" => Some(2),
        "x4" => Some(4),
        _ => None,
    });
    let transposed = m.take("trans");
    let space = take_space(m);
    if !m.take("b16") {
        return b.unsupported();
    }
    let [first, second] = b.operands(i)?;
    let (value, at) = if load { (first, second) } else { (second, first) };
    let (address, space) = b.address(at, space)?;
    let parts = match value {
        Operand::Vector(parts) => parts.as_slice(),
        single => std::slice::from_ref(single),
    };
    if Some(parts.len()) != count {
        return b.error("the vector has another length than the instruction says");
    }
    let mut regs = Vec::new();
    for part in parts {
        let reg = if load { b.dest(part, Type::B32)? } else { b.source(part, Type::B32)? };
        regs.push(reg.slot);
    }
    Ok(Op::MatrixMove(Box::new(MatrixMove { load, transposed, space, address, regs })))
}

/// A 32-bit operand that may be missing; the default is a constant.
pub fn optional_word(b: &mut Builder, operand: Option<&Operand>, default: u64) -> Lowered<Slot> {
    match operand {
        Some(operand) => Ok(b.source(operand, Type::U32)?.slot),
        None => Ok(b.constant(Bank::Word, Constant::Bits(default)).slot),
    }
}
