//! Exchange and meeting within a warp (PTX ISA, "shfl.sync", "vote.sync", "bar.warp.sync"). All 32 lanes take part.

use core::arch::asm;

/// The value of the lane whose index differs by `MASK`.
///
/// # Safety
/// All lanes of the warp are converged.
///
/// # PTX
/// `shfl.sync.bfly.b32 d, x, MASK, 31, 0xffffffff;`
#[inline(always)]
pub unsafe fn shuffle_xor<const MASK: u32>(x: f32) -> f32 {
    let other;
    // SAFETY: scope is the caller's: all 32 lanes, as the mask says. Not `pure`: it stays where all of them are.
    unsafe {
        asm!("shfl.sync.bfly.b32 {d}, {x}, {mask}, 31, 0xffffffff;", d = out(reg32) other, x = in(reg32) x, mask = const MASK,
             options(nostack));
    }
    other
}

/// Lane 0's value in every lane, which the compiler thereby knows to be the same in all of them.
///
/// # Safety
/// All lanes of the warp are converged.
///
/// # PTX
/// `shfl.sync.idx.b32 d, x, 0, 31, 0xffffffff;`
#[inline(always)]
pub unsafe fn broadcast(x: u32) -> u32 {
    let first;
    // SAFETY: scope is the caller's: all 32 lanes, as the mask says. Not `pure`: it stays where all of them are.
    unsafe { asm!("shfl.sync.idx.b32 {d}, {x}, 0, 31, 0xffffffff;", d = out(reg32) first, x = in(reg32) x, options(nostack)) }
    first
}

/// Whether `condition` holds in any lane.
///
/// # Safety
/// All lanes of the warp are converged.
///
/// # PTX
/// `vote.sync.any.pred d, p, 0xffffffff;`
#[inline(always)]
pub unsafe fn any(condition: bool) -> bool {
    let result: u32;
    // SAFETY: scope is the caller's: all 32 lanes, as the mask says. Not `pure`: it stays where all of them are.
    unsafe {
        asm!("{{ .reg .pred p, q; setp.ne.u32 p, {x}, 0; vote.sync.any.pred q, p, 0xffffffff; selp.u32 {d}, 1, 0, q; }}",
             d = out(reg32) result, x = in(reg32) condition as u32, options(nostack));
    }
    result != 0
}

/// Waits for all lanes; what each has read and written before comes before what any does behind.
///
/// # Safety
/// All lanes of the warp come here.
///
/// # PTX
/// `bar.warp.sync 0xffffffff;`
#[inline(always)]
pub unsafe fn sync() {
    // SAFETY: scope is the caller's: all 32 lanes, as the mask says; memory is clobbered, so no access moves across.
    unsafe { asm!("bar.warp.sync 0xffffffff;", options(nostack)) }
}
