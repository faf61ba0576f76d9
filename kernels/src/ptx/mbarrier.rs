//! mbarriers in shared memory (PTX ISA, "mbarrier"): a phase completes when all arrivals and all announced bytes are in.

use core::arch::asm;

/// Initialises the barrier for `arrivals` arrivals a phase.
///
/// # Safety
/// `barrier` is an 8-byte aligned shared address that no thread uses yet; [`super::fence::mbarrier_init`] and a CTA barrier follow.
///
/// # PTX
/// `mbarrier.init.shared::cta.b64 [barrier], arrivals;`
#[inline(always)]
pub unsafe fn init(barrier: u32, arrivals: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("mbarrier.init.shared::cta.b64 [{barrier}], {arrivals};", barrier = in(reg32) barrier, arrivals = in(reg32) arrivals,
             options(nostack));
    }
}

/// Arrives, and announces `bytes` that asynchronous copies will bring in this phase.
///
/// # Safety
/// `barrier` is initialised; copies of exactly `bytes` complete on it in this phase.
///
/// # PTX
/// `mbarrier.arrive.expect_tx.shared::cta.b64 _, [barrier], bytes;`
#[inline(always)]
pub unsafe fn arrive_expect_tx(barrier: u32, bytes: u32) {
    // SAFETY: the caller's; memory is clobbered, so no access moves across.
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
    // SAFETY: the caller's; memory is clobbered, so no access moves across.
    unsafe { asm!("mbarrier.arrive.shared::cta.b64 _, [{barrier}];", barrier = in(reg32) barrier, options(nostack)) }
}

/// Arrives if `lane` is 0: one arrival for a converged warp, without a branch.
///
/// # Safety
/// `barrier` is initialised and expects this arrival.
///
/// # PTX
/// `@p mbarrier.arrive.shared::cta.b64 _, [barrier];` with `p = (lane == 0)`
#[inline(always)]
pub unsafe fn arrive_from_lane_0(lane: u32, barrier: u32) {
    // SAFETY: the caller's; memory is clobbered, so no access moves across.
    unsafe {
        asm!("{{ .reg .pred p; setp.eq.u32 p, {lane}, 0; @p mbarrier.arrive.shared::cta.b64 _, [{barrier}]; }}",
             barrier = in(reg32) barrier, lane = in(reg32) lane, options(nostack));
    }
}

/// Whether the phase of this parity has completed; may suspend the thread for a while before it says no.
///
/// # Safety
/// `barrier` is initialised, and at most one phase behind or ahead of `parity`.
///
/// # PTX
/// `mbarrier.try_wait.parity.shared::cta.b64 p, [barrier], parity;`
#[inline(always)]
pub unsafe fn try_wait_parity(barrier: u32, parity: u32) -> bool {
    let done: u32;
    // SAFETY: the caller's; memory is clobbered, so no access moves before the wait.
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
    // SAFETY: the caller's.
    while !unsafe { try_wait_parity(barrier, parity) } {}
}
