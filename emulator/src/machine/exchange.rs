//! Exchange among the lanes of a warp, named barriers, mbarrier instructions.

use super::cta::{Cta, Flow};
use super::fault::{Fault, FaultKind, Step};
use super::observer::{Agent, Observer};
use super::warp::{FULL, LANES, Wait, Warp, lanes};
use crate::lower::Instr;
use crate::lower::op::*;

fn members_slot(op: &Op) -> Slot {
    match op {
        Op::WarpSync { mask }
        | Op::Shuffle { mask, .. }
        | Op::Vote { mask, .. }
        | Op::Match { mask, .. }
        | Op::Redux { mask, .. }
        | Op::Elect { mask, .. } => *mask,
        _ => 0,
    }
}

impl<'a, O: Observer> Cta<'a, O> {
    /// Executes an exchange now if all of its members are here, or waits for them.
    pub(super) fn try_exchange(&mut self, warp: &mut Warp, instr: &Instr, mask: u32) -> Step<Flow> {
        let slot = members_slot(&instr.op);
        let first = mask.trailing_zeros() as usize;
        let members = warp.words[slot as usize][first];
        if mask & !members != 0 {
            let message = format!("the member mask 0x{members:08x} leaves out executing lanes 0x{:08x}", mask & !members);
            return Err(self.lane_fault(FaultKind::Protocol, message, warp, mask & !members));
        }
        if lanes(mask).any(|lane| warp.words[slot as usize][lane] != members) {
            return Err(self.lane_fault(FaultKind::Protocol, "the member mask differs between lanes", warp, mask));
        }
        if mask != members & warp.live {
            return Ok(Flow::Wait { wait: Wait::Converge { members }, again: true });
        }
        self.exchange(warp, instr, mask)?;
        Ok(Flow::Next)
    }

    /// Executes an exchange among the lanes of `mask`.
    pub(super) fn exchange(&mut self, warp: &mut Warp, instr: &Instr, mask: u32) -> Step<()> {
        match instr.op {
            // The others meet, but order no memory (PTX ISA, bar.warp.sync; the CUDA guide says it of shuffles and votes).
            Op::WarpSync { .. } => self.observer.warp_sync(warp.index, mask),
            Op::Shuffle { mode, d, p, a, b, c, .. } => shuffle(warp, mask, mode, (d, p), (a, b, c)),
            Op::Vote { mode, d, a, negated, .. } => {
                let votes = if negated { !warp.preds[a as usize] } else { warp.preds[a as usize] } & mask;
                let truth = match mode {
                    VoteMode::All => votes == mask,
                    VoteMode::Any => votes != 0,
                    VoteMode::Uniform => votes == mask || votes == 0,
                    VoteMode::Ballot => false,
                };
                let value = if mode == VoteMode::Ballot { u64::from(votes) } else { u64::from(truth) };
                lanes(mask).for_each(|lane| warp.set(d, lane, value));
            }
            Op::Match { all, d, p, a, .. } => {
                let values: Vec<u64> = (0..LANES).map(|lane| warp.get(a, lane)).collect();
                for lane in lanes(mask) {
                    let same = lanes(mask).filter(|&other| values[other] == values[lane]).fold(0u32, |m, other| m | 1 << other);
                    let value = if all && same != mask { 0 } else { same };
                    warp.words[d as usize][lane] = value;
                    if let Some(p) = p {
                        warp.set_pred(p, 1 << lane, if same == mask { FULL } else { 0 });
                    }
                }
            }
            Op::Redux { f, signed, d, a, .. } => {
                let source = warp.words[a as usize];
                let combine = |x: u32, y: u32| match f {
                    ReduxFn::Add => x.wrapping_add(y),
                    ReduxFn::Min if signed => (x as i32).min(y as i32) as u32,
                    ReduxFn::Max if signed => (x as i32).max(y as i32) as u32,
                    ReduxFn::Min => x.min(y),
                    ReduxFn::Max => x.max(y),
                    ReduxFn::And => x & y,
                    ReduxFn::Or => x | y,
                    ReduxFn::Xor => x ^ y,
                };
                let value = lanes(mask).map(|lane| source[lane]).reduce(combine).unwrap_or(0);
                warp.set_words(d, mask, &[value; LANES]);
            }
            Op::Elect { d, p, .. } => {
                let leader = mask.trailing_zeros();
                warp.set_pred(p, mask, 1 << leader);
                if let Some(d) = d {
                    warp.set_words(d, mask, &[leader; LANES]);
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn barrier(&mut self, warp: &mut Warp, barrier: &Barrier, mask: u32) -> Step<Flow> {
        if barrier.aligned {
            self.require_converged(warp, mask)?;
        }
        let first = mask.trailing_zeros() as usize;
        let id = warp.words[barrier.id as usize][first];
        let count = barrier.count.map(|slot| warp.words[slot as usize][first]);
        if lanes(mask).any(|lane| warp.words[barrier.id as usize][lane] != id) {
            return Err(self.lane_fault(FaultKind::Protocol, "the barrier's number differs between lanes", warp, mask));
        }
        if id >= 16 {
            return Err(self.lane_fault(FaultKind::Protocol, format!("barrier {id} does not exist; 0 to 15 do"), warp, mask));
        }
        if barrier.mode == BarrierMode::Arrive && count.is_none() {
            return Err(self.lane_fault(FaultKind::Protocol, "an arrival needs a count", warp, mask));
        }
        let threads = if barrier.aligned { LANES as u32 } else { mask.count_ones() };
        let state = &mut self.named[id as usize];
        if let Some((slot, negated)) = barrier.source {
            let votes = if negated { !warp.preds[slot as usize] } else { warp.preds[slot as usize] } & mask;
            state.votes.0 += votes.count_ones();
            state.votes.1 += mask.count_ones();
        }
        let generation = state.generation;
        let waits = barrier.mode != BarrierMode::Arrive;
        state.arrive(id, threads, count, waits).map_err(|fault| fault.thread(warp.thread(first)))?;
        self.observer.barrier_arrive(id, warp.index, self.pc, mask).map_err(|fault| fault.thread(warp.thread(first)))?;
        // The other lanes of a warp are in step with each other, whoever else is still missing.
        if !waits {
            return Ok(Flow::Next);
        }
        Ok(Flow::Wait { wait: Wait::Named { id, generation }, again: false })
    }

    /// A group goes on behind a barrier; `pc` is the instruction after it.
    pub(super) fn leave_barrier(&mut self, warp: &mut Warp, pc: u32, id: u32, mask: u32) {
        self.observer.barrier_leave(id, warp.index, mask);
        let Op::Barrier(barrier) = &self.kernel.code[pc as usize - 1].op else { return };
        let Some(dest) = barrier.dest else { return };
        let (yes, all) = self.named[id as usize].result;
        let value = match barrier.mode {
            BarrierMode::RedPopc => u64::from(yes),
            BarrierMode::RedAnd => u64::from(yes == all),
            _ => u64::from(yes > 0),
        };
        lanes(mask).for_each(|lane| warp.set(dest, lane, value));
    }

    fn mbarrier_address(&self, warp: &Warp, address: Address, space: Space, lane: usize) -> Step<u32> {
        self.shared_address(warp, address, space, lane, 8, 8)
    }

    pub(super) fn mbarrier(&mut self, warp: &mut Warp, op: &Op, mask: u32) -> Step<()> {
        for lane in lanes(mask) {
            let thread = warp.thread(lane);
            self.mbarrier_lane(warp, op, lane).map_err(|fault| fault.thread(thread))?;
        }
        Ok(())
    }

    fn mbarrier_lane(&mut self, warp: &mut Warp, op: &Op, lane: usize) -> Step<()> {
        let thread = warp.thread(lane);
        match *op {
            Op::MbarrierInit { address, space, count } => {
                let at = self.mbarrier_address(warp, address, space, lane)?;
                self.mbarriers.init(at, warp.words[count as usize][lane])?;
                self.observer.mbarrier_init(thread, self.pc, at)?;
                self.shared[at as usize..at as usize + 8].fill(0);
            }
            Op::MbarrierInval { address, space } => {
                let at = self.mbarrier_address(warp, address, space, lane)?;
                self.mbarriers.inval(at)?;
                self.observer.mbarrier_init(thread, self.pc, at)?;
            }
            Op::MbarrierExpectTx { address, space, bytes } => {
                let at = self.mbarrier_address(warp, address, space, lane)?;
                self.observer.mbarrier_arrive(Agent::Thread(thread), self.pc, at, false)?;
                self.mbarriers.get(at)?.expect_tx(warp.words[bytes as usize][lane])?;
            }
            Op::MbarrierCompleteTx { address, space, bytes } => {
                let at = self.mbarrier_address(warp, address, space, lane)?;
                self.observer.mbarrier_arrive(Agent::Thread(thread), self.pc, at, false)?;
                let complete = self.mbarriers.get(at)?.complete_tx(warp.words[bytes as usize][lane]);
                self.note_phase(at, complete)?;
            }
            Op::PendingCount { d, state } => {
                warp.words[d as usize][lane] = (warp.doubles[state as usize][lane] & 0xf_ffff) as u32;
            }
            Op::Arrive(ref arrive) => {
                let at = self.mbarrier_address(warp, arrive.address, arrive.space, lane)?;
                self.observer.mbarrier_arrive(Agent::Thread(thread), self.pc, at, arrive.release)?;
                let barrier = self.mbarriers.get(at)?;
                let state = barrier.state();
                if let Some(bytes) = arrive.expect_tx {
                    barrier.expect_tx(warp.words[bytes as usize][lane])?;
                }
                let count = arrive.count.map_or(1, |slot| warp.words[slot as usize][lane]);
                let complete = barrier.arrive(count, arrive.drop)?;
                self.note_phase(at, complete)?;
                if let Some(slot) = arrive.state {
                    warp.doubles[slot as usize][lane] = state;
                }
            }
            _ => return Err(Fault::new(FaultKind::Unsupported, "an mbarrier instruction without an implementation")),
        }
        Ok(())
    }

    /// Tells observers that a phase is complete.
    pub(super) fn note_phase(&mut self, address: u32, complete: bool) -> Step<()> {
        match self.mbarriers.phase(address) {
            Some(phase) if complete => self.observer.mbarrier_complete(address, phase - 1),
            _ => Ok(()),
        }
    }

    pub(super) fn mbarrier_wait(&mut self, warp: &mut Warp, wait: &MbarrierWait, mask: u32) -> Step<Flow> {
        let mut done = 0;
        let mut awaited: Vec<(u32, u64)> = Vec::new();
        for lane in lanes(mask) {
            let thread = warp.thread(lane);
            let at = self.mbarrier_address(warp, wait.address, wait.space, lane)?;
            let current = self.mbarriers.get(at).map_err(|fault| fault.thread(thread))?.phase;
            let phase = warp.get(wait.phase, lane);
            let complete = match wait.phase.bank {
                Bank::Double => current > phase >> 20,
                _ => current & 1 != phase & 1,
            };
            if complete {
                done |= 1 << lane;
                self.observer.mbarrier_wait(thread, self.pc, at, current.wrapping_sub(1), wait.acquire).map_err(|f| f.thread(thread))?;
            } else if !awaited.contains(&(at, current)) {
                awaited.push((at, current));
            }
        }
        if done == 0 && wait.may_suspend && !self.gives_up(warp) {
            return Ok(Flow::Wait { wait: Wait::Mbarrier(awaited), again: true });
        }
        warp.set_pred(wait.dest, mask, done);
        if done == 0 && !wait.may_suspend {
            // A polling loop lets the others go on.
            return Ok(Flow::Wait { wait: Wait::Poll, again: false });
        }
        Ok(Flow::Next)
    }

    /// Whether an unfinished `try_wait` returns false now instead of waiting on. The warp's next one waits, so that a loop around it ends.
    fn gives_up(&mut self, warp: &mut Warp) -> bool {
        let first = !warp.gave_up_at.contains(&self.pc);
        let now = !std::mem::take(&mut warp.gave_up) && self.draws.give_up(first);
        if now {
            warp.gave_up = true;
            if first {
                warp.gave_up_at.push(self.pc);
            }
        }
        now
    }
}

fn shuffle(warp: &mut Warp, mask: u32, mode: ShuffleMode, (d, p): (Slot, Option<Slot>), (a, b, c): (Slot, Slot, Slot)) {
    let source = warp.words[a as usize];
    let (amounts, limits) = (warp.words[b as usize], warp.words[c as usize]);
    let mut result = source;
    let mut in_range = 0;
    for lane in lanes(mask) {
        let (amount, clamp, segment) = (amounts[lane] & 31, limits[lane] & 31, limits[lane] >> 8 & 31);
        let at = lane as u32;
        let (low, high) = (at & segment, at & segment | clamp & !segment);
        let (from, valid) = match mode {
            ShuffleMode::Up => (at.wrapping_sub(amount), at as i32 - amount as i32 >= high as i32),
            ShuffleMode::Down => (at + amount, at + amount <= high),
            ShuffleMode::Butterfly => (at ^ amount, at ^ amount <= high),
            ShuffleMode::Index => (low | amount & !segment, low | amount & !segment <= high),
        };
        let from = if valid { from } else { at };
        in_range |= u32::from(valid) << lane;
        result[lane] = source[from as usize & 31];
    }
    warp.set_words(d, mask, &result);
    if let Some(p) = p {
        warp.set_pred(p, mask, in_range);
    }
}
