//! Which scheduler slot a launch may draw its tiles from: never one that another launch in flight draws from.
//!
//! The launches of a stream are ordered, so each stream has a slot of its own, found by the id that `cuStreamGetId` gives and that is
//! never used again. So are the launches that one capture records on one stream, in each replay; and two replays of one capture may not
//! be in flight at once, since both would write the same O (see the safety section of [`crate::raw::forward`], for both). So those share
//! a slot of their own. The driver does not tell the id of a stream that is being captured, so its handle serves, which belongs to it
//! for as long as the capture lasts.
//!
//! Where a table is crowded a launch goes without, and walks its tiles in the order of [`crate::plan::Plan::static_schedule`]. That moves no
//! result, but takes a causal kernel longer: up to 1.07 times at head_dim 64, 1.2 times at 128 and 1.3 times at 256
//! (benches/recorded/h200/tried.md, "static, sections" below 4096 keys and "static" from there on). Places are never given back: a
//! stream may be destroyed while its work goes on, and the driver has no way to ask a destroyed stream, or the slot's memory, when that is done
//! without waiting. So a context comes to this after about a thousand streams, or captures: these have a table of their own, so that a program
//! that captures again and again takes nothing from its eager launches.

use std::mem::size_of;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use hopper_attention_driver::{CU_STREAM_NON_BLOCKING, CUdeviceptr, CUstream, CUstreamCaptureStatus, Driver};
use hopper_attention_kernels::schedule::SchedulerSlot;

use crate::Error;
use crate::error::check;

/// Slots of a context's streams, and as many again of its captures.
const COUNT: usize = 1024;
/// 16 KiB of device memory a context.
const BYTES: usize = 2 * COUNT * size_of::<SchedulerSlot>();
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
        let mut address = 0;
        // SAFETY: `address` is writable.
        check("cuMemAlloc_v2", unsafe { driver.cuMemAlloc_v2(&mut address, BYTES) })?;
        let slots = Self { address, owners: Owners::new() };
        match slots.clear(driver) {
            Ok(()) => Ok(slots),
            Err(error) => {
                slots.free(driver);
                Err(error)
            }
        }
    }

    fn clear(&self, driver: &Driver) -> Result<(), Error> {
        let mut stream = ptr::null_mut();
        // A stream of its own: the default stream may not be used while another is being captured.
        // SAFETY: `stream` is writable.
        check("cuStreamCreate", unsafe { driver.cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING) })?;
        // SAFETY: the memory was allocated as long as this, and `stream` is alive.
        let set = check("cuMemsetD8Async", unsafe { driver.cuMemsetD8Async(self.address, 0, BYTES, stream) });
        // SAFETY: `stream` is alive.
        let set = set.and_then(|()| check("cuStreamSynchronize", unsafe { driver.cuStreamSynchronize(stream) }));
        // SAFETY: the stream was made above and is used no more.
        set.and(check("cuStreamDestroy_v2", unsafe { driver.cuStreamDestroy_v2(stream) }))
    }

    /// Frees slots that no launch was given.
    pub fn free(self, driver: &Driver) {
        // SAFETY: nothing on the device draws from these slots. A failure leaves the memory to the context.
        let _ = unsafe { driver.cuMemFree_v2(self.address) };
    }

    /// The device address of the slot for a launch on `stream`, or 0 for the static order.
    pub fn of_stream(&self, driver: &Driver, stream: CUstream) -> Result<CUdeviceptr, Error> {
        let (mut status, mut capture) = (CUstreamCaptureStatus::NONE, 0);
        let (graph, dependencies, num_dependencies) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: `status` and `capture` are writable, the other outputs are not asked for, and the caller of the launch answers for the
        // stream being alive.
        let code = unsafe { driver.cuStreamGetCaptureInfo_v2(stream, &mut status, &mut capture, graph, dependencies, num_dependencies) };
        check("cuStreamGetCaptureInfo_v2", code)?;
        let slot = if status == CUstreamCaptureStatus::NONE {
            let mut id = 0;
            // SAFETY: as above.
            check("cuStreamGetId", unsafe { driver.cuStreamGetId(stream, &mut id) })?;
            self.owners.of_stream(id)
        } else {
            self.owners.of_capture(capture, stream as u64)
        };
        Ok(slot.map_or(0, |slot| self.address + (slot * size_of::<SchedulerSlot>()) as u64))
    }
}

/// Who owns which slot: the first half is for streams, the second for captures.
struct Owners {
    streams: Table,
    captures: Table,
}

impl Owners {
    fn new() -> Self {
        Self { streams: Table::new(), captures: Table::new() }
    }

    /// The slot of the eager launches of the stream with this id.
    fn of_stream(&self, id: u64) -> Option<usize> {
        self.streams.place(stream_key(id)?)
    }

    /// The slot of what one capture records on the stream of this handle.
    fn of_capture(&self, capture: u64, handle: u64) -> Option<usize> {
        Some(COUNT + self.captures.place(capture_key(capture, handle)?)?)
    }
}

/// Bits of a stream's handle in the key of a capture: an address below 2^48, without its last four bits.
const HANDLE_BITS: u32 = 44;

/// The key of a stream: not 0, which marks a free place.
fn stream_key(id: u64) -> Option<u64> {
    id.checked_add(1)
}

/// The key of a capture and a stream, not 0. `None` for what does not fit: a handle that is no address (that of the per-thread default
/// stream means another stream in each thread), or the 2^20th capture.
fn capture_key(capture: u64, handle: u64) -> Option<u64> {
    let address = handle >> 4;
    let fits = address != 0 && handle & 15 == 0 && address >> HANDLE_BITS == 0 && capture >> (64 - HANDLE_BITS) == 0;
    fits.then_some(capture << HANDLE_BITS | address)
}

/// A hash table of keys, open addressing: entries are added and never removed, so that threads need no lock.
struct Table(Box<[AtomicU64]>);

impl Table {
    fn new() -> Self {
        Self((0..COUNT).map(|_| AtomicU64::new(0)).collect())
    }

    /// The place of a key, taken if it has none yet; `None` if the places it tries are all taken.
    fn place(&self, key: u64) -> Option<usize> {
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
    fn a_place_belongs_to_one_key() {
        let table = Table::new();
        let taken: HashMap<u64, usize> = (1..3000).filter_map(|key| Some((key, table.place(key)?))).collect();
        let mut places: Vec<_> = taken.values().collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), taken.len(), "two keys share a place");
        assert!(taken.len() > COUNT / 2, "only {} keys found a place", taken.len());
        assert!((1..COUNT as u64 / 2).all(|key| taken.contains_key(&key)), "crowded while half of the table is free");
        // Asked again, every key has what it had.
        assert!((1..3000).all(|key| table.place(key) == taken.get(&key).copied()));
    }

    #[test]
    fn keys_tell_streams_and_captures_apart() {
        let (one, other) = (0x7fff_1234_5670, 0x7fff_1234_5680);
        let keys = [capture_key(0, one), capture_key(0, other), capture_key(1, one), capture_key((1 << 20) - 1, (1 << 48) - 16)];
        let distinct: HashSet<u64> = keys.iter().map(|key| key.unwrap()).collect();
        assert!(distinct.len() == keys.len() && !distinct.contains(&0));
        assert_eq!([0, u64::MAX - 1, u64::MAX].map(stream_key), [Some(1), Some(u64::MAX), None]);
        assert_eq!([0, 1, 2, one + 8, 1 << 48].map(|handle| capture_key(0, handle)), [None; 5]);
        assert_eq!(capture_key(1 << 20, one), None);
    }

    #[test]
    fn captures_take_nothing_from_streams() {
        let owners = Owners::new();
        let captures: HashSet<usize> = (0..3000).filter_map(|capture| owners.of_capture(capture, 0x7fff_1234_5670)).collect();
        assert!(captures.iter().all(|slot| (COUNT..2 * COUNT).contains(slot)));
        let streams: HashSet<usize> = (0..COUNT as u64 / 2).map(|id| owners.of_stream(id).expect("half of the slots are free")).collect();
        assert!(streams.iter().all(|&slot| slot < COUNT) && streams.len() == COUNT / 2);
    }

    #[test]
    fn threads_agree() {
        let table = Table::new();
        let places = || (1..400).map(|key| table.place(key)).collect::<Vec<_>>();
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(places)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
