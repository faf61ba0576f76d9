//! Kernels of score and mask functions of one's own (`tests/kernels`): against the same functions in float64, and what else they promise.

use crate::windows::bits;
use half::{bf16, f16};
use hopper_attention::{CustomKernel, Error, raw};
use hopper_attention_test_kernels::BOUNDS;
use hopper_attention_tests::gpu::{Gpu, Stream};
use hopper_attention_tests::{
    Call, Case, Custom, DeviceProblem, DeviceTest, Edit, ElementType, Failure, Function, Inputs, Needs, Number, Operand, Output, Placement,
    Profile, Ragged, RaggedProblem, Refusal, Side, Sinks, TestElement, Values, check_case, check_cases, check_inputs, check_output,
    check_ragged, ensure, random_bits, with_element,
};

const COMB: Function = Function::Comb { bits: 3 };
const BIAS: Function = Function::Bias { max_distance: 40 };
const PREFIX: Function = Function::Prefix { bounds: 0, slope: 0.05 };
const WIDE_PREFIX: Function = Function::WidePrefix { bounds: 0, slope: 0.05 };
const FAULTS: Function = Function::Faults { key: 2 };

/// Every kernel: its name, functions, dtype and head_dim.
const KERNELS: [(&str, Function, ElementType, usize); 8] = [
    ("comb_hdim64_f16", COMB, ElementType::F16, 64),
    ("bias_hdim128_bf16", BIAS, ElementType::Bf16, 128),
    ("prefix_hdim64_bf16", PREFIX, ElementType::Bf16, 64),
    ("prefix_hdim64_f16", WIDE_PREFIX, ElementType::F16, 64),
    ("prefix_hdim256_f16", PREFIX, ElementType::F16, 256),
    ("even_hdim96_f16", Function::Even, ElementType::F16, 96),
    ("faults_hdim192_bf16", FAULTS, ElementType::Bf16, 192),
    ("limit_hdim256_bf16", Function::Limit, ElementType::Bf16, 256),
];

/// (seqlen_q, seqlen_k): around the edges of tiles.
const LENGTHS: [(usize, usize); 14] = [
    (1, 1),
    (130, 129),
    (65, 193),
    (200, 70),
    (1, 200),
    (64, 63),
    (257, 33),
    (128, 128),
    (66, 1),
    (129, 300),
    (63, 97),
    (300, 257),
    (3, 95),
    (192, 65),
];

/// Of packed and padded sequences; the last one's arrays end with it.
const SEQUENCES: [(usize, usize); 6] = [(0, 7), (70, 129), (1, 64), (65, 0), (130, 97), (66, 31)];

const LOOSE: Side = Side { packed: true, spare: 5, margin: 3, capacity: 0 };
const LOOSE_PADDED: Side = Side { packed: false, ..LOOSE };

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for (turn, (kernel, function, dtype, head_dim)) in KERNELS.into_iter().enumerate() {
        let name = |what: &str| format!("custom::{what}::{kernel}");
        let case = move || Case::new(dtype, head_dim, 0, 0).function(function);
        tests.push(DeviceTest::new(name("lengths"), move || lengths(&case(), turn)));
        tests.push(DeviceTest::new(name("windows"), move || windows(&case(), turn)));
        tests.push(DeviceTest::new(name("smaller_head_dims"), move || smaller_head_dims(&case())));
        tests.push(DeviceTest::new(name("packed"), move || ragged(&case(), LOOSE, LOOSE)));
        tests.push(DeviceTest::new(name("padded"), move || ragged(&case(), LOOSE_PADDED, LOOSE_PADDED)));
        tests.push(DeviceTest::new(name("neighbours_of_nan"), move || neighbours_of_nan(&case())));
        tests.push(DeviceTest::new(name("repeats"), move || repeats(&case())));
        tests.push(DeviceTest::on_hardware(name("long"), move || long(&case())));
    }
    for (kernel, dtype, head_dim) in [
        ("prefix_hdim64_bf16", ElementType::Bf16, 64),
        ("prefix_hdim64_f16", ElementType::F16, 64),
        ("prefix_hdim256_f16", ElementType::F16, 256),
    ] {
        let name = |what: &str| format!("custom::bounds::{what}::{kernel}");
        tests.push(DeviceTest::new(name("change_no_bit"), move || bounds_change_no_bit(dtype, head_dim)));
        tests.push(DeviceTest::new(name("of_every_kind"), move || bounds_of_every_kind(dtype, head_dim)));
        // The edges of that test's NaN are none of 128 keys.
        if kernel != "prefix_hdim64_f16" {
            tests.push(DeviceTest::new(name("skip_tiles"), move || bounds_skip_tiles(dtype, head_dim)));
        }
    }
    tests.push(DeviceTest::new("custom::comb_of_any_bits", comb_of_any_bits));
    tests.push(DeviceTest::new("custom::scales", scales));
    tests.push(DeviceTest::new("custom::layouts", layouts));
    tests.push(DeviceTest::new("custom::faults_stay_in_their_rows", faults_stay_in_their_rows));
    tests.push(DeviceTest::of_devices("custom::graphs", Needs::OneDevice, |gpus| graphs(&gpus[0])));
    tests.push(DeviceTest::new("custom::two_streams", two_streams));
    tests.push(DeviceTest::of_devices("custom::contexts", Needs::OneDevice, |gpus| contexts(&gpus[0])));
    tests.push(DeviceTest::of_devices("custom::first_use_by_many_threads", Needs::OneDevice, |gpus| many_threads(&gpus[0])));
    tests.push(DeviceTest::new("custom::no_such_kernel", no_such_kernel));
    tests.extend(
        refusals().into_iter().map(|refusal| DeviceTest::new(format!("custom::refusals::{}", refusal.name), move || refused(&refusal))),
    );
    tests
}

/// All on a GPU, a few on the emulator, others for each kernel.
fn some<T: Clone>(all: &[T], turn: usize, few: usize) -> Vec<T> {
    let (first, count) = Profile::get().pick((0, all.len()), (turn * few, few));
    all.iter().cycle().skip(first).take(count).cloned().collect()
}

/// Full and causal, grouped heads, two batch entries, with and without sinks.
fn lengths(case: &Case, turn: usize) -> Result<(), Failure> {
    check_cases(some(&LENGTHS, turn, 5).into_iter().enumerate().flat_map(|(index, (seqlen_q, seqlen_k))| {
        let case = Case { seqlen_q, seqlen_k, ..case.clone() }.heads(2, 2, 1);
        let all = [case.clone(), case.clone().causal(true), case.clone().sinks(Sinks::Mixed), case.causal(true).sinks(Sinks::Drawn(3))];
        all.into_iter().skip(Profile::get().pick(0, index % 4)).take(Profile::get().pick(4, 1))
    }))
}

fn windows(case: &Case, turn: usize) -> Result<(), Failure> {
    let windows = [(Some(40), Some(0)), (Some(0), Some(0)), (Some(64), Some(31)), (None, Some(7)), (Some(100), None), (Some(5), Some(140))];
    check_cases(some(&windows, turn, 2).into_iter().flat_map(|(left, right)| {
        let lengths = Profile::get().pick(vec![(150, 300), (300, 150), (257, 257)], vec![(140, 200)]);
        lengths.into_iter().map(move |(seqlen_q, seqlen_k)| {
            Case { seqlen_q, seqlen_k, ..case.clone() }.heads(1, 4, 2).window(left, right).sinks(Sinks::Drawn(1))
        })
    }))
}

/// Filled up with zeros, also where V has another head_dim.
fn smaller_head_dims(case: &Case) -> Result<(), Failure> {
    let case = Case { seqlen_q: 70, seqlen_k: 100, ..case.clone() };
    let smaller = Case { head_dim: case.head_dim - 24, ..case.clone() };
    check_cases([smaller.clone(), case.head_dim_v(8), Case { head_dim: 16, ..smaller }.head_dim_v(40)])
}

/// Indices are those within the sequence, and the number is the sequence's.
fn ragged(case: &Case, q: Side, k: Side) -> Result<(), Failure> {
    check_ragged(&Ragged::new(case.clone().heads(1, 2, 1).causal(true), &SEQUENCES).sides(q, k))?;
    check_ragged(&Ragged::new(case.clone().heads(1, 2, 2).sinks(Sinks::Mixed), &SEQUENCES).sides(q, k))?;
    if Profile::get() == Profile::Emulator {
        return Ok(());
    }
    let count = 60;
    let length = |seed, i| (random_bits(seed, i) as usize % 300).saturating_sub(40);
    let lengths: Vec<_> = (0..count).map(|i| (length(1, i), length(2, i))).collect();
    check_ragged(&Ragged::new(case.clone().heads(1, 6, 2).window(Some(100), Some(3)), &lengths).sides(q, k))?;
    check_ragged(&Ragged::new(case.clone().heads(1, 6, 2), &lengths).sides(q, LOOSE_PADDED))
}

/// Sequences of NaN leave their neighbours alone.
fn neighbours_of_nan(case: &Case) -> Result<(), Failure> {
    let ragged = Ragged::new(case.clone().heads(1, 2, 1), &[(20, 40), (70, 33), (9, 65)]).sides(Side::PACKED, Side::PACKED);
    with_element!(case.dtype, T => {
        let mut inputs = ragged.draw::<T>();
        let clean = RaggedProblem::new(&ragged, inputs.clone())?.run(&Stream::new()?)?;
        for index in [0, 2] {
            let Inputs { q, k, v } = &mut inputs[index];
            [q, k, v].into_iter().for_each(|data| data.fill(T::from_f32(f32::NAN)));
        }
        let output = RaggedProblem::new(&ragged, inputs)?.run(&Stream::new()?)?;
        ensure!(output[1].same_bits(&clean[1]), "neighbours of NaN change the bits of {}", ragged.text());
        ensure!(output[0].o.iter().any(|o| o.to_f32().is_nan()), "NaN is lost in {}", ragged.text());
        Ok(())
    })
}

/// The same bits every time, also where the tiles are drawn otherwise.
fn repeats(case: &Case) -> Result<(), Failure> {
    let ragged = Ragged::new(case.clone().heads(1, 2, 1).causal(true), &[(130, 100), (0, 3), (66, 129)]);
    with_element!(case.dtype, T => {
        let (problem, stream) = (RaggedProblem::<T>::new(&ragged, ragged.draw())?, Stream::new()?);
        let first = problem.run(&stream)?;
        for _ in 1..Profile::get().pick(100, 2) {
            problem.poison_output()?;
            let again = problem.run(&stream)?;
            ensure!(first.iter().zip(&again).all(|(one, other)| one.same_bits(other)), "other bits in another run of {}", ragged.text());
        }
        problem.check_surroundings()
    })
}

fn long(case: &Case) -> Result<(), Failure> {
    let case = case.clone().heads(2, 8, 2);
    check_cases([(4096, 4096), (1500, 5000), (5000, 1500)].into_iter().flat_map(|(seqlen_q, seqlen_k)| {
        let case = Case { seqlen_q, seqlen_k, ..case.clone() }.judging_pairs(1 << 21);
        [case.clone(), case.clone().causal(true), case.window(Some(700), Some(100)).sinks(Sinks::Drawn(2))]
    }))
}

fn prefix(dtype: ElementType, head_dim: usize, seqlen_q: usize, seqlen_k: usize, bounds: u32) -> Case {
    let function = match (dtype, head_dim) {
        (ElementType::F16, 64) => Function::WidePrefix { bounds, slope: 0.05 },
        _ => Function::Prefix { bounds, slope: 0.05 },
    };
    Case::new(dtype, head_dim, seqlen_q, seqlen_k).function(function)
}

/// Kinds of bounds: all, but for the larger kernel on the emulator.
fn kinds(head_dim: usize) -> Vec<u32> {
    let few = if head_dim == 64 { (0..BOUNDS).collect() } else { vec![0, 1, 4, 5, 6] };
    Profile::get().pick((0..BOUNDS).collect(), few)
}

/// Too wide a bound costs time, and no bit. Six batch entries: all the prefixes that there are.
fn bounds_change_no_bit(dtype: ElementType, head_dim: usize) -> Result<(), Failure> {
    let lengths = Profile::get().pick(vec![(200, 200), (300, 140), (100, 513), (1000, 1000)], vec![(140, 170)]);
    for (turn, (seqlen_q, seqlen_k)) in lengths.into_iter().enumerate() {
        for window in Profile::get()
            .pick(vec![(None, None), (Some(90), Some(60))], vec![[(None, None), (Some(90), Some(60))][(turn + head_dim / 64) % 2]])
        {
            let of = |kind| bits(&prefix(dtype, head_dim, seqlen_q, seqlen_k, kind).heads(6, 1, 1).window(window.0, window.1));
            let tight = of(0)?;
            for kind in kinds(head_dim).into_iter().skip(1) {
                ensure!(of(kind)? == tight, "bounds of kind {kind} change bits: {seqlen_q} queries, {seqlen_k} keys, window {window:?}");
            }
        }
    }
    Ok(())
}

/// Each judged by itself, with everything else that a call can ask for.
fn bounds_of_every_kind(dtype: ElementType, head_dim: usize) -> Result<(), Failure> {
    for kind in kinds(head_dim).into_iter().step_by(Profile::get().pick(1, 2)) {
        let case = prefix(dtype, head_dim, 0, 0, kind).heads(1, 2, 1).sinks(Sinks::Mixed);
        // The fifth sequence's first 64 queries see 65 keys: one more than half a tile of 128.
        let lengths = [(70, 129), (1, 64), (130, 97), (40, 150), (130, 131), (100, 420)];
        check_ragged(&Ragged::new(case.clone(), &lengths).sides(LOOSE, LOOSE_PADDED))?;
        if Profile::get() == Profile::Gpu {
            check_ragged(&Ragged::new(case.window(Some(80), None), &lengths).sides(LOOSE, LOOSE))?;
        }
    }
    Ok(())
}

/// NaN in V reaches every row whose key tiles hold it; so tiles outside of the bounds are not visited. The sequence of number 2 has keys that are
/// seen from 70 on, and a prefix of 131.
fn bounds_skip_tiles(dtype: ElementType, head_dim: usize) -> Result<(), Failure> {
    let seqlen = 400;
    let first_tile = 70 / PREFIX.kernel(dtype).tile_n() * PREFIX.kernel(dtype).tile_n();
    for kind in kinds(head_dim) {
        let mut case = prefix(dtype, head_dim, seqlen, seqlen, kind);
        case.features.custom = case.features.custom.map(|custom| Custom { first_sequence: 2, ..custom });
        // Before the tile of the first key that is seen; and from a tile on that only the rows from 320 on see.
        for position in (0..first_tile).chain(320..seqlen) {
            case.edits.push(Edit { column: None, ..Edit::one(Operand::V, position, 0, Number::Nan) });
        }
        let is_nan = with_element!(dtype, T => {
            let output = DeviceProblem::<T>::new(&case, &Inputs::draw(&case))?.run(&Stream::new()?)?;
            output.o.iter().map(|o| o.to_f32().is_nan()).collect::<Vec<_>>()
        });
        // Two warpgroups of 64 rows are a CTA. Where nothing is known of many rows, a warpgroup still spares itself what its own rows do not see;
        // where nothing is known of few, it visits what the CTA does. Bounds that are wider than needed hold the NaN of either side.
        let spared = match kind {
            0 | 2 | 5 | 6 | 8 => 320,
            4 => 256,
            _ => 0,
        };
        for (row, is_nan) in is_nan.chunks_exact(head_dim).enumerate() {
            let right = is_nan.iter().all(|&is_nan| is_nan == (row >= spared));
            ensure!(
                right,
                "NaN in tiles outside of bounds of kind {kind} should reach the rows from {spared} on, {row} is not so: {}",
                case.text()
            );
        }
    }
    Ok(())
}

/// From no bit to all of them: then a query sees at most its own number's key, and those behind the last key see nothing.
fn comb_of_any_bits() -> Result<(), Failure> {
    check_cases([0, 1, 32, 64, 128, u32::MAX].into_iter().flat_map(|bits| {
        let case = |seqlen_q, seqlen_k| Case::new(ElementType::F16, 64, seqlen_q, seqlen_k).function(Function::Comb { bits });
        [case(150, 140).heads(1, 2, 1), case(140, 70).causal(true).sinks(Sinks::Mixed)]
            .into_iter()
            .take(Profile::get().pick(2, 1 + (bits as usize & 1)))
    }))
}

/// A score function gets what softmax_scale makes of the products; without one the kernel rounds as those that ship do.
fn scales() -> Result<(), Failure> {
    let mut cases = Vec::new();
    for (_, function, dtype, head_dim) in KERNELS {
        let case = Case::new(dtype, head_dim, 40, 140).function(function);
        for (scale, values) in [
            (Some(1.0), Values::Normal { factor: 0.3 }),
            (Some(0.01), Values::Normal { factor: 4.0 }),
            (None, Values::Peaked { factor: 2.0 }),
        ] {
            cases.push(Case { softmax_scale: scale, ..case.clone().values(values) });
        }
    }
    // Where sums of products are exact, so is all that the model says.
    let exact = Case::new(ElementType::F16, 64, 100, 140).function(COMB).values(Values::Integers);
    cases.extend([1.0, 1e6, 1e-3].map(|scale| Case { softmax_scale: Some(scale), ..exact.clone() }));
    let turn = cases.len();
    check_cases(
        cases
            .into_iter()
            .enumerate()
            .filter(|(index, _)| Profile::get().pick(true, index % 2 == 0 || index + 3 >= turn))
            .map(|(_, case)| case),
    )
}

/// Other orders of dimensions, gaps, tensors that serve all heads and batch entries.
fn layouts() -> Result<(), Failure> {
    let once = Placement { broadcast_batch: true, broadcast_heads: true, ..Placement::BSHD };
    let loose = Placement { gaps: [16, 8, 24], offset: 8, ..Placement::BHSD };
    let case = |(_, function, dtype, head_dim): (&str, Function, ElementType, usize)| {
        let case = Case::new(dtype, head_dim, 70, 90).heads(2, 2, 2).function(function);
        [case.clone().placed(loose), Case { k: once, v: once, ..case }]
    };
    check_cases(KERNELS.into_iter().step_by(Profile::get().pick(1, 2)).flat_map(case))
}

/// NaN reaches only the rows whose score it is; a row whose scores are all -inf counts as one that sees no key.
fn faults_stay_in_their_rows() -> Result<(), Failure> {
    for (seqlen_q, seqlen_k, key) in [(150, 170, 2), (150, 170, 100), (70, 81, 80)] {
        let case = Case::new(ElementType::Bf16, 192, seqlen_q, seqlen_k).function(Function::Faults { key });
        let output = check_inputs(&case, &Inputs::<bf16>::draw(&case))?;
        let lse = output.lse.unwrap_or_default();
        for (row, (o, lse)) in output.o.chunks_exact(192).zip(lse).enumerate() {
            let right = match row % 16 {
                1 => o.iter().all(|o| o.to_f32() == 0.0) && lse == f32::NEG_INFINITY,
                5 | 7 => o.iter().all(|o| o.is_nan()) && lse.is_nan(),
                9 => o.iter().all(|o| o.is_finite()) && lse == 1e30,
                _ => o.iter().all(|o| o.is_finite()) && lse.abs() < 100.0,
            };
            ensure!(right, "row {row} is {:?}, its LSE {lse}: {}", &o[..4], case.text());
        }
    }
    Ok(())
}

/// Captured once, and replayed with other lengths and other prefixes.
fn graphs(gpu: &'static Gpu) -> Result<(), Failure> {
    let case = Case::new(ElementType::Bf16, 64, 0, 0).heads(1, 2, 1).function(PREFIX).causal(true).sinks(Sinks::Drawn(4));
    let side = Side { packed: true, spare: 3, margin: 1, capacity: 800 };
    let length = |seed: u64, i: usize| (random_bits(seed, i as u64) as usize % 190).saturating_sub(40);
    let of_round = |round: u64| {
        let lengths: Vec<_> = (0..5).map(|i| (length(round, i), length(100 + round, i))).collect();
        Ragged::new(case.clone(), &lengths).sides(side, side)
    };
    let mut captured = RaggedProblem::<bf16>::new(&of_round(0), of_round(0).draw())?;
    // In a context that has not seen the kernel, the capture is its first use.
    let context = gpu.new_context()?;
    let mut first = RaggedProblem::<bf16>::new(&of_round(0), of_round(0).draw())?;
    replays(&mut first, of_round, 1)?;
    drop(first);
    drop(context);
    gpu.make_current()?;
    replays(&mut captured, of_round, Profile::get().pick(10, 2))
}

fn replays(captured: &mut RaggedProblem<bf16>, of_round: impl Fn(u64) -> Ragged, rounds: u64) -> Result<(), Failure> {
    let (origin, stream) = (Stream::new()?, Stream::new()?);
    let graph = origin.capture(|| captured.enqueue(&origin))?;
    for round in 1..=rounds {
        captured.replace(&of_round(round), of_round(round).draw())?;
        // SAFETY: the graph works on the memory of `captured`, which outlives it, and is in flight once.
        unsafe { graph.launch(&stream)? };
        stream.wait(|| format!("a replay of {}", of_round(round).text()))?;
        captured.judge().map_err(|failure| failure.during(format!("replay {round}")))?;
    }
    Ok(())
}

/// A problem whose result is known to be right.
fn known<T: TestElement>(case: &Case) -> Result<(DeviceProblem<T>, Output<T>), Failure> {
    let inputs = Inputs::draw(case);
    let problem = DeviceProblem::new(case, &inputs)?;
    let output = problem.run(&Stream::new()?)?;
    check_output(case, &inputs, &output)?;
    problem.poison_output()?;
    Ok((problem, output))
}

/// Two calls of one kernel with other arguments, and one of another kernel, all in flight together.
fn two_streams() -> Result<(), Failure> {
    let case = |slope| Case::new(ElementType::Bf16, 64, 150, 150).heads(2, 3, 1).function(Function::Prefix { bounds: 0, slope });
    let (one, other) = (known::<bf16>(&case(0.01))?, known::<bf16>(&case(1.0))?);
    let third = known::<f16>(&Case::new(ElementType::F16, 64, 150, 140).heads(1, 3, 1).function(COMB))?;
    ensure!(!one.1.same_bits(&other.1), "arguments change nothing");
    for _ in 0..Profile::get().pick(50, 1) {
        let streams = [Stream::new()?, Stream::new()?, Stream::new()?];
        for _ in 0..2 {
            one.0.enqueue(&streams[0])?;
            other.0.enqueue(&streams[1])?;
            third.0.enqueue(&streams[2])?;
        }
        for stream in &streams {
            stream.wait(|| "kernels of functions on several streams".to_string())?;
        }
        let same = one.0.output()?.same_bits(&one.1) && other.0.output()?.same_bits(&other.1) && third.0.output()?.same_bits(&third.1);
        ensure!(same, "on several streams the results are others");
    }
    Ok(())
}

/// A kernel, and a clone of it, in a context of its own beside the primary one.
fn contexts(gpu: &'static Gpu) -> Result<(), Failure> {
    let case = Case::new(ElementType::F16, 96, 70, 90).function(Function::Even);
    let (problem, expected) = known::<f16>(&case)?;
    for _ in 0..2 {
        let context = gpu.new_context()?;
        let kernel = Function::Even.kernel(ElementType::F16).clone();
        kernel.prepare()?;
        let (own, output) = known::<f16>(&case)?;
        ensure!(output.same_bits(&expected), "other bits in another context");
        drop(own);
        drop(context);
        gpu.make_current()?;
    }
    ensure!(problem.run(&Stream::new()?)?.same_bits(&expected), "other bits after a context is gone");
    Ok(())
}

/// In a context that has not seen the kernel.
fn many_threads(gpu: &'static Gpu) -> Result<(), Failure> {
    let context = gpu.new_context()?;
    let called = std::thread::scope(|scope| {
        let call = || {
            context.make_current()?;
            known::<f16>(&Case::new(ElementType::F16, 64, 66, 40).function(COMB)).map(drop)
        };
        let threads: Vec<_> = (0..Profile::get().pick(8, 3)).map(|_| scope.spawn(call)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a thread panicked".into())))
    });
    drop(context);
    gpu.make_current()?;
    called
}

/// What is no kernel is refused before there is one, and what only looks like one when it is loaded.
fn no_such_kernel() -> Result<(), Failure> {
    let right = COMB.ptx(ElementType::F16);
    let (version, facts) = (env!("CARGO_PKG_VERSION"), right.lines().nth(1).unwrap_or_default());
    ensure!(facts.contains(&format!(" {version} ")), "the second line should be the kernel's facts: {facts}");
    let own = format!(" {version} ");
    for (text, words) in [
        (String::new(), "0 entries"),
        ("\u{1f}garbage of no kind".to_string(), "0 entries"),
        (right.replacen(&own, " 9.9.9 ", 1), "9.9.9"),
        (right.replacen(facts, "", 1), "facts"),
        (format!("{right}{right}"), "2 entries"),
        (format!("{right}\u{0}"), "NUL"),
    ] {
        let answer = CustomKernel::from_ptx_untyped(text);
        let named = matches!(&answer, Err(Error::Invalid { field, .. }) if field == "ptx");
        let told = answer.as_ref().err().is_some_and(|error| error.to_string().contains(words));
        ensure!(named && told, "expected an error that names ptx and says {words}, got {answer:?}");
    }
    // A text whose head is a kernel's and whose body is none.
    let head = &right[..right.find('{').unwrap_or(right.len())];
    let kernel = CustomKernel::from_ptx_untyped(format!("{head}{{\n\tno_such_instruction;\n}}\n"))?;
    let answer = kernel.prepare();
    ensure!(matches!(answer, Err(Error::Load { .. })), "expected the driver to refuse it, got {answer:?}");
    // Not once and for all: it is asked again, and the right one is as good as ever.
    ensure!(kernel.prepare().is_err(), "what was refused is there");
    CustomKernel::from_ptx_untyped(right)?.prepare()?;
    check_case(&Case::new(ElementType::F16, 64, 5, 5).function(COMB))
}

fn refusals() -> Vec<Refusal> {
    fn other_kernel(call: &mut Call, function: Function, dtype: ElementType) {
        if let Some(custom) = &mut call.custom {
            custom.kernel = function.kernel(dtype);
        }
    }
    vec![
        Refusal::invalid("args_of_another_size", "args", |call| {
            if let Some(custom) = &mut call.custom {
                custom.function = Function::Even;
            }
        }),
        Refusal::invalid("no_args_wanted", "args", |call| other_kernel(call, Function::Even, ElementType::F16)),
        Refusal::unsupported("head_dim_above_the_kernels", "q.head_dim", |call| {
            for tensor in [&mut call.q, &mut call.k] {
                tensor.layout.shape[3] = 72;
            }
        }),
        Refusal::unsupported("head_dim_v_above_the_kernels", "v.head_dim", |call| {
            for tensor in [&mut call.v, &mut call.o] {
                tensor.layout.shape[3] = 128;
            }
        }),
        Refusal::unsupported("another_dtype", "q.dtype", |call| other_kernel(call, PREFIX, ElementType::F16)),
        Refusal::unsupported("softcap", "softcap", |call| call.options.softcap = Some(30.0)),
        Refusal::unsupported("alibi_slopes", "alibi_slopes", |call| call.arrays.alibi_slopes = call.arrays.sinks),
        Refusal::invalid("softmax_scale_below_0", "softmax_scale", |call| call.options.softmax_scale = Some(-1.0)),
        Refusal::invalid("sinks_too_few", "sinks.len", |call| {
            call.arrays.sinks = call.arrays.sinks.map(|array| raw::Array { len: array.len - 1, ..array });
        }),
        Refusal::invalid("output_over_queries", "o", |call| call.o.address = call.q.address),
    ]
}

/// Of a right call of `prefix_hdim64_bf16`; nothing is launched, and the right call works thereafter.
fn refused(refusal: &Refusal) -> Result<(), Failure> {
    let case = Case::new(ElementType::Bf16, 64, 20, 30).heads(2, 4, 2).function(PREFIX).sinks(Sinks::Drawn(1));
    let inputs = Inputs::<bf16>::draw(&case);
    let (problem, stream) = (DeviceProblem::new(&case, &inputs)?, Stream::new()?);
    refusal.check(problem.call, &stream)?;
    problem.check_untouched()?;
    check_output(&case, &inputs, &problem.run(&stream)?)
}
