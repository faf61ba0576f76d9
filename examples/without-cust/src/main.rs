//! Causal attention with grouped heads through the raw layer: device addresses, a CUstream, and the context that is current. That is what
//! candle, cudarc and burn can hand over; `gpu.rs` makes them here, as cudarc does (the device's primary context, a stream that does not
//! wait for the default one). With cudarc 0.19 the call reads:
//!
//! ```ignore
//! stream.context().bind_to_thread()?;
//! let (address, _guard) = slice.device_ptr(&stream); // O: device_ptr_mut; the guards live until after the call
//! let q = raw::Tensor4 { address, dtype: DType::Bf16, layout };
//! unsafe { raw::forward(&q, &k, &v, &o, None, &options, stream.cu_stream().cast())? };
//! ```
//!
//! Exit code: 0 if the result is right, 2 if this machine has no GPU that can run it, 1 for any other failure.

mod gpu;

use std::process::ExitCode;

use half::bf16;
use hopper_attention::reference::{HostTensor, Problem, exact};
use hopper_attention::{CUresult, DType, Error, Layout, raw};

use crate::gpu::Gpu;

fn main() -> ExitCode {
    match run() {
        Ok(worst) if worst <= 1.0 / 128.0 => {
            println!("right: the largest error against float64 is {worst:.1e}");
            ExitCode::SUCCESS
        }
        Ok(worst) => {
            eprintln!("error: wrong by {worst:.1e}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            if no_suitable_gpu(&error) { ExitCode::from(2) } else { ExitCode::FAILURE }
        }
    }
}

fn no_suitable_gpu(error: &Error) -> bool {
    matches!(
        error,
        Error::NoDriver(_) | Error::DriverTooOld { .. } | Error::UnsuitableDevice { .. } | Error::Driver { code: CUresult::NO_DEVICE, .. }
    )
}

/// Computes attention on the GPU, and returns its largest error.
fn run() -> Result<f64, Error> {
    let gpu = Gpu::new()?;

    // 200 tokens; 4 query heads that share 2 key heads; every tensor is [batch, seqlen, heads, head_dim].
    let (q_layout, kv_layout) = (Layout::bshd([1, 200, 4, 128]), Layout::bshd([1, 200, 2, 128]));
    let (q, k, v) = (values(4 * 200 * 128, 1), values(2 * 200 * 128, 2), values(2 * 200 * 128, 3));
    let mut o = vec![bf16::ZERO; q.len()];

    let (q_memory, k_memory, v_memory, o_memory) = (gpu.upload(&q)?, gpu.upload(&k)?, gpu.upload(&v)?, gpu.upload(&o)?);
    let tensor = |address, layout| raw::Tensor4 { address, dtype: DType::Bf16, layout };
    let options = raw::Options::new().causal(true);
    // SAFETY: the memory holds what the layouts describe and lives until `download` has waited for the stream, where all work on it runs.
    unsafe {
        raw::forward(
            &tensor(q_memory.address(), q_layout),
            &tensor(k_memory.address(), kv_layout),
            &tensor(v_memory.address(), kv_layout),
            &tensor(o_memory.address(), q_layout),
            None,
            &options,
            gpu.stream(),
        )?;
    }
    gpu.download(&o_memory, &mut o)?;

    let problem = Problem::new(HostTensor::new(&q, q_layout)?, HostTensor::new(&k, kv_layout)?, HostTensor::new(&v, kv_layout)?)?;
    let expected = exact::attention(&problem.causal(true));
    Ok(largest_error(&o, &expected.o))
}

/// Numbers from -1 to 1, by a linear congruential generator.
fn values(len: usize, seed: u64) -> Vec<bf16> {
    let mut state = seed;
    let next = || {
        state = state.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
        bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// NaN counts as the largest of all.
fn largest_error(found: &[bf16], expected: &[f64]) -> f64 {
    let errors = found.iter().zip(expected).map(|(found, expected)| (found.to_f64() - expected).abs());
    errors.fold(0.0, |worst: f64, error| if error > worst || error.is_nan() { error } else { worst })
}
