//! What a general kernel is handed besides a plain one's parameters, and the order of its tiles.

use hopper_attention_kernels::params::FeatureParams;
use hopper_attention_kernels::schedule::Tile;

use super::choice_tests::{SINKS, SLOPES};
use super::map::Form;
use super::tests::{Arguments, LSE, O, Q, apart, draws};
use super::*;
use crate::{Dim, Layout};

const CU_Q: u64 = 0x6_2000_0000;
const CU_K: u64 = 0x6_3000_0000;
const USED_Q: u64 = 0x6_4000_0000;
const USED_K: u64 = 0x6_5000_0000;

pub(super) fn array(address: u64, len: usize) -> Option<Array> {
    Some(Array { address, len })
}

/// `batch` sequences, both sides packed: `total_q` queries of 6 heads on `total_k` keys of 2.
pub(super) fn packed(batch: usize, total_q: usize, total_k: usize) -> Arguments {
    Arguments::of(1, total_q, total_k, 6, 2, 128, Layout::bshd).with(|a| {
        a.arrays.cu_seqlens_q = array(CU_Q, batch + 1);
        a.arrays.cu_seqlens_k = array(CU_K, batch + 1);
    })
}

#[test]
fn features_of_a_packed_problem() {
    let plan = packed(5, 300, 500)
        .with(|a| {
            a.arrays.sinks = array(SINKS, 6);
            a.arrays.alibi_slopes = array(SLOPES, 6);
            a.arrays.seqused_k = array(USED_K, 5);
            a.options = a.options.window(Some(9), Some(3));
            a.lse = Some(Lse { address: LSE, len: 6 * 300 });
        })
        .accepted();
    let expected = FeatureParams {
        q: Lengths { cu_seqlens: CU_Q, seqused: 0, rows: 300, reserved: 0 },
        k: Lengths { cu_seqlens: CU_K, seqused: USED_K, rows: 500, reserved: 0 },
        sinks: SINKS,
        alibi_slopes: SLOPES,
        batch_rows: [0; 4],
        batch: 5,
        window_left: 9,
        window_right: 3,
        score_scale: (1.0 / 128f64.sqrt()) as f32,
        head_tiles: FastDivisor::new(3).unwrap(),
        pack_log2: 0,
    };
    assert_eq!(plan.features, Some(expected));
    assert_eq!((plan.params.seqlen_q, plan.params.seqlen_k, plan.params.lse), (300, 500, LSE));
    let read: Vec<_> =
        plan.arrays.iter().flatten().map(|region| (region.bytes().start, region.bytes().end - region.bytes().start)).collect();
    assert_eq!(read, [(SINKS, 24), (SLOPES, 24), (CU_Q, 24), (CU_K, 24), (USED_K, 20)]);
}

#[test]
fn features_without_lengths() {
    let plan = Arguments::new().with(|a| a.arrays.sinks = array(SINKS, 6)).accepted();
    let features = plan.features.unwrap();
    for lengths in [features.q, features.k] {
        assert_eq!((lengths.cu_seqlens, lengths.seqused), (0, 0));
    }
    assert_eq!((features.batch, features.batch_rows, features.q.rows, features.k.rows), (2, [0; 4], 300, 500));
    let mut plain = Arguments::new().accepted().maps.map(Option::unwrap);
    for keys in &mut plain[1..3] {
        keys.box_dims[1] = plan.config.tile_n;
    }
    assert_eq!(plan.maps.map(|map| MapDescription { form: Form::Plain, ..map.unwrap() }), plain);
    let forms = plan.maps.map(|map| map.map(|map| map.form));
    let of_queries = Form::General(Packing { heads_per_kv: 3, pack_log2: 0 });
    assert_eq!(forms, [of_queries, Form::General(Packing::OF_KEYS), Form::General(Packing::OF_KEYS), of_queries].map(Some));
}

#[test]
fn slots_of_packed_queries() {
    // The last slot is the first tile; the sections hold all 6 heads.
    let plan = packed(5, 300, 500).with(|a| a.arrays.alibi_slopes = array(SLOPES, 6)).accepted();
    let tile_m = plan.config.tile_m;
    let slots = 300 / tile_m + 5;
    let schedule = plan.params.schedule;
    assert_eq!((schedule.m_blocks(), schedule.num_tiles()), (slots, 6 * slots));
    assert_eq!(schedule.tile(0), Some(Tile { m_block: slots - 1, head_idx: 0, batch_idx: 0 }));
    assert_eq!(schedule.tile(6 * slots - 1), Some(Tile { m_block: 0, head_idx: 5, batch_idx: 0 }));
    // Whatever the lengths, a sequence's tiles lie within its slots.
    let mut draws = draws();
    let mut draw = |below: u32| draws(below.into()) as u32;
    for _ in 0..1000 {
        let mut start = draw(300);
        for sequence in 0..8 {
            let length = draw(5) * draw(200);
            let slot = |row: u32, sequence: u32| row / tile_m + sequence;
            assert!(slot(start, sequence) + length.div_ceil(tile_m) <= slot(start + length, sequence + 1), "{length} rows at {start}");
            start += length;
        }
    }
    // Padded queries have the tiles of each entry.
    let padded = Arguments::new().with(|a| a.arrays.seqused_q = array(USED_Q, 2)).accepted();
    assert_eq!(
        (padded.params.schedule.m_blocks(), padded.params.schedule.num_tiles()),
        (300u32.div_ceil(tile_m), 12 * 300u32.div_ceil(tile_m))
    );
}

#[test]
fn sections_are_whole_groups() {
    // The heads of the first section: those that the first tiles take in turn before the first comes again.
    let section = |plan: &Plan| {
        let heads = |rank| plan.params.schedule.tile(rank).map(|tile| (tile.head_idx, tile.batch_idx));
        (1..).find(|&rank| heads(rank) == heads(0) || heads(rank).is_none()).unwrap()
    };
    let grouped = |seqlen, heads_k| Arguments::of(1, seqlen, seqlen, 64, heads_k, 128, Layout::bshd).with(apart);
    // 4096 keys of 128 columns are 2 MiB of K and V: 8 key heads at a time, each with its queries' heads.
    let windowed = |seqlen, heads_k| grouped(seqlen, heads_k).with(|a| a.options.window_left = Some(1000)).accepted();
    assert_eq!([64, 16, 4].map(|heads_k| section(&windowed(4096, heads_k))), [8, 32, 64]);
    // Longer than the cache: one group.
    assert_eq!(section(&windowed(1 << 18, 16)), 4);
    // Packed keys count with their mean: 64 Ki keys in 16 sequences.
    let packed = |batch: usize| {
        let arrays =
            Arrays::new().cu_seqlens_q(Array { address: CU_Q, len: batch + 1 }).cu_seqlens_k(Array { address: CU_K, len: batch + 1 });
        grouped(1 << 16, 64).with(|a| a.arrays = arrays).accepted()
    };
    assert_eq!([1, 16].map(|batch| section(&packed(batch))), [1, 8]);
    // Tiles of one length are taken head by head.
    assert_eq!(section(&grouped(4096, 16).with(|a| a.options.softcap = Some(1.0)).accepted()), 1);
    // Plain kernels count every head's keys.
    assert_eq!(section(&grouped(4096, 16).with(|a| a.options.causal = true).accepted()), 8);
    // V counts with its own columns: 4096 keys of 192 and 128 are 2.5 MiB, those of 192 and 192 are 3.
    let of_v = |head_dim_v| {
        let of = |seqlen, head_dim| Layout::bshd([1, seqlen, 64, head_dim]);
        let problem = Arguments::of(1, 4096, 4096, 64, 64, 192, Layout::bshd).with(apart).with(|a| a.options.causal = true);
        problem.with(|a| (a.v.layout, a.o.layout) = (of(4096, head_dim_v), of(4096, head_dim_v))).accepted()
    };
    assert_eq!([128, 192].map(|head_dim_v| section(&of_v(head_dim_v))), [6, 5]);
}

#[test]
fn tiles_are_drawn_where_they_may_differ() {
    let draws = |change: &dyn Fn(&mut Arguments)| {
        let plan = Arguments::new().with(change).accepted();
        let tiles = plan.params.schedule.num_tiles();
        assert!(!plan.draws_tiles(plan.grid(tiles)));
        plan.draws_tiles(plan.grid(tiles - 1))
    };
    assert!(!draws(&|_| ()) && draws(&|a| a.options.causal = true));
    assert!(!draws(&|a| a.arrays.sinks = array(SINKS, 6)) && !draws(&|a| a.options.softcap = Some(1.0)));
    assert!(draws(&|a| a.options.window_left = Some(9)) && draws(&|a| a.options.window_right = Some(9)));
    assert!(draws(&|a| a.arrays.seqused_q = array(USED_Q, 2)) && draws(&|a| a.arrays.seqused_k = array(USED_K, 2)));
    // One row tile a head: a window cuts all alike, lengths do not.
    let short = |a: &mut Arguments| *a = Arguments::of(2, 20, 500, 6, 2, 128, Layout::bshd);
    assert!(!draws(&|a| {
        short(a);
        a.options.window_left = Some(9);
    }));
    assert!(draws(&|a| {
        short(a);
        a.arrays.seqused_k = array(USED_K, 2);
    }));
}

#[test]
fn without_a_slot_packed_keys_count_with_their_mean() {
    for (batch, one_section) in [(1, true), (4, true), (5, false)] {
        let plan = packed(batch, 4 << 12, 4 << 12).with(|a| {
            *a = Arguments { arrays: a.arrays, ..Arguments::of(1, 4 << 12, 4 << 12, 24, 24, 128, Layout::bshd) };
            apart(a);
        });
        let plan = plan.accepted();
        let schedule = plan.params.schedule;
        let expected = if one_section { TileSchedule::new(1, 24, schedule.m_blocks().into(), 24).unwrap() } else { schedule };
        assert_eq!(plan.static_schedule(), expected, "{batch}");
        assert_ne!(schedule, TileSchedule::new(1, 24, schedule.m_blocks().into(), 24).unwrap(), "{batch}");
    }
}

#[test]
fn numbers_of_sequences_agree() {
    packed(5, 300, 500).with(|a| (a.arrays.seqused_q, a.arrays.seqused_k) = (array(USED_Q, 5), array(USED_K, 5))).accepted();
    packed(5, 300, 500).with(|a| a.arrays.cu_seqlens_k = array(CU_K, 5)).is_invalid("cu_seqlens_k.len");
    packed(5, 300, 500).with(|a| a.arrays.cu_seqlens_k = array(CU_K, 0)).is_invalid("cu_seqlens_k.len");
    packed(5, 300, 500).with(|a| a.arrays.cu_seqlens_q = array(CU_Q, 0)).is_invalid("cu_seqlens_q.len");
    packed(5, 300, 500).with(|a| a.arrays.seqused_q = array(USED_Q, 6)).is_invalid("seqused_q.len");
    packed(5, 300, 500).with(|a| a.arrays.seqused_k = array(USED_K, 4)).is_invalid("seqused_k.len");
    packed(5, 300, 500).with(|a| a.arrays.cu_seqlens_q = array(CU_Q, usize::MAX)).is_invalid("cu_seqlens_k.len");
    // Packed queries on padded keys, and the other way round.
    packed(1, 300, 500).with(|a| a.arrays.cu_seqlens_k = None).accepted();
    packed(2, 300, 500).with(|a| a.arrays.cu_seqlens_k = None).is_invalid("k.batch");
    packed(2, 300, 500).with(|a| a.arrays.cu_seqlens_q = None).is_invalid("cu_seqlens_k.len");
    Arguments::new().with(|a| a.arrays.seqused_q = array(USED_Q, 3)).is_invalid("seqused_q.len");
    // A packed tensor is one batch entry.
    Arguments::new().with(|a| a.arrays.cu_seqlens_q = array(CU_Q, 3)).is_invalid("q.batch");
    Arguments::new().with(|a| a.arrays.cu_seqlens_k = array(CU_K, 3)).is_invalid("k.batch");
    let error = packed(2, 300, 500).with(|a| a.arrays.cu_seqlens_k = None).plan().unwrap_err().to_string();
    assert_eq!(error, "k.batch is 1, but must be 2, as cu_seqlens_q.len is 3");
}

#[test]
fn arrays_that_do_not_fit() {
    let with = |set: fn(&mut Arrays, Option<Array>), address, len| packed(5, 300, 500).with(|a| set(&mut a.arrays, array(address, len)));
    type Set = fn(&mut Arrays, Option<Array>);
    let table: [(&str, usize, Set); 6] = [
        ("sinks", 6, |arrays, array| arrays.sinks = array),
        ("alibi_slopes", 6, |arrays, array| arrays.alibi_slopes = array),
        ("cu_seqlens_q", 6, |arrays, array| arrays.cu_seqlens_q = array),
        ("cu_seqlens_k", 6, |arrays, array| arrays.cu_seqlens_k = array),
        ("seqused_q", 5, |arrays, array| arrays.seqused_q = array),
        ("seqused_k", 5, |arrays, array| arrays.seqused_k = array),
    ];
    for (name, len, set) in table {
        with(set, SINKS + 4, len).accepted();
        for address in [0, SINKS + 1, SINKS + 2] {
            with(set, address, len).is_invalid(&format!("{name}.address"));
        }
        with(set, u64::MAX - 7, len).is_invalid(&format!("{name}.len"));
        // In O, in the last bytes of it, in the LSE.
        with(set, O, len).is_invalid("o");
        with(set, O + 300 * 6 * 256 - 4, len).is_invalid("o");
        with(set, O + 300 * 6 * 256, len).accepted();
        with(set, LSE, len).with(|a| a.lse = Some(Lse { address: LSE, len: 1800 })).is_invalid("lse");
        // What is only read may be shared.
        with(set, Q, len).accepted();
    }
    for len in [0, 5, 7] {
        with(|arrays, array| arrays.sinks = array, SINKS, len).is_invalid("sinks.len");
        with(|arrays, array| arrays.alibi_slopes = array, SLOPES, len).is_invalid("alibi_slopes.len");
    }
}

#[test]
fn lse_of_packed_queries() {
    let lse = |len| packed(5, 300, 500).with(|a| a.lse = Some(Lse { address: LSE, len }));
    lse(6 * 300).accepted();
    lse(6 * 300 - 1).is_invalid("lse.len");
}

#[test]
fn nothing_to_write() {
    let anywhere = |a: &mut Arguments| {
        a.each(|tensor| tensor.address = 1);
        a.arrays.sinks = Some(Array { address: 1, len: a.q.layout.extent(Dim::Heads) });
    };
    for empty in [packed(5, 0, 500), packed(0, 300, 500), packed(0, 0, 0)] {
        assert!(empty.with(anywhere).plan().unwrap().is_none());
        empty.with(|a| a.options.softcap = Some(0.0)).is_invalid("softcap");
    }
    let no_heads = packed(5, 300, 500).with(|a| a.each(|tensor| tensor.layout.shape[2] = 0)).with(anywhere);
    assert!(no_heads.plan().unwrap().is_none());
    // Without keys there are rows to write.
    let plan = packed(5, 300, 0).with(|a| (a.k.address, a.v.address) = (0, 1)).accepted();
    assert_eq!((plan.maps[1], plan.maps[2], plan.params.seqlen_k), (None, None, 0));
    assert_eq!(plan.features.unwrap().k, Lengths { cu_seqlens: CU_K, seqused: 0, rows: 0, reserved: 0 });
}
