//! What a run of a test program showed, for the record: how many cases, and how near to the rule's limits.

use crate::Failure;
use crate::case::{Case, ElementType};
use crate::judge::Judgement;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The largest figures of the cases of one element type, head_dim and mask.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Largest {
    cases: usize,
    rows: usize,
    o_error: f64,
    o_error_over_allowed: f64,
    lse_error: f64,
    lse_error_over_allowed: f64,
    unlike_tiled: usize,
}

#[derive(Serialize)]
struct Entry {
    dtype: ElementType,
    head_dim: usize,
    causal: bool,
    #[serde(flatten)]
    largest: Largest,
}

/// A run of one test program.
#[derive(Serialize)]
pub struct Run<'a> {
    /// The program.
    pub program: &'a str,
    /// What it ran on.
    pub device: &'a str,
    /// How much was tested.
    pub profile: &'a str,
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that were not run.
    pub not_run: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    run: &'a Run<'a>,
    cases: usize,
    by_kernel: Vec<Entry>,
}

type Kernel = (ElementType, usize, bool);
static LARGEST: Mutex<BTreeMap<Kernel, Largest>> = Mutex::new(BTreeMap::new());

/// Adds a case that was judged right.
pub fn record(case: &Case, judgement: &Judgement) {
    let mut all = LARGEST.lock().unwrap_or_else(PoisonError::into_inner);
    let largest = all.entry((case.dtype, case.head_dim, case.causal)).or_default();
    largest.cases += 1;
    largest.rows += judgement.rows;
    largest.o_error = largest.o_error.max(judgement.o_error);
    largest.o_error_over_allowed = largest.o_error_over_allowed.max(judgement.o_ratio);
    largest.lse_error = largest.lse_error.max(judgement.lse_error);
    largest.lse_error_over_allowed = largest.lse_error_over_allowed.max(judgement.lse_ratio);
    largest.unlike_tiled += judgement.unlike_tiled;
}

/// A line for each element type: cases, and the largest error over what is allowed.
pub fn summary() -> Vec<String> {
    let all = LARGEST.lock().unwrap_or_else(PoisonError::into_inner);
    let of_type = |dtype: ElementType| {
        let of_type = || all.iter().filter(move |((of, _, _), _)| *of == dtype);
        let cases: usize = of_type().map(|(_, largest)| largest.cases).sum();
        let worst = |share: fn(&Largest) -> f64| {
            let worst = of_type().max_by(|a, b| share(a.1).total_cmp(&share(b.1)));
            worst.map_or_else(String::new, |((_, head_dim, causal), largest)| {
                let mask = if *causal { "causal" } else { "full" };
                format!("{:.2} of what is allowed (head_dim {head_dim}, {mask})", share(largest))
            })
        };
        let (o, lse) = (worst(|largest| largest.o_error_over_allowed), worst(|largest| largest.lse_error_over_allowed));
        (cases > 0).then(|| format!("{}: {cases} cases; largest error of O: {o}, of LSE: {lse}", dtype.name()))
    };
    ElementType::ALL.into_iter().filter_map(of_type).collect()
}

/// Writes the figures as JSON.
pub fn write(path: &Path, run: &Run<'_>) -> Result<(), Failure> {
    let all = LARGEST.lock().unwrap_or_else(PoisonError::into_inner);
    let by_kernel: Vec<Entry> =
        all.iter().map(|(&(dtype, head_dim, causal), &largest)| Entry { dtype, head_dim, causal, largest }).collect();
    let report = Report { run, cases: by_kernel.iter().map(|entry| entry.largest.cases).sum(), by_kernel };
    let text = serde_json::to_string_pretty(&report).map_err(|error| Failure(error.to_string()))?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|error| Failure(format!("{}: {error}", parent.display())))?;
    }
    std::fs::write(path, text + "\n").map_err(|error| Failure(format!("{}: {error}", path.display())))
}
