//! What a call costs on the host: enqueueing a forward pass, beside a bare `cuLaunchKernel` with parameters of the same size.

use std::time::Instant;

use hopper_attention::raw::Options;
use serde::Serialize;

use crate::Result;
use crate::cells::{Cell, expand};
use crate::gpu::{Gpu, PARAM_BYTES};
use crate::problem::Problem;
use crate::timing::median;

/// Small problems: one with a CTA for each tile, and one whose CTAs draw tiles, for which a launch needs a scheduler slot.
const CELLS: [&str; 2] = ["d128,causal,1k,bf16,b1,h8", "d128,causal,1k,bf16,b1,h32"];
const BATCHES: usize = 400;
/// Far below what the driver queues before a launch waits (about a thousand).
const CALLS_PER_BATCH: usize = 64;

/// Nanoseconds a call, the median of the batches' means.
#[derive(Debug, Serialize)]
pub struct HostCall {
    pub contestant: &'static str,
    pub cell: String,
    pub forward_ns_median: f64,
    /// With `check_addresses`.
    pub checked_ns_median: f64,
    pub empty_launch_ns_median: f64,
    pub param_bytes: usize,
    pub batches: usize,
    pub calls_per_batch: usize,
}

/// Times the kinds of call in turns; the stream is empty when a batch begins.
pub fn measure(gpu: &Gpu, seed: u64) -> Result<Vec<HostCall>> {
    CELLS.into_iter().map(|cell| measure_cell(gpu, &expand(cell)?[0], seed)).collect()
}

fn measure_cell(gpu: &Gpu, cell: &Cell, seed: u64) -> Result<HostCall> {
    let problem = Problem::<half::bf16>::new(gpu, cell, seed)?;
    let mut forward = problem.forward(gpu);
    let mut checked = problem.forward_with(gpu, Options::new().check_addresses(true));
    let mut empty = || gpu.launch_empty(&mut [[0; 16]; 4], &mut [0; PARAM_BYTES]);
    let (mut forward_ns, mut checked_ns, mut empty_ns) = (vec![], vec![], vec![]);
    batch(gpu, &mut forward)?;
    for _ in 0..BATCHES {
        forward_ns.push(batch(gpu, &mut forward)?);
        checked_ns.push(batch(gpu, &mut checked)?);
        empty_ns.push(batch(gpu, &mut empty)?);
    }
    Ok(HostCall {
        contestant: "ours",
        cell: cell.to_string(),
        forward_ns_median: median(&forward_ns),
        checked_ns_median: median(&checked_ns),
        empty_launch_ns_median: median(&empty_ns),
        param_bytes: 4 * 128 + PARAM_BYTES,
        batches: BATCHES,
        calls_per_batch: CALLS_PER_BATCH,
    })
}

fn batch(gpu: &Gpu, call: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
    gpu.synchronize()?;
    let begin = Instant::now();
    for _ in 0..CALLS_PER_BATCH {
        call()?;
    }
    let ns = begin.elapsed().as_secs_f64() * 1e9 / CALLS_PER_BATCH as f64;
    gpu.synchronize()?;
    Ok(ns)
}
