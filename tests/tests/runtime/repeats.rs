//! The same bits every time, and whatever else is in the batch.

use crate::job::Job;
use half::bf16;
use hopper_attention_kernels::config::FORWARD;
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{Case, DeviceProblem, DeviceTest, ElementType, Failure, Inputs, Profile, ensure, native_head_dims};

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for config in FORWARD {
        let mask = if config.causal { "causal" } else { "full" };
        let case = Case::native(ElementType::Bf16, &config, 130, 200);
        let (of_repeats, of_rows) = (case.clone(), case);
        let name = |what| format!("repeats::{what}::hdim{}_{mask}", native_head_dims(&config));
        tests.push(DeviceTest::new(name("bit_equal_1000_times"), move || repeats(&of_repeats)));
        tests.push(DeviceTest::new(name("whatever_the_batch"), move || batch(&of_rows)));
    }
    tests
}

fn repeats(case: &Case) -> Result<(), Failure> {
    // More tiles than a Hopper GPU has multiprocessors.
    let job = Job::new(&case.clone().heads(1, Profile::get().pick(80, 3), 1))?;
    let stream = Stream::new()?;
    for _ in 0..Profile::get().pick(1000, 3) {
        job.enqueue(&stream)?;
        job.check(&stream)?;
    }
    job.check_surroundings()
}

/// Each head of each batch entry alone, and among others that are NaN, has the bits that it has among numbers.
fn batch(case: &Case) -> Result<(), Failure> {
    let (batch, heads, heads_k) = Profile::get().pick((40, 6, 2), (2, 2, 1));
    let whole = case.clone().heads(batch, heads, heads_k);
    let inputs = Inputs::<bf16>::draw(&whole);
    let stream = Stream::new()?;
    let expected = DeviceProblem::new(&whole, &inputs)?.run(&stream)?;
    for (batch_idx, head_idx) in [(0, 0), (1, 1), (batch / 2, heads / 2), (batch - 1, heads - 1)] {
        let head_idx_k = head_idx / (heads / heads_k);
        let alone = Inputs {
            q: part(&inputs.q, whole.q_shape(), batch_idx, head_idx),
            k: part(&inputs.k, whole.k_shape(), batch_idx, head_idx_k),
            v: part(&inputs.v, whole.v_shape(), batch_idx, head_idx_k),
        };
        let expected_o = part(&expected.o, whole.o_shape(), batch_idx, head_idx);
        let output = DeviceProblem::new(case, &alone)?.run(&stream)?;
        ensure!(bits(&output.o) == bits(&expected_o), "alone, head {head_idx} of entry {batch_idx} has other bits: {}", whole.text());

        let mut others = inputs.clone();
        for (data, shape, head) in [
            (&mut others.q, whole.q_shape(), head_idx),
            (&mut others.k, whole.k_shape(), head_idx_k),
            (&mut others.v, whole.v_shape(), head_idx_k),
        ] {
            let own = part(data, shape, batch_idx, head);
            data.fill(bf16::NAN);
            put(data, shape, batch_idx, head, &own);
        }
        let output = DeviceProblem::new(&whole, &others)?.run(&stream)?;
        let o = part(&output.o, whole.o_shape(), batch_idx, head_idx);
        ensure!(bits(&o) == bits(&expected_o), "among NaN, head {head_idx} of entry {batch_idx} has other bits: {}", whole.text());
    }
    Ok(())
}

fn bits(values: &[bf16]) -> &[u16] {
    bytemuck::cast_slice(values)
}

/// Where the rows of one head of one batch entry begin.
fn starts([_, seqlen, heads, head_dim]: [usize; 4], batch_idx: usize, head_idx: usize) -> impl Iterator<Item = usize> {
    (0..seqlen).map(move |position| ((batch_idx * seqlen + position) * heads + head_idx) * head_dim)
}

fn part(data: &[bf16], shape: [usize; 4], batch_idx: usize, head_idx: usize) -> Vec<bf16> {
    starts(shape, batch_idx, head_idx).flat_map(|start| data[start..start + shape[3]].iter().copied()).collect()
}

fn put(data: &mut [bf16], shape: [usize; 4], batch_idx: usize, head_idx: usize, own: &[bf16]) {
    for (start, row) in starts(shape, batch_idx, head_idx).zip(own.chunks_exact(shape[3])) {
        data[start..start + shape[3]].copy_from_slice(row);
    }
}
