//! `cargo xtask`: every task of the repository. One file per command; no crate of the workspace is needed to compile this one, so that it
//! works where the PTX is missing or a crate is broken.

mod ptx;
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
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Ptx(options) => ptx::run(&options),
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
