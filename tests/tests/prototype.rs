//! The prototype's kernels by two compilers: what each makes of them is right by the suite's rule, and both are the same but for the rounding of a
//! row's sum.

use hopper_attention_tests::gpu::Stream;
use hopper_attention_tests::prototype::{Compiler, KERNELS, Kernel, Loaded};
use hopper_attention_tests::{
    Case, DeviceProblem, DeviceTest, Failure, Inputs, Output, Profile, TestElement, Values, check_output, ensure, trials, with_element,
};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

/// How far the compilers were apart: a line for each kernel.
static DIFFERENCES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn main() -> ExitCode {
    let status = trials::run("prototype", || {
        let test = |kernel: &'static Kernel| DeviceTest::new(format!("two_compilers::{}", kernel.name), move || two_compilers(kernel));
        KERNELS.iter().map(test).collect()
    });
    DIFFERENCES.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|line| println!("{line}"));
    status
}

/// Batch, length, heads and factor of Q. Lengths of several tiles and a part of one, of a part of one alone, and of whole ones.
fn problems() -> Vec<(usize, usize, usize, f32)> {
    let mut problems = vec![(1, 300, 2, 1.0), (2, 65, 3, 4.0), (1, 384, 1, 1.0)];
    problems.extend(Profile::get().pick(
        vec![(2, 1000, 3, 1.0), (1, 128, 1, 4.0), (3, 1, 2, 1.0), (1, 63, 2, 4.0), (2, 129, 2, 4.0), (1, 777, 3, 4.0), (1, 2049, 1, 1.0)],
        vec![],
    ));
    problems
}

fn two_compilers(kernel: &'static Kernel) -> Result<(), Failure> {
    // Once for all problems: each launch leaves the counters of tiles as the next one needs them.
    let loaded = [kernel.load(Compiler::Rustc)?, kernel.load(Compiler::RustCuda)?];
    let mut difference = Difference::default();
    for (batch, seqlen, heads, factor) in problems() {
        let case = Case::new(kernel.dtype, kernel.head_dim, seqlen, seqlen).causal(kernel.causal).heads(batch, heads, heads);
        let case = case.values(Values::Normal { factor });
        with_element!(kernel.dtype, T => compare::<T>(&loaded, &case, &mut difference)).map_err(|failure| failure.during(case.text()))?;
    }
    let Difference { elements, unlike, lse } = difference;
    let line = format!("{}: {unlike} of {elements} elements of O differ between the compilers, the LSE by {lse:.1e} at most", kernel.name);
    DIFFERENCES.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    Ok(())
}

/// What two compilers make of one source.
#[derive(Default)]
struct Difference {
    elements: usize,
    unlike: usize,
    lse: f32,
}

fn compare<T: TestElement>(loaded: &[Loaded; 2], case: &Case, difference: &mut Difference) -> Result<(), Failure> {
    let inputs = Inputs::<T>::draw(case);
    let problem = DeviceProblem::new(case, &inputs)?;
    let run = |loaded: &Loaded| {
        let stream = Stream::new()?;
        problem.poison_output()?;
        // SAFETY: the tensors lie in memory of `problem`, and the stream is waited for before anything of this is used or dropped.
        unsafe { loaded.enqueue(&problem.call, stream.raw()) }?;
        stream.wait(|| loaded.name.clone())?;
        let output = problem.output()?;
        problem.check_surroundings()?;
        check_output(case, &inputs, &output)?;
        Ok::<_, Failure>(output)
    };
    let [rustc, rust_cuda] = loaded.each_ref().map(|loaded| run(loaded).map_err(|failure| failure.during(&loaded.name)));
    difference.add(&rustc?, &rust_cuda?)
}

impl Difference {
    /// P is the same bit for bit, since the source says where it is fused. A row's sum is not: contracted, it is rounded once less in each tile, so
    /// that an element of O falls to the neighbouring number where it was near the edge.
    fn add<T: TestElement>(&mut self, a: &Output<T>, b: &Output<T>) -> Result<(), Failure> {
        for (a, b) in a.o.iter().zip(&b.o) {
            let steps = place(bytemuck::cast(*a)).abs_diff(place(bytemuck::cast(*b)));
            let (a, b) = (a.to_f32(), b.to_f32());
            ensure!(steps <= 1, "an element of O is {a} by one compiler, {b} by the other: {steps} numbers apart");
            self.elements += 1;
            self.unlike += steps as usize;
        }
        let lse = |output: &Output<T>| output.lse.clone().unwrap_or_default();
        for (a, b) in lse(a).into_iter().zip(lse(b)) {
            // A bit of the sum for each tile, and a few roundings of numbers as large as the result.
            let (apart, allowed) = ((a - b).abs(), f32::EPSILON * (8.0 + 4.0 * a.abs()));
            ensure!(apart <= allowed, "the LSE is {a} by one compiler, {b} by the other");
            self.lse = self.lse.max(apart);
        }
        Ok(())
    }
}

/// Where the number of these bits comes among all of its type, counted from 0.
fn place(bits: u16) -> i32 {
    let magnitude = i32::from(bits & 0x7fff);
    if bits >> 15 == 0 { magnitude } else { -magnitude }
}
