//! Checks: an observer of the machine that knows, from the order of events alone, which accesses nothing orders.
//!
//! Threads and asynchronous operations have vector clocks. Releasing (arriving at a barrier or an mbarrier, issuing an operation) hands a
//! clock on, acquiring (leaving a barrier, finding a phase complete, waiting for a group) takes it over; two accesses of which neither
//! knows the other are a race, whatever order they had in this run. Writes through the generic proxy become known to asynchronous
//! operations only by `fence.proxy.async`.

mod clock;
mod global;
mod observe;
mod registers;

use std::collections::HashMap;

use clock::{Access, Block, Cell, Clock};
use global::{GlobalShadow, Known};
use registers::Registers;

use crate::machine::{AccessKind, Agent, AsyncKind, Fault, FaultKind, LANES, Launch, Step, describe_pc, lanes};

/// Asynchronous operations that are remembered at one time.
const SLOTS: usize = 128;

/// What the observers of a launch share.
#[derive(Default)]
pub struct Shared {
    global: GlobalShadow,
}

/// A named barrier's clocks.
struct Named {
    arriving: Clock,
    complete: Clock,
    order: Order,
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
    waited: Vec<Waited>,
    order: Order,
}

/// A thread's last wait for an mbarrier.
#[derive(Clone, Copy, Default)]
struct Waited {
    /// Number of the phase plus 2; 0 for none.
    phase: u64,
    /// The thread's epoch then.
    epoch: u32,
    pc: u32,
}

/// Who has arrived at a barrier. An arrival that does not know all those of the generation before could have come in place of one of them.
#[derive(Default)]
struct Order {
    /// Arrivals of this generation and of the one before.
    current: Vec<Arrival>,
    previous: Vec<Arrival>,
}

/// An arrival at a barrier: the component of the clocks that stands for who arrives, its epoch then, and the instruction.
#[derive(Clone, Copy)]
struct Arrival {
    component: usize,
    epoch: u32,
    pc: u32,
}

impl Order {
    /// Notes an arrival, and returns one of the last generation that it does not know.
    fn arrive(&mut self, component: usize, pc: u32, clock: &Clock) -> Option<Arrival> {
        self.current.push(Arrival { component, epoch: clock.generic[component], pc });
        let unknown = |other: &&Arrival| other.component != component && clock.generic[other.component] < other.epoch;
        self.previous.iter().find(unknown).copied()
    }

    fn complete(&mut self) {
        self.previous.clear();
        std::mem::swap(&mut self.previous, &mut self.current);
    }
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
    named: Vec<Named>,
    addresses: HashMap<u64, Clock>,
    blocks: Vec<Block>,
    registers: Vec<Registers>,
    /// For each byte of the threads' local memory whether it has been written.
    local: Vec<bool>,
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
            named: (0..16).map(|_| Named { arriving: Clock::new(width), complete: Clock::new(width), order: Order::default() }).collect(),
            addresses: HashMap::new(),
            blocks: vec![Block::default(); launch.shared_end().div_ceil(16) as usize],
            registers: (0..threads.div_ceil(LANES)).map(|_| Registers::new(launch.kernel)).collect(),
            local: vec![false; launch.kernel.local_bytes as usize * threads],
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
        let write = matches!(kind, AccessKind::Write | AccessKind::Atomic { write: true });
        let (agent, epoch) = match who {
            Who::Thread(thread) => (thread, self.clocks[thread].generic[thread]),
            Who::Slot(slot) => (self.threads + slot, self.operations[slot].epoch + u32::from(write)),
        };
        Access {
            agent: agent as u16,
            write,
            atomic: matches!(kind, AccessKind::Atomic { .. }),
            asynchronous: matches!(who, Who::Slot(_)),
            epoch,
            pc,
            cta: self.cta,
            time: self.time,
        }
    }

    /// What is wrong between an earlier access, of this CTA or another, and what `who` does now: nothing (`None`), nothing orders them
    /// (`Some(false)`), or they are in order and only a proxy fence is missing (`Some(true)`).
    fn conflict(&self, who: Who, now: &Access, earlier: &Access) -> Option<bool> {
        if earlier.epoch == 0 || (now.atomic && earlier.atomic) || (earlier.agent == now.agent && earlier.cta == now.cta) {
            return None;
        }
        if !self.knows(who, now, earlier) {
            return Some(false);
        }
        // A reader of the generic proxy is only waited for; what it wrote must also be made visible.
        let crosses = earlier.cta == now.cta && now.asynchronous && !earlier.asynchronous && earlier.write;
        (crosses && self.clock(who).fenced[earlier.agent as usize] < earlier.epoch).then_some(true)
    }

    /// Whether an earlier access happens before what `who` does now.
    fn knows(&self, who: Who, now: &Access, earlier: &Access) -> bool {
        if earlier.cta != now.cta {
            return self.known.get(&earlier.cta).is_some_and(|&known| known >= earlier.time);
        }
        earlier.agent == now.agent || self.clock(who).generic[earlier.agent as usize] >= earlier.epoch
    }

    /// Compares an access with what a cell remembers, and notes it there.
    fn touch(&self, who: Who, now: Access, cell: &mut Cell, place: &dyn Fn() -> String) -> Step<()> {
        // Lanes of one instruction that write one address: one of them wins.
        let same_store = now.write && cell.write.pc == now.pc && cell.write.cta == now.cta && !now.asynchronous && {
            cell.write.agent as usize / LANES == now.agent as usize / LANES
        };
        if !same_store && let Some(proxy) = self.conflict(who, &now, &cell.write) {
            return Err(self.race(&now, &cell.write, proxy, place()));
        }
        for other in cell.others.iter().filter(|other| now.write || other.write) {
            if let Some(proxy) = self.conflict(who, &now, other) {
                return Err(self.race(&now, other, proxy, place()));
            }
        }
        if now.write {
            // Nothing orders atomics among themselves: those that this one does not know are kept beside it.
            let unknown = |access: &Access| now.atomic && !self.knows(who, &now, access);
            cell.others.retain(unknown);
            if cell.write.epoch != 0 && unknown(&cell.write) {
                cell.others.push(cell.write);
                global::trim(&mut cell.others);
            }
            cell.write = now;
        } else {
            // Readers that this one knows add nothing: who knows this one knows them.
            cell.others.retain(|other| other.write || other.agent != now.agent || other.cta != now.cta);
            cell.others.retain(|other| other.write || self.conflict(who, &now, other).is_some());
            cell.others.push(now);
            global::trim(&mut cell.others);
        }
        Ok(())
    }

    fn race(&self, now: &Access, earlier: &Access, proxy: bool, place: String) -> Box<Fault> {
        let verb = |access: &Access| if access.write { "write" } else { "read" };
        let mut message = format!(
            "{} {place} by {} and the {} by {}{} are not ordered{}",
            verb(now),
            self.name(now),
            verb(earlier),
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
        self.component(access.agent.into(), access.pc)
    }

    /// Whom a component of a clock stood for at an instruction, in words: the slots of asynchronous operations are used again and again.
    fn component(&self, at: usize, pc: u32) -> String {
        if at < self.threads {
            return format!("thread {at} (warp {}, lane {})", at / LANES, at % LANES);
        }
        format!("the asynchronous operation of line {}", self.launch.kernel.code[pc as usize].span.line)
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
        let now = self.access(who, pc, kind);
        let (mut at, end) = (address, address + bytes);
        while at < end {
            let block = (at / 16) as usize;
            let upto = end.min((at / 16 + 1) * 16);
            let mut cells = std::mem::take(&mut self.blocks[block]);
            let place = || format!("of shared 0x{at:x}");
            let result = cells.visit(at % 16, upto - block as u32 * 16, now.write, |cell| {
                if cell.write.epoch == 0 && !now.write {
                    let message = format!("shared 0x{at:x} is read by {}, and nothing has written it", self.name(&now));
                    return Err(Fault::new(FaultKind::Uninitialised, message).pc(pc));
                }
                self.touch(who, now, cell, &place)
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
            && self.conflict(who, &now, &phases.init).is_some()
        {
            return Err(self.race(&now, &phases.init, false, format!("of the mbarrier 0x{address:x}")));
        }
        self.visit_shared(who, pc, address, 8, AccessKind::Atomic { write })
    }

    fn out_of_turn(&self, barrier: &str, other: Arrival) -> Box<Fault> {
        let message = format!(
            "nothing orders this arrival at {barrier} behind the arrival of {} in the generation before: it could have come in its place\n  \
             the other arrival:\n{}",
            self.component(other.component, other.pc),
            describe_pc(self.launch.kernel, self.launch.source, other.pc)
        );
        Fault::new(FaultKind::Race, message)
    }

    fn release_registers(&self) -> Option<usize> {
        self.registers.iter().position(|registers| registers.in_flight() > 0)
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
