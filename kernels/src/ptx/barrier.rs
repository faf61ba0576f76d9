//! Named barriers of a CTA (PTX ISA, "bar / barrier").

use core::arch::asm;

/// Waits at barrier `id` until `threads` threads have arrived, this warp's among them.
///
/// # Safety
/// All lanes of the warp are converged; every use of `id` in this phase names the same `threads`, a multiple of 32.
///
/// # PTX
/// `bar.sync id, threads;`
#[inline(always)]
pub unsafe fn sync(id: u32, threads: u32) {
    // SAFETY: scope and protocol are the caller's; memory is clobbered, so no access moves across.
    unsafe { asm!("bar.sync {id}, {threads};", id = in(reg32) id, threads = in(reg32) threads, options(nostack)) }
}

/// Arrives at barrier `id` without waiting.
///
/// # Safety
/// As [`sync`]. If this warp comes to `id` again in this phase, both times are among the `threads`.
///
/// # PTX
/// `bar.arrive id, threads;`
#[inline(always)]
pub unsafe fn arrive(id: u32, threads: u32) {
    // SAFETY: scope and protocol are the caller's; memory is clobbered, so no access moves across.
    unsafe { asm!("bar.arrive {id}, {threads};", id = in(reg32) id, threads = in(reg32) threads, options(nostack)) }
}
