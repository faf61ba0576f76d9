//! Which element of a 64 x N accumulator a thread's register holds (PTX ISA, "Register fragments for wgmma.mma_async.m64nNk16", matrix D).
//!
//! Register `i` of lane `l` of warp `w` holds row `16 w + l / 4 + 8 (i / 2 % 2)`, column `8 (i / 4) + 2 (l % 4) + i % 2`: a thread owns two
//! rows, and the four lanes of a quad share them.

/// Rows that a thread holds elements of: `first_row` and `first_row + 8`.
pub const ROWS_PER_THREAD: usize = 2;
/// Distance between a thread's two rows.
pub const ROW_STEP: u32 = 8;

/// The first of the thread's two rows, within the warpgroup's 64.
#[inline(always)]
pub const fn first_row(warp_in_group: u32, lane_idx: u32) -> u32 {
    warp_in_group * 16 + lane_idx / 4
}

/// Which of the thread's two rows register `i` belongs to.
#[inline(always)]
pub const fn row_of(register: usize) -> usize {
    register / 2 % 2
}

/// The column of register `i` in a lane whose [`first_column`] is 0.
#[inline(always)]
pub const fn column_of(register: usize) -> u32 {
    8 * (register as u32 / 4) + register as u32 % 2
}

/// The column of register 0.
#[inline(always)]
pub const fn first_column(lane_idx: u32) -> u32 {
    2 * (lane_idx % 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_has_one_owner() {
        const N: usize = 32;
        let mut owners = [[0; N]; 64];
        for warp in 0..4 {
            for lane_idx in 0..32 {
                for register in 0..N / 2 {
                    let row = first_row(warp, lane_idx) + ROW_STEP * row_of(register) as u32;
                    let column = first_column(lane_idx) + column_of(register);
                    owners[row as usize][column as usize] += 1;
                }
            }
        }
        assert!(owners.iter().flatten().all(|&count| count == 1));
    }

    /// Read off the figure of the PTX ISA: (warp, lane, register) holds (row, column).
    #[test]
    fn as_the_manual_draws_it() {
        let figure = [
            ((0, 0, 0), (0, 0)),
            ((0, 0, 1), (0, 1)),
            ((0, 0, 2), (8, 0)),
            ((0, 0, 4), (0, 8)),
            ((0, 1, 0), (0, 2)),
            ((0, 3, 3), (8, 7)),
            ((0, 4, 0), (1, 0)),
            ((0, 31, 7), (15, 15)),
            ((1, 0, 0), (16, 0)),
            ((3, 31, 3), (63, 7)),
        ];
        for ((warp, lane, register), place) in figure {
            let row = first_row(warp, lane) + ROW_STEP * row_of(register) as u32;
            assert_eq!((row, first_column(lane) + column_of(register)), place, "warp {warp}, lane {lane}, register {register}");
        }
    }
}
