//! `ldmatrix` and `stmatrix`: 8x8 matrices of 16-bit elements between shared memory and the registers of a warp.

use super::cta::Cta;
use super::fault::Step;
use super::observer::{AccessKind, Agent, Observer};
use super::warp::{LANES, Warp};
use crate::lower::op::MatrixMove;

impl<'a, O: Observer> Cta<'a, O> {
    /// Row `r` of matrix `i` lies at the address of lane `8 i + r`; lane `l` holds the elements `2 (l % 4)` and the next of row `l / 4`, or, if
    /// transposed, of column `l / 4`.
    pub(super) fn matrix_move(&mut self, warp: &mut Warp, matrix: &MatrixMove, mask: u32) -> Step<()> {
        self.require_converged(warp, mask)?;
        if mask != u32::MAX {
            return Err(self.lane_fault(super::FaultKind::Protocol, "a matrix move needs all 32 lanes", warp, mask));
        }
        for (i, &slot) in matrix.regs.iter().enumerate() {
            let mut rows = [[0u16; 8]; 8];
            let mut addresses = [0; 8];
            for (r, address) in addresses.iter_mut().enumerate() {
                let lane = 8 * i + r;
                *address = self.shared_address(warp, matrix.address, matrix.space, lane, 16, 16)?;
                let kind = if matrix.load { AccessKind::Read } else { AccessKind::Write };
                let agent = Agent::Thread(warp.thread(lane));
                self.observer.shared(agent, self.pc, *address, 16, kind).map_err(|fault| fault.thread(warp.thread(lane)))?;
            }
            if matrix.load {
                for (row, &at) in rows.iter_mut().zip(&addresses) {
                    *row = std::array::from_fn(|c| {
                        u16::from_le_bytes([self.shared[at as usize + 2 * c], self.shared[at as usize + 2 * c + 1]])
                    });
                }
            }
            for lane in 0..LANES {
                let word = &mut warp.words[slot as usize][lane];
                for e in 0..2 {
                    let (major, minor) = (lane / 4, 2 * (lane % 4) + e);
                    let cell = if matrix.transposed { &mut rows[minor][major] } else { &mut rows[major][minor] };
                    if matrix.load {
                        *word = *word & !(0xffff << (16 * e)) | u32::from(*cell) << (16 * e);
                    } else {
                        *cell = (*word >> (16 * e)) as u16;
                    }
                }
            }
            if !matrix.load {
                for (row, &at) in rows.iter().zip(&addresses) {
                    self.no_mbarrier(at, 16)?;
                    for (c, value) in row.iter().enumerate() {
                        self.shared[at as usize + 2 * c..at as usize + 2 * c + 2].copy_from_slice(&value.to_le_bytes());
                    }
                }
            }
        }
        Ok(())
    }
}
