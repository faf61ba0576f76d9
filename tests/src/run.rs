//! A case from its inputs to the judgement.

use crate::case::{Case, TestElement};
use crate::device_problem::{DeviceProblem, Output};
use crate::gpu::Stream;
use crate::judge::{judge, judged_rows};
use crate::values::Inputs;
use crate::{Failure, ensure, report, with_element};
use hopper_attention::reference::{Attention, Row};
use hopper_attention_kernels::config::{forward_config, with_fewer_rows};

/// Environment variable: the text of a case that every test program then runs instead of its tests.
pub const CASE_VARIABLE: &str = "HOPPER_ATTENTION_CASE";

/// Computes the case on the current context's device and judges everything that can be judged of it.
pub fn check_case(case: &Case) -> Result<(), Failure> {
    with_element!(case.dtype, T => check_typed::<T>(case)).map_err(|failure| explain(case, failure))
}

/// Checks all cases, and fails with the first few that fail.
pub fn check_cases(cases: impl IntoIterator<Item = Case>) -> Result<(), Failure> {
    let (mut failures, mut total) = (Vec::new(), 0);
    for case in cases {
        total += 1;
        if let Err(failure) = check_case(&case) {
            failures.push(failure.0);
        }
    }
    if failures.is_empty() {
        return Ok(());
    }
    let count = failures.len();
    failures.truncate(4);
    Err(Failure(format!("{count} of {total} cases failed, among them:\n{}", failures.join("\n"))))
}

fn check_typed<T: TestElement>(case: &Case) -> Result<(), Failure> {
    check_inputs(case, &Inputs::<T>::draw(case)).map(|_| ())
}

/// [`check_case`] with inputs that were not drawn; returns what the device computed.
pub fn check_inputs<T: TestElement>(case: &Case, inputs: &Inputs<T>) -> Result<Output<T>, Failure> {
    let mut problem = DeviceProblem::new(case, inputs)?;
    let stream = Stream::new()?;
    let output = problem.run(&stream)?;
    if has_fewer_rows(case) {
        // Which of two kernels ran depends on the device; each of them is to have this result.
        for fewer_rows in [false, true] {
            problem.call.options.fewer_rows = Some(fewer_rows);
            problem.poison_output()?;
            let other = problem.run(&stream)?;
            ensure!(output.same_bits(&other), "other bits with the option fewer_rows: {fewer_rows}");
        }
    }
    problem.check_surroundings()?;
    check_output(case, inputs, &output)?;
    Ok(output)
}

/// Whether there is a kernel of fewer rows for the case.
fn has_fewer_rows(case: &Case) -> bool {
    let config = forward_config(case.head_dim as u32, case.o_head_dim() as u32, case.causal);
    config.is_some_and(|config| with_fewer_rows(&config).is_some())
}

/// Judges an output, and records it.
pub fn check_output<T: TestElement>(case: &Case, inputs: &Inputs<T>, output: &Output<T>) -> Result<(), Failure> {
    let rows = judged_rows(case);
    let judgement = judge(case, inputs, &rows, &rows_of(case, output, &rows))?;
    report::record(case, &judgement);
    Ok(())
}

/// What failed, and how to run it again.
pub fn explain(case: &Case, failure: Failure) -> Failure {
    Failure(format!("{failure}\n  again: {CASE_VARIABLE}='{}'", case.text()))
}

fn rows_of<T: TestElement>(case: &Case, output: &Output<T>, rows: &[Row]) -> Attention<T, f32> {
    let mut got = Attention { o: Vec::with_capacity(rows.len() * case.o_head_dim()), lse: Vec::new() };
    for row in rows {
        let start = ((row.batch_idx * case.seqlen_q + row.position) * case.num_heads + row.head_idx) * case.o_head_dim();
        got.o.extend_from_slice(&output.o[start..start + case.o_head_dim()]);
        if let Some(lse) = &output.lse {
            got.lse.push(lse[(row.batch_idx * case.num_heads + row.head_idx) * case.seqlen_q + row.position]);
        }
    }
    got
}
