//! Where lanes that part at a branch meet again: immediate post-dominators (Cooper, Harvey, Kennedy: A Simple, Fast Dominance Algorithm,
//! on the reversed control-flow graph).

use super::Instr;
use super::op::Op;

const NONE: usize = usize::MAX;

struct Blocks {
    /// First instruction of each block.
    starts: Vec<usize>,
    /// Successors; the virtual exit is the block behind the last.
    successors: Vec<Vec<usize>>,
}

/// Writes the reconvergence point into every branch.
pub fn resolve_reconvergence(code: &mut [Instr]) {
    let blocks = split_blocks(code);
    let ipdom = immediate_post_dominators(&blocks);
    let exit = blocks.starts.len();
    for (block, &meet) in ipdom.iter().enumerate().take(exit) {
        let end = blocks.starts.get(block + 1).copied().unwrap_or(code.len());
        if let Some(Instr { op: Op::Branch { reconverge, .. }, .. }) = code[..end].last_mut()
            && meet != NONE
            && meet != exit
        {
            *reconverge = blocks.starts[meet] as u32;
        }
    }
}

fn split_blocks(code: &[Instr]) -> Blocks {
    let mut leader = vec![false; code.len() + 1];
    leader[0] = true;
    for (pc, instr) in code.iter().enumerate() {
        match instr.op {
            Op::Branch { target, .. } => {
                leader[target as usize] = true;
                leader[pc + 1] = true;
            }
            Op::Exit | Op::Trap => leader[pc + 1] = true,
            _ => {}
        }
    }
    let starts: Vec<usize> = (0..code.len()).filter(|&pc| leader[pc]).collect();
    let exit = starts.len();
    let block_at = |pc: usize| starts.binary_search(&pc).unwrap_or(exit);
    let mut successors = Vec::with_capacity(exit);
    for (block, _) in starts.iter().enumerate() {
        let end = starts.get(block + 1).copied().unwrap_or(code.len());
        let last = &code[end - 1];
        let mut next = Vec::new();
        match last.op {
            Op::Branch { target, .. } => {
                next.push(block_at(target as usize));
                if last.guard.is_some() {
                    next.push(block_at(end));
                }
            }
            Op::Exit | Op::Trap => {
                next.push(exit);
                if last.guard.is_some() {
                    next.push(block_at(end));
                }
            }
            _ => next.push(block_at(end)),
        }
        successors.push(next);
    }
    Blocks { starts, successors }
}

fn immediate_post_dominators(blocks: &Blocks) -> Vec<usize> {
    let exit = blocks.starts.len();
    let mut predecessors = vec![Vec::new(); exit + 1];
    for (block, successors) in blocks.successors.iter().enumerate() {
        for &successor in successors {
            predecessors[successor].push(block);
        }
    }
    let order = postorder(exit, &predecessors);
    let mut number = vec![NONE; exit + 1];
    for (i, &block) in order.iter().enumerate() {
        number[block] = i;
    }
    let mut ipdom = vec![NONE; exit + 1];
    ipdom[exit] = exit;
    let mut changed = true;
    while changed {
        changed = false;
        for &block in order.iter().rev().filter(|&&block| block != exit) {
            let mut meet = NONE;
            for &successor in blocks.successors[block].iter().filter(|&&s| ipdom[s] != NONE) {
                meet = if meet == NONE { successor } else { intersect(meet, successor, &ipdom, &number) };
            }
            if meet != NONE && ipdom[block] != meet {
                ipdom[block] = meet;
                changed = true;
            }
        }
    }
    ipdom
}

fn intersect(mut a: usize, mut b: usize, ipdom: &[usize], number: &[usize]) -> usize {
    while a != b {
        while number[a] < number[b] {
            a = ipdom[a];
        }
        while number[b] < number[a] {
            b = ipdom[b];
        }
    }
    a
}

/// Postorder of the reversed graph, from the exit.
fn postorder(exit: usize, predecessors: &[Vec<usize>]) -> Vec<usize> {
    let mut seen = vec![false; exit + 1];
    let mut order = Vec::with_capacity(exit + 1);
    let mut stack = vec![(exit, 0)];
    seen[exit] = true;
    while let Some((block, next)) = stack.pop() {
        if let Some(&predecessor) = predecessors[block].get(next) {
            stack.push((block, next + 1));
            if !seen[predecessor] {
                seen[predecessor] = true;
                stack.push((predecessor, 0));
            }
        } else {
            order.push(block);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::Span;

    fn instr(op: Op, guarded: bool) -> Instr {
        Instr { op, guard: guarded.then_some((0, false)), span: Span::default(), reads: 0..0, writes: 0..0 }
    }

    fn branch(target: u32, guarded: bool) -> Instr {
        instr(Op::Branch { target, reconverge: u32::MAX }, guarded)
    }

    fn reconverge(code: &[Instr], pc: usize) -> u32 {
        match code[pc].op {
            Op::Branch { reconverge, .. } => reconverge,
            _ => panic!("no branch"),
        }
    }

    #[test]
    fn a_diamond_meets_at_its_foot() {
        // 0: @p bra 3; 1: nop; 2: bra 4; 3: nop; 4: exit
        let mut code = vec![branch(3, true), instr(Op::Nop, false), branch(4, false), instr(Op::Nop, false), instr(Op::Exit, false)];
        resolve_reconvergence(&mut code);
        assert_eq!(reconverge(&code, 0), 4);
    }

    #[test]
    fn a_loop_meets_behind_itself() {
        // 0: nop; 1: @p bra 0; 2: exit
        let mut code = vec![instr(Op::Nop, false), branch(0, true), instr(Op::Exit, false)];
        resolve_reconvergence(&mut code);
        assert_eq!(reconverge(&code, 1), 2);
    }

    #[test]
    fn paths_that_exit_apart_never_meet() {
        // 0: @p bra 2; 1: exit; 2: exit
        let mut code = vec![branch(2, true), instr(Op::Exit, false), instr(Op::Exit, false)];
        resolve_reconvergence(&mut code);
        assert_eq!(reconverge(&code, 0), u32::MAX);
    }

    #[test]
    fn an_endless_loop_has_no_meeting_point() {
        let mut code = vec![branch(1, true), branch(1, false)];
        resolve_reconvergence(&mut code);
        assert_eq!(reconverge(&code, 0), u32::MAX);
    }
}
