//! The sequences of a row tile: how long they are, and where TMA finds their rows.
//!
//! In a plain kernel all sequences are alike, and a batch entry's rows are found by its index. A general kernel also takes *ragged* tensors, whose
//! sequences end anywhere: packed one behind the other, or in batch entries of which not all rows count. Their maps are
//! `[head_dim, heads, R, total rows + 1, R + 1]` with `R` = [`RAGGED_ROWS`] and strides `[head, row, row, W]`, such that `R * W` is `-R * row`
//! modulo 2^64, and a sequence's row `i` is found at
//!
//! ```text
//! [.., head, R - len + i, start + len, R]          (R - len + i) * row + (start + len) * row + R * W = (start + i) * row
//! ```
//!
//! so that what lies at or behind its end, `i >= len`, lies outside of the map's third dimension: loads fill it with zeros, whatever the next
//! sequence holds there, and stores leave it alone. (Of the same kind: Triton's ragged descriptors. A map that begins `R` rows before the
//! tensor would need no last dimension; but a load of a box that lies wholly outside reads where the map begins, which must be memory.)
//!
//! A packed tensor's row tiles are numbered in slots, sequence `b`'s from `cu_seqlens[b] / tile_m + b` on, which is enough for its tiles whatever
//! the lengths are. So the host, which does not know them, can count the slots, and the kernel finds a slot's sequence by bisection.
//!
//! Where queries are few, several query heads of one key head share a row tile of a general kernel (`FeatureParams::pack_log2`): it has
//! `tile_m / 2^pack_log2` queries, a number that then stands for `tile_m` above, of `2^pack_log2` heads. The maps of Q and O have heads as their
//! second dimension, so that TMA lays the heads of a query side by side, and takes O back in the same order. What lies behind the last query
//! is out of bounds, and what lies behind the last head of the key head; of ragged queries no tile reaches there, as `2^pack_log2` divides
//! their number.

use super::{Cta, Kernel};
use crate::config::WARPGROUP_ROWS;
use crate::function::{Head, MaskMod, ScoreMod};
use crate::layout::smem::{ROW_TILE_BYTES, WORD_BYTES};
use crate::params::{CoordinateSteps, Lengths, MAX_PACK_LOG2, RAGGED_ROWS};
use crate::ptx::{memory, register};
use crate::schedule::Tile;

/// A row tile. That of a plain kernel is its index; that of a general one lies in shared memory (`tiles.rs`), from where each role reads what it
/// needs when it needs it: a math thread has no registers to keep it in.
#[derive(Clone, Copy)]
pub(super) struct RowTile {
    /// Not read in a general kernel.
    tile: Tile,
    /// Shared address of its words; not read in a plain kernel.
    record: u32,
}

/// The words of a row tile in shared memory.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Word {
    /// Batch entry, or [`NO_TILE`].
    Batch,
    /// The first query head.
    Head,
    KeyHead,
    FirstQuery,
    QueryStart,
    Queries,
    KeyStart,
    Keys,
}

const _: () = assert!((Word::Keys as u32 + 1) * WORD_BYTES <= ROW_TILE_BYTES);

/// Stands in the place of the batch index behind the last tile.
const NO_TILE: u32 = u32::MAX;

/// A sequence's rows within a packed tensor: all that count.
#[derive(Clone, Copy)]
struct Sequence {
    /// First row; where each batch entry has rows of its own, 0.
    start: u32,
    len: u32,
}

/// The tensors, as [`FeatureParams::batch_rows`](crate::params::FeatureParams::batch_rows) numbers them.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    Q,
    K,
    V,
    O,
}

/// Where TMA finds a head of a sequence: the coordinates other than that of the columns.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The coordinate before that of the rows; not there in a plain kernel's maps.
    pub head: u32,
    /// The coordinate of the sequence's first row.
    pub first_row: u32,
    /// The coordinates behind that of the rows.
    pub outer: [u32; 2],
}

impl RowTile {
    /// A tile of a plain kernel.
    #[inline(always)]
    pub fn plain(tile: Tile) -> Self {
        Self { tile, record: 0 }
    }

    /// Writes the row tile of `tile`, a slot if Q is packed, to the record; whether it has any rows.
    ///
    /// # Safety
    /// `cta.features` is as [`FeatureParams`](crate::params::FeatureParams) describes it. Nobody else accesses the record.
    #[inline(always)]
    pub unsafe fn write<K: Kernel>(cta: &Cta<K::Args>, tile: Tile, record: u32) -> bool {
        let (params, features) = (cta.params, cta.features);
        // SAFETY: as promised; the batch index is below `features.batch`.
        unsafe {
            let Tile { m_block, head_idx, batch_idx } =
                if register::unknown(features.q.cu_seqlens) == 0 { tile } else { sequence_of_slot::<K>(cta, tile) };
            let q = Sequence::of(&features.q, batch_idx, params.seqlen_q);
            let k = Sequence::of(&features.k, batch_idx, params.seqlen_k);
            let (head_idx_k, head_tile) = features.head_tiles.div_rem(head_idx);
            store(record, Word::Batch, batch_idx);
            store(record, Word::Head, head_idx_k * params.heads_per_kv.divisor() + (head_tile << pack_log2::<K>(cta)));
            store(record, Word::KeyHead, head_idx_k);
            store(record, Word::FirstQuery, m_block.wrapping_mul(K::TILE.math_warpgroups() * warpgroup_queries::<K>(cta)));
            store(record, Word::QueryStart, q.start);
            store(record, Word::Queries, q.len);
            store(record, Word::KeyStart, k.start);
            store(record, Word::Keys, k.len);
            // Not by a product, which might wrap round: a slot's number is arbitrary where cu_seqlens are not as they should be.
            q.len > 0 && m_block <= whole_tiles::<K>(cta, q.len - 1)
        }
    }

    /// Says in the record that there are no more tiles.
    ///
    /// # Safety
    /// Nobody else accesses the record.
    #[inline(always)]
    pub unsafe fn write_end(record: u32) {
        // SAFETY: as promised.
        unsafe { store(record, Word::Batch, NO_TILE) }
    }

    /// The row tile of a record, if there is one.
    ///
    /// # Safety
    /// The record was written, and stays as it is as long as the row tile is used. By a converged warp, or by one thread with the identity as
    /// `agree`, which makes the lanes of a warp agree.
    #[inline(always)]
    pub unsafe fn read(record: u32, agree: impl Fn(u32) -> u32) -> Option<Self> {
        let none = Tile { m_block: 0, head_idx: 0, batch_idx: 0 };
        // SAFETY: as promised.
        let batch_idx = unsafe { agree(load(record, Word::Batch)) };
        if batch_idx == NO_TILE { None } else { Some(Self { tile: none, record }) }
    }

    /// A word of the record.
    #[inline(always)]
    fn word(&self, word: Word) -> u32 {
        // SAFETY: the record stays as it is while the row tile is used (`RowTile::read`).
        unsafe { load(self.record, word) }
    }

    /// Query head, the first if there are several.
    #[inline(always)]
    pub fn head_idx<K: Kernel>(&self) -> u32 {
        if K::GENERAL { self.word(Word::Head) } else { self.tile.head_idx }
    }

    /// How many query heads of the key head there are from that one on: those of this tile, and perhaps more.
    #[inline(always)]
    pub fn heads_left<K: Kernel>(&self, cta: &Cta<K::Args>) -> u32 {
        if packs_heads::<K>() { (self.key_head::<K>(cta) + 1) * cta.params.heads_per_kv.divisor() - self.head_idx::<K>() } else { 1 }
    }

    /// Key head.
    #[inline(always)]
    fn key_head<K: Kernel>(&self, cta: &Cta<K::Args>) -> u32 {
        if K::GENERAL { self.word(Word::KeyHead) } else { cta.params.heads_per_kv.div_rem(self.tile.head_idx).0 }
    }

    #[inline(always)]
    fn batch_idx<K: Kernel>(&self) -> u32 {
        if K::GENERAL { self.word(Word::Batch) } else { self.tile.batch_idx }
    }

    /// First query of the CTA.
    #[inline(always)]
    pub fn first_row<K: Kernel>(&self) -> u32 {
        if K::GENERAL { self.word(Word::FirstQuery) } else { self.tile.m_block * K::TILE.tile_m }
    }

    /// Queries of the sequence.
    #[inline(always)]
    pub fn seqlen_q<K: Kernel>(&self, cta: &Cta<K::Args>) -> u32 {
        if K::GENERAL { self.word(Word::Queries) } else { cta.params.seqlen_q }
    }

    /// Keys of the sequence.
    #[inline(always)]
    pub fn seqlen_k<K: Kernel>(&self, cta: &Cta<K::Args>) -> u32 {
        if K::GENERAL { self.word(Word::Keys) } else { cta.params.seqlen_k }
    }

    /// The tile's head, as functions see it.
    #[inline(always)]
    pub fn head<K: Kernel>(&self, cta: &Cta<K::Args>) -> Head {
        Head {
            batch_idx: self.batch_idx::<K>(),
            head_idx: self.head_idx::<K>(),
            seqlen_q: self.seqlen_q::<K>(cta),
            seqlen_k: self.seqlen_k::<K>(cta),
        }
    }

    /// Where the tile's head of a tensor is.
    #[inline(always)]
    pub fn place<K: Kernel>(&self, cta: &Cta<K::Args>, operand: Operand) -> Place {
        let (params, features) = (cta.params, cta.features);
        let one = CoordinateSteps { head: 1, batch: 1 };
        let (lengths, start, len, steps) = match operand {
            Operand::Q => (&features.q, Word::QueryStart, Word::Queries, params.q_steps),
            Operand::K => (&features.k, Word::KeyStart, Word::Keys, params.k_steps),
            Operand::V => (&features.k, Word::KeyStart, Word::Keys, params.v_steps),
            Operand::O => (&features.q, Word::QueryStart, Word::Queries, one),
        };
        let head_idx = match operand {
            Operand::Q | Operand::O => self.head_idx::<K>(),
            Operand::K | Operand::V => self.key_head::<K>(cta),
        };
        if K::GENERAL && register::unknown(lengths.cu_seqlens | lengths.seqused) != 0 {
            let batch_rows = features.batch_rows[operand as usize];
            let start = if register::unknown(lengths.cu_seqlens) == 0 { self.batch_idx::<K>() * batch_rows } else { self.word(start) };
            let len = self.word(len);
            return Place { head: head_idx * steps.head, first_row: RAGGED_ROWS - len, outer: [start + len, RAGGED_ROWS] };
        }
        let (head, outer_head) = match operand {
            Operand::Q | Operand::O if pack_log2::<K>(cta) != 0 => {
                let head_idx_k = self.key_head::<K>(cta);
                (head_idx - head_idx_k * params.heads_per_kv.divisor(), head_idx_k)
            }
            _ => (0, head_idx * steps.head),
        };
        Place { head, first_row: 0, outer: [outer_head, self.batch_idx::<K>() * steps.batch] }
    }

    /// Which number of the LSE is that of the sequence's first query, in the tile's first head.
    #[inline(always)]
    pub fn first_lse<K: Kernel>(&self, cta: &Cta<K::Args>) -> u64 {
        let params = cta.params;
        if K::GENERAL && register::unknown(cta.features.q.cu_seqlens) != 0 {
            return self.head_idx::<K>() as u64 * cta.features.q.rows as u64 + self.word(Word::QueryStart) as u64;
        }
        let head = self.batch_idx::<K>() as u64 * params.num_heads as u64 + self.head_idx::<K>() as u64;
        head * params.seqlen_q as u64
    }

    /// From one head's numbers of the LSE to the next one's.
    #[inline(always)]
    pub fn lse_head_stride<K: Kernel>(&self, cta: &Cta<K::Args>) -> u64 {
        let is_packed = K::GENERAL && register::unknown(cta.features.q.cu_seqlens) != 0;
        (if is_packed { cta.features.q.rows } else { cta.params.seqlen_q }) as u64
    }
}

/// Whether query heads may share a row tile: where no function is told which head a row is of.
#[inline(always)]
const fn packs_heads<K: Kernel>() -> bool {
    K::GENERAL && K::Score::IS_OF_SCORE_ALONE && K::Mask::IS_OPEN
}

/// log2 of how many query heads share a row tile.
#[inline(always)]
pub(super) fn pack_log2<K: Kernel>(cta: &Cta<K::Args>) -> u32 {
    if packs_heads::<K>() { register::unknown_shared(cta.features.pack_log2) } else { 0 }
}

/// Queries of a math warpgroup's 64 rows.
#[inline(always)]
pub(super) fn warpgroup_queries<K: Kernel>(cta: &Cta<K::Args>) -> u32 {
    WARPGROUP_ROWS >> pack_log2::<K>(cta)
}

/// Which of the heads that share a row tile a warpgroup's row `row` belongs to.
#[inline(always)]
pub(super) fn head_of<K: Kernel>(cta: &Cta<K::Args>, row: u32) -> u32 {
    row & ((1 << pack_log2::<K>(cta)) - 1)
}

/// How many row tiles `queries` fill.
#[inline(always)]
fn whole_tiles<K: Kernel>(cta: &Cta<K::Args>, queries: u32) -> u32 {
    (queries >> (MAX_PACK_LOG2 - pack_log2::<K>(cta))) / K::TILE.math_warpgroups()
}

/// # Safety
/// `record` is the shared address of a record that no other thread accesses now.
#[inline(always)]
unsafe fn store(record: u32, word: Word, value: u32) {
    // SAFETY: address: within the record. Protocol: as promised.
    unsafe { memory::store_shared(record + word as u32 * WORD_BYTES, value) }
}

/// # Safety
/// `record` is the shared address of a record that no other thread writes now.
#[inline(always)]
unsafe fn load(record: u32, word: Word) -> u32 {
    // SAFETY: address: within the record. Protocol: as promised.
    unsafe { memory::load_shared(record + word as u32 * WORD_BYTES) }
}

impl Sequence {
    /// The rows of batch entry `batch_idx`, which has `seqlen` of them unless `lengths` says otherwise. Whatever that holds, no row lies
    /// outside of the tensor.
    ///
    /// # Safety
    /// `lengths` is as [`Lengths`] describes it, and has that entry.
    #[inline(always)]
    unsafe fn of(lengths: &Lengths, batch_idx: u32, seqlen: u32) -> Self {
        // SAFETY: address: an entry for each sequence, one more in cu_seqlens.
        unsafe {
            let (start, mut len) = if register::unknown(lengths.cu_seqlens) == 0 {
                (0, seqlen)
            } else {
                let start = bound(lengths, batch_idx);
                (start, bound(lengths, batch_idx + 1).saturating_sub(start))
            };
            if register::unknown(lengths.seqused) != 0 {
                let used = memory::load_global_i32(lengths.seqused + 4 * batch_idx as u64);
                len = clamp(used, len);
            }
            Self { start, len }
        }
    }
}

/// The sequence and the row tile within it that a packed Q's slot stands for; the slot is in `tile.m_block`.
///
/// # Safety
/// `cta.features.q` is packed, and as [`FeatureParams`](crate::params::FeatureParams) describes it.
#[inline(always)]
unsafe fn sequence_of_slot<K: Kernel>(cta: &Cta<K::Args>, tile: Tile) -> Tile {
    let (features, slot) = (cta.features, tile.m_block);
    // SAFETY: address: `batch_idx` is at most `features.batch`.
    let first_slot = |batch_idx: u32| whole_tiles::<K>(cta, unsafe { bound(&features.q, batch_idx) }) + batch_idx;
    // The last sequence whose slots begin at or before this one: it ends for any contents of cu_seqlens.
    let (mut batch_idx, mut end) = (0, features.batch);
    while end - batch_idx > 1 {
        let middle = (batch_idx + end) / 2;
        if first_slot(middle) <= slot {
            batch_idx = middle;
        } else {
            end = middle;
        }
    }
    Tile { m_block: slot.wrapping_sub(first_slot(batch_idx)), head_idx: tile.head_idx, batch_idx }
}

/// Where sequence `batch_idx` begins, within the tensor.
///
/// # Safety
/// `lengths.cu_seqlens` has that entry.
#[inline(always)]
unsafe fn bound(lengths: &Lengths, batch_idx: u32) -> u32 {
    // SAFETY: address: as promised.
    clamp(unsafe { memory::load_global_i32(lengths.cu_seqlens + 4 * batch_idx as u64) }, lengths.rows)
}

#[inline(always)]
fn clamp(count: i32, limit: u32) -> u32 {
    if count < 0 {
        0
    } else if count as u32 > limit {
        limit
    } else {
        count as u32
    }
}
