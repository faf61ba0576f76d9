//! The file and the table: benches/README.md, section "The file".

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use serde::Serialize;

use crate::Result;
use crate::cells::Cell;
use crate::first_use::FirstUse;
use crate::host_call::HostCall;
use crate::problem::Errors;
use crate::timing::{Samples, median};

const FORMAT: &str = "hopper-attention-bench/1";

/// RESULT.
#[derive(Debug, Serialize)]
pub struct Outcome {
    contestant: &'static str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    protocol: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    figures: Option<Figures>,
}

#[derive(Debug, Serialize)]
struct Figures {
    tflops: f64,
    us_median: f64,
    samples_us: Vec<f64>,
    calls_per_sample: usize,
    #[serde(flatten)]
    errors: Option<ErrorFigures>,
}

#[derive(Debug, Serialize)]
struct ErrorFigures {
    max_abs_error: f64,
    max_row_error: f64,
    max_lse_error: f64,
}

impl Outcome {
    /// This library in a cell.
    pub fn ours(flops: u64, measured: Result<(Samples, Errors)>) -> Self {
        let measured = measured.map(|(samples, errors)| (samples, Some(errors)));
        Self::new("ours", "ours", None, flops, measured)
    }

    /// The ceiling of a run.
    pub fn ceiling(protocol: &'static str, flops: u64, measured: Result<Samples>) -> Self {
        Self::new("matmul", "ceiling", Some(protocol), flops, measured.map(|samples| (samples, None)))
    }

    fn new(
        contestant: &'static str,
        kind: &'static str,
        protocol: Option<&'static str>,
        flops: u64,
        measured: Result<(Samples, Option<Errors>)>,
    ) -> Self {
        let (figures, error) = match measured {
            Ok((samples, errors)) => (Some(Figures::new(flops, samples, errors)), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self { contestant, kind, protocol, error, figures }
    }

    /// TFLOP/s, or why there are none.
    pub fn tflops(&self) -> std::result::Result<f64, &str> {
        self.figures.as_ref().map(|figures| figures.tflops).ok_or(self.error.as_deref().unwrap_or_default())
    }
}

impl Figures {
    fn new(flops: u64, samples: Samples, errors: Option<Errors>) -> Self {
        let us_median = median(&samples.us);
        let errors = errors.map(|errors| ErrorFigures {
            max_abs_error: errors.max_abs,
            max_row_error: errors.max_row,
            max_lse_error: errors.max_lse,
        });
        let samples_us = samples.us.into_iter().map(rounded).collect();
        let tflops = rounded(flops as f64 / us_median / 1e6);
        Self { tflops, us_median: rounded(us_median), samples_us, calls_per_sample: samples.calls, errors }
    }
}

/// Six digits: more than a measurement has.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

/// RUN.
#[derive(Debug, Serialize)]
pub struct Run {
    pub program: &'static str,
    pub started: String,
    pub command: String,
    pub seed: u64,
    pub device: String,
    pub sm_count: u32,
    pub driver: String,
    pub versions: BTreeMap<&'static str, &'static str>,
    pub matmul: Vec<Outcome>,
    pub host_call: Vec<HostCall>,
    pub first_use: Vec<FirstUse>,
}

/// CELL.
#[derive(Debug, Serialize)]
pub struct CellEntry {
    pub cell: String,
    pub protocol: &'static str,
    pub run: usize,
    #[serde(flatten)]
    pub problem: Cell,
    pub flops: u64,
    pub results: Vec<Outcome>,
}

/// Writes the file, one line a run and one line a cell.
pub fn save(path: &Path, run: &Run, cells: &[CellEntry]) -> Result<()> {
    let cells: Vec<String> = cells.iter().map(|cell| Ok(format!("  {}", serde_json::to_string(cell)?))).collect::<Result<_>>()?;
    let text = format!(
        "{{\n \"format\": \"{FORMAT}\",\n \"runs\": [\n  {}\n ],\n \"cells\": [\n{}\n ]\n}}\n",
        serde_json::to_string(run)?,
        cells.join(",\n")
    );
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}

/// Everything as text.
pub fn table(run: &Run, cells: &[CellEntry]) -> Result<String> {
    let mut text = format!("{}, {} SMs, driver {}\n", run.device, run.sm_count, run.driver);
    for first in &run.first_use {
        match (first.ms, &first.error) {
            (Some(ms), _) => writeln!(text, "first use of {}: {ms:.0} ms", first.kernel)?,
            (None, error) => writeln!(text, "first use of {}: {}", first.kernel, error.as_deref().unwrap_or_default())?,
        }
    }
    for call in &run.host_call {
        let HostCall { cell, forward_ns_median: forward, checked_ns_median: checked, empty_launch_ns_median: empty, param_bytes, .. } =
            call;
        writeln!(
            text,
            "host-side cost of a call, {cell}: {forward:.0} ns; an empty launch with the same {param_bytes} bytes of parameters: {empty:.0} ns; \
             {:.0} ns above it, {:.0} with addresses checked",
            forward - empty,
            checked - empty
        )?;
    }
    let mut ceiling = None;
    for matmul in &run.matmul {
        match matmul.tflops() {
            Ok(tflops) => writeln!(text, "cuBLAS 8192^3, {}: {tflops:.0} TFLOP/s", matmul.protocol.unwrap_or_default())?,
            Err(error) => writeln!(text, "cuBLAS 8192^3: {error}")?,
        }
        ceiling = matmul.tflops().ok();
    }
    let width = cells.iter().map(|entry| entry.cell.len()).max().unwrap_or(0);
    for entry in cells {
        for outcome in &entry.results {
            write!(text, "{:width$}  ", entry.cell)?;
            match outcome.tflops() {
                Ok(tflops) => {
                    let share = ceiling.map_or(String::new(), |ceiling| format!("  {:5.1} % of cuBLAS", 100.0 * tflops / ceiling));
                    writeln!(text, "{tflops:6.0} TFLOP/s{share}")?;
                }
                Err(error) => writeln!(text, "failed: {error}")?,
            }
        }
    }
    Ok(text)
}
