//! Which scheduler slot a launch may draw its tiles from: never one that another launch in flight draws from.
//!
//! The launches of a stream are ordered, so each stream has a slot of its own, found by the id that `cuStreamGetId` gives and that is
//! never used again. So are the launches that one capture records on one stream, in each replay; and two replays of one capture may not
//! be in flight at once, since both would write the same O (see the safety section of [`crate::raw::forward`], for both). So those share
//! a slot of their own. The driver does not tell the id of a stream that is being captured, so its handle serves, which belongs to it
//! for as long as the capture lasts.
//!
//! Where the table is crowded a launch goes without, and walks its tiles in static order. That moves no result, but takes a causal kernel
//! longer: 1.05 times at head_dim 64, up to 1.25 times at 128 and 1.6 times at 256 (benches/recorded/h200/tried.md, "static, sections").
//! Places are never given back, so a context comes to this after about a thousand streams and captures.

use std::mem::size_of;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use hopper_attention_driver::{CU_STREAM_NON_BLOCKING, CUdeviceptr, CUstream, CUstreamCaptureStatus, Driver};
use hopper_attention_kernels::schedule::SchedulerSlot;

use crate::Error;
use crate::error::check;

/// Slots of a context: 8 KiB of device memory.
const COUNT: usize = 1024;
const BYTES: usize = COUNT * size_of::<SchedulerSlot>();
/// Places that a launch tries before it goes without a slot, which bounds what it costs.
const PROBES: usize = 32;

/// The slots of one context, and who owns them.
pub(crate) struct Slots {
    /// Device memory of the context: freed with it.
    address: CUdeviceptr,
    owners: Owners,
}

impl Slots {
    /// Makes the slots, all zero, in the current context.
    pub fn new(driver: &Driver) -> Result<Self, Error> {
        let mut stream = ptr::null_mut();
        // A stream of its own: the default stream may not be used while another is being captured.
        // SAFETY: `stream` is writable.
        check("cuStreamCreate", unsafe { driver.cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING) })?;
        let address = zeroed(driver, stream);
        // SAFETY: the stream was made above and is used no more.
        check("cuStreamDestroy_v2", unsafe { driver.cuStreamDestroy_v2(stream) })?;
        Ok(Self { address: address?, owners: Owners::new() })
    }

    /// The device address of the slot for a launch on `stream`, or 0 for the static order.
    pub fn of_stream(&self, driver: &Driver, stream: CUstream) -> Result<CUdeviceptr, Error> {
        let (mut status, mut capture) = (CUstreamCaptureStatus::NONE, 0);
        let (graph, dependencies, num_dependencies) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: `status` and `capture` are writable, the other outputs are not asked for, and the caller of the launch answers for the
        // stream being alive.
        let code = unsafe { driver.cuStreamGetCaptureInfo_v2(stream, &mut status, &mut capture, graph, dependencies, num_dependencies) };
        check("cuStreamGetCaptureInfo_v2", code)?;
        let key = if status == CUstreamCaptureStatus::NONE {
            let mut id = 0;
            // SAFETY: as above.
            check("cuStreamGetId", unsafe { driver.cuStreamGetId(stream, &mut id) })?;
            stream_key(id)
        } else {
            capture_key(capture, stream as u64)
        };
        let slot = key.and_then(|key| self.owners.slot(key));
        Ok(slot.map_or(0, |slot| self.address + (slot * size_of::<SchedulerSlot>()) as u64))
    }
}

fn zeroed(driver: &Driver, stream: CUstream) -> Result<CUdeviceptr, Error> {
    let mut address = 0;
    // SAFETY: `address` is writable.
    check("cuMemAlloc_v2", unsafe { driver.cuMemAlloc_v2(&mut address, BYTES) })?;
    // SAFETY: the memory was allocated above, as long as this, and `stream` is alive.
    check("cuMemsetD8Async", unsafe { driver.cuMemsetD8Async(address, 0, BYTES, stream) })?;
    // SAFETY: `stream` is alive.
    check("cuStreamSynchronize", unsafe { driver.cuStreamSynchronize(stream) })?;
    Ok(address)
}

/// Marks the key of a captured launch.
const CAPTURED: u64 = 1 << 63;
/// Bits of a stream's handle in such a key: an address below 2^48, without its last four bits.
const HANDLE_BITS: u32 = 44;

/// The key of the eager launches of the stream with this id: not 0, which marks a free place.
fn stream_key(id: u64) -> Option<u64> {
    id.checked_add(1).filter(|&key| key < CAPTURED)
}

/// The key of what one capture records on the stream of this handle. `None` for what does not fit: a handle that is no address (that of
/// the per-thread default stream means another stream in each thread), or the 2^19th capture.
fn capture_key(capture: u64, handle: u64) -> Option<u64> {
    let address = handle >> 4;
    let fits = address != 0 && handle & 15 == 0 && address >> HANDLE_BITS == 0 && capture >> (63 - HANDLE_BITS) == 0;
    fits.then_some(CAPTURED | capture << HANDLE_BITS | address)
}

/// A hash table of keys, open addressing: entries are added and never removed, so that threads need no lock.
struct Owners(Box<[AtomicU64]>);

impl Owners {
    fn new() -> Self {
        Self((0..COUNT).map(|_| AtomicU64::new(0)).collect())
    }

    /// The slot of a key, taken if it has none yet; `None` if its places are all taken.
    fn slot(&self, key: u64) -> Option<usize> {
        // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4), as ids come in sequence.
        let first = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
        (0..PROBES).map(|probe| (first + probe) % COUNT).find(|&place| {
            // The place is ours, or free and now ours. Keys guard no other data, so no ordering is needed.
            let owner = self.0[place].load(Ordering::Relaxed);
            owner == key
                || owner == 0
                    && match self.0[place].compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed) {
                        Ok(_) => true,
                        Err(owner) => owner == key,
                    }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    #[test]
    fn a_slot_belongs_to_one_stream() {
        let owners = Owners::new();
        let taken: HashMap<u64, usize> = (1..3000).filter_map(|key| Some((key, owners.slot(key)?))).collect();
        let mut slots: Vec<_> = taken.values().collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), taken.len(), "two keys share a slot");
        assert!(taken.len() > COUNT / 2, "only {} keys found a slot", taken.len());
        assert!((1..COUNT as u64 / 2).all(|key| taken.contains_key(&key)), "crowded while half of the table is free");
        // Asked again, every key has what it had.
        assert!((1..3000).all(|key| owners.slot(key) == taken.get(&key).copied()));
    }

    #[test]
    fn keys_tell_streams_and_captures_apart() {
        let (one, other) = (0x7fff_1234_5670, 0x7fff_1234_5680);
        let keys = [
            stream_key(0),
            stream_key(1),
            capture_key(0, one),
            capture_key(0, other),
            capture_key(1, one),
            capture_key((1 << 19) - 1, (1 << 48) - 16),
        ];
        let distinct: HashSet<u64> = keys.iter().map(|key| key.unwrap()).collect();
        assert!(distinct.len() == keys.len() && !distinct.contains(&0));
        assert_eq!([stream_key(u64::MAX), stream_key(CAPTURED - 1)], [None; 2]);
        assert_eq!([0, 1, 2, one + 8, 1 << 48].map(|handle| capture_key(0, handle)), [None; 5]);
        assert_eq!(capture_key(1 << 19, one), None);
    }

    #[test]
    fn threads_agree() {
        let owners = Owners::new();
        let slots = || (1..400).map(|key| owners.slot(key)).collect::<Vec<_>>();
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(slots)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
