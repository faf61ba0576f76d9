//! What no single call shows: repetition, streams, graphs, threads, contexts, devices, memory, refusals, the tensors of cust.

mod contexts;
mod devices;
mod graphs;
mod job;
mod memory;
mod refusals;
mod repeats;
mod safe_api;
mod streams;

use hopper_attention_tests::trials;
use std::process::ExitCode;

fn main() -> ExitCode {
    let tables = [
        repeats::tests(),
        streams::tests(),
        graphs::tests(),
        contexts::tests(),
        devices::tests(),
        memory::tests(),
        refusals::tests(),
        safe_api::tests(),
    ];
    trials::run("runtime", tables.into_iter().flatten().collect())
}
