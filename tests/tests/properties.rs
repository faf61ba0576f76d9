//! Properties of the whole library, drawn by proptest: whatever the shape, layout and values, the result is that of the references, nothing
//! beside it is written, and a failing case shrinks to a small one that replays.
//!
//! `HOPPER_ATTENTION_PROPERTY_CASES` sets how many cases each property draws, `HOPPER_ATTENTION_PROPERTY_SEED` what they are drawn from.

use hopper_attention_kernels::config::{ScoreFunction, TileConfig, forward_config, general_config};
use hopper_attention_test_kernels::BOUNDS;
use hopper_attention_tests::{
    Case, DeviceTest, ElementType, Failure, Function, Number, Placement, Profile, Ragged, Score, Side, Sinks, Values, check_case,
    check_ragged, trials,
};
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::fmt::Debug;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

const SEED_VARIABLE: &str = "HOPPER_ATTENTION_PROPERTY_SEED";

fn main() -> ExitCode {
    let settings = || Ok::<_, Failure>((seed()?, Profile::of_environment()?.property_cases()?));
    let (seed, count) = match settings() {
        Ok(settings) => settings,
        Err(failure) => {
            eprintln!("properties: {failure}");
            return ExitCode::FAILURE;
        }
    };
    println!("{SEED_VARIABLE}={seed}");
    trials::run("properties", || tests(seed, count))
}

fn tests(seed: u64, count: u32) -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for dtype in ElementType::ALL {
        for causal in [false, true] {
            let name = |property: &str| format!("{property}::{}_{}", dtype.name(), if causal { "causal" } else { "full" });
            tests.push(DeviceTest::new(name("any_shape"), move || holds(seed, count, shapes(dtype, causal), check_case)));
            tests.push(DeviceTest::new(name("any_layout"), move || holds(seed, count, layouts(dtype, causal), check_case)));
            tests.push(DeviceTest::new(name("any_values"), move || holds(seed, count, values(dtype, causal), check_case)));
            tests.push(DeviceTest::new(name("any_features"), move || holds(seed, count, dense_features(dtype, causal), check_case)));
            tests.push(DeviceTest::new(name("any_ragged"), move || holds(seed, count, ragged(dtype, causal), check_ragged)));
            let few = count.div_ceil(3);
            tests.push(DeviceTest::new(name("any_function"), move || holds(seed, few, functions(dtype, causal), check_ragged)));
        }
    }
    tests
}

fn seed() -> Result<u64, Failure> {
    match std::env::var(SEED_VARIABLE) {
        Ok(seed) => seed.parse().map_err(|_| Failure(format!("{SEED_VARIABLE} is '{seed}', but must be a number"))),
        Err(_) => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| Failure(error.to_string()))?;
            Ok(now.as_nanos() as u64)
        }
    }
}

/// Draws `count` cases and checks each; a failure is shrunk.
fn holds<C: Debug>(seed: u64, count: u32, cases: impl Strategy<Value = C>, check: fn(&C) -> Result<(), Failure>) -> Result<(), Failure> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases: count, max_shrink_iters: 1000, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let outcome = runner.run(&cases, |case| check(&case).map_err(|failure| TestCaseError::fail(failure.0)));
    outcome.map_err(|error| match error {
        // The reason holds the text of the shrunk case.
        TestError::Fail(reason, _) => Failure(format!("{SEED_VARIABLE}={seed}: {reason}")),
        TestError::Abort(reason) => Failure(format!("{SEED_VARIABLE}={seed}: gave up, {reason}")),
    })
}

/// Every multiple of 8; the sizes that kernels are made for, and their neighbours, more often.
fn head_dims() -> impl Strategy<Value = usize> {
    prop_oneof![(1..=32usize).prop_map(|eighths| 8 * eighths), select(vec![64, 72, 96, 104, 128, 136, 192, 200, 248, 256])]
}

/// Of Q and of V: equal, or those that have kernels of their own, or any.
fn pairs_of_head_dims() -> impl Strategy<Value = (usize, usize)> {
    let own = ((17..=24usize), (1..=16usize)).prop_map(|(eighths, eighths_v)| (8 * eighths, 8 * eighths_v));
    prop_oneof![6 => head_dims().prop_map(|head_dim| (head_dim, head_dim)), 1 => Just((192, 128)), 1 => own, 2 => (head_dims(), head_dims())]
}

/// Lengths around the edges of tiles, and any others.
fn lengths(tile: u32, longest: usize) -> impl Strategy<Value = usize> {
    let edges = (1..=4usize, 0..3usize).prop_map(move |(tiles, beside)| (tiles * tile as usize + beside).saturating_sub(1));
    let warpgroups = (1..=3usize, 0..3usize).prop_map(|(rows, beside)| 64 * rows + beside - 1);
    prop_oneof![3 => edges, 1 => warpgroups, 2 => 1..=longest, 1 => 1..=20usize].prop_map(move |length| length.min(longest))
}

/// Batch entries, key heads, and query heads for each key head.
fn heads() -> impl Strategy<Value = (usize, usize, usize)> {
    (1..=3usize, 1..=3usize, select(vec![1, 1, 2, 3, 4, 5, 6, 7, 8]))
}

/// Shapes of one kernel or another, with everything else as usual.
fn shapes(dtype: ElementType, causal: bool) -> impl Strategy<Value = Case> {
    let longest = Profile::get().pick(900, 200);
    let tiles = move |(head_dim, head_dim_v): (usize, usize)| -> TileConfig {
        forward_config(head_dim as u32, head_dim_v as u32, causal).expect("a kernel for all head dims")
    };
    pairs_of_head_dims()
        .prop_flat_map(move |head_dims| {
            let tile = tiles(head_dims);
            let lengths_k = prop_oneof![12 => lengths(tile.tile_n, longest), 1 => Just(0)];
            (Just(head_dims), lengths(tile.tile_m, longest), lengths_k, heads(), any::<u64>())
        })
        .prop_map(move |(head_dims, seqlen_q, seqlen_k, (batch, heads_k, ratio), seed)| {
            let case = Case::new(dtype, head_dims, seqlen_q, seqlen_k).causal(causal).heads(batch, heads_k * ratio, heads_k);
            Case { seed, ..case }.judging_pairs(Profile::get().judged_pairs() / 8)
        })
}

fn placement(may_broadcast: bool) -> impl Strategy<Value = Placement> {
    let orders = select(vec![[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]);
    let gap = || prop_oneof![2 => Just(0), 1 => (0..40usize).prop_map(|eighths| 8 * eighths)];
    let rarely = move || prop_oneof![4 => Just(false), 1 => Just(may_broadcast)];
    (orders, [gap(), gap(), gap()], rarely(), rarely(), 0..16usize, any::<bool>()).prop_map(
        |(order, gaps, broadcast_batch, broadcast_heads, eighths, wild_strides)| Placement {
            order,
            gaps,
            broadcast_batch,
            broadcast_heads,
            offset: 8 * eighths,
            wild_strides,
        },
    )
}

/// Any shape, with tensors anywhere.
fn layouts(dtype: ElementType, causal: bool) -> impl Strategy<Value = Case> {
    (shapes(dtype, causal), placement(true), placement(true), placement(true), placement(false), any::<[bool; 2]>()).prop_map(
        |(case, q, k, v, o, [packed, lse])| {
            // What is a slice of one tensor has one head_dim.
            let packed = packed && case.seqlen_k > 0 && case.o_head_dim() == case.head_dim;
            let seqlen_k = if packed { case.seqlen_q } else { case.seqlen_k };
            Case { q, k, v, o, packed, lse, seqlen_k, ..case }
        },
    )
}

/// Any shape, with values of any size.
fn values(dtype: ElementType, causal: bool) -> impl Strategy<Value = Case> {
    let power_of_two = |range: std::ops::RangeInclusive<i32>| range.prop_map(|exponent| (exponent as f32).exp2());
    let values = prop_oneof![
        power_of_two(-6..=9).prop_map(|factor| Values::Normal { factor }),
        power_of_two(-2..=5).prop_map(|factor| Values::Peaked { factor }),
        Just(Values::Integers),
        Just(Values::Tiny),
    ];
    let scale = prop_oneof![2 => Just(None), 1 => power_of_two(-10..=2).prop_map(Some)];
    // Only exact logits may be of any size.
    let scale_of_exact = power_of_two(-10..=60).prop_map(Some);
    (shapes(dtype, causal), values, scale, scale_of_exact).prop_map(|(case, values, scale, scale_of_exact)| {
        let softmax_scale = if values.logits_are_exact() { scale_of_exact } else { scale };
        Case { softmax_scale, ..case.values(values) }
    })
}

/// A window, a score function and sinks, each of them or not.
fn features(case: Case) -> impl Strategy<Value = Case> {
    let longest: usize = Profile::get().pick(900, 200);
    let bound = move || prop_oneof![2 => Just(None), 1 => (0..=8usize).prop_map(Some), 3 => (0..=longest).prop_map(Some)];
    let score = prop_oneof![
        2 => Just(Score::Identity),
        1 => (-2..=6i32).prop_map(|exponent| Score::SoftCap((exponent as f32).exp2())),
        1 => Just(Score::Alibi),
    ];
    let sink = select(vec![Number::Finite(0.0), Number::NegativeInfinity, Number::Finite(1e4), Number::Finite(-1e4)]);
    let sinks = prop_oneof![
        2 => Just(None),
        1 => any::<u64>().prop_map(|seed| Some(Sinks::Drawn(seed))),
        1 => Just(Some(Sinks::Mixed)),
        1 => sink.prop_map(|number| Some(Sinks::All(number))),
    ];
    let factor = (-2..=5i32).prop_map(|exponent| Values::Normal { factor: (exponent as f32).exp2() });
    (bound(), bound(), score, sinks, factor).prop_map(move |(left, right, score, sinks, factor)| {
        let mut case = case.clone().window(left, right).score(score).values(factor);
        case.features.sinks = sinks;
        case
    })
}

/// Any shape and layout, with any features.
fn dense_features(dtype: ElementType, causal: bool) -> impl Strategy<Value = Case> {
    layouts(dtype, causal).prop_flat_map(|case| features(Case { packed: false, ..case }))
}

/// How one side lies, and where: padded sequences have a batch stride of whole rows.
fn side(may_broadcast: bool) -> impl Strategy<Value = (Side, Placement)> {
    let spare = || prop_oneof![1 => Just(0), 1 => 0..=9usize];
    (placement(may_broadcast), any::<bool>(), spare(), spare()).prop_map(|(placement, packed, spare, margin)| {
        let side = Side { packed, spare, margin, capacity: 0 };
        let [_, seqlen, heads] = placement.gaps;
        let placement = match (packed, placement.order[2]) {
            (true, _) => placement,
            // [b, s, h, d] and [b, h, s, d].
            (false, 2) => Placement { order: [0, 1, 2], gaps: [0, seqlen, heads], ..placement },
            (false, _) => Placement { order: [0, 2, 1], gaps: [0, seqlen, 0], ..placement },
        };
        (side, placement)
    })
}

/// Up to seven sequences of any lengths, packed or padded, with any features.
fn ragged(dtype: ElementType, causal: bool) -> impl Strategy<Value = Ragged> {
    let longest = Profile::get().pick(600, 140);
    pairs_of_head_dims()
        .prop_flat_map(move |(head_dim, head_dim_v)| {
            let tile = general_config(head_dim as u32, head_dim_v as u32, ScoreFunction::Identity).expect("a kernel for all head dims");
            let length = |tile| prop_oneof![5 => lengths(tile, longest), 1 => Just(0)];
            let sequences = prop::collection::vec((length(tile.tile_m), length(tile.tile_n)), 1..=7);
            (Just((head_dim, head_dim_v)), sequences, heads(), side(true), side(true), placement(true), any::<(bool, u64)>())
        })
        .prop_flat_map(move |(head_dims, sequences, (_, heads_k, ratio), (q_side, q), (k_side, k), v, (lse, seed))| {
            // V is packed or padded as K is, and lies elsewhere only where K is packed.
            let v = if k_side.packed { v } else { k };
            let o = Placement { broadcast_batch: false, broadcast_heads: false, ..q };
            let case = Case::new(dtype, head_dims, 0, 0).causal(causal).heads(1, heads_k * ratio, heads_k);
            let case = Case { q, k, v, o, lse, seed, ..case };
            features(case).prop_map(move |case| Ragged::new(case, &sequences).sides(q_side, k_side))
        })
}

/// Sequences of any lengths by the test kernels, whose functions are told any numbers.
fn functions(dtype: ElementType, causal: bool) -> impl Strategy<Value = Ragged> {
    let bounds_and_slope = || (0..BOUNDS, select(vec![0.0, 0.02, 1.0]));
    let prefix = bounds_and_slope().prop_map(|(bounds, slope)| Function::Prefix { bounds, slope });
    let others = match dtype {
        ElementType::F16 => {
            let bits = select(vec![0, 1, 3, 32, 64, 192]).prop_map(|bits| Function::Comb { bits });
            let wide = bounds_and_slope().prop_map(|(bounds, slope)| Function::WidePrefix { bounds, slope });
            prop_oneof![2 => bits, 1 => Just(Function::Even), 1 => wide].boxed()
        }
        ElementType::Bf16 => {
            let bias = select(vec![0, 1, 30, 500]).prop_map(|max_distance| Function::Bias { max_distance });
            prop_oneof![2 => bias, 1 => (0..200u32).prop_map(|key| Function::Faults { key })].boxed()
        }
    };
    (ragged(dtype, causal), prop_oneof![prefix, others]).prop_map(move |(ragged, function)| {
        let mut case = ragged.case.clone().score(Score::Identity).function(function);
        let head_dim = function.kernel(dtype).head_dim();
        case.head_dim = case.head_dim.min(head_dim);
        case.features.head_dim_v = case.features.head_dim_v.map(|head_dim_v| head_dim_v.min(head_dim));
        Ragged { case, ..ragged }
    })
}
