//! How long the first use of each kernel takes, the driver's compilation of its PTX included.

use std::time::Instant;

use hopper_attention::DType;
use hopper_attention_kernels::config::FORWARD;
use serde::Serialize;

use crate::Result;
use crate::cells::{Cell, MemoryOrder};
use crate::gpu::Gpu;
use crate::problem::Problem;

/// From the first call to its result.
#[derive(Debug, Serialize)]
pub struct FirstUse {
    pub contestant: &'static str,
    pub kernel: String,
    pub ms: f64,
}

/// Uses every kernel once. None may have been used before in this process, and the driver's cache must be off.
pub fn measure(gpu: &Gpu, seed: u64) -> Result<Vec<FirstUse>> {
    let mut list = vec![];
    for config in FORWARD {
        for dtype in [DType::F16, DType::Bf16] {
            let cell = Cell {
                batch: 1,
                num_heads: 1,
                num_heads_k: 1,
                seqlen_q: 64,
                seqlen_k: 64,
                head_dim: config.head_dim.into(),
                causal: config.causal,
                dtype,
                layout: MemoryOrder::Bshd,
            };
            let mask = if config.causal { "_causal" } else { "" };
            let kernel = format!("flash_fwd_hdim{}_{}{mask}_sm90", config.head_dim, dtype.name());
            let ms = match dtype {
                DType::F16 => one::<half::f16>(gpu, &cell, seed)?,
                DType::Bf16 => one::<half::bf16>(gpu, &cell, seed)?,
            };
            list.push(FirstUse { contestant: "ours", kernel, ms });
        }
    }
    Ok(list)
}

fn one<T: hopper_attention::reference::ReferenceElement + bytemuck::Pod>(gpu: &Gpu, cell: &Cell, seed: u64) -> Result<f64> {
    let problem = Problem::<T>::new(gpu, cell, seed)?;
    let begin = Instant::now();
    problem.forward(gpu)()?;
    gpu.synchronize()?;
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}
