//! Checks: an observer of the machine that knows, from the order of events alone, which accesses nothing orders.
//!
//! Threads and asynchronous operations have vector clocks. Releasing (arriving at a barrier or an mbarrier, issuing an operation) hands a
//! clock on, acquiring (leaving a barrier, finding a phase complete, waiting for a group) takes it over; two accesses of which neither
//! knows the other are a race, whatever order they had in this run. Writes through the generic proxy become known to asynchronous
//! operations only by `fence.proxy.async`.

mod clock;
mod global;
mod registers;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use clock::{Access, Block, Cell, Clock};
use global::{GlobalShadow, Known};
use registers::Registers;

use crate::lower::Kernel;
use crate::machine::{AccessKind, Agent, Allocation, AsyncKind, Fault, FaultKind, LANES, Launch, Observer, Step, Warp, describe_pc, lanes};

/// Asynchronous operations that are remembered at one time.
const SLOTS: usize = 128;

/// What the observers of a launch share.
#[derive(Default)]
pub struct Shared {
    global: GlobalShadow,
}

/// An asynchronous operation.
struct Operation {
    op: u64,
    clock: Clock,
    /// Epoch of its reads; its writes have the next one.
    epoch: u32,
    kind: AsyncKind,
    thread: u32,
    pc: u32,
    over: bool,
    waited: bool,
}

/// An mbarrier's clocks.
struct Phases {
    arriving: Clock,
    complete: Clock,
    init: Access,
    /// Whether asynchronous operations may know it.
    fenced: bool,
    /// For each thread the number of the phase that it last waited for, plus 2; 0 for none.
    waited: Vec<u64>,
}

/// The observer of one CTA.
pub struct Checks<'a> {
    launch: &'a Launch<'a>,
    shared: &'a Shared,
    cta: u32,
    time: u32,
    known: Known,
    threads: usize,
    clocks: Vec<Clock>,
    operations: Vec<Operation>,
    next_slot: usize,
    mbarriers: HashMap<u32, Phases>,
    named: Vec<(Clock, Clock)>,
    addresses: HashMap<u64, Clock>,
    blocks: Vec<Block>,
    registers: Vec<Registers>,
    scratch: Clock,
}

/// Who accesses, resolved.
#[derive(Clone, Copy)]
enum Who {
    Thread(usize),
    Slot(usize),
}

impl<'a> Checks<'a> {
    /// The part that all CTAs of a launch share.
    pub fn shared(_launch: &Launch<'_>) -> Shared {
        Shared::default()
    }

    /// The observer of CTA number `cta`.
    pub fn new(launch: &'a Launch<'a>, shared: &'a Shared, cta: u64) -> Self {
        let threads = launch.block.iter().product::<u32>() as usize;
        let width = threads + SLOTS;
        let clocks = (0..threads)
            .map(|thread| {
                let mut clock = Clock::new(width);
                clock.generic[thread] = 1;
                clock
            })
            .collect();
        Self {
            launch,
            shared,
            cta: cta as u32,
            time: 1,
            known: Known::new(),
            threads,
            clocks,
            operations: Vec::new(),
            next_slot: 0,
            mbarriers: HashMap::new(),
            named: (0..16).map(|_| (Clock::new(width), Clock::new(width))).collect(),
            addresses: HashMap::new(),
            blocks: vec![Block::default(); launch.shared_end().div_ceil(16) as usize],
            registers: (0..threads.div_ceil(LANES)).map(|_| Registers::new(launch.kernel)).collect(),
            scratch: Clock::new(width),
        }
    }

    fn slot_of(&self, op: u64) -> Option<usize> {
        self.operations.iter().position(|operation| operation.op == op)
    }

    fn who(&self, agent: Agent) -> Option<Who> {
        match agent {
            Agent::Thread(thread) => Some(Who::Thread(thread as usize)),
            Agent::Async(op) => self.slot_of(op).map(Who::Slot),
        }
    }

    fn clock(&self, who: Who) -> &Clock {
        match who {
            Who::Thread(thread) => &self.clocks[thread],
            Who::Slot(slot) => &self.operations[slot].clock,
        }
    }

    /// The access that `who` makes now.
    fn access(&self, who: Who, pc: u32, kind: AccessKind) -> Access {
        let is_write = matches!(kind, AccessKind::Write | AccessKind::Atomic { write: true });
        let (agent, epoch) = match who {
            Who::Thread(thread) => (thread, self.clocks[thread].generic[thread]),
            Who::Slot(slot) => (self.threads + slot, self.operations[slot].epoch + u32::from(is_write)),
        };
        Access {
            agent: agent as u16,
            atomic: matches!(kind, AccessKind::Atomic { .. }),
            asynchronous: matches!(who, Who::Slot(_)),
            epoch,
            pc,
            cta: self.cta,
            time: self.time,
        }
    }

    /// Whether an earlier access of this CTA is known to `who`; `Some(true)` if only a proxy fence is missing.
    fn conflict(&self, who: Who, now: &Access, earlier: &Access, earlier_writes: bool) -> Option<bool> {
        if earlier.epoch == 0 || (now.atomic && earlier.atomic) || (earlier.agent == now.agent && earlier.cta == now.cta) {
            return None;
        }
        if earlier.cta != now.cta {
            let known = self.known.get(&earlier.cta).copied().unwrap_or(0);
            return (known < earlier.time).then_some(false);
        }
        let clock = self.clock(who);
        let at = earlier.agent as usize;
        if clock.generic[at] < earlier.epoch {
            return Some(false);
        }
        // A reader of the generic proxy is only waited for; what it wrote must also be made visible.
        let crosses = now.asynchronous && !earlier.asynchronous && earlier_writes;
        (crosses && clock.fenced[at] < earlier.epoch).then_some(true)
    }

    /// Compares an access with what a cell remembers, and notes it there.
    fn touch(&self, who: Who, now: Access, is_write: bool, cell: &mut Cell, place: &dyn Fn() -> String) -> Step<()> {
        // Lanes of one instruction that write one address: one of them wins.
        let same_store = is_write && cell.write.pc == now.pc && cell.write.cta == now.cta && !now.asynchronous && {
            cell.write.agent as usize / LANES == now.agent as usize / LANES
        };
        if !same_store && let Some(proxy) = self.conflict(who, &now, &cell.write, true) {
            return Err(self.race(&now, is_write, &cell.write, true, proxy, place()));
        }
        if is_write {
            let found = cell.reads.iter().find_map(|read| self.conflict(who, &now, read, false).map(|proxy| (*read, proxy)));
            if let Some((read, proxy)) = found {
                return Err(self.race(&now, true, &read, false, proxy, place()));
            }
            cell.reads.clear();
            cell.write = now;
        } else {
            // Readers that this one knows add nothing: who knows this one knows them.
            cell.reads.retain(|read| read.agent != now.agent || read.cta != now.cta);
            cell.reads.retain(|read| self.conflict(who, &now, read, false).is_some());
            cell.reads.push(now);
            global::trim(&mut cell.reads);
        }
        Ok(())
    }

    fn race(&self, now: &Access, now_writes: bool, earlier: &Access, earlier_writes: bool, proxy: bool, place: String) -> Box<Fault> {
        let verb = |writes: bool| if writes { "write" } else { "read" };
        let mut message = format!(
            "{} {place} by {} and the {} by {}{} are not ordered{}",
            verb(now_writes),
            self.name(now),
            verb(earlier_writes),
            self.name(earlier),
            if earlier.cta == self.cta { String::new() } else { format!(" of CTA {}", earlier.cta) },
            if proxy { " for the asynchronous proxy: fence.proxy.async is missing" } else { "" },
        );
        message.push_str("\n  the other side:\n");
        message.push_str(&describe_pc(self.launch.kernel, self.launch.source, earlier.pc));
        let fault = Fault::new(FaultKind::Race, message).pc(now.pc);
        if (now.agent as usize) < self.threads { fault.thread(u32::from(now.agent)) } else { fault }
    }

    fn name(&self, access: &Access) -> String {
        if access.asynchronous {
            let line = self.launch.kernel.code[access.pc as usize].span.line;
            return format!("the asynchronous operation of line {line}");
        }
        let thread = u32::from(access.agent);
        format!("thread {thread} (warp {}, lane {})", thread / LANES as u32, thread % LANES as u32)
    }

    /// A thread's clock goes on, so that what it does from here on is not part of what it has released.
    fn tick(&mut self, thread: usize) {
        self.clocks[thread].generic[thread] += 1;
    }

    fn threads_of(warp: u32, mask: u32) -> impl Iterator<Item = usize> {
        lanes(mask).map(move |lane| warp as usize * LANES + lane)
    }

    /// Atomics on one address follow each other: each knows what the earlier ones knew.
    fn atomic_order(&mut self, thread: usize, address: u64) {
        let width = self.threads + SLOTS;
        let clock = self.addresses.entry(address).or_insert_with(|| Clock::new(width));
        self.clocks[thread].join(clock);
        clock.copy(&self.clocks[thread]);
        self.tick(thread);
    }

    fn visit_shared(&mut self, who: Who, pc: u32, address: u32, bytes: u32, kind: AccessKind) -> Step<()> {
        let is_write = matches!(kind, AccessKind::Write | AccessKind::Atomic { write: true });
        let now = self.access(who, pc, kind);
        let (mut at, end) = (address, address + bytes);
        while at < end {
            let block = (at / 16) as usize;
            let upto = end.min((at / 16 + 1) * 16);
            let mut cells = std::mem::take(&mut self.blocks[block]);
            let place = || format!("of shared 0x{at:x}");
            let result = cells.visit(at % 16, upto - block as u32 * 16, is_write, |cell| {
                if cell.write.epoch == 0 && !is_write {
                    let message = format!("shared 0x{at:x} is read by {}, and nothing has written it", self.name(&now));
                    return Err(Fault::new(FaultKind::Uninitialised, message).pc(pc));
                }
                self.touch(who, now, is_write, cell, &place)
            });
            self.blocks[block] = cells;
            result?;
            at = upto;
        }
        Ok(())
    }

    /// A thread uses an mbarrier: it must know its initialisation, whoever has used it since.
    fn use_mbarrier(&mut self, who: Who, pc: u32, address: u32, write: bool) -> Step<()> {
        let now = self.access(who, pc, AccessKind::Atomic { write });
        if let Some(phases) = self.mbarriers.get(&address)
            && self.conflict(who, &now, &phases.init, true).is_some()
        {
            return Err(self.race(&now, write, &phases.init, true, false, format!("of the mbarrier 0x{address:x}")));
        }
        self.visit_shared(who, pc, address, 8, AccessKind::Atomic { write })
    }

    fn release_registers(&self) -> Option<usize> {
        self.registers.iter().position(|registers| registers.in_flight() > 0)
    }
}

impl Observer for Checks<'_> {
    const ENABLED: bool = true;

    fn instruction(&mut self, kernel: &Kernel, warp: &Warp, pc: u32, mask: u32) -> Step<()> {
        if mask == 0 {
            return Ok(());
        }
        self.registers[warp.index as usize].instruction(kernel, warp, &kernel.code[pc as usize], mask)
    }

    fn shared(&mut self, agent: Agent, pc: u32, address: u32, bytes: u32, kind: AccessKind) -> Step<()> {
        let Some(who) = self.who(agent) else { return Ok(()) };
        if let (Who::Thread(thread), AccessKind::Atomic { .. }) = (who, kind) {
            self.atomic_order(thread, u64::from(address));
        }
        self.visit_shared(who, pc, address, bytes, kind)
    }

    fn global(&mut self, agent: Agent, pc: u32, memory: &Arc<Allocation>, address: u64, bytes: u64, kind: AccessKind) -> Step<()> {
        let Some(who) = self.who(agent) else { return Ok(()) };
        let is_write = matches!(kind, AccessKind::Write | AccessKind::Atomic { write: true });
        if kind != AccessKind::Write
            && let Some(at) = memory.first_unwritten(address, bytes)
        {
            let message = format!("global 0x{at:x} is read, and nothing has written it (allocation 0x{:x})", memory.base);
            return Err(Fault::new(FaultKind::Uninitialised, message));
        }
        if let (Who::Thread(thread), AccessKind::Atomic { .. }) = (who, kind) {
            self.atomic_order(thread, address);
        }
        let now = self.access(who, pc, kind);
        let this = &*self;
        self.shared
            .global
            .visit(address, bytes, is_write, |at, cell| this.touch(who, now, is_write, cell, &|| format!("of global 0x{at:x}")))
    }

    fn ordered(&mut self, _thread: u32, address: u64, acquire: bool, release: bool) {
        if acquire {
            self.shared.global.acquire(address, &mut self.known);
        }
        if release {
            self.known.insert(self.cta, self.time);
            self.shared.global.release(address, &self.known);
            self.time += 1;
        }
    }

    fn warp_sync(&mut self, warp: u32, mask: u32) {
        let mut all = std::mem::replace(&mut self.scratch, Clock::new(0));
        all.clear();
        Self::threads_of(warp, mask).for_each(|thread| all.join(&self.clocks[thread]));
        for thread in Self::threads_of(warp, mask) {
            self.clocks[thread].copy(&all);
            self.tick(thread);
        }
        self.scratch = all;
    }

    fn barrier_arrive(&mut self, id: u32, warp: u32, mask: u32) {
        for thread in Self::threads_of(warp, mask) {
            self.named[id as usize].0.join(&self.clocks[thread]);
            self.tick(thread);
        }
    }

    fn barrier_complete(&mut self, id: u32) {
        let (arriving, complete) = &mut self.named[id as usize];
        complete.copy(arriving);
        arriving.clear();
    }

    fn barrier_leave(&mut self, id: u32, warp: u32, mask: u32) {
        for thread in Self::threads_of(warp, mask) {
            self.clocks[thread].join(&self.named[id as usize].1);
        }
    }

    fn mbarrier_init(&mut self, thread: u32, pc: u32, address: u32) -> Step<()> {
        self.visit_shared(Who::Thread(thread as usize), pc, address, 8, AccessKind::Write)?;
        let init = self.access(Who::Thread(thread as usize), pc, AccessKind::Write);
        let width = self.threads + SLOTS;
        let (arriving, complete) = (Clock::new(width), Clock::new(width));
        self.mbarriers.insert(address, Phases { arriving, complete, init, fenced: false, waited: vec![0; self.threads] });
        Ok(())
    }

    fn mbarrier_arrive(&mut self, agent: Agent, pc: u32, address: u32, release: bool) -> Step<()> {
        let Some(who) = self.who(agent) else { return Ok(()) };
        if let Who::Thread(_) = who {
            self.use_mbarrier(who, pc, address, true)?;
        }
        let Some(phases) = self.mbarriers.get_mut(&address) else { return Ok(()) };
        if release {
            match who {
                Who::Thread(thread) => {
                    phases.arriving.join(&self.clocks[thread]);
                    self.tick(thread);
                }
                Who::Slot(slot) => phases.arriving.join(&self.operations[slot].clock),
            }
        }
        Ok(())
    }

    fn mbarrier_complete(&mut self, address: u32, _phase: u64) {
        if let Some(phases) = self.mbarriers.get_mut(&address) {
            phases.complete.copy(&phases.arriving);
        }
    }

    fn mbarrier_wait(&mut self, thread: u32, pc: u32, address: u32, phase: u64, acquire: bool) -> Step<()> {
        let who = Who::Thread(thread as usize);
        self.use_mbarrier(who, pc, address, false)?;
        let Some(phases) = self.mbarriers.get_mut(&address) else { return Ok(()) };
        let (now, before) = (phase.wrapping_add(2), phases.waited[thread as usize]);
        phases.waited[thread as usize] = now;
        if before != 0 && now >= before + 3 {
            let message = format!(
                "thread {thread} waits for a phase of the mbarrier 0x{address:x} that passed twice: its last wait was for phase {}, now phase \
                 {phase} is complete",
                before.wrapping_sub(2) as i64
            );
            return Err(Fault::new(FaultKind::Protocol, message));
        }
        if acquire {
            self.clocks[thread as usize].join(&phases.complete);
        }
        Ok(())
    }

    fn proxy_fence(&mut self, warp: u32, mask: u32) {
        self.mbarrier_init_fence(warp, mask);
        for thread in Self::threads_of(warp, mask) {
            let clock = &mut self.clocks[thread];
            let generic = clock.generic.clone();
            for (fenced, known) in clock.fenced.iter_mut().zip(&generic) {
                *fenced = (*fenced).max(*known);
            }
            self.tick(thread);
        }
    }

    fn mbarrier_init_fence(&mut self, warp: u32, mask: u32) {
        for thread in Self::threads_of(warp, mask) {
            let clock = &self.clocks[thread];
            for phases in self.mbarriers.values_mut() {
                phases.fenced |= clock.generic[phases.init.agent as usize] >= phases.init.epoch;
            }
        }
    }

    fn async_issue(&mut self, op: u64, threads: Range<u32>, pc: u32, kind: AsyncKind, mbarrier: Option<u32>) -> Step<()> {
        if let Some(address) = mbarrier {
            let thread = threads.start as usize;
            self.use_mbarrier(Who::Thread(thread), pc, address, true)?;
            if self.mbarriers.get(&address).is_some_and(|phases| !phases.fenced) {
                let message = format!(
                    "an asynchronous operation completes on the mbarrier 0x{address:x}, whose initialisation no fence.mbarrier_init or \
                     fence.proxy.async follows"
                );
                return Err(Fault::new(FaultKind::Race, message));
            }
        }
        let slot = match self.slot_of(op) {
            Some(slot) => slot,
            None => self.new_operation(op, threads.start, pc, kind),
        };
        for thread in threads {
            let operation = &mut self.operations[slot];
            operation.clock.join(&self.clocks[thread as usize]);
            self.tick(thread as usize);
        }
        Ok(())
    }

    fn async_done(&mut self, op: u64) {
        if let Some(slot) = self.slot_of(op) {
            self.operations[slot].over = true;
        }
    }

    fn async_wait(&mut self, op: u64, threads: Range<u32>, read_only: bool) {
        let Some(slot) = self.slot_of(op) else { return };
        let operation = &mut self.operations[slot];
        operation.waited = true;
        let at = self.threads + slot;
        for thread in threads {
            let clock = &mut self.clocks[thread as usize];
            if read_only {
                // Only the reads are over: the operation's own writes stay unknown.
                clock.generic[at] = clock.generic[at].max(operation.epoch);
            } else {
                clock.join(&operation.clock);
            }
        }
    }

    fn product_fence(&mut self, warp: u32) {
        self.registers[warp as usize].fence();
    }

    fn products_waited(&mut self, warp: u32, upto: u64) {
        self.registers[warp as usize].waited(upto);
        let group = u64::from(warp / 4);
        for slot in 0..self.operations.len() {
            let operation = &mut self.operations[slot];
            let number = operation.op & 0xffff_ffff_ffff;
            if operation.kind == AsyncKind::Product && operation.op >> 48 & 0x7fff == group && number < upto {
                operation.waited = true;
                for thread in Self::threads_of(warp, u32::MAX) {
                    self.clocks[thread].join(&self.operations[slot].clock);
                }
            }
        }
    }

    fn exit(&mut self, _kernel: &Kernel, warp: u32, mask: u32) -> Step<()> {
        for thread in Self::threads_of(warp, mask) {
            let left =
                |operation: &&Operation| operation.kind == AsyncKind::Store && operation.thread == thread as u32 && !operation.waited;
            if let Some(operation) = self.operations.iter().find(left) {
                let message = "the thread exits while its bulk copy may still read shared memory; cp.async.bulk.wait_group is missing";
                return Err(Fault::new(FaultKind::Protocol, message).pc(operation.pc).thread(thread as u32));
            }
        }
        Ok(())
    }

    fn end(&mut self, _kernel: &Kernel) -> Step<()> {
        if let Some(warp) = self.release_registers() {
            let message = format!("warp {warp} has exited with products in flight; wgmma.wait_group is missing");
            return Err(Fault::new(FaultKind::Protocol, message));
        }
        for (slot, operation) in self.operations.iter().enumerate() {
            let at = self.threads + slot;
            let known = self.clocks.iter().any(|clock| clock.generic[at] > operation.epoch);
            if operation.kind == AsyncKind::Load && !known {
                let message = "the CTA ends, and no thread has waited for this bulk copy into its shared memory";
                return Err(Fault::new(FaultKind::Protocol, message).pc(operation.pc).thread(operation.thread));
            }
        }
        Ok(())
    }
}

impl Checks<'_> {
    /// A slot for an operation: a new one, or that of one that is over.
    fn new_operation(&mut self, op: u64, thread: u32, pc: u32, kind: AsyncKind) -> usize {
        let width = self.threads + SLOTS;
        let fresh = Operation { op, clock: Clock::new(width), epoch: 1, kind, thread, pc, over: false, waited: false };
        let slot = if self.operations.len() < SLOTS {
            self.operations.push(fresh);
            self.operations.len() - 1
        } else {
            let free = (0..SLOTS).map(|i| (self.next_slot + i) % SLOTS).find(|&slot| {
                let operation = &self.operations[slot];
                operation.over && (operation.waited || operation.kind == AsyncKind::Load)
            });
            let slot = free.unwrap_or(self.next_slot);
            let epoch = self.operations[slot].epoch + 2;
            self.operations[slot] = Operation { epoch, ..fresh };
            slot
        };
        self.next_slot = (slot + 1) % SLOTS;
        let at = self.threads + slot;
        let operation = &mut self.operations[slot];
        operation.clock.generic[at] = operation.epoch + 1;
        operation.clock.fenced[at] = operation.epoch + 1;
        slot
    }
}
