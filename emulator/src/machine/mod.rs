//! The machine: what a Hopper multiprocessor does with decoded instructions.

mod access;
mod address;
mod copy;
mod cta;
mod exchange;
mod fault;
mod float;
mod grid;
mod matrix;
mod mbarrier;
mod memory;
mod observer;
mod product;
mod scalar;
mod schedule;
mod step;
mod tensor_map;
mod vector;
mod warp;

pub use cta::describe_pc;
pub use fault::{Fault, FaultKind, Step};
pub use grid::{Launch, run_grid};
pub use memory::{Allocation, AllocationKind, Memory};
pub use observer::{AccessKind, Agent, AsyncKind, NoChecks, Observer};
pub use schedule::Schedule;
pub use tensor_map::TensorMap;
pub use warp::{LANES, Warp, lanes};
