//! What the general kernels compute: windows, soft caps, ALiBi, sinks, ragged sequences, unequal head dims, and their combinations.

mod dense;
mod problem;
mod ragged;
mod safe_api;

use hopper_attention_tests::trials;
use std::process::ExitCode;

fn main() -> ExitCode {
    trials::run("features", || [dense::tests(), ragged::tests(), safe_api::tests()].into_iter().flatten().collect())
}
