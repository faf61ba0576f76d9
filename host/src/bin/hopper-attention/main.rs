//! Attention on a safetensors file: to compare this library with another framework, without writing a program.

mod compare;
mod file;
mod output;

use std::error::Error;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use cust::context::Context;
use cust::device::Device;
use cust::memory::CopyDestination;
use half::{bf16, f16};
use hopper_attention::reference::{self, HostTensor, Problem};
use hopper_attention::{Attention, Layout, Tensor};

use crate::compare::{Comparison, Expected};
use crate::file::{FileElement, Inputs, Tensors};
use crate::output::Output;

/// Computes attention on a Hopper GPU: reads the tensors q, k and v (F16 or BF16) of a safetensors file, writes o (of the same type) and
/// lse (F32, natural logarithm, [batch, heads, seqlen_q]).
///
/// Exit status: 0 if all went well, 1 if --compare found a difference beyond rounding, 2 after any error.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The safetensors file with q, k and v.
    input: PathBuf,

    /// Where o and lse go: a regular file or a new one, not the input file; may be left out with --compare.
    #[arg(short, long, required_unless_present = "compare")]
    output: Option<PathBuf>,

    /// Compares o and lse with those of the input file, or with a float64 computation on the CPU.
    #[arg(long)]
    compare: Option<CompareWith>,

    /// Query i sees key j only if j <= i + seqlen_k - seqlen_q.
    #[arg(long)]
    causal: bool,

    /// Factor of the logits; 1 / sqrt(head_dim) if left out.
    #[arg(long, allow_negative_numbers = true)]
    softmax_scale: Option<f32>,

    /// Query i sees no key before i + seqlen_k - seqlen_q - this.
    #[arg(long, allow_negative_numbers = true)]
    window_left: Option<usize>,

    /// Query i sees no key behind i + seqlen_k - seqlen_q + this.
    #[arg(long, allow_negative_numbers = true)]
    window_right: Option<usize>,

    /// Makes softcap * tanh(s / softcap) of each scaled logit s.
    #[arg(long, allow_negative_numbers = true)]
    softcap: Option<f32>,

    /// Order of the tensors' dimensions, of o as well.
    #[arg(long, value_enum, default_value_t = Order::Bshd)]
    layout: Order,

    /// The GPU, counted from 0 as CUDA does.
    #[arg(long, allow_negative_numbers = true, default_value_t = 0)]
    device: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum CompareWith {
    /// The tensors o and lse of the input file (lse may be missing).
    File,
    /// `hopper_attention::reference::exact`; but NaN or infinity in V is expected where the GPU brings it, also in queries that a mask
    /// hides the key from.
    Exact,
}

/// Order of dimensions in a file.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Order {
    /// [batch, seqlen, heads, head_dim], as FlashAttention has it.
    Bshd,
    /// [batch, heads, seqlen, head_dim], as PyTorch's SDPA has it.
    Bhsd,
}

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            // A reader that has gone away wants to hear no more; and where stderr fails too, the exit status is all that is left.
            if error.downcast_ref::<io::Error>().is_none_or(|error| error.kind() != ErrorKind::BrokenPipe) {
                let _ = writeln!(io::stderr(), "error: {error}");
            }
            ExitCode::from(2)
        }
    }
}

/// Prints a line, where `println!` would panic if it cannot.
fn print(line: impl Display) -> Result<()> {
    let mut stdout = io::stdout().lock();
    Ok(writeln!(stdout, "{line}").and_then(|()| stdout.flush())?)
}

/// Whether the comparison, if one was asked for, found nothing but rounding.
fn run(arguments: &Arguments) -> Result<bool> {
    let bytes = std::fs::read(&arguments.input).map_err(|error| format!("cannot read {}: {error}", arguments.input.display()))?;
    let output = arguments.output.as_ref().map(|path| Output::open(path, &arguments.input)).transpose()?;
    let tensors = Tensors::parse(&bytes).map_err(|error| format!("{}: {error}", arguments.input.display()))?;
    match tensors.get("q")?.dtype() {
        f16::FILE_DTYPE => attend::<f16>(arguments, &tensors, output),
        bf16::FILE_DTYPE => attend::<bf16>(arguments, &tensors, output),
        other => Err(format!("q is {other:?}, but must be F16 or BF16").into()),
    }
}

fn attend<T: FileElement>(arguments: &Arguments, tensors: &Tensors, output: Option<Output>) -> Result<bool> {
    let inputs = Inputs::<T>::read(tensors, arguments.layout)?;
    let ([batch, seqlen_q, heads, head_dim], [.., head_dim_v]) = (inputs.q.1.shape, inputs.v.1.shape);
    let shape = [batch, seqlen_q, heads, head_dim_v];
    // What is wrong with the file is said before anything is computed.
    let expected = match arguments.compare {
        Some(CompareWith::File) => Some(Expected::read(tensors, shape, arguments.layout)?),
        Some(CompareWith::Exact) | None => None,
    };
    let (o, lse) = on_device(arguments, &inputs)?;
    if let Some(output) = output {
        output.write(&file::serialize(&o, &lse, shape, arguments.layout)?)?;
    }
    let [_, seqlen_k, heads_k, _] = inputs.k.1.shape;
    let (dtype, mask) = (T::DTYPE, mask(arguments));
    let head_dims = if head_dim == head_dim_v { format!("{head_dim}") } else { format!("{head_dim} and {head_dim_v}") };
    print(format_args!(
        "{dtype} {mask}: batch {batch}, seqlen {seqlen_q} on {seqlen_k}, heads {heads} on {heads_k}, head_dim {head_dims}"
    ))?;
    if let Some(path) = &arguments.output {
        print(format_args!("wrote o and lse to {}", path.display()))?;
    }
    let expected = match (arguments.compare, expected) {
        (None, _) => return Ok(true),
        (Some(_), Some(expected)) => expected,
        (Some(_), None) => exact(arguments, &inputs)?,
    };
    let comparison = Comparison::new(&o, &lse, shape, &expected, &inputs.v);
    print(&comparison)?;
    Ok(comparison.agrees())
}

/// The mask in a word.
fn mask(arguments: &Arguments) -> &'static str {
    match (arguments.window_left, arguments.window_right, arguments.causal) {
        (None, None, false) => "full",
        (None, _, true) | (None, Some(0), false) => "causal",
        _ => "windowed",
    }
}

/// O in the order [batch, seqlen, heads, head_dim], and LSE.
fn on_device<T: FileElement>(arguments: &Arguments, inputs: &Inputs<T>) -> Result<(Vec<T>, Vec<f32>)> {
    let _context = context(arguments.device)?;
    let upload = |(values, layout): &(Vec<T>, Layout)| Tensor::from_slice(values, *layout);
    let (q, k, v) = (upload(&inputs.q)?, upload(&inputs.k)?, upload(&inputs.v)?);
    let mut attention = Attention::new().causal(arguments.causal).window(arguments.window_left, arguments.window_right);
    if let Some(softmax_scale) = arguments.softmax_scale {
        attention = attention.softmax_scale(softmax_scale);
    }
    if let Some(softcap) = arguments.softcap {
        attention = attention.softcap(softcap);
    }
    let output = attention.forward(&q, &k, &v)?;
    let mut lse = vec![0.0; output.lse.len()];
    output.lse.copy_to(&mut lse).map_err(hopper_attention::Error::from)?;
    Ok((output.o.to_vec()?, lse))
}

fn context(ordinal: u32) -> Result<Context> {
    let context = || {
        cust::init(cust::CudaFlags::empty())?;
        let devices = Device::num_devices()?;
        if ordinal >= devices {
            return Ok(Err(format!("--device {ordinal}: there are {devices} CUDA devices, counted from 0")));
        }
        Context::new(Device::get_device(ordinal)?).map(Ok)
    };
    Ok(context().map_err(hopper_attention::Error::from)??)
}

/// The definition's o and LSE; where NaN or infinity in V reaches o on the device alone, what it is there.
fn exact<T: FileElement>(arguments: &Arguments, inputs: &Inputs<T>) -> Result<Expected> {
    let tensor = |(values, layout)| HostTensor::new(values, layout);
    let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|(values, layout)| tensor((values.as_slice(), *layout)));
    let mut problem = Problem::new(q?, k?, v?)?.causal(arguments.causal);
    problem = problem.window(arguments.window_left, arguments.window_right);
    if let Some(softmax_scale) = arguments.softmax_scale {
        problem = problem.softmax_scale(softmax_scale)?;
    }
    if let Some(softcap) = arguments.softcap {
        problem = problem.softcap(softcap)?;
    }
    let mut attention = reference::exact::attention(&problem);
    // A weight of 0 times NaN or infinity is NaN, also where the weight is 0 because the mask hides the key.
    if !inputs.v.0.iter().all(|value| value.to_f32().is_finite()) {
        let model = reference::tiled::attention(&problem)?;
        for (exact, model) in attention.o.iter_mut().zip(&model.o) {
            if !model.to_f32().is_finite() {
                *exact = f64::from(model.to_f32());
            }
        }
    }
    Ok(Expected { o: attention.o, lse: Some(attention.lse) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_in_v_reaches_what_it_reaches_on_the_device() {
        let zeros = || vec![bf16::ZERO; 3 * 64];
        let mut v = zeros();
        v[2 * 64] = bf16::NAN;
        let layout = Layout::bshd([1, 3, 1, 64]);
        let inputs = Inputs { q: (zeros(), layout), k: (zeros(), layout), v: (v, layout) };
        let arguments = Arguments::parse_from(["hopper-attention", "file", "--compare", "exact", "--causal"]);
        let expected = exact(&arguments, &inputs).unwrap();
        // Queries 0 and 1 do not see key 2, which lies in their tile.
        let nan: Vec<_> = (0..expected.o.len()).filter(|&i| expected.o[i].is_nan()).collect();
        assert_eq!(nan, [0, 64, 128]);
    }
}
