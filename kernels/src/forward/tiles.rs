//! How the roles of a CTA learn their tiles.
//!
//! Where all tiles are alike each role counts for itself: its CTA's index, then on in steps of the grid. A `dynamic` shape draws from a
//! counter instead: the Q and K producer draws, and hands the ranks to the others through a ring of two.
//!
//! ```text
//! Q and K producer                        V producer, each math warp
//!   rank = CTA index                        wait full;  rank = ranks[stage];  arrive empty
//!   loop {                                  stop if there is no such tile
//!     wait empty;  ranks[stage] = rank;  arrive full
//!     stop if there is no such tile
//!     load ...
//!     rank = grid + counter++
//!   }
//!   count this CTA out
//! ```
//!
//! A general kernel hands on row tiles with their sequences instead of ranks (`sequence.rs`), passes over those without rows, and a role gives one
//! back when it asks for the next.

use super::sequence::RowTile;
use super::{Cta, Kernel};
use crate::layout::smem::{RANK_STAGES, ROW_TILE_BYTES, WORD_BYTES};
use crate::pipeline::PipelineState;
use crate::ptx::{memory, register};
use crate::schedule::SchedulerSlot;
use core::mem::offset_of;

/// The role that draws tiles.
pub(super) struct TileWriter {
    rank: u32,
    state: PipelineState,
}

impl TileWriter {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { rank: register::cta_idx(), state: PipelineState::START }
    }

    /// The current tile, handed to the other roles too; `None` when there are no more.
    ///
    /// # Safety
    /// By one thread of the CTA, once a tile, until it returns `None`.
    #[inline(always)]
    pub(super) unsafe fn publish<K: Kernel>(&mut self, cta: &Cta<K::Args>) -> Option<RowTile> {
        if K::GENERAL {
            // SAFETY: as promised.
            return unsafe { self.publish_row_tile::<K>(cta) };
        }
        let tile = cta.params.schedule.tile(self.rank).map(RowTile::plain);
        if K::TILE.dynamic {
            let ring = cta.rank_ring();
            // SAFETY: protocol: every reader releases every rank, so the wait ends, and nobody reads the stage until the commit, which
            // releases the store.
            unsafe {
                ring.producer_acquire(self.state);
                memory::store_shared(cta.smem.ranks + self.state.stage * WORD_BYTES, self.rank);
                ring.producer_commit(self.state);
            }
            self.state.advance(RANK_STAGES);
        }
        tile
    }

    /// The same in a general kernel: what is handed on is the row tile with its sequences, and one without rows is passed over.
    ///
    /// # Safety
    /// As [`TileWriter::publish`].
    #[inline(always)]
    unsafe fn publish_row_tile<K: Kernel>(&mut self, cta: &Cta<K::Args>) -> Option<RowTile> {
        let ring = cta.rank_ring();
        let record = cta.smem.ranks + self.state.stage * ROW_TILE_BYTES;
        // SAFETY: the features are as the launch promises. Protocol: as in `publish`; this thread fills no stage before it asks for the next tile.
        unsafe {
            ring.producer_acquire(self.state);
            loop {
                match cta.params.schedule.tile(self.rank) {
                    None => RowTile::write_end(record),
                    Some(tile) if RowTile::write::<K>(cta, tile, record) => {}
                    Some(_) => {
                        self.draw::<K>(cta);
                        continue;
                    }
                }
                break;
            }
            ring.producer_commit(self.state);
            self.state.advance(RANK_STAGES);
            RowTile::read(record, |word| word)
        }
    }

    /// Moves on to this CTA's next tile.
    ///
    /// # Safety
    /// By the thread that publishes, between tiles.
    #[inline(always)]
    pub(super) unsafe fn draw<K: Kernel>(&mut self, cta: &Cta<K::Args>) {
        let scheduler = cta.params.scheduler;
        if K::TILE.dynamic && scheduler != 0 {
            // SAFETY: protocol: the slot is this launch's own, and until its last CTA is counted out only such additions touch this word.
            let drawn = unsafe { memory::fetch_add_relaxed(scheduler + offset_of!(SchedulerSlot, drawn) as u64, 1) };
            self.rank = register::grid_dim() + drawn;
        } else {
            self.rank += register::grid_dim();
        }
    }

    /// Counts this CTA out; the last one resets the slot for the next launch. It has acquired the others' counts, and they drew no more after
    /// releasing them.
    ///
    /// # Safety
    /// By the thread that publishes, after the last tile.
    #[inline(always)]
    pub(super) unsafe fn finish<K: Kernel>(self, cta: &Cta<K::Args>) {
        let scheduler = cta.params.scheduler;
        if K::TILE.dynamic && scheduler != 0 {
            let finished = scheduler + offset_of!(SchedulerSlot, finished) as u64;
            // SAFETY: protocol: the slot is this launch's own. Every CTA's draws come before its addition here, and the last addition has
            // acquired the others, so the stores meet no other access; whoever uses the slot next is launched after this grid.
            unsafe {
                if memory::fetch_add_acq_rel(finished, 1) == register::grid_dim() - 1 {
                    memory::store_global_u32(scheduler + offset_of!(SchedulerSlot, drawn) as u64, 0);
                    memory::store_global_u32(finished, 0);
                }
            }
        }
    }
}

/// A role that is told its tiles.
pub(super) struct TileReader {
    /// Rank of the next tile, where the role counts for itself.
    rank: u32,
    state: PipelineState,
    /// Whether no tile has been asked for yet.
    is_first: bool,
}

impl TileReader {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self { rank: register::cta_idx(), state: PipelineState::START, is_first: true }
    }

    /// The next tile of this CTA; `agree` makes the lanes of a warp agree on the rank.
    ///
    /// # Safety
    /// By a converged warp, or by one thread with `lane_idx` 0; called until it returns `None`. In `agree` all lanes meet, so that behind it
    /// all their loads are done.
    #[inline(always)]
    pub(super) unsafe fn next<K: Kernel>(&mut self, cta: &Cta<K::Args>, agree: impl Fn(u32) -> u32, lane_idx: u32) -> Option<RowTile> {
        if K::GENERAL {
            let ring = cta.rank_ring();
            // SAFETY: protocol: as below, but that a row tile is read until the next one is asked for, when the lanes meet.
            unsafe {
                if !self.is_first {
                    agree(0);
                    ring.consumer_release(self.state, lane_idx);
                    self.state.advance(RANK_STAGES);
                }
                self.is_first = false;
                ring.consumer_wait(self.state);
                RowTile::read(cta.smem.ranks + self.state.stage * ROW_TILE_BYTES, agree)
            }
        } else if K::TILE.dynamic {
            let ring = cta.rank_ring();
            // SAFETY: protocol: the writer fills one stage after the other, and leaves a stage alone until all readers have released it.
            // Lane 0's arrival speaks for the warp: it comes behind `agree`, in which all lanes have met after their loads.
            let rank = unsafe {
                ring.consumer_wait(self.state);
                let rank = agree(memory::load_shared(cta.smem.ranks + self.state.stage * WORD_BYTES));
                ring.consumer_release(self.state, lane_idx);
                rank
            };
            self.state.advance(RANK_STAGES);
            cta.params.schedule.tile(rank).map(RowTile::plain)
        } else {
            let rank = self.rank;
            self.rank += register::grid_dim();
            cta.params.schedule.tile(rank).map(RowTile::plain)
        }
    }
}
