//! Fused attention for NVIDIA Hopper (sm_90a): the kernels, and the plain data that the host shares with them.
//!
//! For the `nvptx64-nvidia-cuda` target this crate is the kernels (`entry`, `forward`, `pipeline`, `ptx`); for any other target only the
//! shared and pure parts remain, which the host library uses and whose tests run on the host.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]
// Registers are indexed, row by row and register by register: an index is the formula's own.
#![cfg_attr(target_arch = "nvptx64", allow(clippy::needless_range_loop))]
// Kernel entries pass structs by value; the host knows their layout from `params`.
#![cfg_attr(target_arch = "nvptx64", allow(improper_ctypes_definitions))]

pub mod block_range;
pub mod config;
pub mod fast_divide;
pub mod function;
pub mod key_range;
pub mod layout;
pub mod params;
pub mod schedule;

#[cfg(target_arch = "nvptx64")]
pub mod combine;
#[cfg(target_arch = "nvptx64")]
mod define;
#[cfg(all(target_arch = "nvptx64", feature = "entries"))]
pub mod entry;
#[cfg(target_arch = "nvptx64")]
pub mod forward;
#[cfg(target_arch = "nvptx64")]
pub mod pipeline;
#[cfg(target_arch = "nvptx64")]
pub mod ptx;

/// Nothing in the kernels can panic; what the compiler cannot prove ends up here, and the PTX check refuses it. rust-cuda's `cuda_std` brings
/// a handler of its own.
#[cfg(all(target_arch = "nvptx64", not(test), not(feature = "nvvm")))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
