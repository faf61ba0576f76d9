//! One CTA: its warps, its shared memory, its barriers, and the order in which they take turns.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::copy::{BulkGroups, PendingCopy};
use super::fault::{Fault, FaultKind, Step};
use super::grid::Launch;
use super::mbarrier::{Mbarriers, NamedBarrier};
use super::memory::Allocation;
use super::observer::Observer;
use super::product::Warpgroup;
use super::schedule::Draws;
use super::warp::{FULL, Group, LANES, Wait, Warp, WarpProducts, lanes};
use crate::lower::op::{Bank, Op};
use crate::lower::{Constant, Kernel, SHARED_RESERVED, Special};

/// Named barriers of a CTA.
const NAMED_BARRIERS: usize = 16;
/// Registers of a multiprocessor, and the most that one thread has.
const REGISTER_FILE: u32 = 65536;

/// What an instruction does with its group.
pub enum Flow {
    /// On to the next instruction.
    Next,
    /// Wait, then execute the instruction again or go on behind it.
    Wait { wait: Wait, again: bool },
}

/// How far a CTA has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Done,
    Unfinished,
}

pub struct Cta<'a, O> {
    pub(super) launch: &'a Launch<'a>,
    pub(super) kernel: &'a Kernel,
    index: [u32; 3],
    pub(super) threads: u32,
    pub(super) shared: Vec<u8>,
    pub(super) local: Vec<u8>,
    pub(super) warps: Vec<Warp>,
    pub(super) mbarriers: Mbarriers,
    pub(super) named: [NamedBarrier; NAMED_BARRIERS],
    pub(super) copies: Vec<PendingCopy>,
    pub(super) bulk: HashMap<u32, BulkGroups>,
    pub(super) next_op: u64,
    pub(super) warpgroups: Vec<Warpgroup>,
    pub(super) free_registers: u32,
    pub(super) draws: Draws,
    pub(super) observer: O,
    pub(super) executed: u64,
    pub(super) recent: Option<&'a Arc<Allocation>>,
    /// The instruction being executed, for reports.
    pub(super) pc: u32,
    /// A group has used up its turn: it may be spinning on something that an asynchronous operation brings.
    out_of_turn: bool,
}

impl<'a, O: Observer> Cta<'a, O> {
    /// CTA number `linear` of a launch, before its first instruction.
    pub fn new(launch: &'a Launch<'a>, linear: u64, observer: O) -> Self {
        let kernel = launch.kernel;
        let threads: u32 = launch.block.iter().product();
        let [gx, gy, _] = launch.grid.map(u64::from);
        let index = [(linear % gx) as u32, (linear / gx % gy) as u32, (linear / (gx * gy)) as u32];
        let registers = initial_registers(kernel, threads);
        let warps = threads.div_ceil(LANES as u32);
        let mut cta = Self {
            launch,
            kernel,
            index,
            threads,
            shared: vec![0xff; launch.shared_end() as usize],
            local: vec![0; kernel.local_bytes as usize * threads as usize],
            warps: Vec::with_capacity(warps as usize),
            mbarriers: Mbarriers::default(),
            named: Default::default(),
            copies: Vec::new(),
            bulk: HashMap::new(),
            next_op: 0,
            warpgroups: (0..warps.div_ceil(4)).map(|_| Warpgroup::default()).collect(),
            free_registers: 0,
            draws: Draws::new(launch.schedule, linear),
            observer,
            executed: 0,
            recent: None,
            pc: 0,
            out_of_turn: false,
        };
        for warp in 0..warps {
            let warp = cta.new_warp(warp, linear, registers);
            cta.warps.push(warp);
        }
        cta
    }

    fn new_warp(&self, index: u32, linear: u64, registers: u32) -> Warp {
        let first = index * LANES as u32;
        let present = (self.threads - first).min(LANES as u32);
        let live = if present == LANES as u32 { FULL } else { (1 << present) - 1 };
        let mut warp = Warp {
            index,
            words: vec![[0; LANES]; self.kernel.words as usize],
            doubles: vec![[0; LANES]; self.kernel.doubles as usize],
            preds: vec![0; self.kernel.preds as usize],
            groups: vec![Group { pc: 0, mask: live, wait: None, joins: Vec::new() }],
            live,
            registers,
            products: WarpProducts { issued: 0, committed: VecDeque::new() },
            ..Warp::default()
        };
        for &(reg, constant) in &self.kernel.constants {
            for lane in 0..LANES {
                let value = self.constant(constant, first + lane as u32, linear);
                warp.set(reg, lane, value);
            }
        }
        debug_assert!(self.kernel.constants.iter().all(|(reg, _)| reg.bank != Bank::Pred || (reg.slot as usize) < warp.preds.len()));
        warp
    }

    fn constant(&self, constant: Constant, thread: u32, linear: u64) -> u64 {
        let special = match constant {
            Constant::Bits(bits) => return bits,
            Constant::Global(offset) => return self.launch.module_data.wrapping_add(offset),
            Constant::DynamicShared(offset) => return u64::from(self.kernel.dynamic_shared()).wrapping_add_signed(offset),
            Constant::Special(special) => special,
        };
        let [nx, ny, _] = self.launch.block;
        let lane = thread % LANES as u32;
        let value = match special {
            Special::Tid(0) => thread % nx,
            Special::Tid(1) => thread / nx % ny,
            Special::Tid(_) => thread / (nx * ny),
            Special::Ntid(axis) => self.launch.block[usize::from(axis)],
            Special::Ctaid(axis) => self.index[usize::from(axis)],
            Special::Nctaid(axis) => self.launch.grid[usize::from(axis)],
            Special::LaneId => lane,
            Special::WarpId => thread / LANES as u32,
            Special::WarpCount => self.threads.div_ceil(LANES as u32),
            Special::SmId => (linear % u64::from(self.launch.sm_count)) as u32,
            Special::SmCount => self.launch.sm_count,
            Special::GridId => return self.launch.grid_id,
            Special::LaneMaskEq => 1 << lane,
            Special::LaneMaskLt => (1 << lane) - 1,
            Special::LaneMaskLe => ((1 << lane) - 1) | (1 << lane),
            Special::LaneMaskGe => !((1 << lane) - 1),
            Special::LaneMaskGt => !((1 << lane) - 1) & !(1 << lane),
            Special::DynamicSharedBytes => self.launch.shared_bytes,
            Special::TotalSharedBytes => self.launch.shared_end() - SHARED_RESERVED,
            Special::Zero => 0,
            Special::One => 1,
        };
        u64::from(value)
    }

    /// Instructions of warps executed so far.
    pub fn executed(&self) -> u64 {
        self.executed
    }

    /// Runs for about `budget` instructions.
    pub fn run(&mut self, budget: u64) -> Step<Progress> {
        let stop = self.executed.saturating_add(budget);
        loop {
            let mut progress = false;
            let count = self.warps.len();
            let first = self.draws.below(count);
            for i in 0..count {
                let at = (first + i) % count;
                if self.warps[at].groups.is_empty() {
                    continue;
                }
                let mut warp = std::mem::take(&mut self.warps[at]);
                let result = self.run_warp(&mut warp);
                let index = warp.index;
                self.warps[at] = warp;
                progress |= result.map_err(|fault| self.locate(fault, Some(index)))?;
                self.complete_named();
                if self.draws.finish_early() {
                    progress |= self.finish_one()?;
                }
            }
            if self.warps.iter().all(|warp| warp.live == 0) {
                while self.finish_one()? {}
                self.check_registers().map_err(|fault| self.locate(fault, None))?;
                self.observer.end(self.kernel).map_err(|fault| self.locate(fault, None))?;
                return Ok(Progress::Done);
            }
            if std::mem::take(&mut self.out_of_turn) {
                progress |= self.finish_one()?;
            }
            if !progress && !self.finish_one()? {
                return Err(self.locate(self.deadlock(), None));
            }
            if self.executed > stop {
                return Ok(Progress::Unfinished);
            }
        }
    }

    /// Gives one group of a warp its turn; returns whether one could run.
    fn run_warp(&mut self, warp: &mut Warp) -> Step<bool> {
        let count = warp.groups.len();
        warp.turn = warp.turn.wrapping_add(1);
        let first = warp.turn as usize % count;
        for i in 0..count {
            let at = (first + i) % count;
            let polled = warp.groups[at].wait == Some(Wait::Poll);
            if self.wake(warp, at)? {
                let slice = self.draws.slice();
                self.run_group(warp, at, slice)?;
                // A loop that polls again without success has not come further.
                let polls_again = warp.groups.get(at).is_some_and(|group| group.wait == Some(Wait::Poll));
                if !(polled && polls_again) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn run_group(&mut self, warp: &mut Warp, at: usize, slice: u32) -> Step<()> {
        let code = &self.kernel.code;
        let (mut pc, mut mask) = (warp.groups[at].pc, warp.groups[at].mask);
        let mut join_pc = warp.join_pc(at);
        for _ in 0..slice {
            if pc == join_pc {
                warp.groups[at].pc = pc;
                warp.arrive_at_join(at);
                return Ok(());
            }
            let instr = &code[pc as usize];
            self.executed += 1;
            self.pc = pc;
            let active = match instr.guard {
                None => mask,
                Some((slot, negated)) => mask & (warp.preds[slot as usize] ^ if negated { FULL } else { 0 }),
            };
            if O::ENABLED {
                self.observer.instruction(self.kernel, warp, pc, active)?;
            }
            match instr.op {
                Op::Branch { target, reconverge } => {
                    if active == mask {
                        pc = target;
                    } else if active == 0 {
                        pc += 1;
                    } else {
                        warp.groups[at].pc = pc;
                        warp.diverge(at, active, target, reconverge);
                        (pc, mask, join_pc) = (pc + 1, mask & !active, warp.join_pc(at));
                    }
                }
                _ if active == 0 => pc += 1,
                Op::Exit => {
                    warp.groups[at].pc = pc + 1;
                    self.observer.exit(self.kernel, warp.index, active)?;
                    warp.exit(at, active);
                    if warp.live == 0 {
                        self.free_registers += warp.registers * LANES as u32;
                    }
                    return Ok(());
                }
                _ => match self.execute(warp, instr, active)? {
                    Flow::Next => pc += 1,
                    Flow::Wait { wait, again } => {
                        warp.groups[at].pc = if again { pc } else { pc + 1 };
                        warp.groups[at].wait = Some(wait);
                        return Ok(());
                    }
                },
            }
        }
        warp.groups[at].pc = pc;
        self.out_of_turn = true;
        Ok(())
    }

    /// Whether group `at` can run; a wait that is over is cleared.
    fn wake(&mut self, warp: &mut Warp, at: usize) -> Step<bool> {
        let Some(wait) = &warp.groups[at].wait else { return Ok(true) };
        let (pc, mask) = (warp.groups[at].pc, warp.groups[at].mask);
        let over = match wait {
            Wait::Mbarrier(phases) => phases.iter().any(|&(address, phase)| self.mbarriers.phase(address) != Some(phase)),
            &Wait::Named { id, generation } => {
                let over = self.named[id as usize].generation > generation;
                if over {
                    self.leave_barrier(warp, pc, id, mask);
                }
                over
            }
            &Wait::Bulk { pending, read } => {
                self.pc = pc - 1;
                self.bulk_wait_over(warp, mask, pending, read)
            }
            &Wait::Products { upto } => {
                let over = self.warpgroups[warp.index as usize / 4].done >= upto;
                if over {
                    self.observer.products_waited(warp.index, upto);
                }
                over
            }
            &Wait::Converge { members } => {
                self.pc = pc;
                return self.converge(warp, pc, members);
            }
            &Wait::Registers { count } => self.try_grow(warp, count),
            Wait::Poll => true,
        };
        if over {
            warp.groups[at].wait = None;
        }
        Ok(over)
    }

    /// Executes a warp-wide exchange once all of its members stand at it.
    fn converge(&mut self, warp: &mut Warp, pc: u32, members: u32) -> Step<bool> {
        let waiting = |group: &Group| group.pc == pc && matches!(group.wait, Some(Wait::Converge { .. }));
        let here = warp.groups.iter().filter(|group| waiting(group)).fold(0, |mask, group| mask | group.mask);
        if here & members != members & warp.live {
            return Ok(false);
        }
        self.exchange(warp, &self.kernel.code[pc as usize], here & members)?;
        for group in &mut warp.groups {
            if waiting(group) && group.mask & !members == 0 {
                group.wait = None;
                group.pc += 1;
            }
        }
        Ok(true)
    }

    /// `setmaxnreg` is an instruction of all warps of a warpgroup.
    fn check_registers(&self) -> Step<()> {
        for (group, warps) in self.warps.chunks(4).enumerate() {
            if warps.iter().any(|warp| warp.registers != warps[0].registers) {
                let counts = warps.iter().map(|warp| warp.registers.to_string()).collect::<Vec<_>>().join(", ");
                let message = format!("setmaxnreg without all warps: those of warpgroup {group} end with {counts} registers a thread");
                return Err(Fault::new(FaultKind::Protocol, message));
            }
        }
        Ok(())
    }

    fn complete_named(&mut self) {
        for id in 0..NAMED_BARRIERS {
            if self.named[id].arrived > 0 {
                let live = self.warps.iter().filter(|warp| warp.live != 0).count() as u32 * LANES as u32;
                if self.named[id].try_complete(live) {
                    self.observer.barrier_complete(id as u32);
                }
            }
        }
    }

    /// Lets one asynchronous operation make its next step; returns whether there was one.
    pub(super) fn finish_one(&mut self) -> Step<bool> {
        let ready: Vec<usize> = (0..self.warpgroups.len()).filter(|&at| self.warpgroups[at].is_ready()).collect();
        let choices = self.copies.len() + ready.len();
        if choices == 0 {
            return Ok(false);
        }
        let choice = self.draws.below(choices);
        let result = match choice.checked_sub(self.copies.len()) {
            None => self.step_copy(choice),
            Some(at) => self.execute_product(ready[at]),
        };
        result.map_err(|fault| self.locate(fault, None))?;
        Ok(true)
    }

    fn deadlock(&self) -> Box<Fault> {
        let mut message = String::from("no thread can go on; each waits for:");
        for warp in &self.warps {
            for group in &warp.groups {
                let Some(wait) = &group.wait else { continue };
                let first = lanes(group.mask).next().unwrap_or(0);
                let reason = match wait {
                    Wait::Mbarrier(phases) => {
                        let each = |&(address, _): &(u32, u64)| format!("mbarrier 0x{address:x} ({})", self.mbarriers.describe(address));
                        phases.iter().map(each).collect::<Vec<_>>().join(", ")
                    }
                    Wait::Named { id, .. } => {
                        let barrier = &self.named[*id as usize];
                        let wanted = barrier.expected.map_or_else(|| "all".to_string(), |n| n.to_string());
                        format!("barrier {id} ({} of {wanted} threads have arrived)", barrier.arrived)
                    }
                    Wait::Bulk { pending, .. } => format!("its bulk groups but {pending}"),
                    Wait::Products { upto } => {
                        let group = &self.warpgroups[warp.index as usize / 4];
                        format!("product {upto} of its warpgroup, {} done; not all four warps have issued the next", group.done)
                    }
                    Wait::Converge { members } => format!("the lanes 0x{:08x} of its warp", members & warp.live & !group.mask),
                    Wait::Poll => "an mbarrier that it polls".to_string(),
                    Wait::Registers { count } => format!("{count} registers a thread; {} are free in the pool", self.free_registers),
                };
                let pc = match wait {
                    Wait::Mbarrier(_) | Wait::Converge { .. } => group.pc,
                    _ => group.pc.saturating_sub(1),
                };
                let line = self.kernel.code[pc as usize].span.line;
                message.push_str(&format!(
                    "\n    warp {} (lanes 0x{:08x}, thread {}) at line {line}: {reason}",
                    warp.index,
                    group.mask,
                    warp.thread(first)
                ));
            }
            for join in warp.joins.iter().filter(|join| join.arrived != 0) {
                let line = self.kernel.code[join.pc as usize].span.line;
                message.push_str(&format!("\n    warp {} (lanes 0x{:08x}) before line {line}: its other lanes", warp.index, join.arrived));
            }
        }
        Fault::new(FaultKind::Deadlock, message)
    }

    /// Adds kernel, CTA, thread, line and text to a fault.
    fn locate(&self, mut fault: Box<Fault>, warp: Option<u32>) -> Box<Fault> {
        if !fault.place.is_empty() {
            return fault;
        }
        let [x, y, z] = self.index;
        let mut place = format!("  kernel {}, CTA ({x}, {y}, {z})", self.kernel.name);
        if let Some(thread) = fault.thread {
            place.push_str(&format!(", thread {thread} (warp {}, lane {})", thread / LANES as u32, thread % LANES as u32));
        } else if let Some(warp) = warp {
            place.push_str(&format!(", warp {warp}"));
        }
        if fault.kind != FaultKind::Deadlock {
            place.push('\n');
            place.push_str(&describe_pc(self.kernel, self.launch.source, fault.pc.unwrap_or(self.pc)));
        }
        fault.place = place;
        fault
    }
}

/// Line and text of an instruction, for reports.
pub fn describe_pc(kernel: &Kernel, source: &str, pc: u32) -> String {
    let mut text = kernel.text(source, pc).split_whitespace().collect::<Vec<_>>().join(" ");
    if text.chars().count() > 160 {
        text = text.chars().take(160).collect::<String>() + " ...";
    }
    format!("  line {}: {text}", kernel.code[pc as usize].span.line)
}

/// Registers that a thread starts with, as ptxas assigns them under the launch bounds: what the file holds, in steps of eight.
fn initial_registers(kernel: &Kernel, threads: u32) -> u32 {
    let bound = kernel.max_threads.map_or(threads, |(count, _, _)| count).next_multiple_of(128).max(128);
    let fit = (REGISTER_FILE / bound).min(255) / 8 * 8;
    kernel.max_registers.map_or(fit, |most| most.min(fit))
}
