//! What the general kernels compute: windows, soft caps, ALiBi, sinks, ragged sequences, unequal head dims, and their combinations.

mod bad_lengths;
mod combine;
mod custom;
mod graphs;
mod head_dims;
mod packed_heads;
mod refusals;
mod repeats;
mod safe_api;
mod scores;
mod varlen;
mod windows;

use hopper_attention::HeadDims;
use hopper_attention_kernels::config::GENERAL;
use hopper_attention_tests::trials;
use std::process::ExitCode;

fn main() -> ExitCode {
    trials::run("features", || {
        let tables = [
            safe_api::tests(),
            windows::tests(),
            scores::tests(),
            head_dims::tests(),
            varlen::tests(),
            bad_lengths::tests(),
            combine::tests(),
            custom::tests(),
            graphs::tests(),
            packed_heads::tests(),
            refusals::tests(),
            repeats::tests(),
        ];
        tables.into_iter().flatten().collect()
    })
}

/// The head dims that kernels are made for.
fn native_head_dims() -> impl Iterator<Item = HeadDims> {
    GENERAL.iter().map(hopper_attention_tests::native_head_dims)
}
