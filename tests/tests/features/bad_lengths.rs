//! Lengths that are wrong: results are then anything, but nothing outside of the tensors is read or written, and nothing hangs; the checked mode
//! names what is wrong.

use crate::native_head_dims;
use cust::memory::DeviceBuffer;
use half::bf16;
use hopper_attention::{Arrays, Attention, Error, HeadDims, Layout, Tensor, raw};
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{Case, DeviceTest, ElementType, Failure, Placement, Profile, Ragged, RaggedProblem, Score, Side, ensure};

/// Right would be [3, 73, 84, 176] and [3, 73, 105, 126], and 182 and 132 rows.
const LENGTHS: [(usize, usize); 3] = [(70, 70), (10, 31), (90, 20)];
const SIDE: Side = Side { packed: true, spare: 2, margin: 3, capacity: 0 };

const MIN: i32 = i32::MIN;
const MAX: i32 = i32::MAX;

/// Contents of `cu_seqlens`, which of them is the first that is wrong, and whether sequences overlap.
const BAD_CU_SEQLENS: [([i32; 4], usize, bool); 13] = [
    ([3, 73, 60, 60], 2, false),
    ([100, 50, 20, 0], 1, false),
    ([-5, 73, 84, 120], 0, false),
    ([MIN, -1, 84, 120], 0, false),
    ([3, 73, 84, 100_000], 3, false),
    ([3, 73, 84, MAX], 3, false),
    ([MIN; 4], 0, false),
    ([MAX; 4], 0, false),
    ([MAX, 0, -1, MAX], 0, false),
    ([200, 300, 400, 500], 0, false),
    ([3, 73, 60, 120], 2, true),
    ([MIN, MAX, MIN, MAX], 0, true),
    ([0, MAX, -1, 70], 1, true),
];

/// Contents of `seqused`, and which of them is the first that is wrong.
const BAD_SEQUSED: [([i32; 3], usize); 6] =
    [([70, 10, 200], 2), ([-1, 10, 20], 0), ([MIN, 3, 3], 0), ([70, MAX, 20], 1), ([MAX; 3], 0), ([1000, 0, -7], 0)];

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for head_dims in Profile::get().pick(native_head_dims().collect(), vec![64.into(), 128.into()]) {
        let name = |what: &str| format!("bad_lengths::{what}::hdim{head_dims}");
        tests.push(DeviceTest::new(name("cu_seqlens"), move || cu_seqlens(head_dims)));
        tests.push(DeviceTest::new(name("seqused"), move || seqused(head_dims)));
    }
    tests.push(DeviceTest::new("bad_lengths::named_by_safe_calls", named_by_safe_calls));
    tests
}

/// O has gaps between its rows and heads, which stay as they are.
fn case(head_dims: HeadDims, turn: usize) -> Case {
    let o = Placement { gaps: [0, 24, 8], ..Placement::BSHD };
    let case = Case { o, ..Case::new(ElementType::Bf16, head_dims, 0, 0).heads(1, 2, 1) };
    match turn % 4 {
        0 => case.causal(true),
        1 => case.window(Some(20), Some(3)),
        2 => case.score(Score::Alibi),
        _ => case.score(Score::SoftCap(5.0)),
    }
}

fn cu_seqlens(head_dims: HeadDims) -> Result<(), Failure> {
    for (turn, (bad, index, overlap)) in BAD_CU_SEQLENS.into_iter().enumerate() {
        let ragged = Ragged::new(case(head_dims, turn), &LENGTHS).sides(SIDE, SIDE);
        for names in [&["cu_seqlens_q"][..], &["cu_seqlens_k"], &["cu_seqlens_q", "cu_seqlens_k"]] {
            // Queries that two sequences share are written twice. Within O that is, but the emulator rightly calls it a race.
            if overlap && names.contains(&"cu_seqlens_q") && Profile::get() == Profile::Emulator {
                continue;
            }
            stays_within(&ragged, names, &bad, &format!("{}[{index}]", names[0]))?;
        }
    }
    Ok(())
}

/// Of packed sequences and of padded ones.
fn seqused(head_dims: HeadDims) -> Result<(), Failure> {
    for side in [SIDE, Side { packed: false, ..SIDE }] {
        for (turn, (bad, index)) in BAD_SEQUSED.into_iter().enumerate() {
            let ragged = Ragged::new(case(head_dims, turn), &LENGTHS).sides(side, side);
            for names in [&["seqused_q"][..], &["seqused_k"], &["seqused_q", "seqused_k"]] {
                stays_within(&ragged, names, &bad, &format!("{}[{index}]", names[0]))?;
            }
        }
    }
    Ok(())
}

/// Runs with `bad` in the arrays of these names, and then as it should be.
fn stays_within(ragged: &Ragged, names: &[&str], bad: &[i32], field: &str) -> Result<(), Failure> {
    let mut problem = RaggedProblem::<bf16>::new(ragged, ragged.draw())?;
    let stream = Stream::new()?;
    let told = |failure: Failure| failure.during(format!("{bad:?} in {names:?} of {}", ragged.text()));
    // SAFETY: the arrays are live device memory.
    let check =
        |problem: &RaggedProblem<bf16>| unsafe { raw::check_lengths(&problem.call.q, &problem.call.k, &problem.call.arrays, stream.raw()) };
    check(&problem)?;
    for name in names {
        problem.write_lengths(name, bad)?;
    }
    let outcome = check(&problem);
    let named = matches!(&outcome, Err(Error::Invalid { field: found, .. }) if found == field);
    ensure!(named, "expected an error that names {field}, got {outcome:?}: {bad:?} in {names:?}");
    problem.enqueue(&stream)?;
    stream.wait(|| format!("{bad:?} in {names:?} of {}", ragged.text())).map_err(told)?;
    problem.check_surroundings().and_then(|()| problem.check_gaps()).map_err(told)?;
    problem.replace(ragged, ragged.draw())?;
    problem.run_and_judge(&stream).map_err(told)
}

/// The layer on cust looks at every length before it launches.
fn named_by_safe_calls() -> Result<(), Failure> {
    let failed = |error: cust::error::CudaError| Failure(format!("a call of cust: {error}"));
    let x = Tensor::<bf16>::zeroed(Layout::bshd([1, 100, 2, 64]))?;
    let padded = Tensor::<bf16>::zeroed(Layout::bshd([3, 100, 2, 64]))?;
    let good = DeviceBuffer::from_slice(&[0, 10, 50, 100]).map_err(failed)?;
    for (bad, field) in [([0, 10, 9, 100], "[2]"), ([-1, 10, 50, 100], "[0]"), ([0, 10, 50, 101], "[3]"), ([0, MAX, MIN, 3], "[1]")] {
        let bad = DeviceBuffer::from_slice(&bad).map_err(failed)?;
        for (arrays, name) in [
            (Arrays::new().cu_seqlens_q(&bad).cu_seqlens_k(&good), "cu_seqlens_q"),
            (Arrays::new().cu_seqlens_q(&good).cu_seqlens_k(&bad), "cu_seqlens_k"),
        ] {
            refused(&Attention::new().forward_with(&x, &x, &x, &arrays), &format!("{name}{field}"))?;
        }
    }
    for (bad, field) in [([0, 101, 9], "[1]"), ([-1, 3, 3], "[0]"), ([100, 100, MAX], "[2]")] {
        let bad = DeviceBuffer::from_slice(&bad).map_err(failed)?;
        for (arrays, name) in [(Arrays::new().seqused_q(&bad), "seqused_q"), (Arrays::new().seqused_k(&bad), "seqused_k")] {
            refused(&Attention::new().causal(true).forward_with(&padded, &padded, &padded, &arrays), &format!("{name}{field}"))?;
        }
    }
    Ok(())
}

fn refused<T: std::fmt::Debug>(outcome: &Result<T, Error>, field: &str) -> Result<(), Failure> {
    let named = matches!(outcome, Err(Error::Invalid { field: found, .. }) if found == field);
    ensure!(named, "expected an error that names {field}, got {outcome:?}");
    Ok(())
}
