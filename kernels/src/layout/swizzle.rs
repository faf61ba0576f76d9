//! The 128-byte swizzle of TMA and wgmma: within each group of eight rows of 128 bytes, the 16-byte chunk `c` of row `r` lies in the
//! place of chunk `c ^ (r % 8)` (PTX ISA, "Swizzling modes").

/// Bytes of one swizzled row.
pub const ROW_BYTES: u32 = 128;
/// Bytes of the unit that is moved.
pub const CHUNK_BYTES: u32 = 16;

/// Byte offset of `chunk` (16 bytes each, 0 to 7) of `row` from the panel's start, which is aligned to 1024 bytes.
#[inline(always)]
pub const fn chunk_offset(row: u32, chunk: u32) -> u32 {
    row * ROW_BYTES + (chunk ^ (row & 7)) * CHUNK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permutation_of_every_row() {
        for row in 0..16 {
            let mut seen = [false; 8];
            for chunk in 0..8 {
                let offset = chunk_offset(row, chunk);
                assert_eq!(offset / ROW_BYTES, row);
                seen[(offset % ROW_BYTES / CHUNK_BYTES) as usize] = true;
            }
            assert_eq!(seen, [true; 8]);
        }
        assert_eq!(chunk_offset(3, 5), 3 * 128 + 6 * 16);
    }

    #[test]
    fn eight_rows_of_one_chunk_use_all_banks() {
        let mut banks = [false; 8];
        for row in 0..8 {
            banks[(chunk_offset(row, 2) % ROW_BYTES / CHUNK_BYTES) as usize] = true;
        }
        assert_eq!(banks, [true; 8]);
    }
}
