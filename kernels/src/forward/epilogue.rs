//! The way out (FlashAttention-2, Algorithm 1, lines 12 to 15): O / l through shared memory, in the place of the warpgroup's own Q, by TMA;
//! the LSE by ordinary stores.
//!
//! ```text
//! LSE = (m + log2 l) * ln 2                  one lane of each quad stores it
//! place of Q = O / l in 16 bits              stmatrix, swizzled as the tensor map of O says
//! proxy fence;  barrier of the warpgroup     ordinary writes, before TMA reads them
//! start the copy of the place to O           one thread, panel by panel; its reads are waited for where Q is released
//! ```

use super::consumer::{Consumer, Work};
use super::{Kernel, named_barrier};
use crate::config::{PANEL_COLUMNS, WARPGROUP_THREADS};
use crate::layout::fragment::{ROW_STEP, ROWS_PER_THREAD, row_of};
use crate::layout::smem::Q_PANEL_BYTES;
use crate::layout::swizzle::{CHUNK_BYTES, chunk_offset};
use crate::ptx::{barrier, convert, fence, matrix, memory, tma};

/// Columns of a 16-byte chunk.
const CHUNK_COLUMNS: u32 = CHUNK_BYTES / 2;

/// Stores O and LSE of a finished row tile.
///
/// # Safety
/// By the whole warpgroup, converged; its products are complete.
#[inline(always)]
pub(super) unsafe fn store<K: Kernel, const Q_STAGES: u32>(consumer: &Consumer<K, Q_STAGES>, work: &Work<K>) {
    // SAFETY: scope: the whole warpgroup, as promised; the barrier counts its 128 threads. Lifetime: the products are complete, and a group of
    // products is the warpgroup's (PTX ISA, "wgmma.commit_group"), so all reads of Q are. Nothing hangs on that word: a warp writes only the
    // 16 rows whose reads are its own quarter of the products. A row tile without keys has waited for the copy of Q. Proxy: every writer's fence,
    // and the barrier, come before the copy. Columns and rows beyond the tensor are clipped by the copy.
    unsafe {
        let (inverse, lse) = work.softmax.finish();
        store_lse(consumer, work, lse);
        let block = consumer.cta.smem.q_block(K::TILE, consumer.q_stage(), consumer.warpgroup_idx);
        let meeting = named_barrier::WARPGROUP + consumer.warpgroup_idx;
        write_block::<K, Q_STAGES>(consumer, &work.acc_o, inverse, block);
        fence::proxy_async();
        barrier::sync(meeting, WARPGROUP_THREADS);
        if consumer.warp_in_group == 0 && consumer.lane_idx == 0 {
            for panel in 0..K::TILE.panels() {
                let coordinates = [panel * PANEL_COLUMNS, work.first_row, work.tile.head_idx, work.tile.batch_idx];
                tma::store_4d(block + panel * Q_PANEL_BYTES, consumer.cta.maps.o, coordinates);
            }
            tma::commit_group();
        }
    }
}

/// Writes O, normalised and rounded, into the warpgroup's block of swizzled panels.
///
/// # Safety
/// As [`store`]; nobody else accesses the block.
#[inline(always)]
unsafe fn write_block<K: Kernel, const Q_STAGES: u32>(
    consumer: &Consumer<K, Q_STAGES>,
    acc_o: &K::Output,
    inverse: [f32; ROWS_PER_THREAD],
    block: u32,
) {
    // Each stmatrix moves 16 rows x 16 columns: matrices 0 and 1 are rows 0..8 and 8..16 of one chunk, 2 and 3 those of the next.
    let row = consumer.warp_in_group * 16 + consumer.lane_idx % 16;
    let odd_chunk = consumer.lane_idx / 16;
    for pair in 0..K::TILE.head_dim / (2 * CHUNK_COLUMNS) {
        let chunk = 2 * pair + odd_chunk;
        let address = block + chunk / 8 * Q_PANEL_BYTES + chunk_offset(row, chunk % 8);
        let value = |i: usize| f32::from_bits(acc_o[8 * pair as usize + i]) * inverse[row_of(i)];
        let rows = [0, 2, 4, 6].map(|i| convert::pack(K::DTYPE, value(i), value(i + 1)));
        // SAFETY: scope: as promised. Address: each pair of row and chunk has 16 aligned bytes of its own within the block.
        unsafe { matrix::store_x4(address, rows) }
    }
}

/// Stores the LSE of the rows inside the sequence, if the caller wants it.
///
/// # Safety
/// As [`store`].
#[inline(always)]
unsafe fn store_lse<K: Kernel, const Q_STAGES: u32>(consumer: &Consumer<K, Q_STAGES>, work: &Work<K>, lse: [f32; ROWS_PER_THREAD]) {
    let params = consumer.cta.params;
    // The four lanes of a quad hold the same rows.
    if params.lse == 0 || !consumer.lane_idx.is_multiple_of(4) {
        return;
    }
    let head = work.tile.batch_idx as u64 * params.num_heads as u64 + work.tile.head_idx as u64;
    for i in 0..ROWS_PER_THREAD {
        let row = work.row + ROW_STEP * i as u32;
        if row < params.seqlen_q {
            let index = head * params.seqlen_q as u64 + row as u64;
            // SAFETY: address: there is room for [batch, num_heads, seqlen_q] numbers, and one lane of the grid has this row.
            unsafe { memory::store_global_f32(params.lse + 4 * index, lse[i]) };
        }
    }
}
