//! The maps of tensors whose sequences have lengths of their own.

use hopper_attention_kernels::params::MAX_SEQLEN;

use super::general_tests::{array, packed};
use super::tests::{Arguments, K, O, Q, apart};
use super::*;
use crate::{Dim, Layout};

const USED: u64 = 0x6_6000_0000;

/// Padded: both sides have lengths, `batch` of them.
fn padded(mut arguments: Arguments, batch: usize) -> Arguments {
    arguments.arrays.seqused_q = array(USED, batch);
    arguments.arrays.seqused_k = array(USED, batch);
    arguments
}

/// The map of Q and the rows between its batch entries.
fn map_of_q(arguments: &Arguments) -> (MapDescription, u32) {
    let plan = arguments.accepted();
    (plan.maps[0].unwrap(), plan.features.unwrap().batch_rows[0])
}

#[test]
fn packed_tensors() {
    let plan = packed(5, 300, 500).accepted();
    let map = |address, rows, heads, box_rows, packing| MapDescription {
        address: address - rows * heads * 256,
        dtype: DType::Bf16,
        dims: [128, rows, heads, rows + 1],
        strides_bytes: [heads * 256, 256, heads * 256],
        box_dims: [64, box_rows, 1, 1],
        packing,
    };
    let [q, k, _, o] = plan.maps.map(Option::unwrap);
    let packing = Some(Packing { heads_per_kv: 3, pack_log2: plan.features.unwrap().pack_log2 });
    let (q_map, o_map) = (map(Q, 300, 6, WARPGROUP_ROWS, packing), map(O, 300, 6, WARPGROUP_ROWS, packing));
    assert_eq!([q, k, o], [q_map, map(K, 500, 2, plan.config.tile_n, None), o_map]);
    // What is touched is the tensor, not where its map begins.
    assert_eq!(plan.regions[0].unwrap().bytes(), Q..Q + 300 * 6 * 256);
    assert_eq!(plan.regions[3].unwrap().bytes(), O..O + 300 * 6 * 256);
}

#[test]
fn one_side_alone_may_be_ragged() {
    let plain = Arguments::new().accepted().maps;
    let plan = Arguments::new().with(|a| a.arrays.seqused_k = array(USED, 2)).accepted();
    let of_plain_kernel = |map: Option<MapDescription>| map.map(|map| MapDescription { packing: None, ..map });
    assert_eq!([plan.maps[0], plan.maps[3]].map(of_plain_kernel), [plain[0], plain[3]]);
    assert_eq!(plan.maps[1].unwrap().dims, [128, 500, 2, 1001]);
    assert_eq!(plan.features.unwrap().batch_rows, [0, 500, 500, 0]);
    let plan = Arguments::new().with(|a| a.arrays.seqused_q = array(USED, 2)).accepted();
    assert_eq!([plan.maps[1], plan.maps[2]], [plain[1], plain[2]]);
    assert_eq!(plan.features.unwrap().batch_rows, [300, 0, 0, 300]);
}

#[test]
fn padded_tensors_in_either_order() {
    // 2 entries of 300 rows; [b, h, s, d] has the rows of 6 heads between the entries.
    let (map, batch_rows) = map_of_q(&padded(Arguments::of(2, 300, 500, 6, 2, 128, Layout::bshd), 2));
    assert_eq!((map.dims, map.strides_bytes, batch_rows), ([128, 300, 6, 601], [6 * 256, 256, 6 * 256], 300));
    assert_eq!(map.address, Q - 300 * 6 * 256);
    let (map, batch_rows) = map_of_q(&padded(Arguments::of(2, 300, 500, 6, 2, 128, Layout::bhsd), 2));
    assert_eq!((map.dims, map.strides_bytes, batch_rows), ([128, 300, 6, 2101], [256, 300 * 256, 256], 1800));
    assert_eq!(map.address, Q - 300 * 256);
    // Gaps of 7 rows between the entries.
    let gaps = Arguments::new().with(|a| a.q.layout.strides[0] = 307 * 6 * 128);
    let (map, batch_rows) = map_of_q(&padded(gaps, 2));
    assert_eq!((map.dims[3], batch_rows), (608, 307));
}

#[test]
fn broadcast_tensors() {
    let one = Tensor4 { address: K, dtype: DType::Bf16, layout: Layout::bshd([1, 500, 1, 128]) };
    let shared = one.broadcast(Dim::Batch, 2).unwrap().broadcast(Dim::Heads, 2).unwrap();
    let plan = padded(Arguments::new(), 2).with(|a| a.k = shared).accepted();
    assert_eq!((plan.maps[1].unwrap().dims, plan.params.k_steps.head), ([128, 500, 1, 501], 0));
    assert_eq!(plan.features.unwrap().batch_rows, [300, 0, 500, 300]);
    // One entry: no way to the next.
    let (map, batch_rows) = map_of_q(&padded(Arguments::of(1, 300, 500, 6, 2, 128, Layout::bshd), 1));
    assert_eq!((map.dims[3], batch_rows), (301, 0));
}

#[test]
fn single_rows_take_any_stride() {
    let single = padded(Arguments::of(5, 1, 500, 6, 2, 128, Layout::bshd), 5).with(|a| a.q.layout.strides[1] = 3);
    let (map, batch_rows) = map_of_q(&single);
    assert_eq!((map.dims, map.strides_bytes, batch_rows), ([128, 1, 6, 6], [6 * 256, 256, 6 * 256], 1));
    assert_eq!(map.address, Q - 6 * 256);
    // Not even entries: the row itself.
    let (map, batch_rows) = map_of_q(&padded(Arguments::of(1, 1, 500, 6, 2, 128, Layout::bshd), 1));
    assert_eq!((map.dims, map.strides_bytes, batch_rows, map.address), ([128, 1, 6, 2], [256; 3], 0, Q - 256));
    // Entries that overlap, which no stride of rows can say.
    single.with(|a| a.q.layout.strides[0] = 64).is_unsupported("q.batch_stride");
}

#[test]
fn entries_that_begin_between_rows() {
    let between = Arguments::new().with(|a| a.q.layout.strides[0] += 128);
    between.accepted();
    padded(between, 2).is_unsupported("q.batch_stride");
    let error = padded(between, 2).plan().unwrap_err().to_string();
    assert!(error.contains("q.batch_stride is 230528, but must be a multiple of q.seqlen_stride = 768"), "{error}");
    padded(Arguments::new().with(|a| a.k.layout.strides[0] += 128), 2).is_unsupported("k.batch_stride");
    padded(Arguments::new().with(|a| a.v.layout.strides[0] += 128), 2).is_unsupported("v.batch_stride");
    padded(Arguments::new().with(|a| a.o.layout.strides[0] += 128), 2).is_unsupported("o.batch_stride");
    // [s, b, h, d]
    padded(Arguments::new().with(|a| (a.q.layout.strides[0], a.q.layout.strides[1]) = (768, 1536)), 2).is_unsupported("q.batch_stride");
}

#[test]
fn more_rows_than_the_kernels_count() {
    let far = |rows: usize| {
        let arguments = padded(Arguments::of(2, 300, 500, 1, 1, 64, Layout::bshd), 2).with(apart);
        arguments.with(|a| a.k.layout.strides[0] = rows * 64)
    };
    let most = MAX_SEQLEN as usize - 500;
    assert_eq!(far(most).accepted().maps[1].unwrap().dims[3], u64::from(MAX_SEQLEN) + 1);
    far(most + 1).is_unsupported("k.layout");
}

#[test]
fn maps_may_begin_below_the_address_space() {
    let low = packed(5, 300, 500).with(|a| a.q.address = 0x1000).accepted();
    assert_eq!(low.maps[0].unwrap().address, 0x1000u64.wrapping_sub(300 * 6 * 256));
}

/// The rows that a kernel's coordinates reach, by the arithmetic of the copy engine.
#[test]
fn coordinates_lead_to_the_rows_of_a_sequence() {
    let plan = padded(Arguments::new(), 2).accepted();
    let (map, batch_rows) = (plan.maps[0].unwrap(), u64::from(plan.features.unwrap().batch_rows[0]));
    let [_, rows, heads, entries] = map.dims;
    for (batch_idx, length) in [(0, 0), (0, 1), (0, 300), (1, 7), (1, 300)] {
        let start = batch_idx * batch_rows;
        for row in 0..300 + 64 {
            let coordinates = [rows - length + row, heads - 1, start + length];
            assert!(coordinates[2] < entries);
            // Out of bounds exactly behind the end: filled with zeros, and clipped.
            assert_eq!(coordinates[0] < rows, row < length);
            let offset: u64 = coordinates.iter().zip(map.strides_bytes).map(|(coordinate, stride)| coordinate * stride).sum();
            assert_eq!(map.address.wrapping_add(offset), Q + (start + row) * 6 * 256 + (heads - 1) * 256);
        }
    }
}
