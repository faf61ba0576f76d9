//! How many query heads share a row tile, and what the kernel is told of it.

use hopper_attention_kernels::config::{MANY_KEYS, ScoreFunction, forward_config};
use hopper_attention_kernels::schedule::Tile;

use super::choice_tests::{SINKS, SLOPES};
use super::general_tests::array;
use super::map::Form;
use super::tests::{Arguments, O, Q, apart, draws};
use super::*;
use crate::{Dim, Layout};

const CU: u64 = 0x6_2000_0000;
const GENERAL: Family = Family::General(ScoreFunction::Identity);

/// 2 batch entries, contiguous, with sinks: a general kernel's.
fn general(seqlen_q: usize, heads: usize, heads_k: usize, head_dim: usize) -> Arguments {
    Arguments::of(2, seqlen_q, 500, heads, heads_k, head_dim, Layout::bshd).with(|a| {
        apart(a);
        a.arrays.sinks = array(SINKS, heads);
    })
}

/// How many heads share a row tile, and how many row tiles there are.
fn packed(plan: &Plan) -> (u32, u32) {
    let features = plan.features.expect("a general kernel");
    let [q, .., o] = plan.maps.map(Option::unwrap);
    let (schedule, heads_per_kv) = (plan.params.schedule, plan.params.heads_per_kv.divisor());
    let packing = Packing { heads_per_kv: heads_per_kv.into(), pack_log2: features.pack_log2 };
    // All that says it says the same.
    let is_ragged = [features.q.cu_seqlens, features.q.seqused] != [0; 2];
    let form = if is_ragged { Form::Ragged { pack_log2: packing.pack_log2 } } else { Form::General(packing) };
    assert_eq!([q.form, o.form], [form; 2]);
    assert_eq!(features.head_tiles.divisor(), heads_per_kv.div_ceil(1 << features.pack_log2));
    assert_eq!(schedule.num_heads(), plan.params.num_heads / heads_per_kv * features.head_tiles.divisor());
    (1 << features.pack_log2, schedule.num_tiles())
}

#[test]
fn the_fewest_row_tiles() {
    // Row tiles of 128 rows, 2 batch entries.
    for (seqlen_q, heads, heads_k, expected) in [
        (1, 8, 1, (8, 2)),
        (1, 8, 8, (1, 16)),
        (16, 8, 1, (8, 2)),
        // 8 heads of 17 queries are 136 rows.
        (17, 8, 1, (4, 4)),
        (64, 8, 4, (2, 8)),
        (65, 8, 4, (1, 16)),
        // 136 and 144 rows, in 2 row tiles of 4 heads each, or in 2 of all.
        (18, 8, 1, (4, 4)),
        // Longer ones, too: 129 queries are 2 row tiles with 1 row in the second, or 5 for 4 heads.
        (129, 8, 2, (4, 20)),
        (128, 8, 2, (1, 16)),
        (1024, 8, 2, (1, 128)),
        // 33 for 32: less than one in eight.
        (1025, 8, 2, (1, 144)),
        // Heads that no power of two divides: the last tile over them is not full.
        (1, 6, 2, (4, 4)),
        (32, 6, 2, (4, 4)),
        (33, 6, 2, (2, 8)),
        (64, 6, 2, (2, 8)),
        (65, 6, 2, (1, 12)),
        (9, 7, 1, (8, 2)),
        (16, 28, 4, (8, 8)),
        (1, 71, 1, (64, 4)),
        (2, 71, 1, (64, 4)),
        (3, 71, 1, (32, 6)),
        (3, 64, 1, (32, 4)),
        (1, 200, 1, (64, 8)),
    ] {
        assert_eq!(packed(&general(seqlen_q, heads, heads_k, 256).accepted()), expected, "{seqlen_q} queries, {heads} heads on {heads_k}");
    }
    // Row tiles of 192 rows.
    assert_eq!(packed(&general(24, 8, 1, 64).accepted()), (8, 2));
    assert_eq!(packed(&general(25, 8, 1, 64).accepted()), (4, 4));
}

#[test]
fn maps_of_packed_heads() {
    // 3 queries of 14 heads on 2: boxes of 8 heads and 8 queries.
    let plan = general(3, 14, 2, 72).accepted();
    let (row, head) = (14 * 144, 144);
    let expected =
        EncodedDims { rank: 5, dims: [72, 7, 3, 2, 2], strides_bytes: [head, row, 7 * head, 3 * row], box_dims: [64, 8, 8, 1, 1] };
    assert_eq!([0, 3].map(|i| plan.maps[i].unwrap().encoded()), [expected; 2]);
    // Of K and V it has one entry.
    for map in [plan.maps[1], plan.maps[2]] {
        let map = map.unwrap();
        let expected = EncodedDims {
            rank: 5,
            dims: [72, 1, 500, 2, 2],
            strides_bytes: [144, 2 * 144, 144, 500 * 2 * 144],
            box_dims: [64, 1, plan.config.tile_n, 1, 1],
        };
        assert_eq!(map.encoded(), expected);
    }
    // Without packing that of Q and O has one, too.
    let plan = general(300, 14, 2, 72).accepted();
    let expected =
        EncodedDims { rank: 5, dims: [72, 1, 300, 14, 2], strides_bytes: [144, row, head, 300 * row], box_dims: [64, 1, 64, 1, 1] };
    assert_eq!([0, 3].map(|i| plan.maps[i].unwrap().encoded()), [expected; 2]);
}

/// The element that a kernel's coordinates reach, by the arithmetic of the copy engine.
#[test]
fn coordinates_lead_to_queries_and_heads() {
    for layout in [Layout::bshd as fn([usize; 4]) -> Layout, Layout::bhsd] {
        let arguments = Arguments::of(2, 5, 500, 14, 2, 128, layout).with(|a| a.arrays.sinks = array(SINKS, 14));
        let plan = arguments.accepted();
        let map = plan.maps[0].unwrap().encoded();
        let (pack, tiles) = (1 << plan.features.unwrap().pack_log2, plan.params.schedule.num_tiles());
        assert_eq!((pack, tiles), (8, 4));
        let mut seen = 0;
        for (batch, head_idx_k, query, head) in
            (0..2).flat_map(|b| (0..2).flat_map(move |k| (0..64 / pack).flat_map(move |q| (0..pack).map(move |h| (b, k, q, h)))))
        {
            let coordinates = [0, head, query, head_idx_k, batch];
            let inside = coordinates.iter().zip(map.dims).all(|(&coordinate, extent)| coordinate < extent);
            assert_eq!(inside, head < 7 && query < 5);
            seen += u32::from(inside);
            let offset: u64 = coordinates[1..].iter().zip(map.strides_bytes).map(|(coordinate, stride)| coordinate * stride).sum();
            let [batch_stride, seqlen_stride, head_stride] = arguments.q.layout.strides.map(|stride| 2 * stride as u64);
            let expected = batch * batch_stride + query * seqlen_stride + (head_idx_k * 7 + head) * head_stride;
            assert_eq!(offset, expected);
        }
        assert_eq!(seen, 2 * 5 * 14);
    }
}

#[test]
fn ragged_queries() {
    let ragged = |batch: usize, total: usize| {
        Arguments::of(1, total, 500, 8, 1, 256, Layout::bshd).with(|a| {
            apart(a);
            a.arrays.cu_seqlens_q = array(CU, batch + 1);
            a.arrays.cu_seqlens_k = array(CU, batch + 1);
        })
    };
    // One query each: 16 of 8 heads fill a row tile, and each sequence has a slot.
    let plan = ragged(100, 100).accepted();
    assert_eq!(packed(&plan), (8, 100 / 16 + 100));
    assert_eq!(plan.params.schedule.tile(0), Some(Tile { m_block: 100 / 16 + 99, head_idx: 0, batch_idx: 0 }));
    let (q, row) = (plan.maps[0].unwrap().encoded(), 8 * 512);
    assert_eq!((q.dims, q.box_dims), ([256, 8, 1 << 30, 101, (1 << 30) + 1], [64, 8, 8, 1, 1]));
    assert_eq!(q.strides_bytes, [512, row, row, (1 << 34) - row]);
    // The mean decides: half a row tile is lost a sequence and a row of tiles, so that also longer ones profit.
    for (batch, total, expected) in [(4, 1000, 8), (2, 1000, 1), (1, 1000, 1), (1000, 3000, 8)] {
        assert_eq!(packed(&ragged(batch, total).accepted()).0, expected, "{total} queries of {batch} sequences");
    }
    // No tile reaches beyond the heads of a key head, where the map does not end.
    let of_heads = |heads| {
        packed(
            &ragged(100, 100)
                .with(|a| {
                    let layout = Layout::bshd([1, 100, heads, 256]);
                    (a.q.layout, a.o.layout) = (layout, layout);
                })
                .accepted(),
        )
        .0
    };
    assert_eq!([1, 2, 6, 7, 12, 40, 64, 128].map(of_heads), [1, 2, 2, 1, 4, 8, 64, 64]);
    // Padded: no more than the rows.
    let padded = |seqlen_q, heads, heads_k| general(seqlen_q, heads, heads_k, 256).with(|a| a.arrays.seqused_q = array(CU, 2));
    assert_eq!(packed(&padded(16, 8, 1).accepted()).0, 8);
    assert_eq!(packed(&padded(2000, 8, 1).accepted()).0, 1);
}

#[test]
fn a_slot_for_every_row_tile() {
    let mut draw = draws();
    for _ in 0..300 {
        let (batch, total) = (1 + draw(20), 1 + draw(900));
        let plan = Arguments::of(1, total as usize, 500, 14, 2, 256, Layout::bshd)
            .with(|a| {
                apart(a);
                a.arrays.cu_seqlens_q = array(CU, batch as usize + 1);
                a.arrays.cu_seqlens_k = array(CU, batch as usize + 1);
            })
            .accepted();
        let tile_queries = 128 >> plan.features.unwrap().pack_log2;
        let mut starts: Vec<u64> = (0..batch - 1).map(|_| draw(total + 1)).chain([0, total]).collect();
        starts.sort_unstable();
        // By the formula of the kernel.
        let slot = |batch_idx: usize| starts[batch_idx] / tile_queries + batch_idx as u64;
        for batch_idx in 0..batch as usize {
            let tiles = (starts[batch_idx + 1] - starts[batch_idx]).div_ceil(tile_queries);
            assert!(slot(batch_idx) + tiles <= slot(batch_idx + 1), "{starts:?}");
        }
        assert!(slot(batch as usize) <= plan.params.schedule.m_blocks().into(), "{starts:?}");
    }
}

#[test]
fn sections_hold_whole_groups() {
    let plan = general(8, 512, 64, 128).with(|a| {
        *a = Arguments { arrays: a.arrays, ..Arguments::of(1, 8, 4096, 512, 64, 128, Layout::bshd).with(apart) };
        a.arrays.seqused_k = array(CU, 1);
    });
    let plan = plan.accepted();
    assert_eq!(packed(&plan), (8, 64));
    // 4096 keys of 128 columns are 2 MiB of K and V: 8 key heads at a time, each with the one row tile of its queries' heads.
    assert_eq!(plan.params.schedule, TileSchedule::new(1, 64, 1, 8).unwrap());
    assert_eq!(plan.static_schedule(), TileSchedule::new(1, 64, 1, 64).unwrap());
}

#[test]
fn what_cannot_be_packed() {
    assert_eq!(packed(&general(8, 8, 1, 128).accepted()).0, 8);
    // ALiBi looks at heads and positions; a soft cap at neither.
    assert_eq!(packed(&general(8, 8, 1, 128).with(|a| a.arrays.alibi_slopes = array(SLOPES, 8)).accepted()).0, 1);
    assert_eq!(packed(&general(8, 8, 1, 128).with(|a| a.options.softcap = Some(9.0)).accepted()).0, 8);
    // One head for all, or heads that overlap, lie in no dimension inside of the rows'.
    let stride = |stride| general(8, 8, 2, 128).with(|a| a.q.layout.strides[Dim::Heads as usize] = stride);
    assert_eq!([0, 64, 128].map(|heads| packed(&stride(heads).accepted()).0), [1, 1, 4]);
    assert_eq!(stride(0).accepted().params.q_steps.head, 0);
    // The stride of a group is a stride.
    let far = |heads_stride: usize| {
        general(8, 8, 2, 128).with(|a| {
            a.q.address = O + (1 << 50);
            a.q.layout = Layout { shape: a.q.layout.shape, strides: [128, 256, heads_stride] };
        })
    };
    assert_eq!([(1 << 37) - 128, 1 << 37].map(|stride| packed(&far(stride).accepted()).0), [4, 1]);
    let o = |heads_stride: usize| {
        general(8, 8, 2, 128).with(|a| {
            a.o.address = O + (1 << 50);
            a.o.layout = Layout { shape: a.o.layout.shape, strides: [128, 256, heads_stride] };
        })
    };
    assert_eq!([(1 << 37) - 128, 1 << 37].map(|stride| packed(&o(stride).accepted()).0), [4, 1]);
}

#[test]
fn heads_without_number() {
    let many = |heads: usize| {
        Arguments::of(1, 1, 5, 1, 1, 8, Layout::bshd).with(|a| {
            for tensor in [&mut a.q, &mut a.o] {
                tensor.layout = Layout::bshd([1, 1, heads, 8]);
                tensor.address = if tensor.address == Q { 1 << 40 } else { 1 << 50 };
            }
            a.options.softcap = Some(1.0);
        })
    };
    assert_eq!(packed(&many(1 << 30).accepted()), (64, 1 << 24));
    many((1 << 30) + 64).is_unsupported("batch * num_heads * row tiles");
    many(1 << 36).is_unsupported("batch * num_heads * row tiles");
}

/// A plain call that the general kernel serves faster.
#[test]
fn plain_calls_that_are_packed() {
    let family = |batch, seqlen_q, seqlen_k, (heads, heads_k), head_dim, causal| {
        let plan = Arguments::of(batch, seqlen_q, seqlen_k, heads, heads_k, head_dim, Layout::bshd)
            .with(|a| {
                apart(a);
                a.options.causal = causal;
            })
            .accepted();
        assert_eq!(plan.config, plan.family.config(head_dim as u32, head_dim as u32));
        assert_eq!(plan.features.is_some(), plan.config.general);
        plan.family
    };
    let plain = |causal| Family::Plain { causal };
    // Where both kernels have the same key tiles: by the number of row tiles.
    for (head_dim, causal) in [(96, true), (128, true), (192, false), (192, true), (256, false), (256, true)] {
        let family = |batch, seqlen_q, heads| family(batch, seqlen_q, 2000, heads, head_dim, causal);
        let tile_m = forward_config(head_dim as u32, head_dim as u32, causal).unwrap().tile_m as usize;
        assert_eq!(family(8, 1, (32, 8)), GENERAL, "{head_dim} {causal}");
        assert_eq!(family(8, tile_m / 2, (32, 8)), GENERAL);
        assert_eq!(family(8, tile_m / 2 + 1, (32, 8)), plain(causal));
        assert_eq!(family(8, 1, (32, 32)), plain(causal));
        assert_eq!(family(1, tile_m, (32, 8)), plain(causal));
        // A multiprocessor for each row tile.
        assert_eq!([family(4, 1, (33, 11)), family(4, 1, (34, 17))], [plain(causal), GENERAL]);
    }
    // Elsewhere by the lengths alone.
    for (head_dim, causal) in [(64, false), (64, true), (96, false), (128, false)] {
        let tile_m = forward_config(head_dim as u32, head_dim as u32, causal).unwrap().tile_m as usize;
        for (batch, heads) in [(1, (1, 1)), (1, (8, 8)), (1, (8, 2)), (50, (8, 2)), (50, (8, 8))] {
            let family = |seqlen_q, seqlen_k| family(batch, seqlen_q, seqlen_k, heads, head_dim, causal);
            assert_eq!([family(1, MANY_KEYS), family(tile_m / 2, 1 << 16)], [GENERAL; 2], "{head_dim} {causal} {heads:?}");
            assert_eq!([family(1, MANY_KEYS - 1), family(tile_m / 2 + 1, 1 << 16)], [plain(causal); 2]);
        }
    }
    // The causal mask is a window.
    let plan = Arguments::of(8, 1, 500, 32, 8, 128, Layout::bshd).with(|a| a.options.causal = true).accepted();
    let features = plan.features.unwrap();
    assert_eq!((features.window_left, features.window_right), (hopper_attention_kernels::params::MAX_SEQLEN, 0));
}
