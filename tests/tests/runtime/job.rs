//! A case whose result is known to be right, to be computed again under other circumstances.

use half::bf16;
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{Case, DeviceProblem, ElementType, Failure, Inputs, Output, Profile, check_output, ensure};

/// A bf16 case in device memory, with its result.
pub struct Job {
    pub problem: DeviceProblem<bf16>,
    pub expected: Output<bf16>,
    case: Case,
}

impl Job {
    /// Computes the case once in the current context, and judges the result.
    pub fn new(case: &Case) -> Result<Self, Failure> {
        let inputs = Inputs::draw(case);
        let problem = DeviceProblem::new(case, &inputs)?;
        let expected = problem.run(&Stream::new()?)?;
        check_output(case, &inputs, &expected)?;
        problem.poison_output()?;
        Ok(Self { problem, expected, case: case.clone() })
    }

    /// Enqueues it.
    pub fn enqueue(&self, stream: &Stream) -> Result<(), Failure> {
        self.problem.enqueue(stream)
    }

    /// Waits for the stream, and fails unless the output has the very bits it had before. Poisons the output for the next time.
    pub fn check(&self, stream: &Stream) -> Result<(), Failure> {
        stream.wait(|| self.case.text())?;
        let output = self.problem.output()?;
        ensure!(output.same_bits(&self.expected), "another result than before, of {}", self.case.text());
        self.problem.poison_output()
    }

    /// Fails if anything beside the output was written to.
    pub fn check_surroundings(&self) -> Result<(), Failure> {
        self.problem.check_surroundings()
    }
}

fn bf16_case(head_dim: usize, batch: usize, heads: usize, seqlen: usize) -> Case {
    Case::new(ElementType::Bf16, head_dim, seqlen, seqlen + 30).heads(batch, heads, heads)
}

/// Fewer tiles than a Hopper GPU has multiprocessors: several of these run side by side.
pub fn small(seed: u64) -> Case {
    Case { seed, ..bf16_case(128, 1, 4, Profile::get().pick(700, 60)).causal(true) }
}

/// More tiles than multiprocessors, of unlike lengths: CTAs draw them.
pub fn large(seed: u64) -> Case {
    let heads = Profile::get().pick(75, 5);
    let case = Case { seed, ..bf16_case(128, 2, heads, Profile::get().pick(400, 140)).causal(true) };
    case.judging_pairs(Profile::get().judged_pairs() / 4)
}

/// Cases of several kernels, small and large.
pub fn mixed() -> Vec<Case> {
    let heads = Profile::get().pick(200, 3);
    let full = |head_dim, seed| Case { seed, ..bf16_case(head_dim, 1, heads, 100) }.judging_pairs(Profile::get().judged_pairs() / 8);
    let all = vec![small(1), large(2), full(64, 3), full(256, 4).causal(true), full(96, 5).causal(true), full(192, 6)];
    Profile::get().pick(all.clone(), all[..2].to_vec())
}
