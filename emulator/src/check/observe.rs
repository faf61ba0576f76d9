//! What the events of the machine mean for the clocks.

use std::ops::Range;
use std::sync::Arc;

use super::clock::Clock;
use super::{Checks, Named, Operation, Order, Phases, SLOTS, Waited, Who};
use crate::lower::Kernel;
use crate::machine::{AccessKind, Agent, Allocation, AsyncKind, Fault, FaultKind, LANES, Observer, Step, Warp, describe_pc};

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
        self.shared.global.visit(address, bytes, now.write, |at, cell| this.touch(who, now, cell, &|| format!("of global 0x{at:x}")))
    }

    fn local(&mut self, thread: u32, address: u32, bytes: u32, write: bool) -> Step<()> {
        let start = (thread * self.launch.kernel.local_bytes + address) as usize;
        let range = &mut self.local[start..start + bytes as usize];
        if write {
            range.fill(true);
        } else if let Some(at) = range.iter().position(|written| !written) {
            let message = format!("local 0x{:x} is read, and the thread has not written it", address as usize + at);
            return Err(Fault::new(FaultKind::Uninitialised, message));
        }
        Ok(())
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

    fn barrier_arrive(&mut self, id: u32, warp: u32, pc: u32, mask: u32) -> Step<()> {
        // One lane stands for the warp, whose lanes arrive together.
        let first = warp as usize * LANES + mask.trailing_zeros() as usize;
        if let Some(other) = self.named[id as usize].order.arrive(first, pc, &self.clocks[first]) {
            return Err(self.out_of_turn(&format!("barrier {id}"), other));
        }
        for thread in Self::threads_of(warp, mask) {
            self.named[id as usize].arriving.join(&self.clocks[thread]);
            self.tick(thread);
        }
        Ok(())
    }

    fn barrier_complete(&mut self, id: u32) {
        let Named { arriving, complete, order } = &mut self.named[id as usize];
        // Joined, not replaced: a thread of this generation may leave only after the next one is complete.
        complete.join(arriving);
        arriving.clear();
        order.complete();
    }

    fn barrier_leave(&mut self, id: u32, warp: u32, mask: u32) {
        for thread in Self::threads_of(warp, mask) {
            self.clocks[thread].join(&self.named[id as usize].complete);
        }
    }

    fn mbarrier_init(&mut self, thread: u32, pc: u32, address: u32) -> Step<()> {
        self.visit_shared(Who::Thread(thread as usize), pc, address, 8, AccessKind::Write)?;
        let init = self.access(Who::Thread(thread as usize), pc, AccessKind::Write);
        let width = self.threads + SLOTS;
        let (arriving, complete) = (Clock::new(width), Clock::new(width));
        let (waited, order) = (vec![Waited::default(); self.threads], Order::default());
        self.mbarriers.insert(address, Phases { arriving, complete, init, fenced: false, waited, order });
        Ok(())
    }

    fn mbarrier_arrive(&mut self, agent: Agent, pc: u32, address: u32, release: bool) -> Step<()> {
        let Some(who) = self.who(agent) else { return Ok(()) };
        if let Who::Thread(_) = who {
            self.use_mbarrier(who, pc, address, true)?;
        }
        let Some(phases) = self.mbarriers.get_mut(&address) else { return Ok(()) };
        if release {
            let (component, clock) = match who {
                Who::Thread(thread) => (thread, &self.clocks[thread]),
                Who::Slot(slot) => (self.threads + slot, &self.operations[slot].clock),
            };
            phases.arriving.join(clock);
            let unknown = phases.order.arrive(component, pc, clock);
            if let Who::Thread(thread) = who {
                self.tick(thread);
            }
            if let Some(other) = unknown {
                return Err(self.out_of_turn(&format!("the mbarrier 0x{address:x}"), other));
            }
        }
        Ok(())
    }

    fn mbarrier_complete(&mut self, address: u32, phase: u64) -> Step<()> {
        let Some(phases) = self.mbarriers.get_mut(&address) else { return Ok(()) };
        phases.complete.copy(&phases.arriving);
        phases.order.complete();
        let missed = |(thread, waited): &(usize, &Waited)| waited.phase == phase + 1 && phases.complete.generic[*thread] < waited.epoch;
        if let Some((thread, &waited)) = phases.waited.iter().enumerate().find(missed) {
            let mut message = format!(
                "phase {phase} of the mbarrier 0x{address:x} completes, and nothing orders it behind the wait of {} for the phase before: \
                 that wait could have missed its phase",
                self.component(thread, waited.pc)
            );
            message.push_str("\n  the wait:\n");
            message.push_str(&describe_pc(self.launch.kernel, self.launch.source, waited.pc));
            return Err(Fault::new(FaultKind::Race, message));
        }
        Ok(())
    }

    fn mbarrier_wait(&mut self, thread: u32, pc: u32, address: u32, phase: u64, acquire: bool) -> Step<()> {
        let who = Who::Thread(thread as usize);
        self.use_mbarrier(who, pc, address, false)?;
        let Some(phases) = self.mbarriers.get_mut(&address) else { return Ok(()) };
        let clock = &self.clocks[thread as usize];
        let (now, before) = (phase.wrapping_add(2), phases.waited[thread as usize].phase);
        phases.waited[thread as usize] = Waited { phase: now, epoch: clock.generic[thread as usize], pc };
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
