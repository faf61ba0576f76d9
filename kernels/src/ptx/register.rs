//! Special registers, and the register budget of a warpgroup.

use core::arch::asm;

macro_rules! special_register {
    ($(#[$doc:meta])* $name:ident, $register:literal, $cuda_std:ident) => {
        $(#[$doc])*
        #[cfg(not(feature = "nvvm"))]
        #[inline(always)]
        pub fn $name() -> u32 {
            let value;
            // SAFETY: reads a register that does not change. Not `pure`: read where it is needed, instead of kept.
            unsafe { asm!(concat!("mov.u32 {d}, ", $register, ";"), d = out(reg32) value, options(nomem, nostack)) }
            value
        }

        $(#[$doc])*
        #[cfg(feature = "nvvm")]
        #[inline(always)]
        pub fn $name() -> u32 {
            cuda_std::thread::$cuda_std()
        }
    };
}

special_register! {
    /// This thread's index in its CTA.
    thread_idx, "%tid.x", thread_idx_x
}
special_register! {
    /// This CTA's index in the grid.
    cta_idx, "%ctaid.x", block_idx_x
}
special_register! {
    /// CTAs of the grid.
    grid_dim, "%nctaid.x", grid_dim_x
}

/// The same address, of which the compiler knows nothing: what is computed from it stays where it is needed, instead of being computed once and
/// kept in a register or a predicate.
///
/// # PTX
/// `mov.b64 d, address;`
#[inline(always)]
pub fn unknown(address: u64) -> u64 {
    let same;
    // SAFETY: register arithmetic only. Not `pure`: that is its purpose.
    unsafe { asm!("mov.b64 {d}, {address};", d = out(reg64) same, address = in(reg64) address, options(nomem, nostack)) }
    same
}

/// The same for an address in shared memory.
///
/// # PTX
/// `mov.b32 d, address;`
#[inline(always)]
pub fn unknown_shared(address: u32) -> u32 {
    let same;
    // SAFETY: as in `unknown`.
    unsafe { asm!("mov.b32 {d}, {address};", d = out(reg32) same, address = in(reg32) address, options(nomem, nostack)) }
    same
}

/// Gives registers back to the pool: each thread of the warpgroup keeps `REGISTERS`.
///
/// # Safety
/// All warps of the warpgroup execute it once, converged. `REGISTERS` is a multiple of 8 from 24 to 256, and at most what a thread was
/// launched with. The entry carries launch bounds (else ptxas ignores it, C7508).
///
/// # PTX
/// `setmaxnreg.dec.sync.aligned.u32 REGISTERS;`
#[inline(always)]
pub unsafe fn shrink_registers<const REGISTERS: u32>() {
    // SAFETY: scope and protocol are the caller's; memory is clobbered, so the instruction stays in its place.
    unsafe { asm!("setmaxnreg.dec.sync.aligned.u32 {n};", n = const REGISTERS, options(nostack)) }
}

/// Takes registers from the pool: waits until each thread of the warpgroup can have `REGISTERS`.
///
/// # Safety
/// As [`shrink_registers`], but at least what a thread was launched with; other warpgroups give enough back, or this waits for ever.
///
/// # PTX
/// `setmaxnreg.inc.sync.aligned.u32 REGISTERS;`
#[inline(always)]
pub unsafe fn grow_registers<const REGISTERS: u32>() {
    // SAFETY: scope and protocol are the caller's; memory is clobbered, so the instruction stays in its place.
    unsafe { asm!("setmaxnreg.inc.sync.aligned.u32 {n};", n = const REGISTERS, options(nostack)) }
}
