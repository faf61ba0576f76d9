//! Which scheduler slot a launch may draw its tiles from: never one that another launch in flight draws from.
//!
//! The launches of a stream are ordered, so each stream has a slot of its own, found by the id that `cuStreamGetId` gives and that is
//! never used again. A captured launch has none and walks its tiles in static order: its graph may be instantiated twice, and both
//! replayed at once. Nor has a stream that finds the table crowded. The order moves no result, only the time that the last tiles take.

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
/// Places that a stream tries before it goes without a slot, which bounds what a launch costs.
const PROBES: usize = 32;

/// The slots of one context, and the streams that own them.
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
        let mut status = CUstreamCaptureStatus::NONE;
        // SAFETY: `status` is writable, and the caller of the launch answers for the stream being alive.
        check("cuStreamIsCapturing", unsafe { driver.cuStreamIsCapturing(stream, &mut status) })?;
        if status != CUstreamCaptureStatus::NONE {
            return Ok(0);
        }
        let mut id = 0;
        // SAFETY: as above.
        check("cuStreamGetId", unsafe { driver.cuStreamGetId(stream, &mut id) })?;
        Ok(self.owners.slot(id).map_or(0, |slot| self.address + (slot * size_of::<SchedulerSlot>()) as u64))
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

/// A hash table of stream ids, open addressing: entries are added and never removed, so that threads need no lock.
struct Owners(Box<[AtomicU64]>);

impl Owners {
    fn new() -> Self {
        Self((0..COUNT).map(|_| AtomicU64::new(0)).collect())
    }

    /// The slot of a stream, taken if it has none yet; `None` if its places are all taken.
    fn slot(&self, stream_id: u64) -> Option<usize> {
        // 0 marks a free place.
        let key = stream_id.checked_add(1)?;
        // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, section 6.4), as ids come in sequence.
        let first = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize;
        (0..PROBES).map(|probe| (first + probe) % COUNT).find(|&place| {
            // The place is ours, or free and now ours. Ids guard no other data, so no ordering is needed.
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
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn a_slot_belongs_to_one_stream() {
        let owners = Owners::new();
        let taken: HashMap<u64, usize> = (0..3000).filter_map(|id| Some((id, owners.slot(id)?))).collect();
        let mut slots: Vec<_> = taken.values().collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), taken.len(), "two streams share a slot");
        assert!(taken.len() > COUNT / 2, "only {} streams found a slot", taken.len());
        assert!((0..COUNT as u64 / 2).all(|id| taken.contains_key(&id)), "crowded while half of the table is free");
        // Asked again, every stream has what it had.
        assert!((0..3000).all(|id| owners.slot(id) == taken.get(&id).copied()));
        assert_eq!(owners.slot(u64::MAX), None);
    }

    #[test]
    fn threads_agree() {
        let owners = Owners::new();
        let ids = || (0..400).map(|id| owners.slot(id)).collect::<Vec<_>>();
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(ids)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
