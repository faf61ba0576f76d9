//! Vector clocks.
//!
//! A clock has one component for every thread of the CTA and one for every slot of an asynchronous operation. `generic` says which
//! accesses happen before, `fenced` which of those through the generic proxy are also visible to the asynchronous proxy.

/// What an agent knows of all others.
#[derive(Clone, Debug)]
pub struct Clock {
    pub generic: Box<[u32]>,
    pub fenced: Box<[u32]>,
}

impl Clock {
    /// A clock that knows nothing.
    pub fn new(width: usize) -> Self {
        Self { generic: vec![0; width].into(), fenced: vec![0; width].into() }
    }

    /// Learns what `other` knows.
    pub fn join(&mut self, other: &Clock) {
        join(&mut self.generic, &other.generic);
        join(&mut self.fenced, &other.fenced);
    }

    /// Takes over `other`'s knowledge.
    pub fn copy(&mut self, other: &Clock) {
        self.generic.copy_from_slice(&other.generic);
        self.fenced.copy_from_slice(&other.fenced);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.generic.fill(0);
        self.fenced.fill(0);
    }
}

fn join(into: &mut [u32], from: &[u32]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the feature was just detected.
        unsafe { join_avx2(into, from) };
        return;
    }
    join_each(into, from);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn join_avx2(into: &mut [u32], from: &[u32]) {
    join_each(into, from);
}

#[inline(always)]
fn join_each(into: &mut [u32], from: &[u32]) {
    for (a, b) in into.iter_mut().zip(from) {
        *a = (*a).max(*b);
    }
}

/// An access as memory remembers it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Access {
    /// Component of the clock; meaningless in another CTA.
    pub agent: u16,
    pub write: bool,
    pub atomic: bool,
    /// Through the asynchronous proxy.
    pub asynchronous: bool,
    /// 0: no access.
    pub epoch: u32,
    pub pc: u32,
    /// Of global memory only: the CTA, and its time.
    pub cta: u32,
    pub time: u32,
}

/// What memory remembers of one byte, or of 16 that were always accessed together.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// The last write.
    pub write: Access,
    /// Reads, and the atomic writes before the last that it does not know.
    pub others: Vec<Access>,
}

/// Sixteen bytes.
#[derive(Clone, Debug)]
pub enum Block {
    Whole(Cell),
    Bytes(Box<[Cell; 16]>),
}

impl Default for Block {
    fn default() -> Self {
        Block::Whole(Cell::default())
    }
}

impl Block {
    /// Visits the cells of the bytes from `first` up to `end`.
    pub fn visit<E>(&mut self, first: u32, end: u32, is_write: bool, mut f: impl FnMut(&mut Cell) -> Result<(), E>) -> Result<(), E> {
        let all = first == 0 && end == 16;
        match self {
            Block::Whole(cell) if all => return f(cell),
            Block::Whole(cell) => {
                let cell = std::mem::take(cell);
                *self = Block::Bytes(Box::new(std::array::from_fn(|_| cell.clone())));
            }
            Block::Bytes(_) => {}
        }
        let Block::Bytes(cells) = self else { return Ok(()) };
        for cell in &mut cells[first as usize..end as usize] {
            f(cell)?;
        }
        if all && is_write {
            // One write has made all bytes alike.
            let cell = std::mem::take(&mut cells[0]);
            *self = Block::Whole(cell);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_splits_and_becomes_whole_again() {
        let mut block = Block::default();
        let set = |epoch| {
            move |cell: &mut Cell| -> Result<(), ()> {
                cell.write.epoch = epoch;
                Ok(())
            }
        };
        block.visit(4, 8, true, set(1)).unwrap();
        let Block::Bytes(cells) = &block else { panic!("not split") };
        assert_eq!((cells[3].write.epoch, cells[4].write.epoch), (0, 1));
        block.visit(0, 16, true, set(2)).unwrap();
        assert!(matches!(&block, Block::Whole(cell) if cell.write.epoch == 2));
    }
}
