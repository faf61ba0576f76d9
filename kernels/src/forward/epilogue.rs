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
use super::sequence::{Operand, head_of};
use super::{Kernel, named_barrier};
use crate::config::{PANEL_COLUMNS, WARPGROUP_THREADS};
use crate::layout::fragment::{ROWS_PER_THREAD, row_of};
use crate::layout::smem::Q_PANEL_BYTES;
use crate::layout::swizzle::{CHUNK_BYTES, chunk_offset};
use crate::ptx::{barrier, convert, fence, matrix, memory, register, tma};

/// Columns of a 16-byte chunk.
const CHUNK_COLUMNS: u32 = CHUNK_BYTES / 2;

/// Stores O and LSE of a finished row tile.
///
/// # Safety
/// By the whole warpgroup, converged; its products are complete.
#[inline(always)]
pub(super) unsafe fn store<K: Kernel>(consumer: &Consumer<K>, work: &Work<K>) {
    // SAFETY: scope: the whole warpgroup, as promised; the barrier counts its 128 threads. Lifetime: the products are complete, and a group of
    // products is the warpgroup's (PTX ISA, "wgmma.commit_group"), so all reads of Q are. Nothing hangs on that word: a warp writes only the
    // 16 rows whose reads are its own quarter of the products. A row tile without keys has waited for the copy of Q. Proxy: every writer's fence,
    // and the barrier, come before the copy. Columns and rows beyond the tensor are clipped by the copy.
    unsafe {
        let (inverse, lse) = work.softmax.finish::<K>(sink_log2(consumer, work));
        store_lse(consumer, work, lse);
        let block = consumer.cta.smem.q_block(K::TILE, consumer.q_stage(), consumer.warpgroup_idx);
        let meeting = named_barrier::WARPGROUP + consumer.warpgroup_idx;
        write_block::<K>(consumer, &work.acc_o, inverse, block);
        fence::proxy_async();
        barrier::sync(meeting, WARPGROUP_THREADS);
        if consumer.warp_in_group == 0 && consumer.lane_idx == 0 {
            let place = work.tile.place::<K>(consumer.cta, Operand::O);
            for panel in 0..K::TILE.panels_v() {
                let (source, column) = (block + panel * Q_PANEL_BYTES, panel * PANEL_COLUMNS);
                let (row, outer) = (place.first_row + consumer.first_row(work), place.outer);
                if K::GENERAL {
                    tma::store_5d(source, consumer.cta.maps.o, [column, place.head, row, outer[0], outer[1]]);
                } else {
                    tma::store_4d(source, consumer.cta.maps.o, [column, row, outer[0], outer[1]]);
                }
            }
            tma::commit_group();
        }
    }
}

/// The logits that join the sums of the thread's rows, in log2 units; -inf if there are none.
///
/// # Safety
/// `features` is as the launch promises.
#[inline(always)]
unsafe fn sink_log2<K: Kernel>(consumer: &Consumer<K>, work: &Work<K>) -> [f32; ROWS_PER_THREAD] {
    if !K::GENERAL {
        return [f32::NEG_INFINITY; ROWS_PER_THREAD];
    }
    let sinks = register::unknown(consumer.cta.features.sinks);
    if sinks == 0 {
        return [f32::NEG_INFINITY; ROWS_PER_THREAD];
    }
    let last = work.tile.heads_left::<K>(consumer.cta) - 1;
    // Rows behind the last head are never stored.
    let heads = consumer.tile_rows().map(|row| work.tile.head_idx::<K>() + head_of::<K>(consumer.cta, row).min(last));
    // SAFETY: address: a number for each head, as promised, and nobody writes them.
    heads.map(|head_idx| unsafe { memory::load_global_f32(sinks + 4 * head_idx as u64) * core::f32::consts::LOG2_E })
}

/// Writes O, normalised and rounded, into the warpgroup's block of swizzled panels.
///
/// # Safety
/// As [`store`]; nobody else accesses the block.
#[inline(always)]
unsafe fn write_block<K: Kernel>(consumer: &Consumer<K>, acc_o: &K::Output, inverse: [f32; ROWS_PER_THREAD], block: u32) {
    // Each stmatrix moves 16 rows x 16 columns: matrices 0 and 1 are rows 0..8 and 8..16 of one chunk, 2 and 3 those of the next.
    // A general kernel has no registers to keep the addresses in from one row tile to the next: it makes them anew.
    let (warp_in_group, lane_idx) = if K::GENERAL {
        let thread_idx = register::thread_idx();
        (thread_idx / 32 % 4, thread_idx % 32)
    } else {
        (consumer.warp_in_group, consumer.lane_idx)
    };
    let row = warp_in_group * 16 + lane_idx % 16;
    let odd_chunk = lane_idx / 16;
    for pair in 0..K::TILE.head_dim_v / (2 * CHUNK_COLUMNS) {
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
unsafe fn store_lse<K: Kernel>(consumer: &Consumer<K>, work: &Work<K>, lse: [f32; ROWS_PER_THREAD]) {
    let params = consumer.cta.params;
    // The four lanes of a quad hold the same rows.
    let lse_address = if K::GENERAL { register::unknown(params.lse) } else { params.lse };
    if lse_address == 0 || !consumer.lane_idx.is_multiple_of(4) {
        return;
    }
    let first = work.tile.first_lse::<K>(consumer.cta);
    let (queries, rows) = (consumer.queries(work), consumer.tile_rows());
    for i in 0..ROWS_PER_THREAD {
        let head = head_of::<K>(consumer.cta, rows[i]);
        if queries[i] < work.tile.seqlen_q::<K>(consumer.cta) && head < work.tile.heads_left::<K>(consumer.cta) {
            let index = first + head as u64 * work.tile.lse_head_stride::<K>(consumer.cta) + queries[i] as u64;
            // SAFETY: address: there is room for [batch, num_heads, seqlen_q] numbers, and one lane of the grid has this row.
            unsafe { memory::store_global_f32(lse_address + 4 * index, lse[i]) };
        }
    }
}
