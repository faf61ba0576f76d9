//! The shared memory of a CTA, from its 1024-byte-aligned base:
//!
//! ```text
//! Q and O   q_stages x math warpgroups x panels x [64 rows][64 columns]     a warpgroup's O leaves through the place of its Q
//! K         kv_stages x panels x [tile_n rows][64 columns]
//! V         kv_stages x panels of V x [tile_n rows][64 columns]
//! mbarriers a ring for the Q of each math warpgroup, of three; then those of K, V and ranks: the full and the empty ones, 8 bytes a barrier
//! ranks     of two tiles, 4 bytes each; in a general kernel the tiles, 32 bytes each
//! ```
//!
//! Every panel row is 128 bytes, swizzled ([`super::swizzle`]).

use crate::config::{BARRIER_BYTES, MAX_KV_STAGES, MAX_MATH_WARPGROUPS, TileConfig, WARPGROUP_ROWS};
use crate::layout::swizzle::ROW_BYTES;

/// Bytes of an mbarrier.
pub const MBARRIER_BYTES: u32 = 8;
/// Bytes kept for a ring's mbarriers.
const RING_BYTES: u32 = 2 * MAX_KV_STAGES * MBARRIER_BYTES;
/// Bytes of a word: a tile rank, for instance.
pub const WORD_BYTES: u32 = 4;
/// Bytes kept for a row tile, which a general kernel hands on in the place of a rank.
pub const ROW_TILE_BYTES: u32 = 8 * WORD_BYTES;
/// Tiles whose ranks are under way at once.
pub const RANK_STAGES: u32 = 2;

/// Shared-memory addresses of one kernel shape.
#[derive(Clone, Copy, Debug)]
pub struct SmemLayout {
    /// Q buffers, and O on its way out.
    pub q: u32,
    /// K stages.
    pub k: u32,
    /// V stages.
    pub v: u32,
    /// Barriers of the Q rings, see [`SmemLayout::q_ring`].
    q_barriers: u32,
    /// Barriers of the K ring.
    pub k_barriers: u32,
    /// Barriers of the V ring.
    pub v_barriers: u32,
    /// Barriers of the ring of tile ranks.
    pub rank_barriers: u32,
    /// Ranks of tiles under way.
    pub ranks: u32,
}

impl SmemLayout {
    /// The layout of `config` at the address `base`.
    #[inline(always)]
    pub const fn new(config: TileConfig, base: u32) -> Self {
        let k = base + config.q_bytes();
        let v = k + config.kv_stages() * config.k_bytes();
        let q_barriers = v + config.kv_stages() * config.v_bytes();
        Self {
            q: base,
            k,
            v,
            q_barriers,
            k_barriers: q_barriers + MAX_MATH_WARPGROUPS * RING_BYTES,
            v_barriers: q_barriers + (MAX_MATH_WARPGROUPS + 1) * RING_BYTES,
            rank_barriers: q_barriers + (MAX_MATH_WARPGROUPS + 2) * RING_BYTES,
            ranks: q_barriers + (MAX_MATH_WARPGROUPS + 3) * RING_BYTES,
        }
    }

    /// The barriers of the ring of one warpgroup's Q.
    #[inline(always)]
    pub const fn q_ring(&self, warpgroup_idx: u32) -> u32 {
        self.q_barriers + warpgroup_idx * RING_BYTES
    }

    /// The Q block of one warpgroup in one stage.
    #[inline(always)]
    pub const fn q_block(&self, config: TileConfig, stage: u32, warpgroup_idx: u32) -> u32 {
        self.q + (stage * config.math_warpgroups() + warpgroup_idx) * config.q_warpgroup_bytes()
    }
}

/// Bytes between the panels of a warpgroup's Q (and O).
pub const Q_PANEL_BYTES: u32 = WARPGROUP_ROWS * ROW_BYTES;

/// Bytes between the panels of a K or V tile.
#[inline(always)]
pub const fn kv_panel_bytes(config: TileConfig) -> u32 {
    config.tile_n * ROW_BYTES
}

const _: () =
    assert!((MAX_MATH_WARPGROUPS + 3) * RING_BYTES + RANK_STAGES * ROW_TILE_BYTES <= BARRIER_BYTES && RANK_STAGES <= MAX_KV_STAGES);

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::config::{CUSTOM, FEWER_ROWS, FORWARD, GENERAL};
    use crate::layout::descriptor::SWIZZLE_ATOM_BYTES;
    use std::vec::Vec;

    /// Every part as (name, start, bytes, alignment).
    fn parts(config: TileConfig, layout: SmemLayout) -> Vec<(&'static str, u32, u32, u32)> {
        let mut parts = Vec::new();
        let q_bytes = WARPGROUP_ROWS * config.panels().max(config.panels_v()) * ROW_BYTES;
        let (k_bytes, v_bytes) = (config.panels() * kv_panel_bytes(config), config.panels_v() * kv_panel_bytes(config));
        for stage in 0..config.q_stages {
            for warpgroup in 0..config.math_warpgroups() {
                parts.push(("Q and O", layout.q_block(config, stage, warpgroup), q_bytes, SWIZZLE_ATOM_BYTES));
            }
        }
        for stage in 0..config.kv_stages() {
            parts.push(("K", layout.k + stage * k_bytes, k_bytes, SWIZZLE_ATOM_BYTES));
            parts.push(("V", layout.v + stage * v_bytes, v_bytes, SWIZZLE_ATOM_BYTES));
        }
        let q_rings = (0..config.math_warpgroups()).map(|warpgroup| layout.q_ring(warpgroup));
        for ring in q_rings.chain([layout.k_barriers, layout.v_barriers, layout.rank_barriers]) {
            parts.push(("barriers", ring, RING_BYTES, MBARRIER_BYTES));
        }
        parts.push(("ranks", layout.ranks, RANK_STAGES * ROW_TILE_BYTES, WORD_BYTES));
        parts
    }

    #[test]
    fn parts_are_aligned_apart_and_fit() {
        for config in FORWARD.into_iter().chain(FEWER_ROWS).chain(GENERAL).chain(CUSTOM) {
            let mut parts = parts(config, SmemLayout::new(config, 1024));
            parts.sort_by_key(|&(_, start, ..)| start);
            assert_eq!(parts[0].1, 1024);
            for &(name, start, _, alignment) in &parts {
                assert_eq!(start % alignment, 0, "{name} of {config:?}");
            }
            for pair in parts.windows(2) {
                assert!(pair[0].1 + pair[0].2 <= pair[1].1, "{pair:?} of {config:?}");
            }
            let &(_, start, bytes, _) = parts.last().unwrap();
            assert!(start + bytes <= 1024 + config.smem_bytes(), "{config:?}");
            assert_eq!(kv_panel_bytes(config) % SWIZZLE_ATOM_BYTES, 0);
        }
    }
}
