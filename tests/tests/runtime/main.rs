//! What no single call of forward shows: merging, repetition, streams, graphs, threads, contexts, devices, memory, refusals, the tensors of cust.

mod combine;
mod contexts;
mod devices;
mod graphs;
mod job;
mod memory;
mod primary_contexts;
mod refusals;
mod repeats;
mod safe_api;
mod streams;

use hopper_attention_tests::trials;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(outcome) = primary_contexts::asked_of_this_process() {
        return outcome;
    }
    trials::run("runtime", || {
        let tables = [
            repeats::tests(),
            streams::tests(),
            graphs::tests(),
            combine::tests(),
            contexts::tests(),
            primary_contexts::tests(),
            devices::tests(),
            memory::tests(),
            refusals::tests(),
            safe_api::tests(),
        ];
        tables.into_iter().flatten().collect()
    })
}
