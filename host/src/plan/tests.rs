//! Every rule is broken once and must be named; every layout that is legal must pass.

use hopper_attention_kernels::params::MAX_SEQLEN;

use super::map::Form;
use super::*;
use crate::{Dim, Layout};

pub(super) const Q: u64 = 0x1_0000_0000;
pub(super) const K: u64 = 0x2_0000_0000;
pub(super) const V: u64 = 0x3_0000_0000;
pub(super) const O: u64 = 0x4_0000_0000;
pub(super) const LSE: u64 = 0x5_0000_0000;

/// Numbers below what is asked for, the same in every run: a linear congruential generator.
pub(super) fn draws() -> impl FnMut(u64) -> u64 {
    let mut state = 1u64;
    move |below| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    }
}

/// The arguments of [`Plan::new`], to be broken one at a time.
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    pub q: Tensor4,
    pub k: Tensor4,
    pub v: Tensor4,
    pub o: Tensor4,
    pub lse: Option<Lse>,
    pub options: Options,
    pub arrays: Arrays,
}

impl Arguments {
    /// Legal: batch 2, 300 queries, 500 keys, 6 heads on 2, contiguous.
    pub fn new() -> Self {
        Self::of(2, 300, 500, 6, 2, 128, Layout::bshd)
    }

    pub fn of(
        batch: usize,
        seqlen_q: usize,
        seqlen_k: usize,
        heads: usize,
        heads_k: usize,
        head_dim: usize,
        layout: fn([usize; 4]) -> Layout,
    ) -> Self {
        let tensor = |address, seqlen, heads| Tensor4 { address, dtype: DType::Bf16, layout: layout([batch, seqlen, heads, head_dim]) };
        Self {
            q: tensor(Q, seqlen_q, heads),
            k: tensor(K, seqlen_k, heads_k),
            v: tensor(V, seqlen_k, heads_k),
            o: tensor(O, seqlen_q, heads),
            lse: None,
            options: Options::default(),
            arrays: Arrays::default(),
        }
    }

    pub fn plan(&self) -> Result<Option<Plan>, Error> {
        Plan::new(None, [&self.q, &self.k, &self.v, &self.o], self.lse, &self.options, &self.arrays)
    }

    pub fn accepted(&self) -> Plan {
        self.plan().unwrap().expect("there are rows")
    }

    /// Applies `change` to all four tensors.
    pub fn each(&mut self, change: impl Fn(&mut Tensor4)) {
        [&mut self.q, &mut self.k, &mut self.v, &mut self.o].into_iter().for_each(change);
    }

    /// The arguments after `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    #[track_caller]
    pub fn is_invalid(&self, expected: &str) {
        match self.plan() {
            Err(Error::Invalid { field, .. }) if field == expected => {}
            other => panic!("expected {expected} to be invalid, got {other:?}"),
        }
    }

    #[track_caller]
    pub fn is_unsupported(&self, expected: &str) {
        match self.plan() {
            Err(Error::Unsupported { field, .. }) if field == expected => {}
            other => panic!("expected {expected} to be unsupported, got {other:?}"),
        }
    }
}

#[test]
fn a_plain_problem() {
    let plan = Arguments::new().with(|a| a.lse = Some(Lse { address: LSE, len: 2 * 6 * 300 })).accepted();
    assert_eq!((plan.config.head_dim, plan.config.causal, plan.dtype), (128, false, DType::Bf16));
    assert_eq!((plan.params.num_heads, plan.params.seqlen_q, plan.params.seqlen_k), (6, 300, 500));
    assert_eq!((plan.params.heads_per_kv.divisor(), plan.params.lse), (3, LSE));
    assert_eq!(plan.params.softmax_scale_log2, (1.0 / 128f64.sqrt() * std::f64::consts::LOG2_E) as f32);
    assert_eq!(plan.params.scheduler, 0);
    let tiles = 2 * 6 * 300u32.div_ceil(plan.config.tile_m);
    assert_eq!((plan.grid(132), plan.grid(7)), (tiles.min(132), 7));
    let (rows, keys) = (WARPGROUP_ROWS, plan.config.tile_n);
    let map = |address, seqlen, heads, rows| MapDescription {
        address,
        dtype: DType::Bf16,
        dims: [128, seqlen, heads, 2],
        strides_bytes: [heads * 256, 256, seqlen * heads * 256],
        box_dims: [64, rows],
        form: Form::Plain,
    };
    assert_eq!(plan.maps, [Some(map(Q, 300, 6, rows)), Some(map(K, 500, 2, keys)), Some(map(V, 500, 2, keys)), Some(map(O, 300, 6, rows))]);
}

#[test]
fn shapes_that_disagree() {
    let set = |tensor: fn(&mut Arguments) -> &mut Tensor4, dim: Dim, extent: usize| {
        Arguments::new().with(|a| tensor(a).layout.shape[dim as usize] = extent)
    };
    set(|a| &mut a.k, Dim::Batch, 3).is_invalid("k.batch");
    set(|a| &mut a.v, Dim::Batch, 1).is_invalid("v.batch");
    set(|a| &mut a.o, Dim::Batch, 3).is_invalid("o.batch");
    set(|a| &mut a.v, Dim::Seqlen, 499).is_invalid("v.seqlen");
    set(|a| &mut a.o, Dim::Seqlen, 299).is_invalid("o.seqlen");
    set(|a| &mut a.v, Dim::Heads, 1).is_invalid("v.heads");
    set(|a| &mut a.o, Dim::Heads, 5).is_invalid("o.heads");
    set(|a| &mut a.k, Dim::HeadDim, 64).is_invalid("k.head_dim");
    set(|a| &mut a.v, Dim::HeadDim, 64).is_invalid("o.head_dim");
    set(|a| &mut a.o, Dim::HeadDim, 64).is_invalid("o.head_dim");
    Arguments::of(2, 9, 9, 6, 4, 64, Layout::bshd).is_invalid("q.heads");
    Arguments::of(2, 9, 9, 2, 4, 64, Layout::bshd).is_invalid("q.heads");
    Arguments::of(2, 9, 9, 6, 0, 64, Layout::bshd).is_invalid("q.heads");
}

#[test]
fn dtypes_that_disagree() {
    Arguments::new().with(|a| a.k.dtype = DType::F16).is_invalid("k.dtype");
    Arguments::new().with(|a| a.v.dtype = DType::F16).is_invalid("v.dtype");
    Arguments::new().with(|a| a.o.dtype = DType::F16).is_invalid("o.dtype");
}

#[test]
fn head_dims() {
    for head_dim in (8..=256).step_by(8) {
        let plan = Arguments::of(1, 9, 9, 1, 1, head_dim, Layout::bshd).accepted();
        assert!(plan.config.head_dim as usize >= head_dim);
        assert_eq!(plan.maps[0].unwrap().dims[0], head_dim as u64);
    }
    for head_dim in [0, 1, 4, 7, 9, 100, 257, 264, 512, usize::MAX, usize::MAX - 7] {
        Arguments::of(1, 9, 9, 1, 1, head_dim, Layout::bshd).is_unsupported("q.head_dim");
    }
}

#[test]
fn softmax_scales() {
    let scale = |scale| Arguments::new().with(|a| a.options.softmax_scale = Some(scale));
    for legal in [1.0, f32::MIN_POSITIVE, 1e-45, 2e38] {
        assert_eq!(scale(legal).accepted().params.softmax_scale_log2, (legal as f64 * std::f64::consts::LOG2_E) as f32);
    }
    // The last is finite itself, but not times log2(e).
    for illegal in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38] {
        scale(illegal).is_invalid("softmax_scale");
    }
    let default = 1.0 / (128f64).sqrt();
    assert_eq!(scale(default as f32).accepted().params, Arguments::new().accepted().params);
}

#[test]
fn addresses() {
    for address in [Q + 1, Q + 2, Q + 8] {
        Arguments::new().with(|a| a.q.address = address).is_unsupported("q.address");
    }
    Arguments::new().with(|a| a.k.address += 2).is_unsupported("k.address");
    Arguments::new().with(|a| a.v.address += 2).is_unsupported("v.address");
    Arguments::new().with(|a| a.o.address += 2).is_unsupported("o.address");
    Arguments::new().with(|a| a.o.address = 0).is_invalid("o.address");
    Arguments::new().with(|a| a.q.address = u64::MAX - 15).is_invalid("q.layout");
}

#[test]
fn strides() {
    let q = |dim: Dim, stride| Arguments::new().with(|a| a.q.layout.strides[dim as usize] = stride);
    for dim in [Dim::Batch, Dim::Seqlen, Dim::Heads] {
        let field = format!("q.{}_stride", dim.name());
        for stride in [1, 4, 1004, 1 << 39, usize::MAX, usize::MAX - 7] {
            q(dim, stride).is_unsupported(&field);
        }
        q(dim, (1 << 39) - 8).accepted();
    }
    for stride in [0, 8] {
        q(Dim::Seqlen, stride).is_unsupported("q.seqlen_stride");
    }
    for (dim, field) in [(Dim::Batch, "o.batch_stride"), (Dim::Seqlen, "o.seqlen_stride"), (Dim::Heads, "o.heads_stride")] {
        Arguments::new().with(|a| a.o.layout.strides[dim as usize] = 0).is_invalid(field);
    }
}

#[test]
fn strides_of_single_entries_are_not_read() {
    let single = Arguments::of(1, 1, 1, 1, 1, 72, Layout::bshd);
    for stride in [0, 1, 3, usize::MAX] {
        let plan = single.with(|a| a.each(|tensor| tensor.layout.strides = [stride; 3])).accepted();
        for map in plan.maps.into_iter().flatten() {
            assert_eq!((map.dims, map.strides_bytes), ([72, 1, 1, 1], [144; 3]));
        }
    }
}

#[test]
fn inputs_may_be_broadcast() {
    let one = Tensor4 { address: K, dtype: DType::Bf16, layout: Layout::bshd([1, 500, 1, 128]) };
    let shared = one.broadcast(Dim::Batch, 2).unwrap().broadcast(Dim::Heads, 2).unwrap();
    let plan = Arguments::new().with(|a| a.k = shared).accepted();
    assert_eq!(plan.maps[1].unwrap().dims, [128, 500, 1, 1]);
    assert_eq!(plan.params.k_steps, CoordinateSteps { head: 0, batch: 0 });
    assert_eq!(plan.params.v_steps, CoordinateSteps { head: 1, batch: 1 });
    // Only the batch, and only the heads, of Q.
    let plan = Arguments::new().with(|a| a.q.layout.strides[0] = 0).accepted();
    assert_eq!((plan.maps[0].unwrap().dims, plan.params.q_steps), ([128, 300, 6, 1], CoordinateSteps { head: 1, batch: 0 }));
    let plan = Arguments::new().with(|a| a.q.layout.strides[2] = 0).accepted();
    assert_eq!((plan.maps[0].unwrap().dims, plan.params.q_steps), ([128, 300, 1, 2], CoordinateSteps { head: 0, batch: 1 }));
}

#[test]
fn outputs_in_every_order_of_dimensions() {
    let [batch, seqlen, heads, head_dim] = [2, 300, 6, 128];
    // Strides of [batch, seqlen, heads] for each order in memory, gaps of 16 elements behind each row included.
    let gap = 16;
    for (order, extents) in [
        ([0, 1, 2], [batch, seqlen, heads]),
        ([0, 2, 1], [batch, heads, seqlen]),
        ([1, 0, 2], [seqlen, batch, heads]),
        ([1, 2, 0], [seqlen, heads, batch]),
        ([2, 0, 1], [heads, batch, seqlen]),
        ([2, 1, 0], [heads, seqlen, batch]),
    ] {
        let mut strides = [0; 3];
        let mut stride = head_dim + gap;
        for (dim, extent) in order.into_iter().zip(extents).rev() {
            strides[dim] = stride;
            stride *= extent;
        }
        Arguments::new().with(|a| a.o.layout.strides = strides).accepted();
    }
    Arguments::of(2, 300, 500, 6, 2, 128, Layout::bhsd).accepted();
}

#[test]
fn outputs_that_overlap_themselves() {
    // Rows of 128 elements every 120; heads that reach into the next position; batch entries that share their last position.
    Arguments::new().with(|a| a.o.layout.strides[2] = 120).is_invalid("o.strides");
    Arguments::new().with(|a| a.o.layout.strides[1] = 5 * 128).is_invalid("o.strides");
    Arguments::new().with(|a| a.o.layout.strides[0] = 299 * 6 * 128).is_invalid("o.strides");
}

#[test]
fn outputs_that_overlap_inputs() {
    let q_bytes = 2 * 300 * 6 * 128 * 2;
    let at = |address| Arguments::new().with(|a| a.o.address = address);
    at(Q).is_invalid("o");
    at(Q + q_bytes - 16).is_invalid("o");
    at(Q - q_bytes + 16).is_invalid("o");
    at(Q + q_bytes).accepted();
    at(Q - q_bytes).accepted();
    at(K).is_invalid("o");
    at(V).is_invalid("o");
    // Inputs may be one and the same.
    Arguments::of(1, 9, 9, 2, 2, 64, Layout::bshd).with(|a| (a.k, a.v) = (a.q, a.q)).accepted();
}

#[test]
fn the_fourth_slice_of_a_packed_buffer() {
    let (batch, seqlen, heads, head_dim) = (2, 300, 6, 64);
    let slices = |packed: Tensor4, dim: Dim, width: usize| {
        let [q, k, v, o] = [0, 1, 2, 3].map(|i| packed.slice(dim, i * width..(i + 1) * width).unwrap());
        Arguments { q, k, v, o, ..Arguments::new() }
    };
    let packed = |layout| Tensor4 { address: Q, dtype: DType::F16, layout };
    // [batch, seqlen, 4, heads, head_dim], [batch, seqlen, heads, 4, head_dim], and the same two with seqlen behind heads.
    slices(packed(Layout::bshd([batch, seqlen, 4 * heads, head_dim])), Dim::Heads, heads).accepted();
    slices(packed(Layout::bshd([batch, seqlen, heads, 4 * head_dim])), Dim::HeadDim, head_dim).accepted();
    slices(packed(Layout::bhsd([batch, seqlen, 4 * heads, head_dim])), Dim::Heads, heads).accepted();
    slices(packed(Layout::bhsd([batch, seqlen, heads, 4 * head_dim])), Dim::HeadDim, head_dim).accepted();
    // With grouped heads: 6 of Q, 2 of K, 2 of V, 6 of O.
    let grouped = packed(Layout::bshd([batch, seqlen, 16, head_dim]));
    let part = |range| grouped.slice(Dim::Heads, range).unwrap();
    let arguments = Arguments { q: part(0..6), k: part(6..8), v: part(8..10), o: part(10..16), ..Arguments::new() };
    arguments.accepted();
    // One head too early, O begins with the last of V.
    arguments.with(|a| a.o = part(9..15)).is_invalid("o");
}

#[test]
fn lse() {
    let lse = |address, len| Arguments::new().with(|a| a.lse = Some(Lse { address, len }));
    let rows = 2 * 6 * 300;
    assert_eq!(lse(LSE, rows).accepted().params.lse, LSE);
    lse(LSE + 4, rows + 1).accepted();
    assert_eq!(Arguments::new().accepted().params.lse, 0);
    lse(LSE, rows - 1).is_invalid("lse.len");
    lse(LSE + 2, rows).is_invalid("lse.address");
    lse(0, rows).is_invalid("lse.address");
    lse(u64::MAX - 3, rows).is_invalid("lse.len");
    for inside in [Q, K, V, O, O + 4, O - 4] {
        lse(inside, rows).is_invalid("lse");
    }
    // Room beyond the rows is not written, so it may meet a tensor.
    lse(Q - 4 * rows as u64, 10 * rows).accepted();
}

#[test]
fn nothing_to_write() {
    let anywhere = |a: &mut Arguments| {
        a.each(|tensor| tensor.address = 1);
        a.lse = Some(Lse { address: 1, len: 0 });
    };
    for (batch, seqlen_q, heads, heads_k) in [(0, 300, 6, 2), (2, 0, 6, 2), (2, 300, 0, 2), (2, 300, 0, 0), (0, usize::MAX >> 40, 0, 0)] {
        let empty = Arguments::of(batch, seqlen_q, 500, heads, heads_k, 128, Layout::bshd).with(anywhere);
        assert!(empty.plan().unwrap().is_none());
        // The other rules hold all the same.
        empty.with(|a| a.options.softmax_scale = Some(0.0)).is_invalid("softmax_scale");
    }
}

#[test]
fn no_keys() {
    for causal in [false, true] {
        let no_keys = Arguments::of(2, 300, 0, 6, 2, 128, Layout::bshd).with(|a| {
            (a.k.address, a.v.address) = (0, 1);
            a.options.causal = causal;
        });
        let plan = no_keys.accepted();
        assert!(plan.maps[0].is_some() && plan.maps[3].is_some());
        assert_eq!((plan.maps[1], plan.maps[2], plan.params.seqlen_k), (None, None, 0));
    }
}

#[test]
fn large_problems() {
    // Offsets beyond 2^31 elements, batch x heads beyond 65535, a million positions.
    let plan = Arguments::of(70_000, 1, 1, 3, 1, 64, Layout::bshd).accepted();
    assert_eq!(plan.params.schedule.num_tiles(), 210_000);
    let far = Arguments::new().with(|a| a.k.layout.strides[0] = 1 << 33).accepted();
    assert_eq!(far.maps[1].unwrap().strides_bytes[2], 1 << 34);
    Arguments::of(1, 1 << 20, 1 << 20, 1, 1, 256, Layout::bhsd).with(apart).accepted();
    Arguments::of(1, 1, MAX_SEQLEN as usize, 1, 1, 8, Layout::bshd).with(apart).accepted();
    Arguments::of(1, 1, MAX_SEQLEN as usize + 1, 1, 1, 8, Layout::bshd).is_unsupported("k.seqlen");
    Arguments::of(1, MAX_SEQLEN as usize + 1, 1, 1, 1, 8, Layout::bshd).is_unsupported("q.seqlen");
    Arguments::of(1 << 30, 1, 1, 1, 1, 8, Layout::bshd).with(apart).is_unsupported("batch * num_heads * row tiles");
}

/// Moves the tensors so far apart that the largest do not meet.
pub(super) fn apart(a: &mut Arguments) {
    (a.q.address, a.k.address, a.v.address, a.o.address) = (1 << 48, 1 << 49, 1 << 50, 1 << 51);
}

#[test]
fn absurd_extents_are_errors() {
    let sizes = [1, 2, 1 << 31, 1 << 32, 1 << 62, usize::MAX / 2, usize::MAX];
    for batch in sizes {
        for seqlen in sizes {
            for heads in sizes {
                for layout in [Layout::bshd, Layout::bhsd] {
                    let small = batch.saturating_mul(seqlen).saturating_mul(heads) <= 8;
                    for lse in [None, Some(Lse { address: LSE, len: usize::MAX })] {
                        let plan = Arguments::of(batch, seqlen, seqlen, heads, 1, 64, layout).with(apart).with(|a| a.lse = lse).plan();
                        assert_eq!(plan.is_ok(), small, "{batch} {seqlen} {heads}: {plan:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn causal_heads_are_taken_as_the_cache_holds_them() {
    // 4096 keys of 128 columns are 2 MiB of K and V: 8 heads at a time. The first 8 tiles are the last row tiles of 8 heads.
    let causal =
        |seqlen| Arguments::of(1, seqlen, seqlen, 64, 64, 128, Layout::bshd).with(|a| a.options.causal = true).with(apart).accepted();
    let head = |plan: &Plan, rank| plan.params.schedule.tile(rank).unwrap().head_idx;
    let plan = causal(4096);
    assert_eq!((head(&plan, 7), head(&plan, 8)), (7, 0));
    // 512 keys are 256 KiB, and 8 MiB are enough for them: 32 heads at a time.
    let plan = causal(512);
    assert_eq!((head(&plan, 31), head(&plan, 32)), (31, 0));
    // Longer than the cache: one head at a time.
    assert_eq!(head(&causal(1 << 20), 1), 0);
    let full = Arguments::of(1, 4096, 4096, 64, 64, 128, Layout::bshd).with(apart).accepted();
    assert_eq!(head(&full, 1), 0);
}

#[test]
fn tiles_are_drawn_where_a_cta_has_more_than_one() {
    let plan = |causal| Arguments::new().with(|a| a.options.causal = causal).accepted();
    for plan in [plan(false), plan(true)] {
        let tiles = plan.params.schedule.num_tiles();
        assert_eq!(plan.draws_tiles(plan.grid(tiles - 1)), plan.config.dynamic);
        assert!(!plan.draws_tiles(plan.grid(tiles)));
    }
}

#[test]
fn tiles_have_fewer_rows_where_all_run_at_once() {
    let causal = |batch, seqlen_q, heads| {
        Arguments::of(batch, seqlen_q, 500, heads, heads, 128, Layout::bshd).with(|a| a.options.causal = true).accepted()
    };
    // (batch, queries, heads): tiles of 128 rows, and of 192.
    for (problem, fewer, usual) in [((1, 129, 66), 132, 66), ((2, 128, 66), 132, 132), ((1, 1, 1), 1, 1), ((1, 1024, 16), 128, 96)] {
        let plan = || causal(problem.0, problem.1, problem.2);
        let rows = |plan: Plan| (plan.config.tile_m, plan.params.schedule.num_tiles(), plan.params.schedule.num_heads());
        assert_eq!(rows(plan().with_fewer_rows(fewer)), (128, fewer, problem.2 as u32));
        assert_eq!(rows(plan().with_fewer_rows(fewer - 1)), (192, usual, problem.2 as u32));
        let (few, many) = (plan().with_fewer_rows(fewer), plan());
        assert!(!few.draws_tiles(few.grid(fewer)));
        assert_eq!((few.maps, few.config.tile_n), (many.maps, many.config.tile_n));
    }
    // Where there is no such kernel, nothing changes.
    let full = Arguments::of(1, 1024, 500, 16, 16, 128, Layout::bshd).accepted();
    assert_eq!(full.with_fewer_rows(132).config.tile_m, 128);
    let window = Arguments::of(1, 1024, 500, 16, 16, 128, Layout::bshd).with(|a| a.options.window_left = Some(9)).accepted();
    assert_eq!(window.with_fewer_rows(132).config.tile_m, 192);
}

#[test]
fn without_a_slot_long_sequences_are_one_section() {
    for (seqlen, one_section) in [(4095, false), (4096, true), (16384, true)] {
        let arguments = Arguments::of(2, seqlen, seqlen, 24, 24, 128, Layout::bshd).with(|a| a.options.causal = true);
        let plan = arguments.with(apart).accepted();
        let m_blocks = seqlen.div_ceil(plan.config.tile_m as usize) as u64;
        let expected = if one_section { TileSchedule::new(2, 24, m_blocks, 48).unwrap() } else { plan.params.schedule };
        assert_eq!(plan.static_schedule(), expected, "{seqlen}");
        assert_ne!(plan.params.schedule, TileSchedule::new(2, 24, m_blocks, 48).unwrap(), "{seqlen}");
    }
}
