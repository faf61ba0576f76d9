//! Rounding two f32 to one packed register (PTX ISA, "cvt").
//!
//! Not `pure`: the results are A operands, whose registers a product may still be reading, so they are written where the program says.

use core::arch::asm;

/// Two f32 rounded to nearest even as f16, `low` in the lower half.
///
/// # PTX
/// `cvt.rn.f16x2.f32 d, high, low;`
#[inline(always)]
pub fn pack_f16(low: f32, high: f32) -> u32 {
    let packed;
    // SAFETY: register arithmetic only.
    unsafe {
        asm!("cvt.rn.f16x2.f32 {d}, {high}, {low};", d = out(reg32) packed, high = in(reg32) high, low = in(reg32) low,
             options(nomem, nostack));
    }
    packed
}

/// Two f32 rounded to nearest even as bf16, `low` in the lower half.
///
/// # PTX
/// `cvt.rn.bf16x2.f32 d, high, low;`
#[inline(always)]
pub fn pack_bf16(low: f32, high: f32) -> u32 {
    let packed;
    // SAFETY: register arithmetic only.
    unsafe {
        asm!("cvt.rn.bf16x2.f32 {d}, {high}, {low};", d = out(reg32) packed, high = in(reg32) high, low = in(reg32) low,
             options(nomem, nostack));
    }
    packed
}
