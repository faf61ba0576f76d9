//! The same bits every time: alone, among others, wherever the sequences lie.

use crate::native_head_dims;
use half::bf16;
use hopper_attention::HeadDims;
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{Case, DeviceTest, ElementType, Failure, Output, Profile, Ragged, RaggedProblem, Score, Side, Sinks, ensure};

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for head_dims in native_head_dims() {
        for (name, score) in [("identity", Score::Identity), ("softcap", Score::SoftCap(20.0)), ("alibi", Score::Alibi)] {
            let name = |what: &str| format!("repeats::{what}::hdim{head_dims}_{name}");
            tests.push(DeviceTest::new(name("bit_equal"), move || repeats(&ragged(head_dims, score))));
            tests.push(DeviceTest::new(name("whatever_the_batch"), move || alone_and_elsewhere(&ragged(head_dims, score))));
        }
    }
    tests
}

/// More row tiles than a GPU has multiprocessors.
fn ragged(head_dims: HeadDims, score: Score) -> Ragged {
    let lengths = [(70, 129), (0, 5), (130, 60), (1, 200), (65, 64), (193, 193)];
    let lengths: Vec<_> = lengths.into_iter().cycle().take(Profile::get().pick(48, 5)).collect();
    let (heads, heads_k) = Profile::get().pick((6, 2), (2, 1));
    let case = Case::new(ElementType::Bf16, head_dims, 0, 0).heads(1, heads, heads_k).causal(true).score(score).sinks(Sinks::Drawn(9));
    Ragged::new(case, &lengths)
}

fn repeats(ragged: &Ragged) -> Result<(), Failure> {
    let (problem, stream) = (RaggedProblem::<bf16>::new(ragged, ragged.draw())?, Stream::new()?);
    let first = problem.run(&stream)?;
    for turn in 1..Profile::get().pick(200, 3) {
        problem.poison_output()?;
        ensure!(same_bits(&first, &problem.run(&stream)?), "run {turn} has other bits: {}", ragged.text());
    }
    problem.check_surroundings()
}

fn same_bits(one: &[Output<bf16>], other: &[Output<bf16>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.same_bits(other))
}

fn alone_and_elsewhere(ragged: &Ragged) -> Result<(), Failure> {
    let (inputs, stream) = (ragged.draw::<bf16>(), Stream::new()?);
    let together = RaggedProblem::new(ragged, inputs.clone())?.run(&stream)?;
    let loose = Side { packed: true, spare: 7, margin: 5, capacity: 0 };
    let padded = Side { packed: false, ..loose };
    for (q, k) in [(loose, loose), (padded, loose), (loose, padded), (padded, padded)].into_iter().step_by(Profile::get().pick(1, 3)) {
        let elsewhere = RaggedProblem::new(&ragged.clone().sides(q, k), inputs.clone())?.run(&stream)?;
        ensure!(same_bits(&together, &elsewhere), "other bits with {q:?} and {k:?}: {}", ragged.text());
    }
    for (index, &lengths) in ragged.lengths.iter().enumerate().take(6) {
        let alone = Ragged { lengths: vec![lengths], ..ragged.clone() };
        let output = RaggedProblem::new(&alone, vec![inputs[index].clone()])?.run(&stream)?;
        ensure!(output[0].same_bits(&together[index]), "sequence {index} has other bits alone: {}", ragged.text());
    }
    Ok(())
}
