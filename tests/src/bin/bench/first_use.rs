//! How long the first use of each kernel takes, the driver's compilation of its PTX included.

use std::time::Instant;

use hopper_attention::{Element, raw};
use hopper_attention_kernels::config::{FEWER_ROWS, FORWARD, ScoreFunction, TileConfig, general_shapes};
use hopper_attention_tests::{ElementType, native_head_dims, with_element};
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Uses every plain kernel for equal head dims once, and loads the others. None may have been used before in this process, and the driver's cache must be off.
pub fn measure(gpu: &Gpu, seed: u64) -> Vec<FirstUse> {
    let mut list = vec![];
    let mut unequal = Vec::new();
    for config in FORWARD.into_iter().chain(FEWER_ROWS) {
        // A row tile a head: more of them than any Hopper GPU has multiprocessors, or one.
        let (num_heads, rows) = if FEWER_ROWS.contains(&config) { (1, "_fewer_rows") } else { (256, "") };
        for dtype in ElementType::ALL {
            let cell = Cell {
                batch: 1,
                num_heads,
                num_heads_k: num_heads,
                seqlen_q: 64,
                seqlen_k: 64,
                head_dim: config.head_dim.into(),
                causal: config.causal,
                dtype,
                layout: MemoryOrder::Bshd,
            };
            let mask = if config.causal { "_causal" } else { "" };
            let kernel = format!("flash_fwd_hdim{}_{}{mask}{rows}_sm90", native_head_dims(&config), dtype.name());
            // A cell has one head_dim.
            if config.head_dim == config.head_dim_v {
                list.push(FirstUse::of(kernel, one(gpu, &cell, seed)));
            } else {
                unequal.push((kernel, config, dtype));
            }
        }
    }
    // Which numbers lie in the array does not matter to `prepare`, nor where.
    let (array, plain) = (raw::Array { address: 4, len: 1 }, raw::Options::new());
    let sinks = raw::Arrays::new().sinks(array);
    for (scores, name, options, arrays) in [
        (ScoreFunction::Identity, "", plain, sinks),
        (ScoreFunction::SoftCap, "_softcap", plain.softcap(30.0), sinks),
        (ScoreFunction::Alibi, "_alibi", plain, sinks.alibi_slopes(array)),
    ] {
        for config in general_shapes(scores) {
            for dtype in ElementType::ALL {
                let kernel = format!("flash_fwd_hdim{}_{}_general{name}_sm90", native_head_dims(config), dtype.name());
                list.push(FirstUse::of(kernel, load(config, dtype, &options, &arrays)));
            }
        }
    }
    // Last: `prepare` of a plain kernel loads the general one too, which is there by now.
    for (kernel, config, dtype) in unequal {
        list.push(FirstUse::of(kernel, load(&config, dtype, &raw::Options::new().causal(config.causal), &raw::Arrays::new())));
    }
    list
}

fn load(config: &TileConfig, dtype: ElementType, options: &raw::Options, arrays: &raw::Arrays) -> Result<f64> {
    let begin = Instant::now();
    raw::prepare_with(native_head_dims(config), dtype.dtype(), options, arrays)?;
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}

impl FirstUse {
    fn of(kernel: String, outcome: Result<f64>) -> Self {
        let (ms, error) = match outcome {
            Ok(ms) => (Some(ms), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { contestant: "ours", kernel, ms, error }
    }
}

fn one(gpu: &Gpu, cell: &Cell, seed: u64) -> Result<f64> {
    with_element!(cell.dtype, T => timed(gpu, &Problem::<T>::new(gpu, cell, seed)?))
}

fn timed<T: Element>(gpu: &Gpu, problem: &Problem<T>) -> Result<f64> {
    let mut forward = problem.forward(gpu);
    let begin = Instant::now();
    forward()?;
    gpu.synchronize()?;
    Ok(begin.elapsed().as_secs_f64() * 1e3)
}
