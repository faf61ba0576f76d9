//! The order in which a persistent grid walks the tiles of one forward pass.
//!
//! A tile is `tile_m` query rows of one head of one batch entry. Tiles are ranked:
//!
//! ```text
//! section, r = divmod(rank, heads_per_section * m_blocks)        // a section's K and V fit the L2 cache
//! from_last, h = divmod(r, heads in this section)                // the last rows first: under a causal mask they are the longest
//! ```
//!
//! A CTA's first tile has its own index as rank. After that it either goes on in steps of the grid, or draws from a counter
//! ([`SchedulerSlot`]), so that whoever finishes early takes the next longest. The order moves no result: a tile's arithmetic depends on
//! nothing but its own rows.

use crate::fast_divide::FastDivisor;

/// One row tile of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Which block of `tile_m` query rows.
    pub m_block: u32,
    /// Query head; in a general kernel, which of the row tiles that lie side by side over all query heads.
    pub head_idx: u32,
    /// Batch entry.
    pub batch_idx: u32,
}

/// The counter from which the CTAs of one launch draw tiles, in device memory; zero between launches, since the last CTA resets it.
///
/// Launches that may be in flight at once must not share one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedulerSlot {
    /// Tiles drawn beyond the first of each CTA.
    pub drawn: u32,
    /// CTAs that have found no more tiles.
    pub finished: u32,
}

/// The tiles of a problem and their order; made by the host, read by the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileSchedule {
    num_tiles: u32,
    m_blocks: u32,
    num_sections: u32,
    num_heads: FastDivisor,
    section_tiles: FastDivisor,
    section_heads: FastDivisor,
    last_section_heads: FastDivisor,
}

impl TileSchedule {
    /// The schedule of `batch * num_heads` heads of `m_blocks` row tiles each, taken `section_heads` heads at a time.
    ///
    /// `None` if an argument is 0 or the tiles number more than `u32::MAX / 4`.
    #[inline]
    pub const fn new(batch: u64, num_heads: u64, m_blocks: u64, section_heads: u64) -> Option<Self> {
        const LIMIT: u64 = (u32::MAX / 4) as u64;
        if batch == 0 || num_heads == 0 || m_blocks == 0 || section_heads == 0 {
            return None;
        }
        if batch > LIMIT || num_heads > LIMIT / batch || m_blocks > LIMIT / (batch * num_heads) {
            return None;
        }
        let heads = batch * num_heads;
        let section_heads = if section_heads < heads { section_heads } else { heads };
        let num_sections = heads.div_ceil(section_heads);
        let last_section_heads = heads - (num_sections - 1) * section_heads;
        // All divisors are at least 1 and at most LIMIT here.
        let (Some(num_heads), Some(section_tiles), Some(section_divisor), Some(last_divisor)) = (
            FastDivisor::new(num_heads as u32),
            FastDivisor::new((section_heads * m_blocks) as u32),
            FastDivisor::new(section_heads as u32),
            FastDivisor::new(last_section_heads as u32),
        ) else {
            return None;
        };
        Some(Self {
            num_tiles: (heads * m_blocks) as u32,
            m_blocks: m_blocks as u32,
            num_sections: num_sections as u32,
            num_heads,
            section_tiles,
            section_heads: section_divisor,
            last_section_heads: last_divisor,
        })
    }

    /// How many tiles there are.
    #[inline(always)]
    pub const fn num_tiles(&self) -> u32 {
        self.num_tiles
    }

    /// Heads of a batch entry, or however many row tiles lie side by side over them.
    #[inline(always)]
    pub const fn num_heads(&self) -> u32 {
        self.num_heads.divisor()
    }

    /// Row tiles of a head.
    #[inline(always)]
    pub const fn m_blocks(&self) -> u32 {
        self.m_blocks
    }

    /// The tile of this rank, or `None` if there are fewer tiles.
    #[inline(always)]
    pub const fn tile(&self, rank: u32) -> Option<Tile> {
        if rank >= self.num_tiles {
            return None;
        }
        let (section, in_section) = self.section_tiles.div_rem(rank);
        let heads = if section + 1 == self.num_sections { &self.last_section_heads } else { &self.section_heads };
        let (from_last, head) = heads.div_rem(in_section);
        let (batch_idx, head_idx) = self.num_heads.div_rem(section * self.section_heads.divisor() + head);
        Some(Tile { m_block: self.m_blocks - 1 - from_last, head_idx, batch_idx })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_tile_exactly_once() {
        for (batch, heads, m_blocks, section) in
            [(1, 1, 1, 1), (2, 3, 5, 4), (1, 71, 2, 16), (3, 1, 7, 100), (70000, 1, 1, 1), (5, 8, 3, 1)]
        {
            let schedule = TileSchedule::new(batch, heads, m_blocks, section).unwrap();
            for grid in [1, 2, 7, 132] {
                let mut seen = HashSet::new();
                for cta in 0..grid {
                    for tile in (cta..).step_by(grid as usize).map_while(|rank| schedule.tile(rank)) {
                        assert!((tile.batch_idx as u64) < batch && (tile.head_idx as u64) < heads && (tile.m_block as u64) < m_blocks);
                        assert!(seen.insert((tile.m_block, tile.head_idx, tile.batch_idx)), "{tile:?} twice");
                    }
                }
                assert_eq!(seen.len() as u32, schedule.num_tiles());
            }
        }
    }

    #[test]
    fn longest_first_within_a_section() {
        let schedule = TileSchedule::new(2, 3, 4, 2).unwrap();
        let order: std::vec::Vec<_> = (0..).map_while(|rank| schedule.tile(rank)).collect();
        assert_eq!(order[0], Tile { m_block: 3, head_idx: 0, batch_idx: 0 });
        assert_eq!(order[1], Tile { m_block: 3, head_idx: 1, batch_idx: 0 });
        assert_eq!(order[2], Tile { m_block: 2, head_idx: 0, batch_idx: 0 });
        assert_eq!(order[8], Tile { m_block: 3, head_idx: 2, batch_idx: 0 });
        assert_eq!(order[9], Tile { m_block: 3, head_idx: 0, batch_idx: 1 });
        assert_eq!(order[23], Tile { m_block: 0, head_idx: 2, batch_idx: 1 });
    }

    #[test]
    fn refuses_empty_and_too_many() {
        assert_eq!(TileSchedule::new(0, 1, 1, 1), None);
        assert_eq!(TileSchedule::new(1, 1, 1, 0), None);
        assert_eq!(TileSchedule::new(1 << 16, 1 << 16, 1, 1), None);
        assert_eq!(TileSchedule::new(u64::MAX, u64::MAX, u64::MAX, 1), None);
    }
}
