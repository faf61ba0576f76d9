//! Times this library on the first device: TFLOP/s in each cell, the host-side cost of a call, the first use of each kernel. The rule, the
//! protocols, the words that name a cell and the file format are in benches/README.md; `benches/peers.py` compares with other libraries.

mod cells;
mod cublas;
mod first_use;
mod gpu;
mod host_call;
mod problem;
mod prototype;
mod random;
mod report;
mod timing;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use hopper_attention::Element;
use hopper_attention_tests::with_element;

use cells::Cell;
use gpu::Gpu;
use problem::{Errors, Problem};
use report::{CellEntry, Outcome, Run};
use timing::{Protocol, Samples};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Times this library on the first CUDA device. benches/README.md explains cells, protocols and the file.
#[derive(Parser)]
struct Arguments {
    /// Cells in words (d128,causal,4k,bf16; what is left out takes every value of the grid), or grid, shapes, sustained
    #[arg(long, num_args = 1.., default_values = ["grid"])]
    cells: Vec<String>,
    /// How launches are strung together
    #[arg(long, value_enum, default_value = "burst")]
    protocol: Protocol,
    /// Written after every cell; the table goes beside it as .txt
    #[arg(long, value_name = "FILE", default_value = "bench.json")]
    out: PathBuf,
    /// A folder with kernels to use instead of those built into the library
    #[arg(long, value_name = "DIR")]
    ptx_dir: Option<PathBuf>,
    /// cuBLAS, where the loader does not find it by itself
    #[arg(long, value_name = "FILE")]
    cublas: Option<PathBuf>,
    /// Time only the cells, neither first uses nor the host-side cost of a call
    #[arg(long)]
    cells_only: bool,
    /// Print how fast the kernels of the prototype are, as rustc and as rust-cuda compiled them, in turns; measure and write nothing else
    #[arg(long, conflicts_with_all = ["cells", "protocol", "out", "ptx_dir", "cublas", "cells_only"])]
    prototype: bool,
    /// Of the inputs; from the clock if left out
    #[arg(long, allow_negative_numbers = true)]
    seed: Option<u64>,
}

fn main() -> ExitCode {
    // SAFETY: no other thread runs yet. The driver's cache of compiled PTX would hide what a first use costs.
    unsafe { std::env::set_var("CUDA_CACHE_DISABLE", "1") };
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether every cell was measured.
fn run(arguments: &Arguments) -> Result<bool> {
    let mut cells: Vec<Cell> = vec![];
    for spec in &arguments.cells {
        cells.extend(cells::expand(spec)?);
    }
    if let Some(dir) = &arguments.ptx_dir {
        hopper_attention::raw::set_ptx_dir(dir)?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let seed = arguments.seed.unwrap_or(now.as_nanos() as u64 % (1 << 32));
    let gpu = Gpu::open()?;
    if arguments.prototype {
        return prototype::run(&gpu, seed).map(|()| true);
    }
    let run = describe_run(&gpu, arguments, seed, now.as_secs())?;
    let mut entries = vec![];
    for (number, cell) in cells.iter().enumerate() {
        println!("[{}/{}] {cell}", number + 1, cells.len());
        let measured = with_element!(cell.dtype, T => measure::<T>(&gpu, cell, arguments.protocol, seed));
        let results = vec![Outcome::ours(cell.flops(), measured)];
        entries.push(CellEntry {
            cell: cell.to_string(),
            protocol: arguments.protocol.name(),
            run: 0,
            problem: *cell,
            flops: cell.flops(),
            results,
        });
        report::save(&arguments.out, &run, &entries)?;
    }
    let table = report::table(&run, &entries)?;
    std::fs::write(arguments.out.with_extension("txt"), &table)?;
    print!("{table}");
    Ok(entries.iter().flat_map(|entry| &entry.results).all(|outcome| outcome.tflops().is_ok()))
}

fn describe_run(gpu: &Gpu, arguments: &Arguments, seed: u64, now_s: u64) -> Result<Run> {
    // First uses come first: everything after them uses kernels too.
    let (first_use, host_call) =
        if arguments.cells_only { (vec![], vec![]) } else { (first_use::measure(gpu, seed), host_call::measure(gpu, seed)?) };
    let matmul = cublas::Matmul::open(gpu, arguments.cublas.as_deref())
        .and_then(|matmul| timing::measure(gpu, arguments.protocol, &mut || matmul.enqueue()));
    Ok(Run {
        program: "bench",
        started: utc(now_s),
        command: std::env::args().collect::<Vec<_>>().join(" "),
        seed,
        device: gpu.name.clone(),
        sm_count: gpu.sm_count,
        driver: gpu::driver_version(),
        versions: BTreeMap::from([("hopper-attention", env!("CARGO_PKG_VERSION"))]),
        matmul: vec![Outcome::ceiling(arguments.protocol.name(), cublas::FLOPS, matmul)],
        host_call,
        first_use,
    })
}

fn measure<T: Element>(gpu: &Gpu, cell: &Cell, protocol: Protocol, seed: u64) -> Result<(Samples, Errors)> {
    let problem = Problem::<T>::new(gpu, cell, seed)?;
    let mut forward = problem.forward(gpu);
    forward()?;
    gpu.synchronize()?;
    let errors = problem.check(seed)?;
    Ok((timing::measure(gpu, protocol, &mut forward)?, errors))
}

/// Seconds since 1970 as `2026-11-29T12:00:00Z`. The date is Howard Hinnant's civil_from_days.
fn utc(seconds: u64) -> String {
    let (days, second) = (seconds / 86400 + 719_468, seconds % 86400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Months from March on.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", second / 3600, second / 60 % 60, second % 60)
}

#[cfg(test)]
mod tests {
    #[test]
    fn dates() {
        assert_eq!(super::utc(0), "1970-01-01T00:00:00Z");
        assert_eq!(super::utc(951_827_696), "2000-02-29T12:34:56Z");
        assert_eq!(super::utc(1_796_083_199), "2026-11-30T23:59:59Z");
    }
}
