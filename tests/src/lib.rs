//! What the device tests of hopper-attention are made of.
//!
//! A [`Case`] describes one attention; [`check_case`] draws its [`Inputs`], puts them into guarded device memory ([`DeviceProblem`]), runs
//! the library, and judges the output by the CPU references ([`mod@judge`]). The test programs in `tests/` are tables of cases, and tests of
//! what no single call shows: streams, graphs, contexts, devices. [`Profile`] says how much of it runs.

pub mod activations;
mod call;
mod case;
mod custom;
mod device_problem;
mod failure;
mod features;
pub mod gpu;
pub mod judge;
mod placement;
mod profile;
pub mod prototype;
mod ragged;
mod refusal;
pub mod report;
mod run;
pub mod trials;
mod values;

pub use call::Call;
pub use case::{Case, Edit, ElementType, Number, Operand, TestElement, native_head_dims};
pub use custom::{Custom, CustomCall, Function};
pub use device_problem::{DeviceProblem, Output};
pub use failure::Failure;
pub use features::{Features, PerHead, Score, Sinks};
pub use placement::Placement;
pub use profile::Profile;
pub use ragged::{Places, Ragged, RaggedProblem, Side, check_ragged, check_ragged_on};
pub use refusal::Refusal;
pub use run::{check_case, check_cases, check_inputs, check_output, explain};
pub use trials::{DeviceTest, Needs};
pub use values::{Inputs, Values, random_bits};
