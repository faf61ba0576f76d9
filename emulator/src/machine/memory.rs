//! Device memory: allocations at addresses of their own, apart from the host's, with guard gaps between them; an address is never used
//! twice, so that a stale pointer is always found.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Where device addresses begin: no Linux process has mappings here.
const DEVICE_BASE: u64 = 0x0d00_0000_0000;
/// Distance between allocations, at least.
const GUARD_BYTES: u64 = 1 << 16;
/// Alignment of allocations.
const ALIGN: u64 = 512;
/// Fresh allocations up to this size are filled with NaN bits; larger ones stay untouched zero pages.
const POISON_LIMIT: usize = 32 << 20;

/// Device memory that one `cuMemAlloc` returned, or pinned host memory.
pub struct Allocation {
    pub base: u64,
    pub bytes: u64,
    pub kind: AllocationKind,
    /// The context it belongs to.
    pub context: u64,
    host: *mut u8,
    layout: Layout,
    owned: bool,
    /// One bit a byte: whether anything has written it. Kept only where uninitialised reads are looked for.
    written: Option<Box<[AtomicU8]>>,
}

/// What an allocation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationKind {
    Device,
    PinnedHost,
    /// Managed memory: the host's address is the device's.
    Managed,
    ModuleData,
}

impl AllocationKind {
    /// Whether the host reaches it under the same address.
    pub fn is_host(self) -> bool {
        matches!(self, AllocationKind::PinnedHost | AllocationKind::Managed)
    }
}

// SAFETY: the memory is plain bytes that live as long as the value; concurrent accesses of racing programs are relaxed atomics or byte
// copies whose torn results are what the program asked for, as on the device.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    fn new(base: Option<u64>, bytes: u64, kind: AllocationKind, context: u64, track: bool) -> Option<Self> {
        let layout = Layout::from_size_align(usize::try_from(bytes).ok()?.max(1), ALIGN as usize).ok()?;
        // SAFETY: the layout's size is not zero.
        let host = unsafe { alloc_zeroed(layout) };
        if host.is_null() {
            return None;
        }
        if kind == AllocationKind::Device && layout.size() <= POISON_LIMIT {
            // SAFETY: `host` is valid for the layout's size.
            unsafe { host.write_bytes(0xff, layout.size()) };
        }
        let written = (track && kind == AllocationKind::Device).then(|| (0..bytes.div_ceil(8)).map(|_| AtomicU8::new(0)).collect());
        Some(Self { base: base.unwrap_or(host as u64), bytes, kind, context, host, layout, owned: true, written })
    }

    /// Whether `bytes` bytes from `address` lie inside.
    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && bytes <= self.bytes && address - self.base <= self.bytes - bytes
    }

    fn pointer(&self, address: u64, bytes: u64) -> *mut u8 {
        assert!(self.contains(address, bytes), "an access left its allocation");
        // SAFETY: just checked.
        unsafe { self.host.add((address - self.base) as usize) }
    }

    /// Copies out of the allocation.
    pub fn read(&self, address: u64, into: &mut [u8]) {
        let from = self.pointer(address, into.len() as u64);
        // SAFETY: in bounds; `into` is a Rust buffer and lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies into the allocation.
    pub fn write(&self, address: u64, from: &[u8]) {
        let to = self.pointer(address, from.len() as u64);
        // SAFETY: in bounds; `from` is a Rust buffer and lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
        self.mark_written(address, from.len() as u64);
    }

    /// Reads 1, 2, 4 or 8 aligned bytes.
    pub fn load(&self, address: u64, bytes: u32) -> u64 {
        let from = self.pointer(address, u64::from(bytes));
        // SAFETY: in bounds, aligned (the base is, and the machine checks the offset), and all other accesses are atomic or racy by choice
        // of the program.
        unsafe {
            match bytes {
                1 => u64::from(AtomicU8::from_ptr(from).load(Ordering::Relaxed)),
                2 => u64::from(AtomicU16::from_ptr(from.cast()).load(Ordering::Relaxed)),
                4 => u64::from(AtomicU32::from_ptr(from.cast()).load(Ordering::Relaxed)),
                _ => AtomicU64::from_ptr(from.cast()).load(Ordering::Relaxed),
            }
        }
    }

    /// Writes 1, 2, 4 or 8 aligned bytes.
    pub fn store(&self, address: u64, bytes: u32, value: u64) {
        let to = self.pointer(address, u64::from(bytes));
        // SAFETY: as in `load`.
        unsafe {
            match bytes {
                1 => AtomicU8::from_ptr(to).store(value as u8, Ordering::Relaxed),
                2 => AtomicU16::from_ptr(to.cast()).store(value as u16, Ordering::Relaxed),
                4 => AtomicU32::from_ptr(to.cast()).store(value as u32, Ordering::Relaxed),
                _ => AtomicU64::from_ptr(to.cast()).store(value, Ordering::Relaxed),
            }
        }
        self.mark_written(address, u64::from(bytes));
    }

    /// Replaces an aligned value of 2, 4 or 8 bytes by `f` of it; returns the old one.
    pub fn update(&self, address: u64, bytes: u32, f: impl Fn(u64) -> u64) -> u64 {
        let at = self.pointer(address, u64::from(bytes));
        let order = Ordering::AcqRel;
        self.mark_written(address, u64::from(bytes));
        // SAFETY: as in `load`.
        let result = unsafe {
            match bytes {
                2 => AtomicU16::from_ptr(at.cast())
                    .fetch_update(order, Ordering::Acquire, |old| Some(f(u64::from(old)) as u16))
                    .map(u64::from)
                    .map_err(u64::from),
                4 => AtomicU32::from_ptr(at.cast())
                    .fetch_update(order, Ordering::Acquire, |old| Some(f(u64::from(old)) as u32))
                    .map(u64::from)
                    .map_err(u64::from),
                _ => AtomicU64::from_ptr(at.cast()).fetch_update(order, Ordering::Acquire, |old| Some(f(old))),
            }
        };
        result.unwrap_or_else(|old| old)
    }

    /// Notes that bytes have been written.
    pub fn mark_written(&self, address: u64, bytes: u64) {
        let Some(written) = &self.written else { return };
        let (mut at, end) = (address - self.base, address - self.base + bytes);
        while at < end {
            let byte = (at / 8) as usize;
            let upto = end.min((at / 8 + 1) * 8);
            let mask = (((1u32 << (upto - at)) - 1) << (at % 8)) as u8;
            if written[byte].load(Ordering::Relaxed) & mask != mask {
                written[byte].fetch_or(mask, Ordering::Relaxed);
            }
            at = upto;
        }
    }

    /// The first byte of a range that nothing has written.
    pub fn first_unwritten(&self, address: u64, bytes: u64) -> Option<u64> {
        let written = self.written.as_ref()?;
        (address..address + bytes).find(|at| {
            let at = at - self.base;
            written[(at / 8) as usize].load(Ordering::Relaxed) & (1 << (at % 8)) == 0
        })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.owned {
            // SAFETY: allocated with this layout, and nobody else holds the pointer.
            unsafe { dealloc(self.host, self.layout) };
        }
    }
}

/// A sorted list of live allocations, and the freed ones for reports.
#[derive(Clone, Default)]
pub struct MemoryMap {
    live: Vec<Arc<Allocation>>,
    freed: Vec<(u64, u64)>,
}

impl MemoryMap {
    /// The allocation that holds `address`.
    pub fn find(&self, address: u64) -> Option<&Arc<Allocation>> {
        let at = self.live.partition_point(|a| a.base <= address);
        let candidate = self.live.get(at.checked_sub(1)?)?;
        candidate.contains(address, 1).then_some(candidate)
    }

    /// What is known of an address that no allocation holds.
    pub fn describe(&self, address: u64) -> String {
        if let Some((base, bytes)) = self.freed.iter().rev().find(|(base, bytes)| address >= *base && address - base < *bytes) {
            return format!("inside the freed allocation 0x{base:x} of {bytes} bytes");
        }
        let at = self.live.partition_point(|a| a.base <= address);
        let below = at.checked_sub(1).and_then(|at| self.live.get(at));
        let above = self.live.get(at);
        match (below, above) {
            (Some(a), _) if address - (a.base + a.bytes) < GUARD_BYTES => {
                format!("{} bytes behind the end of the allocation 0x{:x} of {} bytes", address - (a.base + a.bytes), a.base, a.bytes)
            }
            (_, Some(a)) if a.base - address < GUARD_BYTES => {
                format!("{} bytes before the allocation 0x{:x} of {} bytes", a.base - address, a.base, a.bytes)
            }
            _ => "in no allocation".to_string(),
        }
    }
}

struct State {
    map: Arc<MemoryMap>,
    next: u64,
    used: u64,
}

/// All memory that devices can reach.
pub struct Memory {
    state: Mutex<State>,
    capacity: u64,
    track_writes: bool,
}

impl Memory {
    /// Memory of `capacity` bytes; `track_writes` remembers which bytes have been written.
    pub fn new(capacity: u64, track_writes: bool) -> Self {
        Self { state: Mutex::new(State { map: Arc::default(), next: DEVICE_BASE, used: 0 }), capacity, track_writes }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The allocations as they are now.
    pub fn snapshot(&self) -> Arc<MemoryMap> {
        self.lock().map.clone()
    }

    /// Bytes in use and in all.
    pub fn usage(&self) -> (u64, u64) {
        (self.lock().used, self.capacity)
    }

    /// Allocates; `None` if there is no room.
    pub fn allocate(&self, bytes: u64, kind: AllocationKind, context: u64) -> Option<Arc<Allocation>> {
        let mut state = self.lock();
        if !kind.is_host() && state.used.checked_add(bytes)? > self.capacity {
            return None;
        }
        let base = (!kind.is_host()).then_some(state.next);
        let allocation = Arc::new(Allocation::new(base, bytes, kind, context, self.track_writes)?);
        if base.is_some() {
            state.next = (state.next + bytes + GUARD_BYTES).next_multiple_of(ALIGN);
            state.used += bytes;
        }
        let map = Arc::make_mut(&mut state.map);
        let at = map.live.partition_point(|a| a.base < allocation.base);
        map.live.insert(at, allocation.clone());
        Some(allocation)
    }

    /// Frees the allocation that starts at `base`.
    pub fn free(&self, base: u64, is_kind: impl Fn(AllocationKind) -> bool) -> bool {
        let mut state = self.lock();
        let Some(at) = state.map.live.iter().position(|a| a.base == base && is_kind(a.kind)) else { return false };
        let map = Arc::make_mut(&mut state.map);
        let gone = map.live.remove(at);
        if !gone.kind.is_host() {
            map.freed.push((gone.base, gone.bytes));
            state.used -= gone.bytes;
        }
        true
    }

    /// Frees everything that belongs to a context.
    pub fn free_context(&self, context: u64) {
        let bases: Vec<u64> = self.lock().map.live.iter().filter(|a| a.context == context).map(|a| a.base).collect();
        for base in bases {
            self.free(base, |_| true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_and_freed_memory_are_named() {
        let memory = Memory::new(1 << 20, true);
        let a = memory.allocate(100, AllocationKind::Device, 1).unwrap();
        let map = memory.snapshot();
        assert!(map.find(a.base + 99).is_some());
        assert!(map.find(a.base + 100).is_none());
        assert!(map.describe(a.base + 104).contains("4 bytes behind the end"));
        assert!(memory.free(a.base, |_| true));
        assert!(memory.snapshot().describe(a.base).contains("freed"));
        assert!(!memory.free(a.base, |_| true));
        assert!(memory.allocate(2 << 20, AllocationKind::Device, 1).is_none());
    }

    #[test]
    fn written_bytes_are_tracked_one_by_one() {
        let memory = Memory::new(1 << 20, true);
        let a = memory.allocate(64, AllocationKind::Device, 1).unwrap();
        a.write(a.base + 3, &[0; 7]);
        assert_eq!(a.first_unwritten(a.base + 3, 7), None);
        assert_eq!(a.first_unwritten(a.base + 3, 8), Some(a.base + 10));
        assert_eq!(a.first_unwritten(a.base, 64), Some(a.base));
    }
}
