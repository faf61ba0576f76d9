//! Fences between the generic proxy (ordinary loads and stores) and the asynchronous one (TMA, wgmma) (PTX ISA, "membar / fence").

use core::arch::asm;

/// Makes this thread's ordinary writes to shared memory visible to TMA and wgmma.
///
/// # Safety
/// Orders this thread's own accesses only: a barrier must follow before another thread starts the asynchronous access.
///
/// # PTX
/// `fence.proxy.async.shared::cta;`
#[inline(always)]
pub unsafe fn proxy_async() {
    // SAFETY: scope and protocol are the caller's; memory is clobbered, so no store moves across.
    unsafe { asm!("fence.proxy.async.shared::cta;", options(nostack)) }
}

/// Orders this thread's initialisations of mbarriers, and nothing else, before what synchronises with it in the cluster. It crosses no
/// proxy: for the copies that complete on them, [`proxy_async`] follows.
///
/// # Safety
/// By the thread that initialised them, before a CTA barrier that precedes their first use by any other thread.
///
/// # PTX
/// `fence.mbarrier_init.release.cluster;`
#[inline(always)]
pub unsafe fn mbarrier_init() {
    // SAFETY: scope and protocol are the caller's; memory is clobbered, so no initialisation moves across.
    unsafe { asm!("fence.mbarrier_init.release.cluster;", options(nostack)) }
}
