//! Attention over disjoint sets of keys, merged into attention over all of them.
//!
//! ```text
//! LSE = ln (exp(sink) + sum_i exp(LSE_i))          O = sum_i exp(LSE_i - LSE) O_i
//! ```
//!
//! A thread merges 8 columns of one row, 16 bytes of each O_i. The largest LSE_i is subtracted before the exponentials, so that they neither
//! overflow nor all vanish. A part that saw no key (LSE_i = -inf) has weight 0, and what its O_i holds, NaN included, reaches nothing; where no
//! part saw a key, O = 0 and LSE = -inf. The sink is a logit a head that belongs to no key, -inf where there is none.

use crate::config::{COMBINE_COLUMNS, COMBINE_THREADS, DType};
use crate::params::{CombineParams, Part, TensorAddress};
use crate::ptx::{convert, math, memory, register};
use core::f32::consts::{LN_2, LOG2_E};
use core::mem::{offset_of, size_of};

/// The whole kernel.
///
/// # Safety
/// By all threads of a grid of CTAs of [`COMBINE_THREADS`] threads; `params` is as [`CombineParams`] describes it, and `address` its generic
/// address. The parts are read through that: an array that is indexed by a variable would be copied to local memory first.
#[inline(always)]
pub unsafe fn combine(dtype: DType, params: &CombineParams, address: u64) {
    let parts = address + offset_of!(CombineParams, parts) as u64;
    let mut item = register::cta_idx() * COMBINE_THREADS + register::thread_idx();
    while item < params.items {
        // SAFETY: address: the item is one of the output's.
        unsafe { combine_item(dtype, params, parts, item) };
        item += register::grid_dim() * COMBINE_THREADS;
    }
}

/// Merges the 8 columns number `item`.
///
/// # Safety
/// As [`combine`], with `parts` the generic address of `params.parts`, and `item` below `params.items`.
#[inline(always)]
unsafe fn combine_item(dtype: DType, params: &CombineParams, parts: u64, item: u32) {
    let (row, chunk) = params.chunks.div_rem(item);
    let (head, seq_idx) = params.seqlen.div_rem(row);
    let (batch_idx, head_idx) = params.num_heads.div_rem(head);
    let address = |tensor: &TensorAddress| {
        let row = batch_idx as u64 * tensor.batch_stride + seq_idx as u64 * tensor.row_stride + head_idx as u64 * tensor.head_stride;
        tensor.address + row + (chunk * COMBINE_COLUMNS * DType::BYTES) as u64
    };
    // SAFETY: address: every part has an LSE for each row, and 8 columns where the output has them. No other thread has this item, and the
    // parts are only read.
    unsafe {
        let part = |i: u32| parts + i as u64 * size_of::<Part>() as u64;
        let lse = |i: u32| {
            let first = memory::load_u64(part(i) + offset_of!(Part, lse) as u64);
            memory::load_global_f32(first + 4 * row as u64)
        };
        let sink = if params.sinks == 0 { f32::NEG_INFINITY } else { memory::load_global_f32(params.sinks + 4 * head_idx as u64) };
        let mut largest = sink;
        for i in 0..params.count {
            largest = math::max(largest, lse(i));
        }
        let reference = if largest == f32::NEG_INFINITY { 0.0 } else { largest };
        let mut sum = math::exp2((sink - reference) * LOG2_E);
        let mut o = [0.0; COMBINE_COLUMNS as usize];
        for i in 0..params.count {
            let weight = math::exp2((lse(i) - reference) * LOG2_E);
            // Not so for NaN.
            if weight == 0.0 {
                continue;
            }
            sum += weight;
            let tensor = part(i) + offset_of!(Part, o) as u64;
            let field = |offset: usize| memory::load_u64(tensor + offset as u64);
            let values = memory::load_global_u32x4(address(&TensorAddress {
                address: field(offset_of!(TensorAddress, address)),
                batch_stride: field(offset_of!(TensorAddress, batch_stride)),
                row_stride: field(offset_of!(TensorAddress, row_stride)),
                head_stride: field(offset_of!(TensorAddress, head_stride)),
            }));
            for j in 0..values.len() {
                let [low, high] = convert::unpack(dtype, values[j]);
                o[2 * j] = math::fma(weight, low, o[2 * j]);
                o[2 * j + 1] = math::fma(weight, high, o[2 * j + 1]);
            }
        }
        let inverse = if sum == 0.0 { 0.0 } else { math::reciprocal(sum) };
        let mut packed = [0; COMBINE_COLUMNS as usize / 2];
        for j in 0..packed.len() {
            packed[j] = convert::pack(dtype, o[2 * j] * inverse, o[2 * j + 1] * inverse);
        }
        memory::store_global_u32x4(address(&params.o), packed);
        if chunk == 0 && params.lse != 0 {
            // Where no part saw a key: 0 + log2 0 = -inf.
            memory::store_global_f32(params.lse + 4 * row as u64, reference + math::log2(sum) * LN_2);
        }
    }
}
