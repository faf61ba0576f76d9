//! What the machine tells those who watch it. The machine knows nothing of what they look for; every hook is free where nobody watches.

use std::sync::Arc;

use super::fault::Step;
use super::memory::Allocation;
use super::warp::Warp;
use crate::lower::Kernel;

/// Who accesses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agent {
    /// A thread, by its linear index in the CTA.
    Thread(u32),
    /// An asynchronous operation, by the number it was issued under.
    Async(u64),
}

/// What an access does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    Read,
    Write,
    /// An atomic, or an operation with relaxed or stronger ordering.
    Atomic {
        write: bool,
    },
}

/// What an asynchronous operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncKind {
    Load,
    Store,
    Product,
}

/// Watches the execution of one CTA.
pub trait Observer: Send + Sized {
    /// Whether hooks that need preparation should be called at all.
    const ENABLED: bool;

    /// An instruction is about to be executed by the lanes of `mask`.
    fn instruction(&mut self, _kernel: &Kernel, _warp: &Warp, _pc: u32, _mask: u32) -> Step<()> {
        Ok(())
    }
    /// An access to shared memory, inside its bounds.
    fn shared(&mut self, _agent: Agent, _pc: u32, _address: u32, _bytes: u32, _kind: AccessKind) -> Step<()> {
        Ok(())
    }
    /// An access to global memory, inside an allocation.
    fn global(&mut self, _agent: Agent, _pc: u32, _memory: &Arc<Allocation>, _address: u64, _bytes: u64, _kind: AccessKind) -> Step<()> {
        Ok(())
    }
    /// An access to a thread's local memory.
    fn local(&mut self, _thread: u32, _address: u32, _bytes: u32, _write: bool) -> Step<()> {
        Ok(())
    }
    /// An atomic or fence that orders memory beyond the CTA: acquires and releases the clock of `address`.
    fn ordered(&mut self, _thread: u32, _address: u64, _acquire: bool, _release: bool) {}
    /// The lanes of a warp have synchronised among themselves.
    fn warp_sync(&mut self, _warp: u32, _mask: u32) {}
    /// Threads arrive at a named barrier.
    fn barrier_arrive(&mut self, _id: u32, _warp: u32, _pc: u32, _mask: u32) -> Step<()> {
        Ok(())
    }
    /// All have arrived.
    fn barrier_complete(&mut self, _id: u32) {}
    /// Threads go on behind a named barrier.
    fn barrier_leave(&mut self, _id: u32, _warp: u32, _mask: u32) {}
    /// An mbarrier is initialised or invalidated.
    fn mbarrier_init(&mut self, _thread: u32, _pc: u32, _address: u32) -> Step<()> {
        Ok(())
    }
    /// A thread arrives at an mbarrier, or adds to its transaction count.
    fn mbarrier_arrive(&mut self, _agent: Agent, _pc: u32, _address: u32, _release: bool) -> Step<()> {
        Ok(())
    }
    /// The phase of an mbarrier has completed.
    fn mbarrier_complete(&mut self, _address: u32, _phase: u64) -> Step<()> {
        Ok(())
    }
    /// A thread has found a phase complete.
    fn mbarrier_wait(&mut self, _thread: u32, _pc: u32, _address: u32, _phase: u64, _acquire: bool) -> Step<()> {
        Ok(())
    }
    /// `fence.proxy.async`.
    fn proxy_fence(&mut self, _warp: u32, _mask: u32) {}
    /// `fence.mbarrier_init`.
    fn mbarrier_init_fence(&mut self, _warp: u32, _mask: u32) {}
    /// A fence of generic memory.
    fn memory_fence(&mut self, _warp: u32, _mask: u32) {}
    /// A thread issues an asynchronous operation; for a product, each warp does.
    fn async_issue(&mut self, _op: u64, _threads: std::ops::Range<u32>, _pc: u32, _kind: AsyncKind, _mbarrier: Option<u32>) -> Step<()> {
        Ok(())
    }
    /// An asynchronous operation is over.
    fn async_done(&mut self, _op: u64) {}
    /// Threads have waited for an operation.
    fn async_wait(&mut self, _op: u64, _threads: std::ops::Range<u32>, _read_only: bool) {}
    /// `wgmma.fence`.
    fn product_fence(&mut self, _warp: u32) {}
    /// `wgmma.wait_group`: the warp's products up to this count are over.
    fn products_waited(&mut self, _warp: u32, _upto: u64) {}
    /// Lanes exit.
    fn exit(&mut self, _kernel: &Kernel, _warp: u32, _mask: u32) -> Step<()> {
        Ok(())
    }
    /// The CTA is over.
    fn end(&mut self, _kernel: &Kernel) -> Step<()> {
        Ok(())
    }
}

/// Nobody watches.
#[derive(Debug, Default)]
pub struct NoChecks;

impl Observer for NoChecks {
    const ENABLED: bool = false;
}
