//! A warp: register banks, and groups of lanes that run in lockstep.

use std::collections::VecDeque;

use crate::lower::op::{Bank, Reg, Slot};

/// Lanes of a warp.
pub const LANES: usize = 32;
/// All lanes.
pub const FULL: u32 = u32::MAX;

/// Lanes that stand at one instruction.
#[derive(Clone, Debug)]
pub struct Group {
    pub pc: u32,
    pub mask: u32,
    pub wait: Option<Wait>,
    /// Meeting points ahead, innermost last: indices into the warp's list.
    pub joins: Vec<u32>,
}

/// Where parted lanes meet again.
#[derive(Clone, Copy, Debug)]
pub struct Join {
    pub pc: u32,
    pub expected: u32,
    pub arrived: u32,
}

/// What a group waits for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wait {
    /// Any of these phases to complete: (address, number of the awaited phase).
    Mbarrier(Vec<(u32, u64)>),
    /// A named barrier to complete its generation.
    Named { id: u32, generation: u64 },
    /// At most `pending` bulk groups in flight for the lanes.
    Bulk { pending: u32, read: bool },
    /// The warpgroup's products up to this one.
    Products { upto: u64 },
    /// Other lanes of the warp to reach this instruction.
    Converge { members: u32 },
    /// Nothing: a polling loop has found nothing new and lets others go on.
    Poll,
    /// Registers to come free.
    Registers { count: u32 },
}

/// A warp's side of its warpgroup's products.
#[derive(Clone, Debug, Default)]
pub struct WarpProducts {
    /// Products issued so far.
    pub issued: u64,
    /// For each committed group the number of products issued up to it.
    pub committed: VecDeque<u64>,
}

/// A warp.
#[derive(Debug, Default)]
pub struct Warp {
    pub index: u32,
    pub words: Vec<[u32; LANES]>,
    pub doubles: Vec<[u64; LANES]>,
    pub preds: Vec<u32>,
    pub carry: u32,
    pub groups: Vec<Group>,
    pub joins: Vec<Join>,
    /// Lanes that have not exited.
    pub live: u32,
    pub products: WarpProducts,
    /// Registers a thread, as setmaxnreg counts them.
    pub registers: u32,
    /// Whose turn it is among the groups.
    pub turn: u32,
    /// The last `mbarrier.try_wait` has returned false before its phase was over.
    pub gave_up: bool,
    /// Instructions at which one has.
    pub gave_up_at: Vec<u32>,
}

impl Warp {
    /// A lane's value of a register, zero-extended.
    pub fn get(&self, reg: Reg, lane: usize) -> u64 {
        match reg.bank {
            Bank::Word => u64::from(self.words[reg.slot as usize][lane]),
            Bank::Double => self.doubles[reg.slot as usize][lane],
            Bank::Pred => u64::from(self.preds[reg.slot as usize] >> lane & 1),
        }
    }

    /// Sets a lane's value of a register.
    pub fn set(&mut self, reg: Reg, lane: usize, value: u64) {
        match reg.bank {
            Bank::Word => self.words[reg.slot as usize][lane] = value as u32,
            Bank::Double => self.doubles[reg.slot as usize][lane] = value,
            Bank::Pred => self.set_pred_lane(reg.slot, lane, value & 1 != 0),
        }
    }

    fn set_pred_lane(&mut self, slot: Slot, lane: usize, value: bool) {
        let pred = &mut self.preds[slot as usize];
        *pred = *pred & !(1 << lane) | u32::from(value) << lane;
    }

    /// Sets a predicate for the lanes of `mask`.
    pub fn set_pred(&mut self, slot: Slot, mask: u32, value: u32) {
        let pred = &mut self.preds[slot as usize];
        *pred = *pred & !mask | value & mask;
    }

    /// Sets a word for the lanes of `mask`.
    pub fn set_words(&mut self, slot: Slot, mask: u32, value: &[u32; LANES]) {
        let dest = &mut self.words[slot as usize];
        if mask == FULL {
            *dest = *value;
        } else {
            for lane in lanes(mask) {
                dest[lane] = value[lane];
            }
        }
    }

    /// Sets a double word for the lanes of `mask`.
    pub fn set_doubles(&mut self, slot: Slot, mask: u32, value: &[u64; LANES]) {
        let dest = &mut self.doubles[slot as usize];
        if mask == FULL {
            *dest = *value;
        } else {
            for lane in lanes(mask) {
                dest[lane] = value[lane];
            }
        }
    }

    /// Linear index in the CTA of a lane's thread.
    pub fn thread(&self, lane: usize) -> u32 {
        self.index * LANES as u32 + lane as u32
    }

    /// Splits `taken` off group `at`: they go to `target`, the others to the next instruction; all meet at `reconverge`.
    pub fn diverge(&mut self, at: usize, taken: u32, target: u32, reconverge: u32) {
        let group = &mut self.groups[at];
        if reconverge != u32::MAX && group.joins.last().is_none_or(|&join| self.joins[join as usize].pc != reconverge) {
            self.joins.push(Join { pc: reconverge, expected: group.mask, arrived: 0 });
            group.joins.push(self.joins.len() as u32 - 1);
        }
        let joins = group.joins.clone();
        group.mask &= !taken;
        group.pc += 1;
        self.groups.push(Group { pc: target, mask: taken, wait: None, joins });
    }

    /// The innermost meeting point of a group.
    pub fn join_pc(&self, at: usize) -> u32 {
        self.groups[at].joins.last().map_or(u32::MAX, |&join| self.joins[join as usize].pc)
    }

    /// A group has reached its meeting point: it dissolves, and goes on when everybody is there.
    pub fn arrive_at_join(&mut self, at: usize) {
        let group = self.groups.swap_remove(at);
        let Some((&join, outer)) = group.joins.split_last() else { return };
        self.joins[join as usize].arrived |= group.mask;
        self.release_join(join, outer.to_vec());
    }

    fn release_join(&mut self, join: u32, outer: Vec<u32>) {
        let Join { pc, expected, arrived } = self.joins[join as usize];
        if arrived != 0 && arrived == expected {
            self.joins[join as usize].arrived = 0;
            self.groups.push(Group { pc, mask: arrived, wait: None, joins: outer });
            self.trim_joins();
        }
    }

    fn trim_joins(&mut self) {
        let used = self.groups.iter().flat_map(|group| &group.joins).max().map_or(0, |&join| join as usize + 1);
        let waiting = self.joins.iter().rposition(|join| join.arrived != 0).map_or(0, |at| at + 1);
        self.joins.truncate(used.max(waiting));
    }

    /// Lanes exit; meeting points stop waiting for them.
    pub fn exit(&mut self, at: usize, mask: u32) {
        self.live &= !mask;
        self.groups[at].mask &= !mask;
        if self.groups[at].mask == 0 {
            self.groups.swap_remove(at);
        }
        for join in &mut self.joins {
            join.expected &= !mask;
        }
        for join in (0..self.joins.len() as u32).rev() {
            if self.joins.get(join as usize).is_some_and(|j| j.arrived != 0 && j.arrived == j.expected) {
                let outer = self.outer_joins(join);
                self.release_join(join, outer);
            }
        }
    }

    /// The meeting points around one: those whose lanes include all of its lanes.
    fn outer_joins(&self, join: u32) -> Vec<u32> {
        let lanes = self.joins[join as usize].expected;
        (0..join).filter(|&outer| self.joins[outer as usize].expected & lanes == lanes).collect()
    }
}

/// The lanes of a mask, in order.
pub fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        if rest == 0 {
            return None;
        }
        let lane = rest.trailing_zeros() as usize;
        rest &= rest - 1;
        Some(lane)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warp() -> Warp {
        let group = Group { pc: 0, mask: FULL, wait: None, joins: Vec::new() };
        Warp { live: FULL, groups: vec![group], ..Warp::default() }
    }

    #[test]
    fn parted_lanes_meet_again() {
        let mut warp = warp();
        warp.diverge(0, 0xff, 10, 20);
        assert_eq!((warp.groups[0].pc, warp.groups[0].mask), (1, !0xff));
        warp.groups[0].pc = 20;
        warp.arrive_at_join(0);
        assert_eq!(warp.groups.len(), 1);
        warp.groups[0].pc = 20;
        warp.arrive_at_join(0);
        assert_eq!((warp.groups.len(), warp.groups[0].mask, warp.groups[0].pc), (1, FULL, 20));
        assert!(warp.groups[0].joins.is_empty() && warp.joins.is_empty());
    }

    #[test]
    fn an_exit_frees_those_who_wait() {
        let mut warp = warp();
        warp.diverge(0, 1, 10, 20);
        warp.arrive_at_join(0);
        assert_eq!(warp.groups[0].mask, 1);
        warp.exit(0, 1);
        assert_eq!((warp.groups.len(), warp.groups[0].mask, warp.groups[0].pc), (1, !1, 20));
    }
}
