//! Matrix stores to shared memory (PTX ISA, "stmatrix").

use core::arch::asm;

/// Stores four 8 x 8 matrices of 16-bit elements; lane `l` gives the address of row `l % 8` of matrix `l / 8`, and holds in each register two
/// neighbouring elements of row `l / 4`.
///
/// # Safety
/// All lanes converged; `address` is a 16-byte aligned address of shared memory with 16 bytes that nobody else accesses.
///
/// # PTX
/// `stmatrix.sync.aligned.m8n8.x4.shared.b16 [address], {r0, r1, r2, r3};`
#[inline(always)]
pub unsafe fn store_x4(address: u32, rows: [u32; 4]) {
    // SAFETY: scope and address are the caller's; memory is clobbered, so the store stays in its place.
    unsafe {
        asm!("stmatrix.sync.aligned.m8n8.x4.shared.b16 [{address}], {{{r0}, {r1}, {r2}, {r3}}};", address = in(reg32) address,
             r0 = in(reg32) rows[0], r1 = in(reg32) rows[1], r2 = in(reg32) rows[2], r3 = in(reg32) rows[3], options(nostack));
    }
}
