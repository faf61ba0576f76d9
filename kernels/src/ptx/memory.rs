//! Loads, stores and atomics, and the base of dynamic shared memory.

use core::arch::{asm, global_asm};

// The kernels' dynamic shared memory. Neither compiler can declare it in Rust with this alignment.
global_asm!(".extern .shared .align 1024 .b8 hopper_attention_smem[];");

/// Shared address of the CTA's dynamic shared memory, aligned to 1024 bytes.
///
/// # PTX
/// `mov.u32 d, hopper_attention_smem;`
#[inline(always)]
pub fn dynamic_smem() -> u32 {
    let address;
    // SAFETY: a constant of the link, no access to memory.
    unsafe { asm!("mov.u32 {d}, hopper_attention_smem;", d = out(reg32) address, options(pure, nomem, nostack)) }
    address
}

/// Stores one f32.
///
/// # Safety
/// `address` is a 4-byte aligned address of global memory that the kernel may write, and no other thread touches.
///
/// # PTX
/// `st.global.f32 [address], value;`
#[inline(always)]
pub unsafe fn store_global_f32(address: u64, value: f32) {
    // SAFETY: address is the caller's; memory is clobbered, so the access stays in its place.
    unsafe { asm!("st.global.f32 [{address}], {value};", address = in(reg64) address, value = in(reg32) value, options(nostack)) }
}

/// Stores one u32 to global memory.
///
/// # Safety
/// As [`store_global_f32`].
///
/// # PTX
/// `st.global.u32 [address], value;`
#[inline(always)]
pub unsafe fn store_global_u32(address: u64, value: u32) {
    // SAFETY: address is the caller's; memory is clobbered, so the access stays in its place.
    unsafe { asm!("st.global.u32 [{address}], {value};", address = in(reg64) address, value = in(reg32) value, options(nostack)) }
}

/// Loads one u64 of the kernel's parameters.
///
/// # Safety
/// `address` is the generic address of 8 aligned bytes of a parameter.
///
/// # PTX
/// `ld.u64 d, [address];`
#[inline(always)]
pub unsafe fn load_u64(address: u64) -> u64 {
    let value;
    // SAFETY: address is the caller's. Parameters stay as they are, so it may move or be left out.
    unsafe { asm!("ld.u64 {d}, [{address}];", d = out(reg64) value, address = in(reg64) address, options(pure, readonly, nostack)) }
    value
}

/// Loads one f32 that no thread of the grid writes.
///
/// # Safety
/// `address` is a 4-byte aligned address of initialised global memory.
///
/// # PTX
/// `ld.global.f32 d, [address];`
#[inline(always)]
pub unsafe fn load_global_f32(address: u64) -> f32 {
    let value;
    // SAFETY: address is the caller's. It reads memory that stays as it is, so it may move or be left out.
    unsafe { asm!("ld.global.f32 {d}, [{address}];", d = out(reg32) value, address = in(reg64) address, options(pure, readonly, nostack)) }
    value
}

/// Loads one i32 that no thread of the grid writes.
///
/// # Safety
/// As [`load_global_f32`].
///
/// # PTX
/// `ld.global.s32 d, [address];`
#[inline(always)]
pub unsafe fn load_global_i32(address: u64) -> i32 {
    let value;
    // SAFETY: as in load_global_f32.
    unsafe { asm!("ld.global.s32 {d}, [{address}];", d = out(reg32) value, address = in(reg64) address, options(pure, readonly, nostack)) }
    value
}

/// Loads 16 bytes that no thread of the grid writes.
///
/// # Safety
/// `address` is a 16-byte aligned address of initialised global memory.
///
/// # PTX
/// `ld.global.v4.u32 {d0, d1, d2, d3}, [address];`
#[inline(always)]
pub unsafe fn load_global_u32x4(address: u64) -> [u32; 4] {
    let (d0, d1, d2, d3);
    // SAFETY: as in load_global_f32.
    unsafe {
        asm!("ld.global.v4.u32 {{{d0}, {d1}, {d2}, {d3}}}, [{address}];", d0 = out(reg32) d0, d1 = out(reg32) d1, d2 = out(reg32) d2,
             d3 = out(reg32) d3, address = in(reg64) address, options(pure, readonly, nostack));
    }
    [d0, d1, d2, d3]
}

/// Stores 16 bytes.
///
/// # Safety
/// `address` is a 16-byte aligned address of global memory that the kernel may write, and no other thread touches.
///
/// # PTX
/// `st.global.v4.u32 [address], {v0, v1, v2, v3};`
#[inline(always)]
pub unsafe fn store_global_u32x4(address: u64, value: [u32; 4]) {
    let [v0, v1, v2, v3] = value;
    // SAFETY: address is the caller's; memory is clobbered, so the access stays in its place.
    unsafe {
        asm!("st.global.v4.u32 [{address}], {{{v0}, {v1}, {v2}, {v3}}};", address = in(reg64) address, v0 = in(reg32) v0, v1 = in(reg32) v1,
             v2 = in(reg32) v2, v3 = in(reg32) v3, options(nostack));
    }
}

/// Adds to a u32 in global memory and returns what it was; orders nothing else.
///
/// # Safety
/// `address` is a 4-byte aligned address of global memory, accessed by nothing but atomics of the whole device meanwhile.
///
/// # PTX
/// `atom.add.relaxed.gpu.global.u32 d, [address], value;`
#[inline(always)]
pub unsafe fn fetch_add_relaxed(address: u64, value: u32) -> u32 {
    let before;
    // SAFETY: address and protocol are the caller's; memory is clobbered, so the access stays in its place.
    unsafe {
        asm!("atom.add.relaxed.gpu.global.u32 {d}, [{address}], {value};", d = out(reg32) before, address = in(reg64) address,
             value = in(reg32) value, options(nostack));
    }
    before
}

/// Adds to a u32 in global memory and returns what it was. Accesses that this thread made before it come before those that follow a later
/// such addition by another thread.
///
/// # Safety
/// As [`fetch_add_relaxed`].
///
/// # PTX
/// `atom.add.acq_rel.gpu.global.u32 d, [address], value;`
#[inline(always)]
pub unsafe fn fetch_add_acq_rel(address: u64, value: u32) -> u32 {
    let before;
    // SAFETY: address and protocol are the caller's; memory is clobbered, so the access stays in its place.
    unsafe {
        asm!("atom.add.acq_rel.gpu.global.u32 {d}, [{address}], {value};", d = out(reg32) before, address = in(reg64) address,
             value = in(reg32) value, options(nostack));
    }
    before
}

/// Stores one u32 to shared memory.
///
/// # Safety
/// `address` is a 4-byte aligned shared address that no other thread accesses now.
///
/// # PTX
/// `st.shared.u32 [address], value;`
#[inline(always)]
pub unsafe fn store_shared(address: u32, value: u32) {
    // SAFETY: address and protocol are the caller's; memory is clobbered, so the access stays in its place.
    unsafe { asm!("st.shared.u32 [{address}], {value};", address = in(reg32) address, value = in(reg32) value, options(nostack)) }
}

/// Loads one u32 from shared memory.
///
/// # Safety
/// `address` is a 4-byte aligned shared address that no other thread writes now.
///
/// # PTX
/// `ld.shared.u32 d, [address];`
#[inline(always)]
pub unsafe fn load_shared(address: u32) -> u32 {
    let value;
    // SAFETY: address and protocol are the caller's; memory is clobbered, so the access stays in its place.
    unsafe { asm!("ld.shared.u32 {d}, [{address}];", d = out(reg32) value, address = in(reg32) address, options(nostack)) }
    value
}
