//! The producers (FlashAttention-3, Algorithm 1, the producer's part): one thread that loads Q and K, one that loads V, each walking the same
//! tiles as the math warpgroups. V has a thread of its own so that a V stage that is not free yet holds up no K.
//!
//! ```text
//! for tile in schedule {                            for tile in schedule {
//!   wait Q stage empty;  load Q                       for n in last..=0 { wait V stage empty;  load V[n] }
//!   for n in last..=0 { wait K stage empty;  load K[n] }
//! }                                                 }
//! ```

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
pub(super) unsafe fn load_q_and_k<K: Kernel, const Q_STAGES: u32>(cta: &Cta, q_ring: Ring<Q_STAGES>) {
    let params = cta.params;
    let mut q_state = PipelineState::<Q_STAGES>::START;
    let mut k_state = PipelineState::<KV_STAGES>::START;
    let mut tiles = TileWriter::new();
    // SAFETY: scope: this is the one thread that draws tiles.
    while let Some(tile) = unsafe { tiles.publish::<K>(cta) } {
        // SAFETY: protocol: this thread alone fills the rings of Q and K, and the boxes announced are the boxes loaded. Address: panels on
        // 1024 bytes (layout/smem.rs) of the stage acquired. Proxy: what the stage held was read, or stored from, by the same one.
        unsafe {
            let bytes = K::TILE.math_warpgroups() * K::TILE.q_warpgroup_bytes();
            let barrier = q_ring.producer_acquire_for(q_state, bytes);
            for warpgroup_idx in 0..K::TILE.math_warpgroups() {
                let block = cta.smem.q_block(K::TILE, q_state.stage, warpgroup_idx);
                let row = tile.m_block * K::TILE.tile_m + warpgroup_idx * WARPGROUP_ROWS;
                let (head, batch) = (tile.head_idx * params.q_steps.head, tile.batch_idx * params.q_steps.batch);
                for panel in 0..K::TILE.panels() {
                    let destination = block + panel * Q_PANEL_BYTES;
                    tma::load_4d(destination, cta.maps.q, barrier, [panel * PANEL_COLUMNS, row, head, batch]);
                }
            }
            load_tiles::<K>(cta, &tile, cta.maps.k, params.k_steps, cta.smem.k, cta.k_ring(), &mut k_state);
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
    let mut v_state = PipelineState::<KV_STAGES>::START;
    let mut tiles = TileReader::new();
    // SAFETY: scope: one thread, as lane 0; its arrival releases its own load.
    while let Some(tile) = unsafe { tiles.next::<K>(cta, |rank| rank, 0) } {
        // SAFETY: scope: this thread alone fills the ring of V.
        unsafe { load_tiles::<K>(cta, &tile, cta.maps.v, cta.params.v_steps, cta.smem.v, cta.v_ring(), &mut v_state) };
    }
}

/// Loads the key tiles that `tile` visits, of K or of V, into `ring`, whose stages begin at `stages`.
///
/// # Safety
/// By the ring's producer.
#[inline(always)]
unsafe fn load_tiles<K: Kernel>(
    cta: &Cta,
    tile: &Tile,
    map: u64,
    steps: CoordinateSteps,
    stages: u32,
    ring: Ring<KV_STAGES>,
    state: &mut PipelineState<KV_STAGES>,
) {
    let params = cta.params;
    let (tile_m, tile_n) = (K::TILE.tile_m, K::TILE.tile_n);
    let range = block_range(K::TILE.causal, tile_m, tile_n, tile.m_block * tile_m, params.seqlen_q, params.seqlen_k);
    let (head_idx_k, _) = params.heads_per_kv.div_rem(tile.head_idx);
    let (head, batch) = (head_idx_k * steps.head, tile.batch_idx * steps.batch);
    let mut n_block = range.n_block_max;
    while n_block > 0 {
        n_block -= 1;
        // SAFETY: protocol: the ring's one producer, as promised; the boxes announced are the boxes loaded. Address: panels on 1024 bytes of
        // the stage acquired.
        unsafe {
            let barrier = ring.producer_acquire_for(*state, K::TILE.kv_bytes());
            for panel in 0..K::TILE.panels() {
                let destination = stages + state.stage * K::TILE.kv_bytes() + panel * kv_panel_bytes(K::TILE);
                tma::load_4d(destination, map, barrier, [panel * PANEL_COLUMNS, n_block * tile_n, head, batch]);
            }
        }
        state.advance();
    }
}
