//! `cargo xtask`: every task of the repository. One file per command; of the workspace's crates only the builder is needed to compile this
//! one, so that it works where the PTX is missing or another crate is broken.

mod bench;
mod bundle;
mod chart;
mod ci;
mod demo;
mod device;
mod doctor;
mod emulator;
mod mutate;
mod ptx;
mod setup;
mod tally;
mod test;
mod toolchain;
mod tools;
mod workspace;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "Every task of the repository", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build host/ptx/ from the kernels' source, and let ptxas judge it
    Ptx(ptx::Options),
    /// Run the tests; those that need a device on a Hopper GPU, or on the emulator
    Test(test::Options),
    /// Measure, record and draw (benches/README.md)
    Bench(bench::Options),
    /// Remove one synchronising instruction of a kernel at a time, and see whether the emulator notices (emulator/MUTATIONS.md)
    Mutate(mutate::Options),
    /// Attention on activations of a real model, compared with the float64 result beside them
    Demo(demo::Options),
    /// Show what is installed, what is missing, and how to get it
    Doctor,
    /// Install ptxas and nvdisasm into target/tools (needs python3 and a network)
    Setup,
    /// Make a folder with the device tests and the benchmark for a GPU machine without Rust
    Bundle(bundle::Options),
    /// Check everything that needs no GPU; the device tests run on the emulator
    Ci,
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Ptx(options) => ptx::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Mutate(options) => mutate::run(&options),
        Command::Demo(options) => demo::run(&options),
        Command::Doctor => doctor::run(),
        Command::Setup => setup::run(),
        Command::Bundle(options) => bundle::run(&options),
        Command::Ci => ci::run(),
    }
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
