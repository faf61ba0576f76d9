//! The driver's ABI: the functions of `libcuda.so.1` that programs find here.
//!
//! [`exports`] is the one list of them; what a program asks for beyond it is answered with `CUDA_ERROR_NOT_SUPPORTED`, and named on stderr.

#[macro_use]
mod api;
mod abi;
mod capture;
mod context;
mod device;
mod error;
mod launch;
mod memory;
mod module;
mod queue;
mod settings;
mod state;
mod stream;
mod unsupported;

pub use state::default_budget;

/// Name and address of every function that this library exports.
pub fn exports() -> Vec<(&'static str, usize)> {
    [
        device::exports(),
        context::exports(),
        module::exports(),
        launch::exports(),
        memory::exports(),
        stream::exports(),
        capture::exports(),
        settings::exports(),
        unsupported::exports(),
    ]
    .concat()
}
