//! Where things lie: shared memory, swizzled rows, wgmma descriptors and register fragments. Pure arithmetic, tested on the host.

pub mod descriptor;
pub mod fragment;
pub mod smem;
pub mod swizzle;
