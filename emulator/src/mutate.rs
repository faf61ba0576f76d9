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

/// A description, and the text in the instruction's place.
type Variant = (String, String);

fn removed() -> Variant {
    ("removed".to_string(), String::new())
}

/// What can be done to an instruction of `all`.
fn variants(instruction: &Instruction, text: &str, all: &[&Instruction]) -> Vec<Variant> {
    let opcode = instruction.opcode.as_str();
    let starts = |prefix: &str| opcode.starts_with(prefix);
    if starts("mbarrier.try_wait") || starts("mbarrier.test_wait") {
        return wait_variants(instruction, text);
    }
    if starts("mbarrier.arrive.expect_tx") {
        return expect_tx_variants(instruction, text);
    }
    if starts("mbarrier.init") {
        return init_variants(instruction, text, all);
    }
    if starts("wgmma.wait_group") || starts("cp.async.bulk.wait_group") {
        return wait_group_variants(instruction);
    }
    if is_barrier(instruction) {
        return barrier_variants(instruction, text, all);
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
    if synchronises { vec![removed()] } else { Vec::new() }
}

/// The instruction without its last operand, and that operand.
fn split_last(text: &str) -> Option<(&str, &str)> {
    let (head, last) = text.trim_end_matches(';').rsplit_once(',')?;
    Some((head, last.trim()))
}

/// The instruction with another number as its last operand, which may be a register.
fn added(head: &str, last: &str, delta: i32) -> String {
    format!("{{ .reg .b32 mutant; add.s32 mutant, {last}, {delta}; {head}, mutant; }}")
}

fn expect_tx_variants(instruction: &Instruction, text: &str) -> Vec<Variant> {
    let mut found = vec![removed()];
    if let Some(Operand::Address { .. }) = instruction.operands.get(1)
        && let Some((head, bytes)) = split_last(text)
    {
        found.push(("16 bytes more".to_string(), added(head, bytes, 16)));
        found.push(("16 bytes fewer".to_string(), added(head, bytes, -16)));
        found.push(("without its bytes".to_string(), format!("{};", head.replace(".expect_tx", ""))));
    }
    found
}

fn init_variants(instruction: &Instruction, text: &str, all: &[&Instruction]) -> Vec<Variant> {
    let Some((head, count)) = split_last(text) else { return Vec::new() };
    let mut found = vec![("one arrival more".to_string(), added(head, count, 1))];
    // Without any arrival it would be no mbarrier.
    if instruction.operands.get(1).and_then(|count| constant(count, all)) != Some(1) {
        found.push(("one arrival fewer".to_string(), added(head, count, -1)));
    }
    found
}

fn wait_group_variants(instruction: &Instruction) -> Vec<Variant> {
    let opcode = instruction.opcode.as_str();
    let mut found = vec![removed()];
    if let Some(Operand::Int(pending)) = instruction.operands.first() {
        found.push(("one group fewer".to_string(), guarded(instruction, &format!("{opcode} {};", pending + 1))));
        if opcode == "cp.async.bulk.wait_group" {
            found.push(("reads only".to_string(), guarded(instruction, &format!("{opcode}.read {pending};"))));
        }
    }
    found
}

fn barrier_variants(instruction: &Instruction, text: &str, all: &[&Instruction]) -> Vec<Variant> {
    let mut found = vec![removed()];
    if instruction.operands.len() == 2
        && let Some((head, count)) = split_last(text)
    {
        if shares_barrier(instruction, all) {
            found.push(("another barrier".to_string(), guarded(instruction, &format!("{} 15, {count};", instruction.opcode))));
        }
        found.push(("32 threads fewer".to_string(), added(head, count, -32)));
    }
    found
}

fn wait_variants(instruction: &Instruction, text: &str) -> Vec<Variant> {
    let Some(Operand::Name(predicate)) = instruction.operands.first() else { return Vec::new() };
    let passes = guarded(instruction, &format!("setp.eq.u32 {predicate}, 0, 0;"));
    // Once, whatever it answers: the loop around it might as well not be there.
    let once = format!("{}; {passes}", text.trim_end_matches(';'));
    let mut found = vec![("removed".to_string(), passes), ("not repeated".to_string(), once)];
    if instruction.opcode.contains(".parity")
        && instruction.operands.len() == 3
        && let Some((head, parity)) = split_last(text)
    {
        let other = format!("{{ .reg .b32 mutant; xor.b32 mutant, {parity}, 1; {head}, mutant; }}");
        found.push(("the other parity".to_string(), other));
    }
    found
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
        assert_eq!(names.len(), 1 + 1 + 4 + 3 + 2 + 2 + 1, "{names:?}");
        for mutation in &all {
            parse(&mutation.source).unwrap_or_else(|error| panic!("{}: {error}", mutation.what));
        }
    }
}
