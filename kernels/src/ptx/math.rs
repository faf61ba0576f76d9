//! Arithmetic that `core` lacks on this target (PTX ISA, "Floating point instructions"). Those with `ftz` in their
//! instruction take subnormal numbers for 0.

use core::arch::asm;

macro_rules! unary {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub fn $name(x: f32) -> f32 {
            let y;
            // SAFETY: register arithmetic only.
            unsafe { asm!(concat!($instruction, " {y}, {x};"), y = out(reg32) y, x = in(reg32) x, options(pure, nomem, nostack)) }
            y
        }
    };
}

unary! {
    /// 2^x, within 2 ulp; exactly 1 at 0, and 0 at -inf and where 2^x is subnormal.
    ///
    /// # PTX
    /// `ex2.approx.ftz.f32`
    exp2, "ex2.approx.ftz.f32"
}
unary! {
    /// log2 x, with an absolute error of at most 2^-22 near 1; -inf at 0.
    ///
    /// # PTX
    /// `lg2.approx.ftz.f32`
    log2, "lg2.approx.ftz.f32"
}
unary! {
    /// 1 / x, within 1 ulp.
    ///
    /// # PTX
    /// `rcp.approx.ftz.f32`
    reciprocal, "rcp.approx.ftz.f32"
}

unary! {
    /// tanh x, with a relative error of at most 2^-11.
    ///
    /// # PTX
    /// `tanh.approx.f32`
    tanh, "tanh.approx.f32"
}

/// The larger of two numbers; a NaN loses against a number.
///
/// # PTX
/// `max.f32`
#[inline(always)]
pub fn max(a: f32, b: f32) -> f32 {
    let larger;
    // SAFETY: register arithmetic only.
    unsafe {
        asm!("max.f32 {d}, {a}, {b};", d = out(reg32) larger, a = in(reg32) a, b = in(reg32) b, options(pure, nomem, nostack));
    }
    larger
}

/// `a * b + c`, rounded once. Subnormal factors count: with a tiny `a`, infinity for `b` must not become 0 times infinity.
///
/// # PTX
/// `fma.rn.f32`
#[inline(always)]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    let sum;
    // SAFETY: register arithmetic only.
    unsafe {
        asm!("fma.rn.f32 {d}, {a}, {b}, {c};", d = out(reg32) sum, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c,
             options(pure, nomem, nostack));
    }
    sum
}
