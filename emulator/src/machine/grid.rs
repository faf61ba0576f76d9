//! A launch: CTAs in flight on all cores.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::cta::{Cta, Progress};
use super::fault::{Fault, FaultKind, Step};
use super::memory::MemoryMap;
use super::observer::Observer;
use super::schedule::Schedule;
use crate::lower::Kernel;

/// Instructions that a CTA runs before its core looks at the others that it holds.
const TURN: u64 = 2_000_000;

/// A kernel launch.
pub struct Launch<'a> {
    pub kernel: &'a Kernel,
    /// The PTX text, for reports.
    pub source: &'a str,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory, bytes.
    pub shared_bytes: u32,
    pub params: Vec<u8>,
    pub memory: Arc<MemoryMap>,
    /// Device address of the module's data.
    pub module_data: u64,
    pub schedule: Schedule,
    /// Instructions of warps that a CTA may execute.
    pub budget: u64,
    pub grid_id: u64,
    pub sm_count: u32,
    pub threads: usize,
    pub started: Instant,
}

impl Launch<'_> {
    /// End of the CTA's shared memory.
    pub fn shared_end(&self) -> u32 {
        if self.shared_bytes == 0 { self.kernel.static_shared_end } else { self.kernel.dynamic_shared() + self.shared_bytes }
    }
}

/// Runs a launch; `observer` makes the watcher of each CTA. Returns the instructions executed by warps.
pub fn run_grid<O: Observer>(launch: &Launch<'_>, observer: impl Fn(u64) -> O + Sync) -> Step<u64> {
    let ctas: u64 = launch.grid.iter().map(|&n| u64::from(n)).product();
    let next = AtomicU64::new(0);
    let executed = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let fault: Mutex<Option<Box<Fault>>> = Mutex::new(None);
    let worker = || {
        let mut held: VecDeque<Cta<'_, O>> = VecDeque::new();
        while !stop.load(Ordering::Relaxed) {
            // Another CTA joins only when those held have used up a turn: they may be waiting for it.
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number < ctas {
                held.push_back(Cta::new(launch, number, observer(number)));
            } else if held.is_empty() {
                break;
            }
            for _ in 0..held.len() {
                let Some(mut cta) = held.pop_front() else { break };
                let before = cta.executed();
                let result = cta.run(TURN.min(launch.budget));
                executed.fetch_add(cta.executed() - before, Ordering::Relaxed);
                match result {
                    Ok(Progress::Done) => {}
                    Ok(Progress::Unfinished) if cta.executed() < launch.budget => held.push_back(cta),
                    Ok(Progress::Unfinished) => {
                        let message = format!("a CTA has executed {} instructions; the kernel may never end", cta.executed());
                        report(&fault, &stop, Fault::new(FaultKind::Budget, message));
                    }
                    Err(found) => report(&fault, &stop, found),
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        }
    };
    let workers = launch.threads.min(usize::try_from(ctas).unwrap_or(usize::MAX)).max(1);
    std::thread::scope(|scope| {
        for _ in 1..workers {
            scope.spawn(worker);
        }
        worker();
    });
    match fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(fault) => Err(fault),
        None => Ok(executed.into_inner()),
    }
}

fn report(slot: &Mutex<Option<Box<Fault>>>, stop: &AtomicBool, fault: Box<Fault>) {
    slot.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
    stop.store(true, Ordering::Relaxed);
}
