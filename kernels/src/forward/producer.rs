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
//! With one Q stage the first two K tiles go before Q: the previous tile's O is still leaving Q's place, while K's stages are free already.

use super::tiles::{TileReader, TileWriter};
use super::{Cta, Kernel};
use crate::block_range::block_range;
use crate::config::{KV_STAGES, PANEL_COLUMNS, WARPGROUP_ROWS};
use crate::layout::smem::{Q_PANEL_BYTES, kv_panel_bytes};
use crate::params::CoordinateSteps;
use crate::pipeline::{PipelineState, Ring};
use crate::ptx::tma;
use crate::schedule::Tile;

/// Loads each tile's Q, and its K tiles from the last to the first.
///
/// # Safety
/// By one thread; consumers walk the same tiles.
#[inline(always)]
pub(super) unsafe fn load_q_and_k<K: Kernel, const Q_STAGES: u32>(cta: &Cta) {
    let mut q_state = PipelineState::<Q_STAGES>::START;
    let mut loader = KvLoader::new(cta.maps.k, cta.params.k_steps, cta.smem.k, cta.k_ring());
    let mut tiles = TileWriter::new();
    // SAFETY: scope: this is the one thread that draws tiles.
    while let Some(tile) = unsafe { tiles.publish::<K>(cta) } {
        let mut keys = KeyTiles::of::<K>(cta, &tile);
        // SAFETY: protocol: this thread alone fills the rings of Q and K.
        unsafe {
            if Q_STAGES == 1 {
                loader.load::<K>(&mut keys, KV_STAGES);
            }
            load_q::<K, Q_STAGES>(cta, &tile, q_state);
            loader.load::<K>(&mut keys, u32::MAX);
        }
        q_state.advance();
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
pub(super) unsafe fn load_v<K: Kernel>(cta: &Cta) {
    let mut loader = KvLoader::new(cta.maps.v, cta.params.v_steps, cta.smem.v, cta.v_ring());
    let mut tiles = TileReader::new();
    // SAFETY: scope: one thread, as lane 0; its arrival releases its own load.
    while let Some(tile) = unsafe { tiles.next::<K>(cta, |rank| rank, 0) } {
        let mut keys = KeyTiles::of::<K>(cta, &tile);
        // SAFETY: protocol: this thread alone fills the ring of V.
        unsafe { loader.load::<K>(&mut keys, u32::MAX) };
    }
}

/// Loads the Q of `tile`, each math warpgroup's rows into its own ring.
///
/// # Safety
/// By the rings' producer.
#[inline(always)]
unsafe fn load_q<K: Kernel, const Q_STAGES: u32>(cta: &Cta, tile: &Tile, state: PipelineState<Q_STAGES>) {
    let steps = cta.params.q_steps;
    let (head, batch) = (tile.head_idx * steps.head, tile.batch_idx * steps.batch);
    for warpgroup_idx in 0..K::TILE.math_warpgroups() {
        let row = tile.m_block * K::TILE.tile_m + warpgroup_idx * WARPGROUP_ROWS;
        // SAFETY: protocol: the rings' one producer, as promised; the boxes announced are the boxes loaded. Address: panels on 1024 bytes
        // (layout/smem.rs) of the stage acquired. Proxy: wgmma read Q there; O's ordinary writes came before a fence, a barrier, and the
        // store whose reads the release waited for.
        unsafe {
            let barrier = cta.q_ring::<Q_STAGES>(warpgroup_idx).producer_acquire_for(state, K::TILE.q_warpgroup_bytes());
            let block = cta.smem.q_block(K::TILE, state.stage, warpgroup_idx);
            for panel in 0..K::TILE.panels() {
                tma::load_4d(block + panel * Q_PANEL_BYTES, cta.maps.q, barrier, [panel * PANEL_COLUMNS, row, head, batch]);
            }
        }
    }
}

/// The key tiles of a row tile that are still to be loaded: `0..n_block_end` of one key head.
struct KeyTiles {
    n_block_end: u32,
    head_idx_k: u32,
    batch_idx: u32,
}

impl KeyTiles {
    /// All that `tile` visits.
    #[inline(always)]
    fn of<K: Kernel>(cta: &Cta, tile: &Tile) -> Self {
        let params = cta.params;
        let (tile_m, tile_n) = (K::TILE.tile_m, K::TILE.tile_n);
        let range = block_range(K::TILE.causal, tile_m, tile_n, tile.m_block * tile_m, params.seqlen_q, params.seqlen_k);
        let (head_idx_k, _) = params.heads_per_kv.div_rem(tile.head_idx);
        Self { n_block_end: range.n_block_max, head_idx_k, batch_idx: tile.batch_idx }
    }
}

/// The producer's side of the ring of K, or of V.
struct KvLoader {
    map: u64,
    steps: CoordinateSteps,
    /// Shared address of the stages.
    smem: u32,
    ring: Ring<KV_STAGES>,
    state: PipelineState<KV_STAGES>,
}

impl KvLoader {
    #[inline(always)]
    fn new(map: u64, steps: CoordinateSteps, smem: u32, ring: Ring<KV_STAGES>) -> Self {
        Self { map, steps, smem, ring, state: PipelineState::START }
    }

    /// Loads `keys`, from the last to the first, but at most `count` of them.
    ///
    /// # Safety
    /// By the ring's producer.
    #[inline(always)]
    unsafe fn load<K: Kernel>(&mut self, keys: &mut KeyTiles, count: u32) {
        let (head, batch) = (keys.head_idx_k * self.steps.head, keys.batch_idx * self.steps.batch);
        let end = keys.n_block_end.saturating_sub(count);
        while keys.n_block_end > end {
            keys.n_block_end -= 1;
            let key = keys.n_block_end * K::TILE.tile_n;
            // SAFETY: protocol: the ring's one producer, as promised; the boxes announced are the boxes loaded. Address: panels on 1024 bytes of
            // the stage acquired. Proxy: only wgmma has read the stage.
            unsafe {
                let barrier = self.ring.producer_acquire_for(self.state, K::TILE.kv_bytes());
                for panel in 0..K::TILE.panels() {
                    let destination = self.smem + self.state.stage * K::TILE.kv_bytes() + panel * kv_panel_bytes(K::TILE);
                    tma::load_4d(destination, self.map, barrier, [panel * PANEL_COLUMNS, key, head, batch]);
                }
            }
            self.state.advance();
        }
    }
}
