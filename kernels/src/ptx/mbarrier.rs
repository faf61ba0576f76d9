//! mbarriers in shared memory (PTX ISA, "mbarrier"): a phase completes when all arrivals and all announced bytes are in.

use core::arch::asm;

/// Initialises the barrier for `arrivals` arrivals a phase.
///
/// # Safety
/// `barrier` is an 8-byte aligned shared address that no thread uses yet, and `arrivals` is from 1 to 2^20 - 1;
/// [`super::fence::proxy_async`] if copies complete on it, and a CTA barrier follow.
///
/// # PTX
/// `mbarrier.init.shared::cta.b64 [barrier], arrivals;`
#[inline(always)]
pub unsafe fn init(barrier: u32, arrivals: u32) {
    // SAFETY: address and protocol are the caller's; memory is clobbered, so no use of the barrier moves before it.
    unsafe {
        asm!("mbarrier.init.shared::cta.b64 [{barrier}], {arrivals};", barrier = in(reg32) barrier, arrivals = in(reg32) arrivals,
             options(nostack));
    }
}

/// Announces `bytes` that asynchronous copies will bring in this phase, and arrives. Releases this thread's earlier accesses to the CTA, as
/// every arrival here does.
///
/// # Safety
/// `barrier` is initialised; copies of exactly `bytes` complete on it in this phase.
///
/// # PTX
/// `mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes;`
#[inline(always)]
pub unsafe fn arrive_expect_tx(barrier: u32, bytes: u32) {
    // SAFETY: address and protocol are the caller's; memory is clobbered, so no access moves across.
    unsafe {
        asm!("mbarrier.arrive.expect_tx.shared::cta.b64 _, [{barrier}], {bytes};", barrier = in(reg32) barrier, bytes = in(reg32) bytes,
             options(nostack));
    }
}

/// Arrives.
///
/// # Safety
/// `barrier` is initialised and expects this arrival.
///
/// # PTX
/// `mbarrier.arrive.shared::cta.b64 _, [barrier];`
#[inline(always)]
pub unsafe fn arrive(barrier: u32) {
    // SAFETY: address and protocol are the caller's; memory is clobbered, so no access moves across.
    unsafe { asm!("mbarrier.arrive.shared::cta.b64 _, [{barrier}];", barrier = in(reg32) barrier, options(nostack)) }
}

/// Arrives if `lane_idx` is 0: one arrival for a converged warp, without a branch.
///
/// # Safety
/// `barrier` is initialised and expects this arrival, which speaks for all lanes: what it releases, every one of them has done.
///
/// # PTX
/// `@p mbarrier.arrive.shared::cta.b64 _, [barrier];` with `p = (lane_idx == 0)`
#[inline(always)]
pub unsafe fn arrive_from_lane_0(lane_idx: u32, barrier: u32) {
    // SAFETY: address and protocol are the caller's; memory is clobbered, so no access moves across.
    unsafe {
        asm!("{{ .reg .pred p; setp.eq.u32 p, {lane}, 0; @p mbarrier.arrive.shared::cta.b64 _, [{barrier}]; }}",
             barrier = in(reg32) barrier, lane = in(reg32) lane_idx, options(nostack));
    }
}

/// Whether the phase of this parity has completed; may suspend the thread for a while before it says no. If it has, what was released by
/// its arrivals and written by its copies is acquired.
///
/// # Safety
/// `barrier` is initialised; the phase asked for is its current one or the one before: parity tells no others apart.
///
/// # PTX
/// `mbarrier.try_wait.parity.shared::cta.b64 p, [barrier], parity;`
#[inline(always)]
pub unsafe fn try_wait_parity(barrier: u32, parity: u32) -> bool {
    let done: u32;
    // SAFETY: address and protocol are the caller's; memory is clobbered, so no access moves before the wait.
    unsafe {
        asm!("{{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [{barrier}], {parity}; selp.u32 {done}, 1, 0, p; }}",
             barrier = in(reg32) barrier, parity = in(reg32) parity, done = out(reg32) done, options(nostack));
    }
    done != 0
}

/// Waits until the phase of this parity has completed.
///
/// # Safety
/// As [`try_wait_parity`]; somebody completes the phase.
#[inline(always)]
pub unsafe fn wait_parity(barrier: u32, parity: u32) {
    // SAFETY: address and protocol are the caller's.
    while !unsafe { try_wait_parity(barrier, parity) } {}
}
