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
