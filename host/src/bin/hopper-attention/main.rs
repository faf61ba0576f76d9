//! Attention on a safetensors file: to compare this library with another framework, without writing a program.

mod compare;
mod file;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use cust::context::Context;
use cust::device::Device;
use cust::memory::CopyDestination;
use half::{bf16, f16};
use hopper_attention::reference::{self, HostTensor, Problem};
use hopper_attention::{Attention, DType, Element, Layout, Tensor};

use crate::compare::{Comparison, Expected};
use crate::file::{Inputs, Tensors};

/// Computes attention on a Hopper GPU: reads the tensors q, k and v (F16 or BF16) of a safetensors file, writes o (of the same type) and
/// lse (F32, natural logarithm, [batch, heads, seqlen_q]).
///
/// Exit status: 0 if all went well, 1 if --compare found a difference beyond rounding, 2 if nothing could be computed.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The safetensors file with q, k and v.
    input: PathBuf,

    /// Where o and lse go.
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

    /// Order of the tensors' dimensions, of o as well.
    #[arg(long, value_enum, default_value_t = Order::Bshd)]
    layout: Order,

    /// The GPU, counted from 0 as CUDA does.
    #[arg(long, default_value_t = 0)]
    device: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum CompareWith {
    /// The tensors o and lse of the input file (lse may be missing).
    File,
    /// `hopper_attention::reference::exact`.
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
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether the comparison, if one was asked for, found nothing but rounding.
fn run(arguments: &Arguments) -> Result<bool> {
    let bytes = std::fs::read(&arguments.input).map_err(|error| format!("cannot read {}: {error}", arguments.input.display()))?;
    let tensors = Tensors::parse(&bytes).map_err(|error| format!("{}: {error}", arguments.input.display()))?;
    match tensors.dtype("q")? {
        DType::F16 => attend::<f16>(arguments, &tensors),
        DType::Bf16 => attend::<bf16>(arguments, &tensors),
    }
}

fn attend<T: Element>(arguments: &Arguments, tensors: &Tensors) -> Result<bool> {
    let inputs = Inputs::<T>::read(tensors, arguments.layout)?;
    let (o, lse) = on_device(arguments, &inputs)?;
    let shape = inputs.q.1.shape;
    let [batch, seqlen_q, heads, head_dim] = shape;
    let mask = if arguments.causal { "causal" } else { "full" };
    println!(
        "{} {mask}: batch {batch}, seqlen {seqlen_q} on {}, heads {heads} on {}, head_dim {head_dim}",
        T::DTYPE.name(),
        inputs.k.1.shape[1],
        inputs.k.1.shape[2]
    );
    if let Some(path) = &arguments.output {
        file::write(path, &o, &lse, shape, arguments.layout)?;
        println!("wrote o and lse to {}", path.display());
    }
    let expected = match arguments.compare {
        None => return Ok(true),
        Some(CompareWith::File) => Expected::read(tensors, shape, arguments.layout)?,
        Some(CompareWith::Exact) => exact(arguments, &inputs)?,
    };
    let comparison = Comparison::new(&o, &lse, &expected, &inputs.v.0);
    println!("{comparison}");
    Ok(comparison.agrees())
}

/// O in the order [batch, seqlen, heads, head_dim], and LSE.
fn on_device<T: Element>(arguments: &Arguments, inputs: &Inputs<T>) -> Result<(Vec<T>, Vec<f32>)> {
    let _context = context(arguments.device)?;
    let upload = |(values, layout): &(Vec<T>, Layout)| Tensor::from_slice(values, *layout);
    let (q, k, v) = (upload(&inputs.q)?, upload(&inputs.k)?, upload(&inputs.v)?);
    let mut attention = Attention::new().causal(arguments.causal);
    if let Some(softmax_scale) = arguments.softmax_scale {
        attention = attention.softmax_scale(softmax_scale);
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

fn exact<T: Element>(arguments: &Arguments, inputs: &Inputs<T>) -> Result<Expected> {
    let tensor = |(values, layout)| HostTensor::new(values, layout);
    let [q, k, v] = [&inputs.q, &inputs.k, &inputs.v].map(|(values, layout)| tensor((values.as_slice(), *layout)));
    let mut problem = Problem::new(q?, k?, v?)?.causal(arguments.causal);
    if let Some(softmax_scale) = arguments.softmax_scale {
        problem = problem.softmax_scale(softmax_scale);
    }
    let attention = reference::exact::attention(&problem);
    Ok(Expected { o: attention.o, lse: Some(attention.lse) })
}
