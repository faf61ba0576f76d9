//! A captured launch serves whatever lengths the arrays hold when it is replayed.

use half::bf16;
use hopper_attention_tests::gpu::{Gpu, Stream};
use hopper_attention_tests::{
    Case, DeviceTest, ElementType, Failure, Needs, Profile, Ragged, RaggedProblem, Score, Side, Sinks, random_bits,
};

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for (name, head_dim, score) in
        [("packed", 128, Score::Identity), ("packed_softcap", 64, Score::SoftCap(15.0)), ("packed_alibi", 256, Score::Alibi)]
    {
        let case = move || Case::new(ElementType::Bf16, head_dim, 0, 0).causal(true).score(score).sinks(Sinks::Drawn(4));
        let side = Side { packed: true, spare: 3, margin: 1, capacity: capacity() };
        tests.push(changing_lengths(name, case, side));
    }
    let side = Side { capacity: 150, ..Side::PADDED };
    tests.push(changing_lengths("padded", || Case::new(ElementType::Bf16, 96, 0, 0).window(Some(40), Some(9)), side));
    tests
}

fn changing_lengths(name: &str, case: impl Fn() -> Case + Send + 'static, side: Side) -> DeviceTest {
    let name = format!("graphs::lengths_that_change::{name}");
    DeviceTest::of_devices(name, Needs::OneDevice, move |gpus| replays(&gpus[0], &case(), side))
}

/// Rows of a packed tensor that hold the sequences of every round.
fn capacity() -> usize {
    sequences() * 155
}

fn sequences() -> usize {
    Profile::get().pick(100, 4)
}

/// Lengths of a round: any, some of them 0.
fn lengths(round: u64) -> Vec<(usize, usize)> {
    let length = |seed: u64, i: usize| (random_bits(seed + 100 * round, i as u64) as usize % 190).saturating_sub(40);
    (0..sequences()).map(|i| (length(1, i), length(2, i))).collect()
}

/// Replayed with other lengths each time, while another thread launches the same kernel eagerly.
fn replays(gpu: &'static Gpu, case: &Case, side: Side) -> Result<(), Failure> {
    let (heads, heads_k) = Profile::get().pick((4, 2), (2, 1));
    let of_round = |round| Ragged::new(case.clone().heads(1, heads, heads_k), &lengths(round)).sides(side, side);
    let mut captured = RaggedProblem::<bf16>::new(&of_round(0), of_round(0).draw())?;
    let eager = RaggedProblem::<bf16>::new(&of_round(77), of_round(77).draw())?;
    eager.run_and_judge(&Stream::new()?)?;
    let origin = Stream::new()?;
    let graph = origin.capture(|| captured.enqueue(&origin))?;
    let stream = Stream::new()?;
    let replay = || {
        for round in 0..Profile::get().pick(10, 3) {
            captured.replace(&of_round(round), of_round(round).draw())?;
            // SAFETY: the graph works on the memory of `captured`, which outlives it, and is in flight once.
            unsafe { graph.launch(&stream)? };
            stream.wait(|| format!("a replay of {}", of_round(round).text()))?;
            captured.judge().map_err(|failure| failure.during(format!("replay {round}")))?;
        }
        Ok(())
    };
    gpu.beside(replay, |stream| eager.run(stream).map(drop))
}
