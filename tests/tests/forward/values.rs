//! Values: large, peaked, tiny; scales; the log-sum-exp.

use crate::{Kernel, for_each_kernel};
use hopper_attention_kernels::layout::fragment::{ROW_STEP, ROWS_PER_THREAD};
use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::{
    Case, DeviceProblem, DeviceTest, Edit, ElementType, Failure, Inputs, Number, Operand, Profile, TestElement, Values, check_cases,
    check_inputs, ensure, with_element,
};

pub fn tests() -> Vec<DeviceTest> {
    let mut tests = for_each_kernel("values::large_and_peaked", large_and_peaked);
    tests.extend(for_each_kernel("values::logits_of_any_size", logits_of_any_size));
    tests.extend(for_each_kernel("values::all_logits_far_below_zero", all_logits_far_below_zero));
    tests.extend(for_each_kernel("values::maximum_that_grows", maximum_that_grows));
    tests.extend(for_each_kernel("values::rows_apart", rows_apart));
    tests.extend(for_each_kernel("values::huge_beside_small", huge_beside_small));
    tests.push(DeviceTest::new("values::subnormal", subnormal));
    tests.push(DeviceTest::new("softmax_scale", softmax_scale));
    tests.extend(for_each_kernel("lse::natural_logarithm", natural_logarithm));
    tests.extend(for_each_kernel("lse::optional", optional_lse));
    tests
}

fn case((config, dtype): Kernel) -> Case {
    let (seqlen_q, seqlen_k) = Profile::get().pick((200, 420), (70, 200));
    Case::native(dtype, &config, seqlen_q, seqlen_k).heads(1, 2, 1)
}

fn large_and_peaked(kernel: Kernel) -> Result<(), Failure> {
    let values = [
        Values::Normal { factor: 8.0 },
        Values::Normal { factor: 100.0 },
        Values::Peaked { factor: 0.5 },
        Values::Peaked { factor: 2.0 },
        Values::Peaked { factor: 30.0 },
    ];
    check_cases(values.into_iter().step_by(Profile::get().pick(1, 3)).map(|values| case(kernel).values(values)))
}

/// Logits are integers times the scale, up to some thousand times it: equal ones must share their row evenly however large they are.
fn logits_of_any_size(kernel: Kernel) -> Result<(), Failure> {
    let scales = [1e3, 1e4, 1e6, 1e9, 1e12, 1e30];
    check_cases(
        scales
            .into_iter()
            .step_by(Profile::get().pick(1, 3))
            .map(|scale| Case { softmax_scale: Some(scale), ..case(kernel).values(Values::Integers) }),
    )
}

/// Every logit has the same large negative summand, so nothing may take -inf for such a number, or the reverse.
fn all_logits_far_below_zero(kernel: Kernel) -> Result<(), Failure> {
    let all =
        |operand, value| Edit { operand, batch_idx: None, position: None, head_idx: None, column: Some(0), value: Number::Finite(value) };
    let shifted = |scale| Case {
        softmax_scale: Some(scale),
        edits: vec![all(Operand::Q, 1000.0), all(Operand::K, -1000.0)],
        ..case(kernel).values(Values::Integers)
    };
    check_cases([0.05, 1.0, 100.0].into_iter().step_by(Profile::get().pick(1, 2)).map(shifted))
}

/// Keys are visited from the last to the first, and each key tile's logits are above those of the tile behind it by `step` in log2 units: less
/// or more than what lets the kernel keep the maximum that it has (`MAX_SUM` over the keys of a thread, so about 7).
fn maximum_that_grows(kernel: Kernel) -> Result<(), Failure> {
    let (config, _) = kernel;
    let growing = |step: f32| {
        let mut case = case(kernel).values(Values::Integers);
        let all = |operand, position, column, value| Edit {
            operand,
            batch_idx: None,
            position,
            head_idx: None,
            column,
            value: Number::Finite(value),
        };
        case.edits = vec![all(Operand::Q, None, None, 0.0), all(Operand::Q, None, Some(0), 1.0)];
        let tiles = case.seqlen_k.div_ceil(config.tile_n as usize);
        for key in 0..case.seqlen_k {
            let tile = key / config.tile_n as usize;
            case.edits.push(all(Operand::K, Some(key), Some(0), ((tiles - tile) * 4 + key % 2) as f32));
        }
        Case { softmax_scale: Some(step / 4.0 * std::f32::consts::LN_2), ..case }
    };
    check_cases([0.5, 3.9, 6.5, 7.0, 7.5, 8.0, 9.0, 13.0, 30.0].into_iter().step_by(Profile::get().pick(1, 3)).map(growing))
}

/// A row whose maximum moves at every key tile, or whose logits are huge, or NaN, changes no bit of the rows that share its warp.
fn rows_apart(kernel: Kernel) -> Result<(), Failure> {
    let case = case(kernel);
    with_element!(case.dtype, T => {
        let mut inputs = Inputs::<T>::draw(&case);
        let calm = check_inputs(&case, &inputs)?;
        let (row, head, o_head) = (case.num_heads * case.head_dim, case.head_dim, case.o_head_dim());
        for (position, factor) in [(3, 60.0), (17, 1e9), (40, f32::NAN), (57, 30.0)] {
            for q in &mut inputs.q[position * row..position * row + head] {
                *q = T::from_f32(q.to_f32() * factor);
            }
        }
        let output = DeviceProblem::new(&case, &inputs)?.run(&Stream::new()?)?;
        for (position, (calm, row)) in calm.o.chunks_exact(o_head).zip(output.o.chunks_exact(o_head)).enumerate() {
            let (position, head_idx) = (position / case.num_heads, position % case.num_heads);
            let changed = head_idx == 0 && [3, 17, 40, 57].contains(&position);
            let same = bytemuck::cast_slice::<T, u16>(calm) == bytemuck::cast_slice::<T, u16>(row);
            ensure!(same != changed, "row {position} of head {head_idx} {}", if changed { "is as before" } else { "depends on other rows" });
        }
    });
    Ok(())
}

/// Of the two rows that a thread has, one has logits that are rounded before the maximum is subtracted, and the other has not: each is right, and
/// the other's bits are what they are among its like.
fn huge_beside_small(kernel: Kernel) -> Result<(), Failure> {
    let (_, dtype) = kernel;
    // Logits up to some 10^5, and in huge rows so far above 2^23 that their own rounding is more than P can be off by in its type.
    let case = Case { softmax_scale: Some(1e3), ..case(kernel).values(Values::Integers) };
    let factor = match dtype {
        ElementType::F16 => 8192.0,
        ElementType::Bf16 => (1u64 << 30) as f32,
    };
    with_element!(dtype, T => {
        let small = Inputs::<T>::draw(&case);
        let expected = check_inputs(&case, &small)?;
        let (query, row) = (case.num_heads * case.head_dim, case.num_heads * case.o_head_dim());
        for huge in 0..ROWS_PER_THREAD {
            let is_huge = |position: usize| position / ROW_STEP as usize % ROWS_PER_THREAD == huge;
            let mut inputs = small.clone();
            for (position, query) in inputs.q.chunks_exact_mut(query).enumerate() {
                if is_huge(position) {
                    query.iter_mut().for_each(|q| *q = T::from_f32(q.to_f32() * factor));
                }
            }
            let output = check_inputs(&case, &inputs)?;
            for (position, (o, expected)) in output.o.chunks_exact(row).zip(expected.o.chunks_exact(row)).enumerate() {
                let same = bytemuck::cast_slice::<T, u16>(o) == bytemuck::cast_slice::<T, u16>(expected);
                ensure!(same || is_huge(position), "query {position} depends on the huge logits of its thread's other row");
            }
        }
    });
    Ok(())
}

fn subnormal() -> Result<(), Failure> {
    check_cases(ElementType::ALL.map(|dtype| Case::new(dtype, 64, 70, 150).values(Values::Tiny)))
}

fn softmax_scale() -> Result<(), Failure> {
    let scales = [f32::MIN_POSITIVE, 1e-40, 1e-20, 1e-3, 0.1, 1.0, 3.0];
    let mut cases = Vec::new();
    for dtype in ElementType::ALL {
        for (scale, causal) in scales.iter().zip([true, false].into_iter().cycle()) {
            cases.push(Case { softmax_scale: Some(*scale), ..Case::new(dtype, 64, 70, 200).causal(causal) });
        }
    }
    check_cases(cases.into_iter().step_by(Profile::get().pick(1, 4)))
}

/// With equal keys and queries, a row that sees n keys has the log-sum-exp `logit + ln n`: no reference is needed.
fn natural_logarithm(kernel: Kernel) -> Result<(), Failure> {
    let case = Case { softmax_scale: Some(0.25), ..case(kernel) };
    with_element!(case.dtype, T => natural_logarithm_of::<T>(&case))
}

fn natural_logarithm_of<T: TestElement>(case: &Case) -> Result<(), Failure> {
    let mut inputs = Inputs::<T>::draw(case);
    inputs.q.fill(T::from_f32(0.5));
    inputs.k.fill(T::from_f32(0.5));
    let output = check_inputs(case, &inputs)?;
    let logit = 0.25 * 0.25 * case.head_dim as f64;
    for (row, &lse) in output.lse.iter().flatten().enumerate() {
        let position = row % case.seqlen_q;
        let keys = if case.causal { position + 1 + case.seqlen_k - case.seqlen_q } else { case.seqlen_k };
        let expected = logit + (keys as f64).ln();
        ensure!((f64::from(lse) - expected).abs() < 8e-6, "LSE of row {row} is {lse}, but must be {expected}");
    }
    Ok(())
}

fn optional_lse(kernel: Kernel) -> Result<(), Failure> {
    let case = case(kernel);
    with_element!(case.dtype, T => {
        let inputs = Inputs::<T>::draw(&case);
        let run = |lse| DeviceProblem::new(&Case { lse, ..case.clone() }, &inputs)?.run(&Stream::new()?);
        let (with, without) = (run(true)?, run(false)?);
        ensure!(without.lse.is_none() && bytemuck::cast_slice::<T, u16>(&with.o) == bytemuck::cast_slice::<T, u16>(&without.o),
            "O depends on whether the log-sum-exp is asked for");
    });
    Ok(())
}
