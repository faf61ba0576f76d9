//! The producers: one thread that loads Q and K, one that loads V, each walking the same tiles as the math warpgroups.

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
    // SAFETY: this is the one thread that draws tiles.
    while let Some(tile) = unsafe { tiles.publish::<K>(cta) } {
        // SAFETY: the boxes announced are the boxes loaded, into the stage acquired.
        unsafe {
            let bytes = K::TILE.math_warpgroups() * K::TILE.q_warpgroup_bytes();
            let barrier = q_ring.producer_acquire_for(q_state, bytes);
            for warpgroup in 0..K::TILE.math_warpgroups() {
                let block = cta.smem.q_block(K::TILE, q_state.stage, warpgroup);
                let row = tile.m_block * K::TILE.tile_m + warpgroup * WARPGROUP_ROWS;
                let (head, batch) = (tile.head_idx * params.q_steps.head, tile.batch_idx * params.q_steps.batch);
                for panel in 0..K::TILE.panels() {
                    let destination = block + panel * Q_PANEL_BYTES;
                    tma::load_4d(destination, cta.maps.q, barrier, [panel * PANEL_COLUMNS, row, head, batch]);
                }
            }
            load_tiles::<K>(cta, &tile, cta.maps.k, params.k_steps, cta.smem.k, cta.k_ring(), &mut k_state);
        }
        q_state.advance();
        // SAFETY: as above.
        unsafe { tiles.draw::<K>(cta) };
    }
    // SAFETY: as above.
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
    // SAFETY: one thread, which releases every rank it takes.
    while let Some(tile) = unsafe { tiles.next::<K>(cta, |rank| rank, 0) } {
        // SAFETY: the caller's.
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
        // SAFETY: the boxes announced are the boxes loaded, into the stage acquired.
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
