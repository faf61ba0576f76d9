//! Attention with functions of one's own: documents that share a sequence see only themselves, and each distance has a bias. The functions and
//! their kernel are in `kernels/`, `build.rs` builds its PTX; here it is launched, and compared with the same functions in float64.
//!
//! Exit code: 0 if the result is right, 2 if this machine has no GPU that can run it, 1 for any other failure.

use std::process::ExitCode;

use cust::memory::DeviceBuffer;
use document_mask_kernels::{DocumentArgs, RelativeBias, SameDocument};
use half::bf16;
use hopper_attention::reference::{HostTensor, Problem, Row, exact};
use hopper_attention::{Arrays, Attention, CUresult, CustomKernel, Error, Layout, Tensor};
use hopper_attention_kernels::function::{Head, MaskMod, ScoreMod};

const PTX: &str = include_str!(concat!(env!("OUT_DIR"), "/ptx/documents_bias_hdim64_bf16.ptx"));

const SEQLEN: usize = 700;
const HEADS: usize = 4;
const MAX_DISTANCE: usize = 50;
/// Where documents begin; the last one ends with the sequence.
const STARTS: [u32; 5] = [0, 130, 131, 420, SEQLEN as u32];

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
    let _context = cust::quick_init()?;
    let kernel = CustomKernel::<DocumentArgs>::from_ptx(PTX)?;

    // 4 query heads that share 2 key heads; every tensor is [batch, seqlen, heads, head_dim].
    let (q_layout, kv_layout) = (Layout::bshd([1, SEQLEN, HEADS, 64]), Layout::bshd([1, SEQLEN, 2, 64]));
    let (q, k, v) = (values(SEQLEN * HEADS * 64, 1), values(SEQLEN * 2 * 64, 2), values(SEQLEN * 2 * 64, 3));
    let document_of: Vec<u32> = (0..SEQLEN as u32).map(|token| STARTS.iter().filter(|&&start| start <= token).count() as u32 - 1).collect();
    let bias: Vec<f32> = values(HEADS * (2 * MAX_DISTANCE + 1), 4).iter().map(|bias| 2.0 * bias.to_f32()).collect();

    let (on_device, starts_on_device, bias_on_device) =
        (DeviceBuffer::from_slice(&document_of)?, DeviceBuffer::from_slice(&STARTS)?, DeviceBuffer::from_slice(&bias)?);
    let args = DocumentArgs {
        document_of: on_device.as_device_ptr().as_ptr(),
        starts: starts_on_device.as_device_ptr().as_ptr(),
        bias: bias_on_device.as_device_ptr().as_ptr(),
        max_distance: MAX_DISTANCE as i32,
    };
    // SAFETY: the kernel was defined with `DocumentArgs`, and this one names arrays as it describes them, which live until the end.
    let output = unsafe {
        Attention::new().causal(true).forward_custom(
            &kernel,
            &args,
            &Tensor::from_slice(&q, q_layout)?,
            &Tensor::from_slice(&k, kv_layout)?,
            &Tensor::from_slice(&v, kv_layout)?,
            &Arrays::new(),
        )?
    };

    // The functions are ordinary Rust: here they are told of arrays in the host's memory.
    let args = || DocumentArgs {
        document_of: document_of.as_ptr(),
        starts: STARTS.as_ptr(),
        bias: bias.as_ptr(),
        max_distance: MAX_DISTANCE as i32,
    };
    let head = |row: Row| Head { batch_idx: 0, head_idx: row.head_idx as u32, seqlen_q: SEQLEN as u32, seqlen_k: SEQLEN as u32 };
    let at = |row: Row, key: usize| head(row).at(row.position as u32, key as u32);
    // SAFETY: the arrays are as `DocumentArgs` describes them, and live until the end; rows and keys are those of the problem.
    let sees = |row: Row, key: usize| unsafe { SameDocument::of_head(&args(), head(row)).sees(at(row, key)) };
    let score = |score: f64, row: Row, key: usize| {
        // SAFETY: as above.
        f64::from(unsafe { RelativeBias::of_head(&args(), head(row)).score(score as f32, at(row, key)) })
    };
    let problem = Problem::new(HostTensor::new(&q, q_layout)?, HostTensor::new(&k, kv_layout)?, HostTensor::new(&v, kv_layout)?)?;
    let expected = exact::attention(&problem.causal(true).mask_function(&sees).score_function(&score));
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
