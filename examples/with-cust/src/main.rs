//! Causal attention with grouped heads on the tensors of a program that uses cust.
//!
//! Exit code: 0 if the result is right, 2 if this machine has no GPU that can run it, 1 for any other failure.

use std::process::ExitCode;

use half::bf16;
use hopper_attention::reference::{HostTensor, Problem, exact};
use hopper_attention::{Attention, CUresult, Error, Layout, Tensor};

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
    // The first GPU's context, current on this thread. Without a driver this is an error like any other, and says what to install.
    let _context = cust::quick_init()?;

    // 200 tokens; 4 query heads that share 2 key heads; every tensor is [batch, seqlen, heads, head_dim].
    let (q_layout, kv_layout) = (Layout::bshd([1, 200, 4, 128]), Layout::bshd([1, 200, 2, 128]));
    let (q, k, v) = (values(4 * 200 * 128, 1), values(2 * 200 * 128, 2), values(2 * 200 * 128, 3));
    let output = Attention::new().causal(true).forward(
        &Tensor::from_slice(&q, q_layout)?,
        &Tensor::from_slice(&k, kv_layout)?,
        &Tensor::from_slice(&v, kv_layout)?,
    )?;

    let problem = Problem::new(HostTensor::new(&q, q_layout)?, HostTensor::new(&k, kv_layout)?, HostTensor::new(&v, kv_layout)?)?;
    let expected = exact::attention(&problem.causal(true));
    Ok(largest_error(&output.o.to_vec()?, &expected.o))
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
