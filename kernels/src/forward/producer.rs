//! The producers (FlashAttention-3, Algorithm 1, the producer's part): one thread that loads Q and K, one that loads V, each walking the same
//! tiles as the math warpgroups. V has a thread of its own so that a V stage that is not free yet holds up no K.
//!
//! ```text
//! for tile in schedule {                            for tile in schedule {
//!   for each math warpgroup {                         for n in last..=0 { wait V stage empty;  load V[n] }
//!     wait its Q stage empty;  load its Q           }
//!   }
//!   for n in last..=0 { wait K stage empty;  load K[n] }
//! }
//! ```
//!
//! With one Q stage the first K tiles, as many as there are stages, go before Q: the previous tile's O is still leaving Q's place, while K's
//! stages are free already.

use super::sequence::{Operand, Place, RowTile, warpgroup_queries};
use super::tiles::{TileReader, TileWriter};
use super::{Cta, Kernel, key_range};
use crate::config::PANEL_COLUMNS;
use crate::layout::smem::{Q_PANEL_BYTES, kv_panel_bytes};
use crate::pipeline::{PipelineState, Ring};
use crate::ptx::tma;

/// Loads each tile's Q, and its K tiles from the last to the first.
///
/// # Safety
/// By one thread; consumers walk the same tiles.
#[inline(always)]
pub(super) unsafe fn load_q_and_k<K: Kernel>(cta: &Cta<K::Args>) {
    let mut q_state = PipelineState::START;
    let mut loader = KvLoader::<false>::new(cta.maps.k, cta.smem.k, cta.k_ring::<K>());
    let mut tiles = TileWriter::new();
    // SAFETY: scope: this is the one thread that draws tiles.
    while let Some(tile) = unsafe { tiles.publish::<K>(cta) } {
        let mut keys = KeyTiles::of::<K>(cta, &tile, Operand::K);
        // SAFETY: protocol: this thread alone fills the rings of Q and K.
        unsafe {
            if K::TILE.q_stages == 1 {
                loader.load::<K>(&mut keys, K::TILE.kv_stages());
            }
            load_q::<K>(cta, &tile, q_state);
            loader.load::<K>(&mut keys, u32::MAX);
        }
        q_state.advance(K::TILE.q_stages);
        // SAFETY: scope: the thread that publishes, between tiles.
        unsafe { tiles.draw::<K>(cta) };
    }
    // SAFETY: scope: the thread that publishes, after the last tile.
    unsafe { tiles.finish::<K>(cta) };
}

/// Loads each tile's V tiles from the last to the first.
///
/// # Safety
/// By one thread; consumers walk the same tiles.
#[inline(always)]
pub(super) unsafe fn load_v<K: Kernel>(cta: &Cta<K::Args>) {
    let mut loader = KvLoader::<true>::new(cta.maps.v, cta.smem.v, cta.v_ring::<K>());
    let mut tiles = TileReader::new();
    // SAFETY: scope: one thread, as lane 0; its arrival releases its own load.
    while let Some(tile) = unsafe { tiles.next::<K>(cta, |rank| rank, 0) } {
        let mut keys = KeyTiles::of::<K>(cta, &tile, Operand::V);
        // SAFETY: protocol: this thread alone fills the ring of V.
        unsafe { loader.load::<K>(&mut keys, u32::MAX) };
    }
}

/// Loads the Q of `tile`, each math warpgroup's rows into its own ring.
///
/// # Safety
/// By the rings' producer.
#[inline(always)]
unsafe fn load_q<K: Kernel>(cta: &Cta<K::Args>, tile: &RowTile, state: PipelineState) {
    let place = tile.place::<K>(cta, Operand::Q);
    for warpgroup_idx in 0..K::TILE.math_warpgroups() {
        let row = place.first_row + tile.first_row::<K>() + warpgroup_idx * warpgroup_queries::<K>(cta);
        let outer = place.outer;
        // SAFETY: protocol: the rings' one producer, as promised; the boxes announced are the boxes loaded. Address: panels on 1024 bytes
        // (layout/smem.rs) of the stage acquired. Proxy: wgmma read Q there; O's ordinary writes came before a fence, a barrier, and the
        // store whose reads the release waited for.
        unsafe {
            let barrier = cta.q_ring::<K>(warpgroup_idx).producer_acquire_for(state, K::TILE.q_warpgroup_bytes());
            let block = cta.smem.q_block(K::TILE, state.stage, warpgroup_idx);
            for panel in 0..K::TILE.panels() {
                let (destination, column) = (block + panel * Q_PANEL_BYTES, panel * PANEL_COLUMNS);
                if K::GENERAL {
                    tma::load_5d(destination, cta.maps.q, barrier, [column, place.head, row, outer[0], outer[1]]);
                } else {
                    tma::load_4d(destination, cta.maps.q, barrier, [column, row, outer[0], outer[1]]);
                }
            }
        }
    }
}

/// The key tiles of a row tile that are still to be loaded: `n_block_begin..n_block_end` of one key head.
struct KeyTiles {
    n_block_begin: u32,
    n_block_end: u32,
    place: Place,
}

impl KeyTiles {
    /// All that `tile` visits.
    #[inline(always)]
    fn of<K: Kernel>(cta: &Cta<K::Args>, tile: &RowTile, operand: Operand) -> Self {
        let rows = K::TILE.math_warpgroups() * warpgroup_queries::<K>(cta);
        let range = key_range::<K>(cta, tile, tile.first_row::<K>(), rows, tile.seqlen_q::<K>(cta), tile.seqlen_k::<K>(cta));
        Self { n_block_begin: range.begin, n_block_end: range.end, place: tile.place::<K>(cta, operand) }
    }
}

/// The producer's side of the ring of K, or of V (`IS_V`).
struct KvLoader<const IS_V: bool> {
    map: u64,
    /// Shared address of the stages.
    smem: u32,
    ring: Ring,
    state: PipelineState,
}

impl<const IS_V: bool> KvLoader<IS_V> {
    #[inline(always)]
    fn new(map: u64, smem: u32, ring: Ring) -> Self {
        Self { map, smem, ring, state: PipelineState::START }
    }

    /// Loads `keys`, from the last to the first, but at most `count` of them.
    ///
    /// # Safety
    /// By the ring's producer.
    #[inline(always)]
    unsafe fn load<K: Kernel>(&mut self, keys: &mut KeyTiles, count: u32) {
        let end = if count == u32::MAX { keys.n_block_begin } else { keys.n_block_end.saturating_sub(count).max(keys.n_block_begin) };
        while keys.n_block_end > end {
            keys.n_block_end -= 1;
            let key = keys.place.first_row + keys.n_block_end * K::TILE.tile_n;
            let (head, outer) = (keys.place.head, keys.place.outer);
            // SAFETY: protocol: the ring's one producer, as promised; the boxes announced are the boxes loaded. Address: panels on 1024 bytes of
            // the stage acquired. Proxy: only wgmma has read the stage.
            unsafe {
                let panels = const { if IS_V { K::TILE.panels_v() } else { K::TILE.panels() } };
                let stage_bytes = const { if IS_V { K::TILE.v_bytes() } else { K::TILE.k_bytes() } };
                let barrier = self.ring.producer_acquire_for(self.state, stage_bytes);
                for panel in 0..panels {
                    let destination = self.smem + self.state.stage * stage_bytes + panel * kv_panel_bytes(K::TILE);
                    let column = panel * PANEL_COLUMNS;
                    if K::GENERAL {
                        tma::load_5d(destination, self.map, barrier, [column, head, key, outer[0], outer[1]]);
                    } else {
                        tma::load_4d(destination, self.map, barrier, [column, key, outer[0], outer[1]]);
                    }
                }
            }
            self.state.advance(self.ring.stages());
        }
    }
}
