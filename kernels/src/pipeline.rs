//! Rings of shared-memory stages between one producer and its consumers, each stage with a pair of mbarriers (PTX ISA, "mbarrier", phase
//! completion; the scheme of CUTLASS's `PipelineTmaAsync`):
//!
//! ```text
//! producer                                        consumer
//!   wait empty[stage], phase ^ 1                    wait full[stage], phase
//!   expect bytes on full[stage], start copies       use the stage
//!   next stage                                      arrive empty[stage], next stage
//! ```
//!
//! A stage's phase flips each time round. A fresh mbarrier's "previous" phase counts as complete, so the producer's first wait on
//! each stage, of the opposite parity, passes at once.

use crate::layout::smem::MBARRIER_BYTES;
use crate::ptx::mbarrier;

/// Where in a ring a role stands.
#[derive(Clone, Copy)]
pub struct PipelineState {
    /// Current stage.
    pub stage: u32,
    phase: u32,
}

impl PipelineState {
    /// The first stage of the first round.
    pub const START: Self = Self { stage: 0, phase: 0 };

    /// Moves on to the next of a ring's `stages`, a power of two known at compile time. The phase flips where they wrap round.
    #[inline(always)]
    pub fn advance(&mut self, stages: u32) {
        if stages == 2 {
            // The same in fewer instructions.
            self.phase ^= self.stage;
            self.stage ^= 1;
        } else {
            self.stage = (self.stage + 1) & (stages - 1);
            self.phase ^= (self.stage == 0) as u32;
        }
    }
}

/// The barriers of one ring.
#[derive(Clone, Copy)]
pub struct Ring {
    barriers: u32,
    stages: u32,
}

impl Ring {
    /// The ring whose `2 * stages` barriers begin at the shared address `barriers`: the full ones, then the empty ones.
    #[inline(always)]
    pub const fn new(barriers: u32, stages: u32) -> Self {
        Self { barriers, stages }
    }

    /// Its stages.
    #[inline(always)]
    pub const fn stages(self) -> u32 {
        self.stages
    }

    #[inline(always)]
    fn full(self, stage: u32) -> u32 {
        self.barriers + stage * MBARRIER_BYTES
    }

    #[inline(always)]
    fn empty(self, stage: u32) -> u32 {
        self.barriers + (self.stages + stage) * MBARRIER_BYTES
    }

    /// Initialises the barriers: the producer alone arrives on full, `consumers` arrivals make a stage empty.
    ///
    /// # Safety
    /// By one thread, before anybody uses the ring; [`crate::ptx::fence::proxy_async`] and a CTA barrier follow.
    #[inline(always)]
    pub unsafe fn init(self, consumers: u32) {
        for stage in 0..self.stages {
            // SAFETY: address: shared memory kept for the barriers (layout/smem.rs), 8-byte aligned. Protocol: not in use yet, as promised.
            unsafe {
                mbarrier::init(self.full(stage), 1);
                mbarrier::init(self.empty(stage), consumers);
            }
        }
    }

    /// Waits until the stage is empty.
    ///
    /// # Safety
    /// By the ring's one producer thread.
    #[inline(always)]
    pub unsafe fn producer_acquire(self, state: PipelineState) {
        // SAFETY: protocol: consumers release every stage that they were given, so the wait ends; the phase waited for is the one before
        // the current, or the current, since the producer fills a stage once a round.
        unsafe { mbarrier::wait_parity(self.empty(state.stage), state.phase ^ 1) }
    }

    /// Acquires the stage for asynchronous copies of `bytes`, and returns the barrier on which they are to complete.
    ///
    /// # Safety
    /// By the ring's one producer thread, which then starts copies of exactly `bytes` on that barrier.
    #[inline(always)]
    pub unsafe fn producer_acquire_for(self, state: PipelineState, bytes: u32) -> u32 {
        let full = self.full(state.stage);
        // SAFETY: protocol: this is the only arrival of the phase, which cannot end before it; the bytes are the caller's promise.
        unsafe {
            self.producer_acquire(state);
            mbarrier::arrive_expect_tx(full, bytes);
        }
        full
    }

    /// Publishes a stage that this thread filled with ordinary stores.
    ///
    /// # Safety
    /// By the ring's one producer thread, after [`Ring::producer_acquire`] and the stores.
    #[inline(always)]
    pub unsafe fn producer_commit(self, state: PipelineState) {
        // SAFETY: protocol: the only arrival of the phase; it releases the stores to whoever waits for it.
        unsafe { mbarrier::arrive(self.full(state.stage)) }
    }

    /// Waits until the stage is full.
    ///
    /// # Safety
    /// By consumers that take the stages in the producer's order.
    #[inline(always)]
    pub unsafe fn consumer_wait(self, state: PipelineState) {
        // SAFETY: protocol: the producer fills every stage that consumers wait for, so the wait ends; it cannot fill the stage again before
        // this consumer's release, so the phase waited for is the current one or the one before.
        unsafe { mbarrier::wait_parity(self.full(state.stage), state.phase) }
    }

    /// Gives the stage back: one arrival, from lane 0.
    ///
    /// # Safety
    /// This warp's reads of the stage are complete; [`Ring::init`] counted this arrival.
    #[inline(always)]
    pub unsafe fn consumer_release(self, state: PipelineState, lane_idx: u32) {
        // SAFETY: protocol: counted by `init`; the warp's reads are complete, as promised.
        unsafe { mbarrier::arrive_from_lane_0(lane_idx, self.empty(state.stage)) }
    }
}
