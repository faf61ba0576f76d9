//! Fused attention for NVIDIA Hopper (sm_90a): the kernels, and the plain data that the host shares with them.
//!
//! For the `nvptx64-nvidia-cuda` target this crate is the kernels ([`entry`], [`forward`], [`ptx`]); for any other target only the shared
//! and pure parts remain, which the host library uses and whose tests run on the host.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch, stdarch_nvptx))]

pub mod block_range;
pub mod config;
pub mod fast_divide;
pub mod params;
pub mod schedule;
