//! The 64-bit descriptor by which wgmma finds an operand in shared memory (PTX ISA, "Asynchronous warpgroup level matrix shared memory
//! layout", matrix descriptor).
//!
//! ```text
//! bits  0..14  address >> 4
//! bits 16..30  leading dimension byte offset >> 4
//! bits 32..46  stride dimension byte offset >> 4
//! bits 49..52  base offset: 0, since every tile starts on 1024 bytes
//! bits 62..64  swizzle: 1 is 128 bytes
//! ```

/// Bytes between groups of eight rows of 128 bytes: the swizzle's period.
pub const SWIZZLE_ATOM_BYTES: u32 = 1024;

/// Descriptor of a 128-byte-swizzled operand at the shared-memory `address`.
///
/// For a K-major operand (Q, K) `leading_bytes` is ignored by the hardware. For an MN-major one (V) it is the distance between panels of
/// 64 columns. `SWIZZLE_ATOM_BYTES` separates the groups of eight rows in both.
#[inline(always)]
pub const fn swizzled_128b(address: u32, leading_bytes: u32) -> u64 {
    const SWIZZLE_128B: u64 = 1 << 62;
    encode(address) | encode(leading_bytes) << 16 | encode(SWIZZLE_ATOM_BYTES) << 32 | SWIZZLE_128B
}

/// An offset in bytes (a multiple of 16) as the number to add to a descriptor. Shared memory ends below 256 KiB, so the sum never
/// carries out of the address field.
#[inline(always)]
pub const fn advance(bytes: u32) -> u64 {
    encode(bytes)
}

#[inline(always)]
const fn encode(bytes: u32) -> u64 {
    ((bytes & 0x3_ffff) >> 4) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        let descriptor = swizzled_128b(0x1_0400, 16384);
        assert_eq!(descriptor & 0x3fff, 0x1040);
        assert_eq!(descriptor >> 16 & 0x3fff, 1024);
        assert_eq!(descriptor >> 32 & 0x3fff, 64);
        assert_eq!(descriptor >> 49 & 7, 0);
        assert_eq!(descriptor >> 62, 1);
        assert_eq!(swizzled_128b(0x400, 16) + advance(32), swizzled_128b(0x420, 16));
    }
}
