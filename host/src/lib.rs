//! Fused attention for NVIDIA Hopper GPUs in pure Rust.

#![warn(missing_docs)]

#[cfg(feature = "cust")]
mod attention;
mod context;
mod error;
mod kernels;
mod launch;
mod layout;
mod plan;
pub mod raw;
pub mod reference;
mod slots;
#[cfg(feature = "cust")]
mod tensor;

#[cfg(feature = "cust")]
pub use attention::{Attention, Output};
pub use error::Error;
pub use hopper_attention_driver::{CUresult, LoadError};
pub use hopper_attention_kernels::config::DType;
pub use layout::{Dim, Layout};
#[cfg(feature = "cust")]
pub use tensor::{Element, Tensor, TensorView, TensorViewMut};
