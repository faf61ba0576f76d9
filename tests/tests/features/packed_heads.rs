//! Few queries, whose heads share row tiles: the same bits as of each head by itself, and right ones.

use crate::native_head_dims;
use half::bf16;
use hopper_attention::HeadDims;
use hopper_attention_kernels::config::{ScoreFunction, forward_config, general_config};
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{
    Case, DeviceProblem, DeviceTest, ElementType, Failure, Inputs, Number, Placement, Profile, Ragged, RaggedProblem, Score, Side, Sinks,
    Values, check_output, ensure, explain, with_element,
};

/// Query heads of a key head: powers of two, and what none divides; as many as a warpgroup has rows, and more.
const RATIOS: [usize; 9] = [2, 4, 8, 3, 6, 7, 16, 64, 71];
/// Queries: edges of what heads of some ratio leave of a row tile, and more than that.
const QUERIES: [usize; 13] = [1, 2, 3, 5, 8, 9, 16, 17, 32, 33, 64, 65, 130];
const KEYS: [usize; 5] = [70, 129, 1, 200, 300];

/// Rows of nobody everywhere.
const LOOSE: Side = Side { packed: true, spare: 5, margin: 3, capacity: 0 };
const LOOSE_PADDED: Side = Side { packed: false, ..LOOSE };

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for (turn, head_dims) in native_head_dims().enumerate() {
        for dtype in ElementType::ALL {
            let turn = 2 * turn + usize::from(dtype == ElementType::F16);
            let name = |what: &str| format!("packed_heads::{what}::hdim{head_dims}_{}", dtype.name());
            tests.push(DeviceTest::new(name("ratios"), move || ratios(dtype, head_dims, turn)));
            tests.push(DeviceTest::new(name("ragged"), move || ragged(dtype, head_dims, turn)));
        }
        for causal in [false, true] {
            let name = |what: &str| format!("packed_heads::{what}::hdim{head_dims}_{}", if causal { "causal" } else { "full" });
            // Elsewhere the plain kernels serve such calls.
            if key_tiles_are_alike(head_dims, causal) {
                tests.push(DeviceTest::new(name("of_plain_calls"), move || plain(head_dims, causal)));
            } else {
                tests.push(DeviceTest::new(name("on_many_keys"), move || many_keys(head_dims, causal)));
            }
        }
    }
    tests.push(DeviceTest::new("packed_heads::layouts", layouts));
    tests.push(DeviceTest::new("packed_heads::ragged_layouts", ragged_layouts));
    tests.push(DeviceTest::new("packed_heads::unequal_head_dims", unequal_head_dims));
    tests.push(DeviceTest::new("packed_heads::nan_stays_in_its_head", nan_stays_in_its_head));
    tests.push(DeviceTest::new("packed_heads::more_tiles_than_multiprocessors", many_tiles));
    tests
}

/// Whether the plain and the general kernel take the same keys a step.
fn key_tiles_are_alike(HeadDims { head_dim, head_dim_v }: HeadDims, causal: bool) -> bool {
    let (head_dim, head_dim_v) = (head_dim as u32, head_dim_v as u32);
    let plain = forward_config(head_dim, head_dim_v, causal);
    plain.map(|plain| plain.tile_n) == general_config(head_dim, head_dim_v, ScoreFunction::Identity).map(|general| general.tile_n)
}

/// Fails unless the output is right, and has every bit of that of each head by itself.
fn same_as_alone(case: &Case) -> Result<(), Failure> {
    let check = || {
        with_element!(case.dtype, T => {
            let (inputs, stream) = (Inputs::<T>::draw(case), Stream::new()?);
            let problem = DeviceProblem::<T>::new(case, &inputs)?;
            let together = problem.run(&stream)?;
            problem.check_surroundings()?;
            check_output(case, &inputs, &together)?;
            problem.poison_output()?;
            ensure!(problem.run_heads_alone(&stream)?.same_bits(&together), "other bits than those of each head by itself");
            Ok(())
        })
    };
    check().map_err(|failure| explain(case, failure))
}

/// The same of sequences.
fn ragged_same_as_alone(ragged: &Ragged) -> Result<(), Failure> {
    let check = || {
        with_element!(ragged.case.dtype, T => {
            let (problem, stream) = (RaggedProblem::<T>::new(ragged, ragged.draw())?, Stream::new()?);
            let together = problem.run(&stream)?;
            problem.run_and_judge(&stream)?;
            problem.poison_output()?;
            let alone = problem.run_heads_alone(&stream)?;
            let other = together.iter().zip(&alone).position(|(together, alone)| !together.same_bits(alone));
            ensure!(other.is_none(), "other bits in sequence {other:?} than those of each head by itself");
            Ok(())
        })
    };
    check().map_err(|failure| Failure(format!("{failure}: {}", ragged.text())))
}

/// Checks all, and fails with the first few that fail.
fn all<T>(cases: impl IntoIterator<Item = T>, check: fn(&T) -> Result<(), Failure>) -> Result<(), Failure> {
    let failures: Vec<String> = cases.into_iter().filter_map(|case| check(&case).err()).map(|failure| failure.0).collect();
    ensure!(failures.is_empty(), "{} cases failed, among them:\n{}", failures.len(), failures[..failures.len().min(4)].join("\n"));
    Ok(())
}

/// A general kernel's case, of the kind `index`.
fn masked(case: Case, index: usize) -> Case {
    match index % 6 {
        0 => case.sinks(Sinks::Mixed),
        1 => case.causal(true).sinks(Sinks::Drawn(1)),
        2 => case.window(Some(33), Some(2)),
        3 => case.causal(true).window(Some(20), None),
        4 => case.causal(true).score(Score::SoftCap(10.0)),
        _ => case.window(None, Some(3)).score(Score::SoftCap(5.0)).sinks(Sinks::Mixed),
    }
}

/// Every ratio, with as many lengths and masks as are affordable.
fn ratios(dtype: ElementType, head_dims: HeadDims, turn: usize) -> Result<(), Failure> {
    let lengths = Profile::get().pick(QUERIES.len(), 1);
    let cases = RATIOS.into_iter().enumerate().flat_map(|(index, ratio)| {
        let heads_k = if ratio < 16 { 2 } else { 1 };
        (0..lengths).map(move |more| {
            let turn = 5 * turn + index + more;
            // What 16 heads or more leave of a row tile is few queries.
            let queries = if ratio < 16 { QUERIES[turn % QUERIES.len()] } else { QUERIES[turn % 6] };
            let case = Case::new(dtype, head_dims, queries, KEYS[turn % KEYS.len()]).heads(1 + turn % 2, ratio * heads_k, heads_k);
            masked(case, turn)
        })
    });
    all(cases.step_by(Profile::get().pick(1, if dtype == ElementType::Bf16 { 1 } else { 2 })), same_as_alone)
}

/// Short sequences among which are longer ones, empty ones, and such without a key.
fn ragged(dtype: ElementType, head_dims: HeadDims, turn: usize) -> Result<(), Failure> {
    const LENGTHS: [(usize, usize); 9] = [(1, 40), (3, 129), (0, 5), (17, 64), (5, 0), (2, 200), (0, 0), (33, 70), (70, 80)];
    let sides = [Side::PACKED, LOOSE, LOOSE_PADDED];
    // Of 6 heads 2 share a tile, of 12 there are 4, of 7 each has its own: no tile may reach into the next key head's.
    let cases = [4, 7, 6, 12, 16].into_iter().enumerate().map(|(index, ratio)| {
        let turn = turn + index;
        let case = masked(Case::new(dtype, head_dims, 0, 0).heads(1, 2 * ratio, 2), turn);
        Ragged::new(case, &LENGTHS).sides(sides[turn % 3], sides[(turn + index) % 3])
    });
    all(cases.skip(Profile::get().pick(0, turn % 2)).step_by(Profile::get().pick(1, 2)), ragged_same_as_alone)
}

/// Calls that the plain kernels could serve; a single head has too few tiles to be worth a general one. One more than there are
/// multiprocessors, so that heads share tiles where both kernels have key tiles of one size.
fn plain(head_dims: HeadDims, causal: bool) -> Result<(), Failure> {
    let cases = [(5, 70, 17, 8, 1), (1, 130, 1, 136, 17)].map(|(seqlen_q, seqlen_k, batch, heads, heads_k)| {
        Case::new(ElementType::Bf16, head_dims, seqlen_q, seqlen_k).causal(causal).heads(batch, heads, heads_k)
    });
    let cases = cases.into_iter().skip(Profile::get().pick(0, usize::from(causal))).step_by(Profile::get().pick(1, 2));
    all(cases, same_as_alone)
}

/// The lengths of which the general kernels take calls whose key tiles are not those of the plain kernels.
fn many_keys(head_dims: HeadDims, causal: bool) -> Result<(), Failure> {
    let cases = [(1, 1100), (33, 1024), (96, 1024), (3, 2000)].map(|(seqlen_q, seqlen_k)| {
        Case::new(ElementType::F16, head_dims, seqlen_q, seqlen_k).causal(causal).heads(1, 3, 1).judging_pairs(1 << 16)
    });
    all(cases.into_iter().skip(Profile::get().pick(0, usize::from(causal))).take(Profile::get().pick(4, 1)), same_as_alone)
}

fn layouts() -> Result<(), Failure> {
    let case = |queries, keys| Case::new(ElementType::Bf16, 128, queries, keys).heads(2, 14, 2).causal(true).sinks(Sinks::Mixed);
    let gaps = |order| Placement { order, gaps: [8, 16, 24], offset: 40, ..Placement::BSHD };
    let once = |broadcast_batch, broadcast_heads| Placement { broadcast_batch, broadcast_heads, ..Placement::BSHD };
    let wild = Placement { wild_strides: true, ..Placement::BSHD };
    let mut cases = vec![
        case(5, 70).placed(Placement::BHSD),
        case(1, 70).placed(wild),
        Case { packed: true, ..case(20, 20) },
        // Q without heads of its own, or without entries; all of it once.
        Case { q: once(false, true), ..case(5, 70) },
        Case { q: once(true, false), ..case(5, 70) },
        Case { q: once(true, true), k: once(true, true), v: once(false, true), ..case(3, 70) },
        Case { q: gaps([2, 0, 1]), o: gaps([1, 2, 0]), ..case(9, 70) },
        case(2, 70).placed(wild).heads(1, 7, 1),
    ];
    cases.extend([[0, 1, 2], [2, 1, 0], [1, 0, 2]].map(|order| case(9, 70).placed(gaps(order))));
    all(cases, same_as_alone)
}

fn ragged_layouts() -> Result<(), Failure> {
    const LENGTHS: [(usize, usize); 5] = [(1, 40), (0, 5), (17, 64), (5, 0), (2, 130)];
    let case = Case::new(ElementType::F16, 64, 0, 0).heads(1, 12, 2).causal(true);
    let once = |broadcast_batch, broadcast_heads| Placement { broadcast_batch, broadcast_heads, ..Placement::BSHD };
    let gaps = Placement { gaps: [0, 16, 8], offset: 40, ..Placement::BSHD };
    let alike = [(3, 3), (0, 0), (20, 20), (1, 1)];
    all(
        [
            Ragged::new(case.clone().placed(Placement::BHSD), &LENGTHS).sides(LOOSE, LOOSE),
            Ragged::new(case.clone().placed(Placement::BHSD), &LENGTHS).sides(LOOSE_PADDED, LOOSE),
            Ragged::new(case.clone().placed(gaps), &LENGTHS).sides(LOOSE, LOOSE_PADDED),
            Ragged::new(Case { q: once(true, false), ..case.clone() }, &LENGTHS).sides(LOOSE_PADDED, LOOSE),
            Ragged::new(Case { q: once(false, true), ..case.clone() }, &LENGTHS).sides(LOOSE, LOOSE),
            Ragged::new(Case { packed: true, ..case.clone() }, &alike).sides(LOOSE, LOOSE),
            Ragged::new(Case { packed: true, ..case }, &alike),
        ],
        ragged_same_as_alone,
    )
}

fn unequal_head_dims() -> Result<(), Failure> {
    let cases = [(192, 128), (64, 128), (128, 64), (72, 8)]
        .into_iter()
        .enumerate()
        .map(|(index, (head_dim, head_dim_v))| masked(Case::new(ElementType::Bf16, (head_dim, head_dim_v), 6, 140).heads(1, 14, 2), index));
    all(cases, same_as_alone)
}

/// Of the heads that share a tile's rows one is NaN, or huge: no bit of the others moves.
fn nan_stays_in_its_head() -> Result<(), Failure> {
    let case = Case::new(ElementType::Bf16, 128, 3, 140).heads(1, 7, 1).causal(true).sinks(Sinks::Drawn(1));
    let (calm, stream) = (Inputs::<bf16>::draw(&case), Stream::new()?);
    let expected = DeviceProblem::new(&case, &calm)?.run(&stream)?;
    for number in [Number::Nan, Number::Infinity, Number::Finite(1e30)] {
        for spoiled in 0..7 {
            let mut inputs = calm.clone();
            let rows = inputs.q.chunks_exact_mut(128).skip(spoiled).step_by(7);
            rows.for_each(|row| row.fill(bf16::from_f32(number.value())));
            let got = DeviceProblem::new(&case, &inputs)?.run(&stream)?;
            let rows = |output: &[bf16]| -> Vec<Vec<u16>> {
                output.chunks_exact(128).map(|row| row.iter().map(|element| element.to_bits()).collect()).collect()
            };
            for (index, (got, expected)) in rows(&got.o).iter().zip(rows(&expected.o)).enumerate() {
                ensure!(index % 7 == spoiled || *got == expected, "{number:?} in head {spoiled} moves row {index} (of queries * heads)");
                ensure!(index % 7 != spoiled || *got != expected, "{number:?} in head {spoiled} does not reach row {index}");
            }
        }
    }
    Ok(())
}

/// Peaked logits, over tiles that are drawn from a counter.
fn many_tiles() -> Result<(), Failure> {
    let (batch, heads_k) = Profile::get().pick((60, 4), (4, 2));
    let case = Case::new(ElementType::Bf16, 64, 40, 150).heads(batch, 5 * heads_k, heads_k).causal(true);
    all([case.window(Some(60), None).values(Values::Peaked { factor: 3.0 })], same_as_alone)
}
