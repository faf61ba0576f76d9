//! What the kernels use of rust-cuda's `cuda_std`, for rustc's own target. The indices are read as kernels/src/ptx/register.rs reads them without
//! the feature `nvvm`, so that the PTX must be the same.
#![no_std]
#![feature(asm_experimental_arch)]

/// The thread's place in its block, and the block's in the grid.
pub mod thread {
    use core::arch::asm;

    /// Index of the thread in its block.
    #[inline(always)]
    pub fn thread_idx_x() -> u32 {
        let value;
        // SAFETY: reads a register.
        unsafe { asm!("mov.u32 {d}, %tid.x;", d = out(reg32) value, options(nomem, nostack)) }
        value
    }

    /// Index of the block in the grid.
    #[inline(always)]
    pub fn block_idx_x() -> u32 {
        let value;
        // SAFETY: reads a register.
        unsafe { asm!("mov.u32 {d}, %ctaid.x;", d = out(reg32) value, options(nomem, nostack)) }
        value
    }

    /// Blocks of the grid.
    #[inline(always)]
    pub fn grid_dim_x() -> u32 {
        let value;
        // SAFETY: reads a register.
        unsafe { asm!("mov.u32 {d}, %nctaid.x;", d = out(reg32) value, options(nomem, nostack)) }
        value
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}
