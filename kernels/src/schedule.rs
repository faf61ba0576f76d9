//! The order in which a persistent grid walks the tiles of one forward pass.
//!
//! A tile is `tile_m` query rows of one head of one batch entry. The order is static: it is a function of the tile count and the grid
//! alone, so launches in flight share no counter and a captured launch may be replayed, twice at once if need be.
//!
//! ```text
//! for turn in 0.. {
//!     rank = turn * grid + (turn is even ? cta : grid - 1 - cta)     // boustrophedon: a CTA that got a long tile gets a short one next
//!     if rank >= num_tiles { break }
//!     section, r = divmod(rank, heads_per_section * m_blocks)        // a section's K and V fit the L2 cache
//!     from_last, h = divmod(r, heads in this section)                // the last rows first: under a causal mask they are the longest
//! }
//! ```
//!
//! The order moves no result: a tile's arithmetic depends on nothing but its own rows.

use crate::fast_divide::FastDivisor;

/// One row tile of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Which block of `tile_m` query rows.
    pub m_block: u32,
    /// Query head.
    pub head_idx: u32,
    /// Batch entry.
    pub batch_idx: u32,
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

    /// The `turn`-th tile of CTA `cta` among `grid`, or `None` when the CTA has done all of its own.
    #[inline(always)]
    pub const fn tile(&self, turn: u32, cta: u32, grid: u32) -> Option<Tile> {
        let place = if turn & 1 == 0 { cta } else { grid - 1 - cta };
        // Below 2^31: a turn begins below num_tiles + grid, and both are at most u32::MAX / 4.
        let rank = turn * grid + place;
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
                    // A CTA stops at its first None, so no later turn may hold a tile.
                    let turns = (0..).map_while(|turn| schedule.tile(turn, cta, grid));
                    for tile in turns {
                        assert!((tile.batch_idx as u64) < batch && (tile.head_idx as u64) < heads && (tile.m_block as u64) < m_blocks);
                        assert!(seen.insert((tile.m_block, tile.head_idx, tile.batch_idx)), "{tile:?} twice");
                    }
                }
                assert_eq!(seen.len() as u32, schedule.num_tiles());
            }
        }
    }

    #[test]
    fn causal_work_is_even() {
        // 256 heads of 8 row tiles, costs 1..=8: the busiest of 132 CTAs has at most one longest tile above the mean.
        let schedule = TileSchedule::new(16, 16, 8, 256).unwrap();
        let work = |cta| (0..).map_while(|turn| schedule.tile(turn, cta, 132)).map(|tile| tile.m_block + 1).sum::<u32>();
        let busiest = (0..132).map(work).max().unwrap();
        let mean = 256 * 36 / 132;
        assert!(busiest <= mean + 8, "{busiest} against a mean of {mean}");
    }

    #[test]
    fn refuses_empty_and_too_many() {
        assert_eq!(TileSchedule::new(0, 1, 1, 1), None);
        assert_eq!(TileSchedule::new(1, 1, 1, 0), None);
        assert_eq!(TileSchedule::new(1 << 16, 1 << 16, 1, 1), None);
        assert_eq!(TileSchedule::new(u64::MAX, u64::MAX, u64::MAX, 1), None);
    }
}
