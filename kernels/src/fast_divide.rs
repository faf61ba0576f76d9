//! Division by a number that the host knows and the kernel does not, as a multiplication and a shift.
//!
//! Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (PLDI 1994), section 4, for numerators below 2^31:
//! with `l = ceil(log2 d)` and `m = floor(2^(31 + l) / d) + 1`, `n / d = (n * m) >> (31 + l)`.

/// Divides numerators below 2^31 by a fixed divisor from 1 to 2^31 - 1.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastDivisor {
    divisor: u32,
    multiplier: u32,
    shift: u32,
}

impl FastDivisor {
    /// The largest divisor, and the largest numerator.
    pub const MAX: u32 = i32::MAX as u32;

    /// Prepares the division by `divisor`; `None` unless it lies in `1..=FastDivisor::MAX`.
    #[inline]
    pub const fn new(divisor: u32) -> Option<Self> {
        if divisor == 0 || divisor > Self::MAX {
            return None;
        }
        let shift = 31 + (u32::BITS - (divisor - 1).leading_zeros());
        // Below 2^32: for d = 2^l the quotient is 2^31; else d >= 2^(l - 1) + 1 with l <= 31, and it is below 2^32 - 3.
        let multiplier = ((1u64 << shift) / divisor as u64 + 1) as u32;
        Some(Self { divisor, multiplier, shift })
    }

    /// The divisor.
    #[inline(always)]
    pub const fn divisor(&self) -> u32 {
        self.divisor
    }

    /// `numerator / divisor` and `numerator % divisor`, for numerators up to [`FastDivisor::MAX`].
    #[inline(always)]
    pub const fn div_rem(&self, numerator: u32) -> (u32, u32) {
        let quotient = ((numerator as u64 * self.multiplier as u64) >> self.shift) as u32;
        (quotient, numerator.wrapping_sub(quotient.wrapping_mul(self.divisor)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_division() {
        let edges = |x: u32| [x.saturating_sub(1), x, x.saturating_add(1)];
        for divisor in (0..31).flat_map(|bit| edges(1 << bit)).chain([3, 7, 71, 1000, 65537, i32::MAX as u32]) {
            let Some(fast) = FastDivisor::new(divisor) else {
                assert!(divisor == 0 || divisor > FastDivisor::MAX);
                continue;
            };
            for multiple in [0u64, 1, 2, 3, 1000, (FastDivisor::MAX / divisor) as u64] {
                for numerator in edges((multiple * divisor as u64).min(FastDivisor::MAX as u64) as u32) {
                    let numerator = numerator.min(FastDivisor::MAX);
                    assert_eq!(fast.div_rem(numerator), (numerator / divisor, numerator % divisor), "{numerator} / {divisor}");
                }
            }
        }
    }

    #[test]
    fn refuses_what_it_cannot_divide_by() {
        assert_eq!(FastDivisor::new(0), None);
        assert_eq!(FastDivisor::new(1 << 31), None);
    }
}
