//! Mutations: one synchronising instruction of a PTX text removed or weakened at a time, to see whether the checks notice.

use crate::ptx::ast::{Instruction, Operand, Statement};
use crate::ptx::{PtxError, parse};

/// A changed text.
#[derive(Clone, Debug)]
pub struct Mutation {
    /// The kernel.
    pub entry: String,
    /// Line of the instruction, counted from 1.
    pub line: u32,
    /// What was done to it.
    pub what: String,
    /// The instruction's text.
    pub original: String,
    /// The whole text, changed.
    pub source: String,
    /// The whole text with a trap before the instruction: a run that survives it never comes here.
    pub probe: String,
}

/// All mutations of a text.
pub fn mutations(source: &str) -> Result<Vec<Mutation>, PtxError> {
    let module = parse(source)?;
    let mut found = Vec::new();
    for function in module.functions.iter().filter(|function| function.is_entry) {
        let mut instructions = Vec::new();
        collect(function.body.as_deref().unwrap_or_default(), &mut instructions);
        for &instruction in &instructions {
            let (start, end) = (instruction.span.start as usize, instruction.span.end as usize);
            for (what, replacement) in variants(instruction, &source[start..end], &instructions) {
                found.push(Mutation {
                    entry: function.name.clone(),
                    line: instruction.span.line,
                    what,
                    original: source[start..end].split_whitespace().collect::<Vec<_>>().join(" "),
                    source: format!("{}{replacement}{}", &source[..start], &source[end..]),
                    probe: format!("{}{} {}", &source[..start], guarded(instruction, "trap;"), &source[start..]),
                });
            }
        }
    }
    Ok(found)
}

fn collect<'a>(statements: &'a [Statement], into: &mut Vec<&'a Instruction>) {
    for statement in statements {
        match statement {
            Statement::Block(inner) => collect(inner, into),
            Statement::Instruction(instruction) => into.push(instruction),
            _ => {}
        }
    }
}

/// The instruction with another opcode or other operands, its guard kept.
fn guarded(instruction: &Instruction, rest: &str) -> String {
    match &instruction.guard {
        Some((name, true)) => format!("@!{name} {rest}"),
        Some((name, false)) => format!("@{name} {rest}"),
        None => rest.to_string(),
    }
}

/// Whether other instructions may use the named barrier of this one. If none does, any free number is as good as its own.
fn shares_barrier(instruction: &Instruction, all: &[&Instruction]) -> bool {
    let number = |barrier: &Instruction| constant(barrier.operands.first()?, all);
    let own = number(instruction);
    let mut others = all.iter().filter(|other| is_barrier(other) && other.span.start != instruction.span.start);
    own.is_none() || others.any(|other| number(other).is_none_or(|other| Some(other) == own))
}

/// The value of an operand that is a number, or a register that one `mov` sets to a number.
fn constant(operand: &Operand, all: &[&Instruction]) -> Option<u64> {
    let name = match operand {
        Operand::Int(value) => return Some(*value),
        Operand::Name(name) => name,
        _ => return None,
    };
    let mut writers = all.iter().filter(|i| matches!(i.operands.first(), Some(Operand::Name(first)) if first == name) && !is_barrier(i));
    match (writers.next(), writers.next()) {
        (Some(only), None) if only.opcode.starts_with("mov.") => match only.operands.get(1) {
            Some(Operand::Int(value)) => Some(*value),
            _ => None,
        },
        _ => None,
    }
}

fn is_barrier(instruction: &Instruction) -> bool {
    ["bar.sync", "bar.arrive", "bar.red", "barrier."].iter().any(|prefix| instruction.opcode.starts_with(prefix))
}

/// What can be done to an instruction of `all`: a description and the text in its place.
fn variants(instruction: &Instruction, text: &str, all: &[&Instruction]) -> Vec<(String, String)> {
    let opcode = instruction.opcode.as_str();
    let removed = || ("removed".to_string(), String::new());
    let starts = |prefix: &str| opcode.starts_with(prefix);
    if starts("mbarrier.try_wait") || starts("mbarrier.test_wait") {
        return wait_variants(instruction, text);
    }
    if starts("mbarrier.arrive.expect_tx") {
        let mut all = vec![removed()];
        if let Some(Operand::Address { .. }) = instruction.operands.get(1) {
            let (head, bytes) = text.trim_end_matches(';').rsplit_once(',').unwrap_or((text, ""));
            let bytes = bytes.trim();
            let changed = |delta: i32| format!("{{ .reg .b32 mutant; add.s32 mutant, {bytes}, {delta}; {head}, mutant; }}");
            all.push(("16 bytes more".to_string(), changed(16)));
            all.push(("16 bytes fewer".to_string(), changed(-16)));
            let plain = head.replace(".expect_tx", "");
            all.push(("without its bytes".to_string(), format!("{plain};")));
        }
        return all;
    }
    if starts("wgmma.wait_group") || starts("cp.async.bulk.wait_group") {
        let mut all = vec![removed()];
        if let Some(Operand::Int(pending)) = instruction.operands.first() {
            let weaker = guarded(instruction, &format!("{opcode} {};", pending + 1));
            all.push(("one group fewer".to_string(), weaker));
            if opcode == "cp.async.bulk.wait_group" {
                all.push(("reads only".to_string(), guarded(instruction, &format!("{opcode}.read {pending};"))));
            }
        }
        return all;
    }
    if is_barrier(instruction) {
        let mut found = vec![removed()];
        if instruction.operands.len() == 2 {
            let (head, count) = text.trim_end_matches(';').rsplit_once(',').unwrap_or((text, ""));
            let count = count.trim();
            if shares_barrier(instruction, all) {
                found.push(("another barrier".to_string(), guarded(instruction, &format!("{opcode} 15, {count};"))));
            }
            let fewer = format!("{{ .reg .b32 mutant; add.s32 mutant, {count}, -32; {head}, mutant; }}");
            found.push(("32 threads fewer".to_string(), fewer));
        }
        return found;
    }
    if let Some(order) = ["acq_rel", "acquire", "release"].iter().find(|order| opcode.split('.').any(|part| part == **order))
        && ["atom", "red", "ld", "st"].iter().any(|base| opcode.split('.').next() == Some(base))
    {
        return vec![("relaxed".to_string(), text.replacen(order, "relaxed", 1))];
    }
    let synchronises = starts("mbarrier.arrive")
        || starts("fence.")
        || starts("wgmma.fence")
        || starts("wgmma.commit_group")
        || starts("cp.async.bulk.commit_group")
        || starts("bar.warp.sync");
    if synchronises {
        return vec![removed()];
    }
    if starts("mbarrier.init") {
        let (head, count) = text.trim_end_matches(';').rsplit_once(',').unwrap_or((text, "1"));
        let count = count.trim();
        let changed = |delta: i32| format!("{{ .reg .b32 mutant; add.s32 mutant, {count}, {delta}; {head}, mutant; }}");
        let mut found = vec![("one arrival more".to_string(), changed(1))];
        // Without any arrival it would be no mbarrier.
        if instruction.operands.get(1).and_then(|count| constant(count, all)) != Some(1) {
            found.push(("one arrival fewer".to_string(), changed(-1)));
        }
        return found;
    }
    Vec::new()
}

fn wait_variants(instruction: &Instruction, text: &str) -> Vec<(String, String)> {
    let Some(Operand::Name(predicate)) = instruction.operands.first() else { return Vec::new() };
    let passes = guarded(instruction, &format!("setp.eq.u32 {predicate}, 0, 0;"));
    let mut all = vec![("removed".to_string(), passes)];
    if instruction.opcode.contains(".parity") && instruction.operands.len() == 3 {
        let (head, parity) = text.trim_end_matches(';').rsplit_once(',').unwrap_or((text, "0"));
        let other = format!("{{ .reg .b32 mutant; xor.b32 mutant, {}, 1; {head}, mutant; }}", parity.trim());
        all.push(("the other parity".to_string(), other));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_is_ptx() {
        let source = ".version 8.3\n.target sm_90a\n.address_size 64\n.entry k() { .reg .pred p; .reg .b32 %r<4>;\n\
                      mbarrier.init.shared::cta.b64 [%r1], 1;\nfence.proxy.async;\n\
                      mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1], %r2;\n\
                      W: mbarrier.try_wait.parity.shared::cta.b64 p, [%r1], %r3; @!p bra W;\n\
                      mov.b32 %r0, 1; bar.sync %r0, 128; wgmma.wait_group.sync.aligned 0; atom.add.acq_rel.gpu.global.u32 %r1, [%rd1], 1; ret; }";
        let all = mutations(source).unwrap();
        let names: Vec<(u32, &str)> = all.iter().map(|m| (m.line, m.what.as_str())).collect();
        // An mbarrier needs an arrival; barrier 1 has one use only, so its number does not matter.
        assert_eq!(names.len(), 1 + 1 + 4 + 2 + 2 + 2 + 1, "{names:?}");
        for mutation in &all {
            parse(&mutation.source).unwrap_or_else(|error| panic!("{}: {error}", mutation.what));
        }
    }
}
