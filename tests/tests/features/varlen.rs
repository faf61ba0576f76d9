//! Sequences of several lengths: packed, padded, one side so and the other so; in any layout, with every feature.

use crate::native_head_dims;
use half::bf16;
use hopper_attention::HeadDims;
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{
    Case, DeviceTest, ElementType, Failure, Inputs, Placement, Profile, Ragged, RaggedProblem, Score, Side, Sinks, check_ragged, ensure,
    random_bits,
};

/// Empty ones anywhere, single rows, edges of tiles and beside them.
const LENGTHS: [(usize, usize); 10] = [(0, 9), (1, 1), (64, 63), (0, 0), (129, 193), (65, 0), (0, 0), (3, 129), (193, 70), (0, 5)];
/// Fewer.
const SHORT: [(usize, usize); 5] = [(0, 7), (70, 129), (1, 64), (65, 0), (66, 31)];

/// Rows of nobody everywhere: around all sequences, and behind each.
const LOOSE: Side = Side { packed: true, spare: 5, margin: 3, capacity: 0 };
const LOOSE_PADDED: Side = Side { packed: false, ..LOOSE };

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for head_dims in native_head_dims() {
        for dtype in ElementType::ALL {
            let name = |what: &str| format!("varlen::{what}::hdim{head_dims}_{}", dtype.name());
            tests.push(DeviceTest::new(name("packed"), move || packed(dtype, head_dims)));
            tests.push(DeviceTest::new(name("rows_of_nobody"), move || rows_of_nobody(dtype, head_dims)));
            tests.push(DeviceTest::new(name("scores_and_sinks"), move || scores_and_sinks(dtype, head_dims)));
        }
        tests.push(DeviceTest::new(format!("varlen::one_side_only::hdim{head_dims}"), move || one_side_only(head_dims)));
        tests.push(DeviceTest::new(format!("varlen::window_that_hides_nothing::hdim{head_dims}"), move || hides_nothing(head_dims)));
        tests.push(DeviceTest::new(format!("varlen::others_are_nan::hdim{head_dims}"), move || others_are_nan(head_dims)));
        tests.push(DeviceTest::on_hardware(format!("varlen::long::hdim{head_dims}"), move || long(head_dims)));
    }
    tests.push(DeviceTest::new("varlen::layouts", layouts));
    tests.push(DeviceTest::new("varlen::slices_of_a_packed_qkv", slices_of_qkv));
    tests.push(DeviceTest::new("varlen::keys_that_serve_all_sequences", keys_that_serve_all));
    tests.push(DeviceTest::new("varlen::unequal_head_dims", unequal_head_dims));
    tests.push(DeviceTest::new("varlen::everything_at_once", everything_at_once));
    tests.push(DeviceTest::new("varlen::one_sequence", one_sequence));
    tests.push(DeviceTest::new("varlen::nothing_but_empty_sequences", all_empty));
    tests.push(DeviceTest::new("varlen::many_short_sequences", many_short));
    tests.push(DeviceTest::new("varlen::more_tiles_than_multiprocessors", many_tiles));
    tests
}

/// Checks all, and fails with the first few that fail.
fn check_all(all: impl IntoIterator<Item = Ragged>) -> Result<(), Failure> {
    let failures: Vec<String> = all.into_iter().filter_map(|ragged| check_ragged(&ragged).err()).map(|failure| failure.0).collect();
    ensure!(failures.is_empty(), "{} cases failed, among them:\n{}", failures.len(), failures[..failures.len().min(4)].join("\n"));
    Ok(())
}

fn case(dtype: ElementType, head_dims: impl Into<HeadDims>) -> Case {
    Case::new(dtype, head_dims, 0, 0).heads(1, 2, 1)
}

fn packed(dtype: ElementType, head_dims: HeadDims) -> Result<(), Failure> {
    let case = case(dtype, head_dims);
    let all = [
        case.clone().heads(1, 4, 2).causal(true),
        case.clone(),
        case.clone().window(Some(33), Some(2)),
        case.heads(1, 6, 1).window(Some(100), Some(0)),
    ];
    let all = all.into_iter().step_by(Profile::get().pick(1, if dtype == ElementType::Bf16 { 2 } else { 3 }));
    check_all(all.map(|case| Ragged::new(case, &LENGTHS)))
}

/// Every way of one side with every way of the other.
fn rows_of_nobody(dtype: ElementType, head_dims: HeadDims) -> Result<(), Failure> {
    let sides = [(LOOSE, LOOSE), (LOOSE, LOOSE_PADDED), (LOOSE_PADDED, LOOSE), (LOOSE_PADDED, LOOSE_PADDED)];
    let first = Profile::get().pick(0, if dtype == ElementType::Bf16 { head_dims.head_dim / 32 % 2 } else { head_dims.head_dim / 64 % 4 });
    let step = Profile::get().pick(1, if dtype == ElementType::Bf16 { 2 } else { 4 });
    check_all(sides.into_iter().enumerate().skip(first).step_by(step).map(|(index, (q, k))| {
        let case = case(dtype, head_dims).causal(index % 2 == 0);
        Ragged::new(if index == 1 { case.window(Some(40), None) } else { case }, &Profile::get().pick(LENGTHS.to_vec(), SHORT.to_vec()))
            .sides(q, k)
    }))
}

/// The other side is dense: no array tells its lengths, which are all the same.
fn one_side_only(head_dims: HeadDims) -> Result<(), Failure> {
    let (equal_q, equal_k): (Vec<_>, Vec<_>) = SHORT.iter().map(|&(q, k)| ((70, k), (q, 90))).unzip();
    let case = case(ElementType::Bf16, head_dims).causal(true);
    let all = [
        Ragged::new(case.clone(), &equal_q).sides(Side::PADDED, LOOSE),
        Ragged::new(case.clone(), &equal_k).sides(LOOSE, Side::PADDED),
        Ragged::new(case.clone(), &equal_q).sides(Side::PADDED, LOOSE_PADDED),
        Ragged::new(case, &equal_k).sides(LOOSE_PADDED, Side::PADDED),
    ];
    check_all(all.into_iter().step_by(Profile::get().pick(1, 3)))
}

fn scores_and_sinks(dtype: ElementType, head_dims: HeadDims) -> Result<(), Failure> {
    let case = case(dtype, head_dims).heads(1, 4, 2);
    let all = [
        case.clone().causal(true).score(Score::SoftCap(15.0)).sinks(Sinks::Drawn(3)),
        case.clone().score(Score::Alibi).sinks(Sinks::Mixed),
        case.clone().window(Some(50), Some(10)).score(Score::Alibi),
        case.clone().causal(true).sinks(Sinks::Mixed),
        case.window(None, Some(30)).score(Score::SoftCap(2.0)),
    ];
    let (first, step) = Profile::get().pick((0, 1), (head_dims.head_dim / 32 % 5, 5));
    let lengths = Profile::get().pick(LENGTHS.to_vec(), SHORT.to_vec());
    check_all(all.into_iter().skip(first).step_by(step).map(|case| Ragged::new(case, &lengths).sides(LOOSE, LOOSE)))
}

/// The total of packed lengths does not tell the host that a window hides nothing: the kernel sees to it that no bit changes.
fn hides_nothing(head_dims: HeadDims) -> Result<(), Failure> {
    let lengths = [(70, 129), (130, 60)];
    let bits = |case: &Case| -> Result<_, Failure> {
        let ragged = Ragged::new(case.clone(), &lengths);
        RaggedProblem::<bf16>::new(&ragged, ragged.draw())?.run(&Stream::new()?)
    };
    let case = case(ElementType::Bf16, head_dims);
    for (open, window) in [
        (case.clone(), case.clone().window(Some(128), Some(129))),
        (case.clone().causal(true), case.clone().causal(true).window(Some(128), None)),
        (case.clone().causal(true), case.window(None, Some(0))),
    ] {
        let (open_bits, window_bits) = (bits(&open)?, bits(&window)?);
        let same = open_bits.iter().zip(&window_bits).all(|(open, window)| open.same_bits(window));
        ensure!(same, "{:?} has other bits than {:?}, head_dim {head_dims}", window.features, open.features);
    }
    Ok(())
}

/// What a sequence's neighbours hold changes no bit of it.
fn others_are_nan(head_dims: HeadDims) -> Result<(), Failure> {
    let lengths = [(33, 40), (70, 129), (130, 63)];
    let ragged = Ragged::new(case(ElementType::Bf16, head_dims).causal(true), &lengths);
    let (inputs, stream) = (ragged.draw::<bf16>(), Stream::new()?);
    let calm = RaggedProblem::new(&ragged, inputs.clone())?.run(&stream)?;
    for (own, calm) in calm.iter().enumerate() {
        let mut others = inputs.clone();
        for (index, Inputs { q, k, v }) in others.iter_mut().enumerate().filter(|(index, _)| *index != own) {
            let value = if (index + own) % 2 == 0 { bf16::NAN } else { bf16::INFINITY };
            [q, k, v].into_iter().for_each(|data| data.fill(value));
        }
        let problem = RaggedProblem::new(&ragged, others)?;
        problem.enqueue(&stream)?;
        stream.wait(|| ragged.text())?;
        ensure!(problem.outputs()?[own].same_bits(calm), "sequence {own} depends on others, head_dim {head_dims}");
    }
    Ok(())
}

/// Packed tensors in any order of dimensions, with gaps; padded ones as far as their batch stride is a multiple of the rows'.
fn layouts() -> Result<(), Failure> {
    let gaps = |order, gaps| Placement { order, gaps, offset: 40, ..Placement::BSHD };
    let case = case(ElementType::Bf16, 64).heads(1, 4, 2).causal(true);
    let anywhere = |q, k, v, o| Case { q, k, v, o, ..case.clone() };
    let (rows_apart, heads_apart) = (gaps([0, 1, 2], [0, 16, 8]), gaps([0, 2, 1], [0, 24, 48]));
    let padded = gaps([0, 2, 1], [0, 8, 0]);
    check_all([
        Ragged::new(anywhere(Placement::BHSD, rows_apart, heads_apart, gaps([2, 1, 0], [8, 8, 8])), &SHORT).sides(LOOSE, LOOSE),
        Ragged::new(anywhere(heads_apart, Placement::BHSD, rows_apart, heads_apart), &SHORT),
        Ragged::new(anywhere(padded, rows_apart, Placement::BHSD, padded), &SHORT).sides(LOOSE_PADDED, LOOSE_PADDED),
        Ragged::new(anywhere(rows_apart, heads_apart, padded, rows_apart), &SHORT).sides(LOOSE_PADDED, LOOSE),
        Ragged::new(case.clone().placed(Placement::BHSD), &SHORT).sides(LOOSE_PADDED, Side::PADDED),
    ])
}

/// The heads of Q, K and V side by side in each row.
fn slices_of_qkv() -> Result<(), Failure> {
    let lengths = [(0, 0), (70, 70), (1, 1), (129, 129)];
    let case = Case { packed: true, ..case(ElementType::F16, 128).heads(1, 4, 2).causal(true) };
    check_all([
        Ragged::new(case.clone(), &lengths),
        Ragged::new(case.clone().placed(Placement::BHSD), &lengths).sides(LOOSE, LOOSE),
        Ragged::new(case, &lengths).sides(LOOSE_PADDED, LOOSE_PADDED),
    ])
}

/// K and V of a padded side are one batch entry by a stride of 0, of which each sequence uses as much as it says; or one head.
fn keys_that_serve_all() -> Result<(), Failure> {
    let once = |broadcast_batch, broadcast_heads| Placement { broadcast_batch, broadcast_heads, ..Placement::BSHD };
    let case = case(ElementType::Bf16, 128).heads(1, 4, 4);
    let of = |placement| Case { k: placement, v: placement, ..case.clone() };
    check_all([
        Ragged::new(of(once(true, false)).causal(true), &SHORT).sides(LOOSE, LOOSE_PADDED),
        Ragged::new(of(once(true, true)), &SHORT).sides(LOOSE_PADDED, LOOSE_PADDED),
        Ragged::new(of(once(false, true)), &SHORT).sides(LOOSE, LOOSE),
        Ragged::new(Case { q: once(true, true), ..case.clone() }, &SHORT).sides(LOOSE_PADDED, LOOSE),
    ])
}

fn unequal_head_dims() -> Result<(), Failure> {
    let pairs = [(192, 64), (160, 128), (136, 96), (128, 192), (64, 128), (128, 64), (96, 64), (128, 8)];
    check_all(pairs.map(|pair| Ragged::new(case(ElementType::Bf16, pair).causal(true), &SHORT).sides(LOOSE, LOOSE)))
}

/// Grouped heads, a mask from either side, sinks, a score function, rows of nobody and V of another head_dims.
fn everything_at_once() -> Result<(), Failure> {
    let scores = [(ElementType::Bf16, Score::SoftCap(10.0)), (ElementType::F16, Score::Alibi)];
    check_all([(64, 64), (128, 128), (192, 128)].into_iter().flat_map(|pair| {
        scores.map(|(dtype, score)| {
            let case = case(dtype, pair).heads(1, 4, 2).causal(true).window(Some(60), None);
            Ragged::new(case.score(score).sinks(Sinks::Mixed), &LENGTHS).sides(LOOSE, LOOSE)
        })
    }))
}

fn one_sequence() -> Result<(), Failure> {
    let case = case(ElementType::Bf16, 128).causal(true);
    check_all(
        [(1, 1), (130, 190), (190, 130), (65, 0), (0, 7)]
            .into_iter()
            .flat_map(|lengths| [Side::PACKED, LOOSE, LOOSE_PADDED].map(|side| Ragged::new(case.clone(), &[lengths]).sides(side, side))),
    )
}

fn all_empty() -> Result<(), Failure> {
    let case = case(ElementType::Bf16, 64).sinks(Sinks::Mixed);
    check_all([
        Ragged::new(case.clone(), &[(0, 0); 3]).sides(LOOSE, LOOSE),
        Ragged::new(case.clone(), &[(0, 0); 3]),
        Ragged::new(case.clone(), &[(0, 5), (0, 70)]).sides(LOOSE, LOOSE),
        Ragged::new(case.clone(), &[(5, 0), (70, 0)]).sides(LOOSE, LOOSE),
        Ragged::new(case.clone(), &[(5, 0), (70, 0)]),
        Ragged::new(case, &[(5, 0), (70, 0)]).sides(LOOSE_PADDED, Side::PADDED),
    ])
}

/// More sequences than rows of a tile, so that a tile's rows are those of many, and most of the row tiles' slots are empty.
fn many_short() -> Result<(), Failure> {
    let count = Profile::get().pick(1500, 30);
    let lengths: Vec<_> = (0..count).map(|i| (random_bits(1, i) as usize % 4, random_bits(2, i) as usize % 5)).collect();
    let case = case(ElementType::Bf16, 64).causal(true);
    check_all([Ragged::new(case.clone(), &lengths), Ragged::new(case.clone(), &lengths).sides(LOOSE, LOOSE)])?;
    // Each sequence ends where a row tile does.
    let lengths: Vec<_> = (0..Profile::get().pick(40, 3)).map(|i| (192, 1 + i % 7)).collect();
    check_all([Ragged::new(case, &lengths)])
}

/// Tiles are drawn from a counter: long ones, short ones and empty slots in one launch.
fn many_tiles() -> Result<(), Failure> {
    let count = Profile::get().pick(120, 6);
    let lengths: Vec<_> = (0..count).map(|i| (random_bits(3, i) as usize % 260, random_bits(4, i) as usize % 260)).collect();
    let (heads, heads_k) = Profile::get().pick((6, 2), (3, 1));
    let case = case(ElementType::Bf16, 128).heads(1, heads, heads_k);
    check_all([
        Ragged::new(case.clone().causal(true), &lengths),
        Ragged::new(case.window(Some(70), Some(0)), &lengths).sides(LOOSE_PADDED, LOOSE),
    ])
}

/// Heavy-tailed lengths: a few long sequences among many short ones.
fn long(head_dims: HeadDims) -> Result<(), Failure> {
    let length = |seed, i| {
        let uniform = (random_bits(seed, i) >> 40) as f64 / (1u64 << 24) as f64;
        (64.0 / (1.0 - uniform)).min(6000.0) as usize
    };
    let lengths: Vec<_> = (0..48).map(|i| (length(5, i), length(6, i))).collect();
    let alike: Vec<_> = lengths.iter().map(|&(q, _)| (q, q)).collect();
    let case = case(ElementType::Bf16, head_dims).heads(1, 8, 2);
    check_all([
        Ragged::new(case.clone().causal(true), &alike),
        Ragged::new(case.clone().window(Some(512), Some(0)).sinks(Sinks::Drawn(1)), &lengths),
        Ragged::new(case.clone().score(Score::SoftCap(30.0)), &lengths).sides(LOOSE, LOOSE),
        Ragged::new(case.causal(true).score(Score::Alibi), &lengths).sides(LOOSE_PADDED, LOOSE_PADDED),
    ])
}
