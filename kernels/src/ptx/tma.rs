//! Tensor copies by TMA (PTX ISA, "cp.async.bulk.tensor"). Coordinates are innermost first; a box that reaches outside the tensor is
//! filled with zeros on loads, and clipped on stores.

use core::arch::asm;

/// Starts the copy of one box of a 4-D tensor into shared memory; its bytes, the filled ones included, count on `barrier`.
///
/// # Safety
/// `map` is the generic address of a tensor map whose box fits at `destination` (aligned to 1024 bytes for the 128-byte swizzle), which
/// nobody accesses until the barrier's phase completes; the bytes are announced on `barrier`.
///
/// # PTX
/// `cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [destination], [map, {c0, c1, c2, c3}], [barrier];`
#[inline(always)]
pub unsafe fn load_4d(destination: u32, map: u64, barrier: u32, coordinates: [u32; 4]) {
    let [c0, c1, c2, c3] = coordinates;
    // SAFETY: address, proxy and protocol are the caller's; memory is clobbered, so the copy stays in its place.
    unsafe {
        asm!("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
              [{destination}], [{map}, {{{c0}, {c1}, {c2}, {c3}}}], [{barrier}];",
             destination = in(reg32) destination, map = in(reg64) map, barrier = in(reg32) barrier,
             c0 = in(reg32) c0, c1 = in(reg32) c1, c2 = in(reg32) c2, c3 = in(reg32) c3, options(nostack));
    }
}

/// Starts the copy of one box from shared memory into a 4-D tensor, as part of this thread's open bulk group.
///
/// # Safety
/// `map` is the generic address of a tensor map whose box lies at `source` (aligned to 1024 bytes for the 128-byte swizzle), complete:
/// each writer has passed a proxy fence, then a barrier with this thread. It stays untouched until the group's reads are waited for.
///
/// # PTX
/// `cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [map, {c0, c1, c2, c3}], [source];`
#[inline(always)]
pub unsafe fn store_4d(source: u32, map: u64, coordinates: [u32; 4]) {
    let [c0, c1, c2, c3] = coordinates;
    // SAFETY: address, proxy and lifetime are the caller's; memory is clobbered, so the copy stays in its place.
    unsafe {
        asm!("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [{map}, {{{c0}, {c1}, {c2}, {c3}}}], [{source}];",
             source = in(reg32) source, map = in(reg64) map,
             c0 = in(reg32) c0, c1 = in(reg32) c1, c2 = in(reg32) c2, c3 = in(reg32) c3, options(nostack));
    }
}

/// [`load_4d`] from a 5-D tensor.
///
/// # Safety
/// As [`load_4d`].
///
/// # PTX
/// `cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [destination], [map, {c0, c1, c2, c3, c4}], [barrier];`
#[inline(always)]
pub unsafe fn load_5d(destination: u32, map: u64, barrier: u32, coordinates: [u32; 5]) {
    let [c0, c1, c2, c3, c4] = coordinates;
    // SAFETY: address, proxy and protocol are the caller's; memory is clobbered, so the copy stays in its place.
    unsafe {
        asm!("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
              [{destination}], [{map}, {{{c0}, {c1}, {c2}, {c3}, {c4}}}], [{barrier}];",
             destination = in(reg32) destination, map = in(reg64) map, barrier = in(reg32) barrier,
             c0 = in(reg32) c0, c1 = in(reg32) c1, c2 = in(reg32) c2, c3 = in(reg32) c3, c4 = in(reg32) c4, options(nostack));
    }
}

/// [`store_4d`] into a 5-D tensor.
///
/// # Safety
/// As [`store_4d`].
///
/// # PTX
/// `cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [map, {c0, c1, c2, c3, c4}], [source];`
#[inline(always)]
pub unsafe fn store_5d(source: u32, map: u64, coordinates: [u32; 5]) {
    let [c0, c1, c2, c3, c4] = coordinates;
    // SAFETY: address, proxy and lifetime are the caller's; memory is clobbered, so the copy stays in its place.
    unsafe {
        asm!("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [{map}, {{{c0}, {c1}, {c2}, {c3}, {c4}}}], [{source}];",
             source = in(reg32) source, map = in(reg64) map,
             c0 = in(reg32) c0, c1 = in(reg32) c1, c2 = in(reg32) c2, c3 = in(reg32) c3, c4 = in(reg32) c4, options(nostack));
    }
}

/// Closes this thread's open bulk group.
///
/// # Safety
/// By the thread that started its copies.
///
/// # PTX
/// `cp.async.bulk.commit_group;`
#[inline(always)]
pub unsafe fn commit_group() {
    // SAFETY: scope is the caller's; memory is clobbered, so no copy moves across.
    unsafe { asm!("cp.async.bulk.commit_group;", options(nostack)) }
}

/// Waits until this thread's bulk groups have read their sources, which may then be overwritten.
///
/// # Safety
/// By the thread that committed the groups.
///
/// # PTX
/// `cp.async.bulk.wait_group.read 0;`
#[inline(always)]
pub unsafe fn wait_group_read() {
    // SAFETY: scope is the caller's; memory is clobbered, so no write moves before the wait.
    unsafe { asm!("cp.async.bulk.wait_group.read 0;", options(nostack)) }
}
