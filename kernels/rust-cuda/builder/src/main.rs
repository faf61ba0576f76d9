//! Compiles the kernels with rust-cuda and writes the PTX as libNVVM made it: `hopper-attention-rust-cuda OUT.ptx`.
//!
//! `cargo xtask ptx --backend rust-cuda` runs this with the environment that it needs, and finishes the PTX.

use cuda_builder::{CudaBuilder, NvvmArch};
use std::env;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(out) = env::args_os().nth(1) else {
        eprintln!("usage: hopper-attention-rust-cuda OUT.ptx");
        return ExitCode::from(2);
    };
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("kernels");
    let built = CudaBuilder::new(kernels)
        .arch(NvvmArch::Compute90a)
        // The kernels fuse what they mean to fuse. Without this, libNVVM and ptxas would fuse more, and round otherwise than rustc's PTX does.
        .fma_contraction(false)
        .copy_to(out)
        .build();
    match built {
        Ok(path) => {
            println!("rust-cuda wrote {}", path.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: rust-cuda: {error}");
            ExitCode::FAILURE
        }
    }
}
