//! mbarrier objects (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier") and named barriers.

use super::fault::{Fault, FaultKind, Step};

/// The largest count of an mbarrier, of arrivals and of transaction bytes: 2^20 - 1.
const MAX_COUNT: u32 = (1 << 20) - 1;

/// An mbarrier.
#[derive(Clone, Debug)]
pub struct Mbarrier {
    pub address: u32,
    /// Arrivals that a phase expects.
    pub expected: u32,
    /// Arrivals that the current phase still lacks.
    pub pending: u32,
    /// Transaction bytes that the current phase still lacks; negative if they came before they were announced.
    pub tx: i64,
    /// Number of the current phase.
    pub phase: u64,
}

impl Mbarrier {
    /// The state that `mbarrier.arrive` returns: the phase it arrived in, and what was pending before.
    pub fn state(&self) -> u64 {
        self.phase << 20 | u64::from(self.pending)
    }

    fn try_complete(&mut self) -> bool {
        if self.pending != 0 || self.tx != 0 {
            return false;
        }
        self.pending = self.expected;
        self.phase += 1;
        true
    }

    /// Adds announced bytes.
    pub fn expect_tx(&mut self, bytes: u32) -> Step<()> {
        self.tx += i64::from(bytes);
        if bytes > MAX_COUNT || self.tx > i64::from(MAX_COUNT) {
            let message = format!(
                "the mbarrier 0x{:x} is to expect {bytes} transaction bytes more, {} in all; at most {MAX_COUNT} are possible",
                self.address, self.tx
            );
            return Err(Fault::new(FaultKind::Protocol, message));
        }
        Ok(())
    }

    /// Bytes have come; returns whether the phase is complete.
    pub fn complete_tx(&mut self, bytes: u32) -> bool {
        self.tx -= i64::from(bytes);
        self.try_complete()
    }

    /// Arrivals; returns whether the phase is complete.
    pub fn arrive(&mut self, count: u32, drop: bool) -> Step<bool> {
        if count == 0 || count > self.pending {
            let message = format!(
                "arrival at the mbarrier 0x{:x} with count {count}, but phase {} lacks only {} of {} arrivals",
                self.address, self.phase, self.pending, self.expected
            );
            return Err(Fault::new(FaultKind::Protocol, message));
        }
        self.pending -= count;
        if drop {
            self.expected -= count.min(self.expected);
        }
        Ok(self.try_complete())
    }
}

/// The mbarriers of a CTA.
#[derive(Debug, Default)]
pub struct Mbarriers {
    list: Vec<Mbarrier>,
}

impl Mbarriers {
    fn position(&self, address: u32) -> Option<usize> {
        self.list.iter().position(|barrier| barrier.address == address)
    }

    /// Makes an mbarrier.
    pub fn init(&mut self, address: u32, count: u32) -> Step<()> {
        if count == 0 || count > MAX_COUNT {
            let message = format!("an mbarrier with {count} expected arrivals; 1 to {MAX_COUNT} are possible");
            return Err(Fault::new(FaultKind::Protocol, message));
        }
        if let Some(at) = self.position(address) {
            let old = &self.list[at];
            let message =
                format!("the mbarrier 0x{address:x} is initialised again while it lives (phase {}): {}", old.phase, describe(old));
            return Err(Fault::new(FaultKind::Protocol, message));
        }
        self.list.push(Mbarrier { address, expected: count, pending: count, tx: 0, phase: 0 });
        Ok(())
    }

    /// Ends an mbarrier.
    pub fn inval(&mut self, address: u32) -> Step<()> {
        match self.position(address) {
            Some(at) => {
                self.list.remove(at);
                Ok(())
            }
            None => Err(missing(address)),
        }
    }

    /// The mbarrier at an address.
    pub fn get(&mut self, address: u32) -> Step<&mut Mbarrier> {
        match self.position(address) {
            Some(at) => Ok(&mut self.list[at]),
            None => Err(missing(address)),
        }
    }

    /// The number of the current phase, if the mbarrier exists.
    pub fn phase(&self, address: u32) -> Option<u64> {
        self.position(address).map(|at| self.list[at].phase)
    }

    /// The live mbarrier that a range of shared memory touches.
    pub fn touching(&self, address: u32, bytes: u32) -> Option<u32> {
        self.list.iter().map(|b| b.address).find(|&at| at < address + bytes && address < at + 8)
    }

    /// What a report says of the mbarrier at an address.
    pub fn describe(&self, address: u32) -> String {
        self.position(address).map_or_else(|| "no mbarrier".to_string(), |at| describe(&self.list[at]))
    }
}

fn missing(address: u32) -> Box<Fault> {
    Fault::new(FaultKind::Protocol, format!("no mbarrier has been initialised at shared 0x{address:x}"))
}

fn describe(barrier: &Mbarrier) -> String {
    format!("phase {} lacks {} of {} arrivals and {} transaction bytes", barrier.phase, barrier.pending, barrier.expected, barrier.tx)
}

/// A named barrier.
#[derive(Clone, Debug, Default)]
pub struct NamedBarrier {
    /// Threads that have arrived.
    pub arrived: u32,
    /// Threads that take part; `None` for all of the CTA.
    pub expected: Option<u32>,
    /// Whether one of them waits.
    pub awaited: bool,
    /// Completed generations.
    pub generation: u64,
    /// Of `bar.red`: how many predicates were true, and how many voted, in this generation and the last.
    pub votes: (u32, u32),
    pub result: (u32, u32),
}

impl NamedBarrier {
    /// `threads` threads arrive, and perhaps wait; they expect `count` in all.
    pub fn arrive(&mut self, id: u32, threads: u32, count: Option<u32>, waits: bool) -> Step<()> {
        if let Some(count) = count
            && (count == 0 || count % 32 != 0)
        {
            let message = format!("barrier {id} with a count of {count} threads, which is no multiple of the warp size");
            return Err(Fault::new(FaultKind::Protocol, message));
        }
        if self.arrived > 0 && self.expected != count {
            let name = |count: Option<u32>| count.map_or_else(|| "all".to_string(), |c| c.to_string());
            let message = format!(
                "barrier {id} is awaited by {} threads here, but others of this generation said {}",
                name(count),
                name(self.expected)
            );
            return Err(Fault::new(FaultKind::Protocol, message));
        }
        self.expected = count;
        self.arrived += threads;
        self.awaited |= waits;
        if Some(self.arrived) == count && !self.awaited {
            let message = format!("all {} arrivals at barrier {id} are bar.arrive: nobody waits for them", self.arrived);
            return Err(Fault::new(FaultKind::Protocol, message));
        }
        if let Some(count) = count
            && self.arrived > count
        {
            let message = format!("{} threads have arrived at barrier {id}, which expects {count}", self.arrived);
            return Err(Fault::new(FaultKind::Protocol, message));
        }
        Ok(())
    }

    /// Completes the generation if `live` threads of the CTA, or as many as were named, have arrived.
    pub fn try_complete(&mut self, live: u32) -> bool {
        if self.arrived == 0 || self.arrived < self.expected.unwrap_or(live) {
            return false;
        }
        self.arrived = 0;
        self.awaited = false;
        self.generation += 1;
        self.result = std::mem::take(&mut self.votes);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_may_come_before_they_are_announced() {
        let mut barriers = Mbarriers::default();
        barriers.init(1024, 1).unwrap();
        let barrier = barriers.get(1024).unwrap();
        assert!(!barrier.complete_tx(64));
        barrier.expect_tx(64).unwrap();
        assert!(barrier.arrive(1, false).unwrap());
        assert_eq!(barriers.phase(1024), Some(1));
        assert!(barriers.init(1024, 1).is_err());
    }

    #[test]
    fn arrivals_beyond_the_count_are_refused() {
        let mut barriers = Mbarriers::default();
        barriers.init(1024, 2).unwrap();
        assert!(barriers.get(1024).unwrap().arrive(3, false).is_err());
        assert!(barriers.get(1032).is_err());
        assert!(barriers.get(1024).unwrap().expect_tx(MAX_COUNT + 1).is_err());
    }

    #[test]
    fn named_barriers_with_unequal_counts_are_refused() {
        let mut barrier = NamedBarrier::default();
        barrier.arrive(1, 32, Some(64), false).unwrap();
        assert!(barrier.arrive(1, 32, Some(96), true).is_err());
        barrier.arrive(1, 32, Some(64), true).unwrap();
        assert!(barrier.try_complete(128));
    }
}
