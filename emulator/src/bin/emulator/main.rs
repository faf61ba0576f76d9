//! Runs PTX files on the CPU.

mod bench;
mod mutate;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, Subcommand};
use hopper_attention_emulator::harness::{Link, Spec, Verdict, check_as, run_once};

/// Executes PTX for NVIDIA Hopper on the CPU, and reports what a GPU hides: races, missing fences and waits, deadlocks.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a file as the comments at its head say (the crate's module `harness` lists them).
    Run {
        /// The PTX file.
        file: PathBuf,
        /// Try the seeds 0 to N-1.
        #[arg(long, allow_negative_numbers = true)]
        schedules: Option<u64>,
        /// Try this seed only.
        #[arg(long, allow_negative_numbers = true)]
        seed: Option<u64>,
        /// Turn the checks off.
        #[arg(long)]
        no_checks: bool,
        /// Launch this instead of what the file says: `grid 4 block 128 shared 1024 kernel NAME`.
        #[arg(long)]
        launch: Option<String>,
        /// An argument of that launch, such as `in f16[64] = i`, `scratch u32[8]`, `u32 5`; once for each, in order.
        #[arg(long)]
        arg: Vec<String>,
    },
    Mutate(mutate::Options),
    /// Measures the interpreter.
    Bench,
    /// Lists the driver functions that the library exports.
    List,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), String> {
    match command {
        Command::Run { file, schedules, seed, no_checks, launch, arg } => {
            let source = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            let link = Link::emulator();
            link.set_checks(!no_checks);
            let head = match launch {
                Some(launch) => arg.iter().fold(format!("// launch: {launch}\n"), |head, arg| head + &format!("// arg: {arg}\n")),
                None => source.clone(),
            };
            let mut spec = Spec::parse(&head)?;
            spec.schedules = schedules.unwrap_or(spec.schedules);
            let started = Instant::now();
            if let Some(seed) = seed {
                link.set_seed(seed);
                run_once(&link, &source, &spec).map_err(|message| format!("{}: {message}", file.display()))?;
            } else if let Verdict::Differs(message) = check_as(&link, &source, &spec) {
                return Err(format!("{}: {message}", file.display()));
            }
            println!("{}: as expected, {:.3} s", file.display(), started.elapsed().as_secs_f64());
            Ok(())
        }
        Command::Mutate(options) => mutate::run(&options),
        Command::Bench => bench::run(),
        Command::List => {
            for (name, _) in hopper_attention_emulator::exports() {
                println!("{name}");
            }
            Ok(())
        }
    }
}
