//! Global memory: accesses of all CTAs of a launch.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::clock::{Access, Block};

/// Locks over the blocks.
const SHARDS: usize = 64;
/// Accesses that a byte remembers beside its last write.
const MAX_REMEMBERED: usize = 8;

/// For each CTA the time up to which its accesses are known.
pub type Known = HashMap<u32, u32>;

/// What the CTAs of a launch share.
pub struct GlobalShadow {
    shards: Vec<Mutex<HashMap<u64, Block>>>,
    released: Mutex<HashMap<u64, Known>>,
}

impl Default for GlobalShadow {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), released: Mutex::default() }
    }
}

impl GlobalShadow {
    /// Visits the cells of a range, block by block.
    pub fn visit<E>(
        &self,
        address: u64,
        bytes: u64,
        is_write: bool,
        mut f: impl FnMut(u64, &mut super::clock::Cell) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = address;
        while at < address + bytes {
            let block = at / 16;
            let end = ((block + 1) * 16).min(address + bytes);
            let mut shard = lock(&self.shards[(block / 64) as usize % SHARDS]);
            let cells = shard.entry(block).or_default();
            cells.visit((at % 16) as u32, (end - block * 16) as u32, is_write, |cell| f(at, cell))?;
            at = end;
        }
        Ok(())
    }

    /// A CTA publishes what it knows at an address.
    pub fn release(&self, address: u64, known: &Known) {
        join(lock(&self.released).entry(address).or_default(), known);
    }

    /// A CTA learns what has been published at an address.
    pub fn acquire(&self, address: u64, known: &mut Known) {
        if let Some(released) = lock(&self.released).get(&address) {
            join(known, released);
        }
    }
}

fn join(into: &mut Known, from: &Known) {
    for (&cta, &time) in from {
        let entry = into.entry(cta).or_default();
        *entry = (*entry).max(time);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the list of a byte's other accesses short.
pub fn trim(accesses: &mut Vec<Access>) {
    if accesses.len() > MAX_REMEMBERED {
        accesses.remove(0);
    }
}
