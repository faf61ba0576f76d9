//! Warpgroup matrix products (PTX ISA, "wgmma.mma_async"): a 64 x N accumulator in the registers of 128 threads, B in shared memory, A in
//! shared memory or registers.
//!
//! The products run asynchronously. From an instruction to the [`wait_group`] that covers it, nobody may touch the registers it uses;
//! [`Accumulator::pin`] after the wait tells the compiler that the values are new there.
//!
//! Accumulators are `u32` registers holding f32 bits: with `f32` registers LLVM 7 (rust-cuda) moves them between product and wait, and
//! ptxas then serialises the products (C7514).

use crate::config::DType;
use core::arch::asm;
use core::ops::{Index, IndexMut};

/// Orders this warpgroup's accesses to accumulators and A registers before the products that follow. It does not order shared memory:
/// operands that ordinary stores wrote need [`super::fence::proxy_async`]; those that TMA wrote need the wait on their mbarrier only.
///
/// # Safety
/// All 128 threads of the warpgroup, converged.
///
/// # PTX
/// `wgmma.fence.sync.aligned;`
#[inline(always)]
pub unsafe fn fence() {
    // SAFETY: scope is the caller's; not `pure`, so that it stays between accesses and products.
    unsafe { asm!("wgmma.fence.sync.aligned;", options(nostack)) }
}

/// Closes the open group of products.
///
/// # Safety
/// All 128 threads of the warpgroup, converged.
///
/// # PTX
/// `wgmma.commit_group.sync.aligned;`
#[inline(always)]
pub unsafe fn commit_group() {
    // SAFETY: scope is the caller's; not `pure`, so that it stays behind its products.
    unsafe { asm!("wgmma.commit_group.sync.aligned;", options(nostack)) }
}

/// Waits until at most `PENDING` of the latest groups are still running.
///
/// # Safety
/// All 128 threads of the warpgroup, converged; [`Accumulator::pin`] follows for each accumulator that is complete now.
///
/// # PTX
/// `wgmma.wait_group.sync.aligned PENDING;`
#[inline(always)]
pub unsafe fn wait_group<const PENDING: u32>() {
    // SAFETY: scope is the caller's; memory is clobbered, so no access moves before the wait; that of registers is what `pin` is for.
    unsafe { asm!("wgmma.wait_group.sync.aligned {n};", n = const PENDING, options(nostack)) }
}

/// A 64 x N accumulator: this thread's `N / 2` registers, laid out as [`crate::layout::fragment`] says.
pub trait Accumulator: Copy + Index<usize, Output = u32> + IndexMut<usize> {
    /// N.
    const COLUMNS: u32;
    /// Registers of a thread.
    const REGISTERS: usize;
    /// The accumulator rounded to 16-bit elements: half as many registers, each group of four an A operand of 64 x 16.
    type Packed: Copy + Index<usize, Output = u32> + IndexMut<usize>;
    /// An accumulator of zeros.
    const ZERO: Self;
    /// Packed zeros.
    const PACKED_ZERO: Self::Packed;

    /// Tells the compiler that the registers change here: after the wait for the product that writes them.
    ///
    /// # PTX
    /// None; a comment that names the registers.
    fn pin(&mut self);

    /// `D = A B`: starts the product of 64 x 16 and N x 16 K-major operands in shared memory.
    ///
    /// # Safety
    /// All 128 threads of the warpgroup, converged, after [`fence`]. The descriptors name complete operands (copied by TMA and waited for, or
    /// stored and behind a proxy fence) that stay unchanged until the wait. The result is untouched until then.
    ///
    /// # PTX
    /// `wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T D, a, b, 0, 1, 1, 0, 0;`
    unsafe fn multiply(dtype: DType, a: u64, b: u64) -> Self;

    /// `D += A B`, as [`Accumulator::multiply`].
    ///
    /// # Safety
    /// As [`Accumulator::multiply`]; `self` is untouched until the wait.
    ///
    /// # PTX
    /// `wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T D, a, b, 1, 1, 1, 0, 0;`
    unsafe fn multiply_add(&mut self, dtype: DType, a: u64, b: u64);

    /// `D += A B` with A in registers (64 x 16) and an MN-major B in shared memory (16 x N).
    ///
    /// # Safety
    /// As [`Accumulator::multiply_add`]; the registers of `a` keep their values until the wait.
    ///
    /// # PTX
    /// `wgmma.mma_async.sync.aligned.m64nNk16.f32.T.T D, {a0, a1, a2, a3}, b, 1, 1, 1, 1;`
    unsafe fn multiply_add_from_registers(&mut self, dtype: DType, a: [u32; 4], b: u64);
}

// The text `{0}, {1}, ...` of an accumulator's operands.
macro_rules! operands {
    ($first:literal $($i:literal)*) => { concat!("{", $first, "}" $(, ", {", $i, "}")*) };
}

macro_rules! product_from_smem {
    ($d:ident, $kind:ident, $columns:literal, $type:literal, $a:ident, $b:ident, $accumulate:literal, [$($i:literal)*]) => {
        asm!(concat!("{{ .reg .pred accumulate; setp.ne.b32 accumulate, ", $accumulate, ", 0; ",
                     "wgmma.mma_async.sync.aligned.m64n", $columns, "k16.f32.", $type, ".", $type,
                     " {{", operands!($($i)*), "}}, {a}, {b}, accumulate, 1, 1, 0, 0; }}"),
             $($kind(reg32) $d[$i],)* a = in(reg64) $a, b = in(reg64) $b, options(nostack))
    };
}

macro_rules! product_from_registers {
    ($d:ident, $columns:literal, $type:literal, $a:ident, $b:ident, [$($i:literal)*]) => {
        asm!(concat!("{{ .reg .pred accumulate; setp.ne.b32 accumulate, 1, 0; ",
                     "wgmma.mma_async.sync.aligned.m64n", $columns, "k16.f32.", $type, ".", $type,
                     " {{", operands!($($i)*), "}}, {{{a0}, {a1}, {a2}, {a3}}}, {b}, accumulate, 1, 1, 1; }}"),
             $(inout(reg32) $d[$i],)* a0 = in(reg32) $a[0], a1 = in(reg32) $a[1], a2 = in(reg32) $a[2], a3 = in(reg32) $a[3],
             b = in(reg64) $b, options(nostack))
    };
}

macro_rules! accumulator {
    ($columns:literal, $registers:literal, [$($i:literal)*]) => {
        impl Accumulator for [u32; $registers] {
            const COLUMNS: u32 = $columns;
            const REGISTERS: usize = $registers;
            type Packed = [u32; $registers / 2];
            const ZERO: Self = [0; $registers];
            const PACKED_ZERO: Self::Packed = [0; $registers / 2];

            #[inline(always)]
            fn pin(&mut self) {
                // SAFETY: a comment, no instruction; `inout` gives the registers back as they are.
                unsafe { asm!(concat!("// ", operands!($($i)*)), $(inout(reg32) self[$i],)* options(nostack)) }
            }

            #[inline(always)]
            unsafe fn multiply(dtype: DType, a: u64, b: u64) -> Self {
                let mut d = Self::ZERO;
                // SAFETY: scope, address, proxy and lifetime are the caller's. D is `out`: what was there is not read.
                unsafe {
                    match dtype {
                        DType::F16 => product_from_smem!(d, out, $columns, "f16", a, b, 0, [$($i)*]),
                        DType::Bf16 => product_from_smem!(d, out, $columns, "bf16", a, b, 0, [$($i)*]),
                    }
                }
                d
            }

            #[inline(always)]
            unsafe fn multiply_add(&mut self, dtype: DType, a: u64, b: u64) {
                // SAFETY: scope, address, proxy and lifetime are the caller's.
                unsafe {
                    match dtype {
                        DType::F16 => product_from_smem!(self, inout, $columns, "f16", a, b, 1, [$($i)*]),
                        DType::Bf16 => product_from_smem!(self, inout, $columns, "bf16", a, b, 1, [$($i)*]),
                    }
                }
            }

            #[inline(always)]
            unsafe fn multiply_add_from_registers(&mut self, dtype: DType, a: [u32; 4], b: u64) {
                // SAFETY: scope, address, proxy and lifetime are the caller's.
                unsafe {
                    match dtype {
                        DType::F16 => product_from_registers!(self, $columns, "f16", a, b, [$($i)*]),
                        DType::Bf16 => product_from_registers!(self, $columns, "bf16", a, b, [$($i)*]),
                    }
                }
            }
        }
    };
}

// An accumulator of each size named: the register numbers grow from one row to the next.
macro_rules! accumulators {
    ([$($i:literal)*]) => {};
    ([$($i:literal)*] [$($next:literal)*] => ($columns:literal, $registers:literal); $($rest:tt)*) => {
        accumulator!($columns, $registers, [$($i)* $($next)*]);
        accumulators!([$($i)* $($next)*] $($rest)*);
    };
}

accumulators! { []
    [0 1 2 3 4 5 6 7] => (16, 8);
    [8 9 10 11 12 13 14 15] => (32, 16);
    [16 17 18 19 20 21 22 23] => (48, 24);
    [24 25 26 27 28 29 30 31] => (64, 32);
    [32 33 34 35 36 37 38 39] => (80, 40);
    [40 41 42 43 44 45 46 47] => (96, 48);
    [48 49 50 51 52 53 54 55] => (112, 56);
    [56 57 58 59 60 61 62 63] => (128, 64);
    [64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95] => (192, 96);
    [96 97 98 99 100 101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116 117 118 119 120 121 122 123 124 125 126 127]
        => (256, 128);
}
