//! One PTX instruction per function, and no policy: the only place in the crate with inline assembly (but for what must stand in an
//! entry's own body, see [`crate::entry`]).
//!
//! Shared-memory addresses are the 32-bit addresses of the shared window, as the instructions take them.
//!
//! Where a SAFETY comment here leaves something to the caller, it names it: scope (which threads, converged), address (state space,
//! alignment, whose it is), lifetime (what stays untouched, until when), proxy, protocol (arrivals, bytes, phases, order). The function's
//! `# Safety` says what is asked.

pub mod barrier;
pub mod convert;
pub mod fence;
pub mod math;
pub mod matrix;
pub mod mbarrier;
pub mod memory;
pub mod register;
pub mod tma;
pub mod warp;
pub mod wgmma;
