//! `--prototype`: the prototype's kernels as two compilers made them (`tests/data/prototype/README.md`), in turns.

use std::collections::BTreeSet;

use hopper_attention::{Element, raw};
use hopper_attention_tests::prototype::{Compiler, KERNELS, Kernel, Loaded};
use hopper_attention_tests::{Failure, with_element};

use crate::Result;
use crate::cells::{Cell, expand};
use crate::gpu::{self, Gpu};
use crate::problem::Problem;
use crate::timing::{self, median};

const SEQLENS: [&str; 3] = ["1k", "4k", "16k"];
/// A quarter of the protocol's, so that all of it takes less than a minute.
const SAMPLES: usize = 5;

/// Prints a line for each kernel and length. Kernels that compute the same take turns, too.
pub fn run(gpu: &Gpu, seed: u64) -> Result<()> {
    println!("{}, {} SMs, driver {}: TFLOP/s, the median of {SAMPLES} samples in turns", gpu.name, gpu.sm_count, gpu::driver_version());
    let [a, b] = Compiler::ALL.map(Compiler::name);
    println!("{:18} {:24} {a:>9} {b:>9} {:>6}", "kernel", "cell", "ratio");
    let problem = |kernel: &Kernel| (kernel.head_dim, kernel.causal, kernel.dtype);
    for (head_dim, causal, dtype) in KERNELS.iter().map(problem).collect::<BTreeSet<_>>() {
        let kernels = || KERNELS.iter().filter(|kernel| problem(kernel) == (head_dim, causal, dtype));
        let loaded = kernels().flat_map(|kernel| Compiler::ALL.map(|compiler| kernel.load(compiler)));
        let loaded: Vec<Loaded> = loaded.collect::<std::result::Result<_, Failure>>().map_err(|failure| failure.0)?;
        for seqlen in SEQLENS {
            let cell = expand(&format!("d{head_dim},{},{seqlen},{}", if causal { "causal" } else { "full" }, dtype.name()))?[0];
            let tflops = with_element!(dtype, T => measure::<T>(gpu, &cell, &loaded, seed))?;
            for (kernel, tflops) in kernels().zip(tflops.chunks_exact(Compiler::ALL.len())) {
                let (name, cell) = (kernel.name, cell.to_string());
                println!("{name:18} {cell:24} {:9.0} {:9.0} {:6.3}", tflops[0], tflops[1], tflops[1] / tflops[0]);
            }
        }
    }
    Ok(())
}

fn measure<T: Element>(gpu: &Gpu, cell: &Cell, loaded: &[Loaded], seed: u64) -> Result<Vec<f64>> {
    let problem = Problem::<T>::new(gpu, cell, seed)?;
    let call = problem.call(raw::Options::new());
    let enqueue = |loaded: &Loaded| -> Result<()> {
        // SAFETY: the buffers hold what the layouts span, only this stream uses them and the kernels, and freeing them waits for the work.
        Ok(unsafe { loaded.enqueue(&call, gpu.stream) }.map_err(|failure| failure.0)?)
    };
    for loaded in loaded {
        problem.poison_output()?;
        enqueue(loaded)?;
        gpu.synchronize()?;
        problem.check(seed)?;
    }
    let mut contestants: Vec<_> = loaded.iter().map(|loaded| || enqueue(loaded)).collect();
    let samples = timing::in_turns(gpu, SAMPLES, &mut contestants)?;
    Ok(samples.iter().map(|samples| cell.flops() as f64 / median(&samples.us) / 1e6).collect())
}
