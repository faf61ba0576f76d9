//! Batches, heads, groups of heads, and what is empty.

use crate::{Kernel, for_each_kernel};
use hopper_attention::raw;
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{
    Call, Case, DeviceProblem, DeviceTest, ElementType, Failure, Inputs, Profile, check_case, check_cases, ensure, with_element,
};

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = Vec::new();
    for ratio in [1, 3, 5, 6, 7, 8, 71] {
        tests.push(DeviceTest::new(format!("grouped_heads::ratio_{ratio}"), move || grouped_heads(ratio)));
    }
    tests.extend(for_each_kernel("causal_alignment", causal_alignment));
    tests.extend(for_each_kernel("rows_that_see_nothing", rows_that_see_nothing));
    tests.extend(for_each_kernel("no_keys", no_keys));
    tests.extend(for_each_kernel("many_tiles", many_tiles));
    tests.push(DeviceTest::new("no_rows::nothing_is_written", no_rows));
    tests.push(DeviceTest::new("one_query", one_query));
    tests.push(DeviceTest::on_hardware("many_heads::batch_above_65535", || many_heads(66_000, 1, 1)));
    tests.push(DeviceTest::on_hardware("many_heads::heads_above_65535", || many_heads(1, 65_537, 1)));
    tests.push(DeviceTest::on_hardware("many_heads::product_above_65535", || many_heads(300, 284, 71)));
    tests
}

fn grouped_heads(ratio: usize) -> Result<(), Failure> {
    let mut cases = Vec::new();
    for (dtype, head_dim) in [(ElementType::Bf16, 128), (ElementType::F16, 64), (ElementType::Bf16, 96)] {
        for (heads_k, causal) in [(1, true), (2, false), (3, true)] {
            let (seqlen_q, seqlen_k) = Profile::get().pick((130, 200), (20, 40));
            let case = Case::new(dtype, head_dim, seqlen_q, seqlen_k).causal(causal).heads(2, ratio * heads_k, heads_k);
            cases.push(case.judging_pairs(Profile::get().judged_pairs() / 2));
        }
    }
    check_cases(cases)
}

fn causal_alignment((config, dtype): Kernel) -> Result<(), Failure> {
    let lengths = [(2, 5), (5, 2), (1, 2), (2, 1), (64, 65), (65, 64), (130, 127), (127, 130), (200, 330), (330, 200)];
    let case = |(q, k)| Case::native(dtype, &config, q, k).heads(1, 2, 1);
    check_cases(lengths.into_iter().take(Profile::get().pick(10, 5)).map(case))
}

fn rows_that_see_nothing((config, dtype): Kernel) -> Result<(), Failure> {
    // Whole tiles of rows without a key, tiles with a few such rows, and the last row alone with one key.
    let lengths = [(300, 5), (1000, 1), (513, 200), (129, 128), (700, 130)];
    let case = |(q, k)| Case::native(dtype, &config, q, k).heads(2, 2, 2);
    check_cases(lengths.into_iter().take(Profile::get().pick(5, 1)).map(case))
}

fn no_keys((config, dtype): Kernel) -> Result<(), Failure> {
    let case = |q| Case::native(dtype, &config, q, 0).heads(2, 6, 2);
    check_cases([1, 64, 200, 1000].into_iter().take(Profile::get().pick(4, 2)).map(case))
}

/// More tiles than the device has multiprocessors: each CTA computes several, of unlike lengths, some without a key.
fn many_tiles((config, dtype): Kernel) -> Result<(), Failure> {
    let shapes = [(1, 133, 60, 100), (2, 80, 200, 333), (3, 45, 700, 150), (1, 300, 130, 0), (5, 61, 1, 300), (1, 30, 1500, 1500)];
    let case = |(batch, heads, q, k): (usize, usize, usize, usize)| {
        let case = Case::native(dtype, &config, q, k).heads(batch, heads, heads);
        case.judging_pairs(Profile::get().judged_pairs() / 4)
    };
    // A few heads are many tiles already where a device has few multiprocessors.
    check_cases(Profile::get().pick(shapes.to_vec(), vec![(1, 7, 60, 100), (1, 5, 200, 20)]).into_iter().map(case))
}

/// Without batch entries, heads or queries the call succeeds and writes nothing, whatever the addresses are.
fn no_rows() -> Result<(), Failure> {
    for (batch, heads, seqlen_q) in [(0, 2, 5), (2, 0, 5), (2, 2, 0), (0, 0, 0)] {
        for causal in [false, true] {
            for dtype in ElementType::ALL {
                let case = Case::new(dtype, 64, seqlen_q, 7).causal(causal).heads(batch, heads, heads);
                with_element!(dtype, T => {
                    let problem = DeviceProblem::<T>::new(&case, &Inputs::draw(&case))?;
                    let stream = Stream::new()?;
                    let output = problem.run(&stream)?;
                    ensure!(output.o.is_empty(), "no rows, but an output of {}", output.o.len());
                    problem.check_untouched()?;
                    without_addresses(&problem, &stream)?;
                });
            }
        }
    }
    Ok(())
}

fn without_addresses<T>(problem: &DeviceProblem<T>, stream: &Stream) -> Result<(), Failure> {
    let nowhere = |tensor: raw::Tensor4| raw::Tensor4 { address: 0, ..tensor };
    let Call { q, k, v, o, .. } = problem.call;
    let call = Call { q: nowhere(q), k: nowhere(k), v: nowhere(v), o: nowhere(o), lse: None, ..problem.call };
    // SAFETY: tensors without elements describe no memory.
    unsafe { call.enqueue(stream) }?;
    stream.wait(|| "a call without rows".to_string())
}

fn one_query() -> Result<(), Failure> {
    let mut cases = Vec::new();
    for (head_dim, seqlen_k) in [(64, 1), (64, 5000), (128, 127), (128, 4097), (256, 333), (96, 2050)] {
        for dtype in ElementType::ALL {
            let seqlen_k = seqlen_k.min(Profile::get().pick(usize::MAX, 300));
            cases.push(Case::new(dtype, head_dim, 1, seqlen_k).causal(true).heads(3, 8, 2));
        }
    }
    check_cases(cases)
}

fn many_heads(batch: usize, heads: usize, heads_k: usize) -> Result<(), Failure> {
    let case = Case::new(ElementType::Bf16, 64, 5, 9).causal(true).heads(batch, heads, heads_k);
    check_case(&Case { judged_rows: Some(20_000), ..case })
}
