//! Barriers, mbarriers, warp-wide exchange.

use super::builder::{Builder, Lowered};
use super::memory::{optional_word, take_scope, take_space};
use super::modifiers::Modifiers;
use super::op::*;
use crate::ptx::Type;
use crate::ptx::ast::{Instruction, Operand};

/// Decodes `instruction` if it belongs here.
pub fn lower(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Option<Op>> {
    Ok(Some(match base {
        "bar" | "barrier" => barrier(b, base, m, i)?,
        "shfl" => shuffle(b, m, i)?,
        "vote" => vote(b, m, i)?,
        "match" => matching(b, m, i)?,
        "redux" => redux(b, m, i)?,
        "activemask" => {
            m.take("b32");
            let [d] = b.operands(i)?;
            Op::ActiveMask { d: b.dest(d, Type::B32)?.slot }
        }
        "elect" => {
            m.take("sync");
            let [d, mask] = b.operands(i)?;
            let Operand::Pair(d, p) = d else { return b.unsupported() };
            let mask = b.source(mask, Type::B32)?.slot;
            let d = b.dest_any(d)?.map(|reg| reg.slot);
            Op::Elect { d, p: b.dest(p, Type::Pred)?.slot, mask }
        }
        "mbarrier" => mbarrier(b, m, i)?,
        "trap" | "brkpt" => Op::Trap,
        "nanosleep" => {
            m.take("u32");
            let [t] = b.operands(i)?;
            b.source(t, Type::U32)?;
            Op::Nop
        }
        "griddepcontrol" => {
            if !(m.take("wait") || m.take("launch_dependents")) {
                return b.unsupported();
            }
            Op::Nop
        }
        "setmaxnreg" => {
            let increase = m.take("inc");
            if !(increase || m.take("dec")) || !(m.take("sync") && m.take("aligned") && m.take("u32")) {
                return b.unsupported();
            }
            let [Operand::Int(count)] = b.operands(i)? else { return b.error("a constant is missing here") };
            if !(24..=256).contains(count) || count % 8 != 0 {
                return b.error("the count must be a multiple of 8 from 24 to 256");
            }
            Op::SetMaxRegisters { increase, count: *count as u32 }
        }
        _ => return Ok(None),
    }))
}

fn barrier(b: &mut Builder, base: &str, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    if m.peek() == Some("warp") {
        m.take("warp");
        m.take("sync");
        let [mask] = b.operands(i)?;
        return Ok(Op::WarpSync { mask: b.source(mask, Type::B32)?.slot });
    }
    if m.take("cluster") {
        return cluster_barrier(b, m, i);
    }
    m.take("cta");
    let aligned = base == "bar" || m.take("aligned");
    let red = m.take("red");
    let mode = if red {
        match m.take_map(|name| match name {
            "popc" => Some(BarrierMode::RedPopc),
            "and" => Some(BarrierMode::RedAnd),
            "or" => Some(BarrierMode::RedOr),
            _ => None,
        }) {
            Some(mode) => mode,
            None => return b.unsupported(),
        }
    } else if m.take("arrive") {
        BarrierMode::Arrive
    } else if m.take("sync") {
        BarrierMode::Sync
    } else {
        return b.unsupported();
    };
    m.take("aligned");
    if red {
        m.take("u32");
        m.take("pred");
        let (d, id, count, p) = match i.operands.as_slice() {
            [d, id, p] => (d, id, None, p),
            [d, id, count, p] => (d, id, Some(count), p),
            _ => return b.unsupported(),
        };
        let id = b.source(id, Type::U32)?.slot;
        let count = count.map(|count| b.source(count, Type::U32)).transpose()?.map(|reg| reg.slot);
        let source = Some(b.predicate(p)?);
        let ty = if mode == BarrierMode::RedPopc { Type::U32 } else { Type::Pred };
        let dest = Some(b.dest(d, ty)?);
        return Ok(Op::Barrier(Box::new(Barrier { mode, aligned, id, count, dest, source })));
    }
    let (id, count) = match i.operands.as_slice() {
        [id] if mode == BarrierMode::Sync => (id, None),
        [id, count] => (id, Some(count)),
        _ => return b.error("a barrier takes its number and a count of threads"),
    };
    let id = b.source(id, Type::U32)?.slot;
    let count = count.map(|count| b.source(count, Type::U32)).transpose()?.map(|reg| reg.slot);
    Ok(Op::Barrier(Box::new(Barrier { mode, aligned, id, count, dest: None, source: None })))
}

/// A cluster is one CTA here, so that its barrier is one of the CTA; arrival and wait must come as a pair.
fn cluster_barrier(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let arrive = m.take("arrive");
    if !arrive && !m.take("wait") {
        return b.unsupported();
    }
    for part in ["release", "acquire", "relaxed", "aligned"] {
        m.take(part);
    }
    if !i.operands.is_empty() {
        return b.error("a cluster barrier takes no operands");
    }
    let id = optional_word(b, None, 0)?;
    Ok(if arrive {
        Op::Nop
    } else {
        Op::Barrier(Box::new(Barrier { mode: BarrierMode::Sync, aligned: false, id, count: None, dest: None, source: None }))
    })
}

fn shuffle(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let mode = m.take_map(|name| {
        Some(match name {
            "up" => ShuffleMode::Up,
            "down" => ShuffleMode::Down,
            "bfly" => ShuffleMode::Butterfly,
            "idx" => ShuffleMode::Index,
            _ => return None,
        })
    });
    let (Some(mode), true, true) = (mode, m.take("sync"), m.take("b32")) else { return b.unsupported() };
    let [d, a, lane, clamp, mask] = b.operands(i)?;
    let (a, lane) = (b.source(a, Type::B32)?.slot, b.source(lane, Type::B32)?.slot);
    let (c, mask) = (b.source(clamp, Type::B32)?.slot, b.source(mask, Type::B32)?.slot);
    let (d, p) = match d {
        Operand::Pair(d, p) => (b.dest(d, Type::B32)?.slot, b.dest_any(p)?.map(|reg| reg.slot)),
        d => (b.dest(d, Type::B32)?.slot, None),
    };
    Ok(Op::Shuffle { mode, d, p, a, b: lane, c, mask })
}

fn vote(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let mode = m.take_map(|name| {
        Some(match name {
            "all" => VoteMode::All,
            "any" => VoteMode::Any,
            "uni" => VoteMode::Uniform,
            "ballot" => VoteMode::Ballot,
            _ => return None,
        })
    });
    let (Some(mode), true, Some(ty)) = (mode, m.take("sync"), m.take_type()) else { return b.unsupported() };
    let [d, a, mask] = b.operands(i)?;
    let (a, negated) = b.predicate(a)?;
    let mask = b.source(mask, Type::B32)?.slot;
    Ok(Op::Vote { mode, d: b.dest(d, ty)?, a, negated, mask })
}

fn matching(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let all = m.take("all");
    if !(all || m.take("any")) || !m.take("sync") {
        return b.unsupported();
    }
    let Some(ty) = m.take_type() else { return b.error("the type is missing") };
    let [d, a, mask] = b.operands(i)?;
    let a = b.source(a, ty)?;
    let mask = b.source(mask, Type::B32)?.slot;
    let (d, p) = match d {
        Operand::Pair(d, p) => (b.dest(d, Type::B32)?.slot, b.dest_any(p)?.map(|reg| reg.slot)),
        d => (b.dest(d, Type::B32)?.slot, None),
    };
    Ok(Op::Match { all, d, p, a, mask })
}

fn redux(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let f = m.take_map(|name| {
        Some(match name {
            "add" => ReduxFn::Add,
            "min" => ReduxFn::Min,
            "max" => ReduxFn::Max,
            "and" => ReduxFn::And,
            "or" => ReduxFn::Or,
            "xor" => ReduxFn::Xor,
            _ => return None,
        })
    });
    let (true, Some(f), Some(ty)) = (m.take("sync"), f, m.take_type()) else { return b.unsupported() };
    if ty.is_float() {
        return b.unsupported();
    }
    let [d, a, mask] = b.operands(i)?;
    let (a, mask) = (b.source(a, ty)?.slot, b.source(mask, Type::B32)?.slot);
    Ok(Op::Redux { f, signed: ty.is_signed(), d: b.dest(d, ty)?.slot, a, mask })
}

fn mbarrier(b: &mut Builder, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let Some(what) = m.peek() else { return b.unsupported() };
    m.take(what);
    match what {
        "init" | "inval" | "expect_tx" | "complete_tx" => {
            if m.take("relaxed") {
                take_scope(m);
            }
            let space = take_space(m);
            m.take("b64");
            let Some(first) = i.operands.first() else { return b.error("an address is missing here") };
            let (address, space) = b.address(first, space)?;
            let wanted = if what == "inval" { 1 } else { 2 };
            if i.operands.len() != wanted {
                return b.error(format!("{wanted} operands are expected, {} are given", i.operands.len()));
            }
            if what == "inval" {
                return Ok(Op::MbarrierInval { address, space });
            }
            let value = b.source(&i.operands[1], Type::U32)?.slot;
            Ok(match what {
                "init" => Op::MbarrierInit { address, space, count: value },
                "expect_tx" => Op::MbarrierExpectTx { address, space, bytes: value },
                _ => Op::MbarrierCompleteTx { address, space, bytes: value },
            })
        }
        "arrive" | "arrive_drop" => arrive(b, what == "arrive_drop", m, i),
        "test_wait" | "try_wait" => wait(b, what == "try_wait", m, i),
        "pending_count" => {
            m.take("b64");
            let [d, state] = b.operands(i)?;
            let state = b.source(state, Type::B64)?.slot;
            Ok(Op::PendingCount { d: b.dest(d, Type::U32)?.slot, state })
        }
        _ => b.unsupported(),
    }
}

fn arrive(b: &mut Builder, drop: bool, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let expect = m.take("expect_tx");
    if m.take("noComplete") {
        return b.unsupported();
    }
    let relaxed = m.take("relaxed");
    m.take("release");
    take_scope(m);
    let space = take_space(m);
    m.take("b64");
    // `mbarrier.arrive [a]` of PTX 8.0 for remote barriers has no state operand.
    let (state, rest) = match i.operands.as_slice() {
        [Operand::Address { .. }, ..] => (None, i.operands.as_slice()),
        [state, rest @ ..] => (b.dest_any(state)?, rest),
        [] => return b.error("operands are missing"),
    };
    let Some(first) = rest.first() else { return b.error("an address is missing here") };
    let (address, space) = b.address(first, space)?;
    let value = rest.get(1).map(|operand| b.source(operand, Type::U32)).transpose()?.map(|reg| reg.slot);
    if rest.len() > 2 || (expect && value.is_none()) {
        return b.error("an arrival takes an address, and a count or a number of bytes");
    }
    if state.is_some_and(|reg| reg.bank != Bank::Double) {
        return b.error("a state is 64 bits wide");
    }
    let (count, expect_tx) = if expect { (None, value) } else { (value, None) };
    let state = state.map(|reg| reg.slot);
    Ok(Op::Arrive(Box::new(Arrive { address, space, count, expect_tx, drop, release: !relaxed, state })))
}

fn wait(b: &mut Builder, may_suspend: bool, m: &mut Modifiers, i: &Instruction) -> Lowered<Op> {
    let parity = m.take("parity");
    let relaxed = m.take("relaxed");
    m.take("acquire");
    take_scope(m);
    let space = take_space(m);
    m.take("b64");
    let operands = i.operands.as_slice();
    if operands.len() != 3 && !(may_suspend && operands.len() == 4) {
        return b.error("a wait takes a predicate, an address and a phase");
    }
    let (address, space) = b.address(&operands[1], space)?;
    let phase = b.source(&operands[2], if parity { Type::U32 } else { Type::B64 })?;
    if let Some(limit) = operands.get(3) {
        b.source(limit, Type::U32)?;
    }
    let dest = b.dest(&operands[0], Type::Pred)?.slot;
    Ok(Op::Wait(Box::new(MbarrierWait { address, space, dest, phase, may_suspend, acquire: !relaxed })))
}
