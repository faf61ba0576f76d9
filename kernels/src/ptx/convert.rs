//! Rounding two f32 to one packed register (PTX ISA, "cvt").
//!
//! Rounding is not `pure`: the results are A operands, whose registers a product may still be reading, so they are written where the program says.

use crate::config::DType;
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

/// Two f32 rounded to nearest even in the element type, `low` in the lower half.
#[inline(always)]
pub fn pack(dtype: DType, low: f32, high: f32) -> u32 {
    match dtype {
        DType::F16 => pack_f16(low, high),
        DType::Bf16 => pack_bf16(low, high),
    }
}

/// Two elements as f32, the lower half first.
#[inline(always)]
pub fn unpack(dtype: DType, packed: u32) -> [f32; 2] {
    match dtype {
        DType::F16 => unpack_f16(packed),
        DType::Bf16 => unpack_bf16(packed),
    }
}

/// Two f16 as f32, the lower half first.
///
/// # PTX
/// `cvt.f32.f16 d, half;`
#[inline(always)]
pub fn unpack_f16(packed: u32) -> [f32; 2] {
    let (low, high);
    // SAFETY: register arithmetic only.
    unsafe {
        asm!("{{ .reg .b16 l, h; mov.b32 {{l, h}}, {x}; cvt.f32.f16 {low}, l; cvt.f32.f16 {high}, h; }}", x = in(reg32) packed,
             low = out(reg32) low, high = out(reg32) high, options(pure, nomem, nostack));
    }
    [low, high]
}

/// Two bf16 as f32, the lower half first: they are the upper halves of their f32.
#[inline(always)]
pub fn unpack_bf16(packed: u32) -> [f32; 2] {
    [f32::from_bits(packed << 16), f32::from_bits(packed & 0xffff_0000)]
}
