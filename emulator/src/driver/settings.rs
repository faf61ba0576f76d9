//! Functions that the real driver lacks: reports and schedules.

use std::sync::atomic::Ordering;

use super::abi::Out;
use super::state::{raw_state, state};

api! {
    /// Copies the text of the last fault into `buffer` of `len` bytes, NUL included; `needed` gets the bytes that all of it needs.
    fn hopperEmulatorLastReport(buffer: Out<u8>, len: usize, needed: Out<usize>) {
        let report = raw_state().report();
        needed.set_if_wanted(report.len() + 1);
        if len > 0 && !buffer.is_null() {
            let mut bytes = report.into_bytes();
            bytes.truncate(len - 1);
            bytes.push(0);
            buffer.set_all(&bytes)?;
        }
        Ok(())
    }

    /// The seed of the schedules of later launches; 0 is the fixed one.
    fn hopperEmulatorSetSeed(seed: u64) {
        state()?.settings.seed.store(seed, Ordering::Relaxed);
        Ok(())
    }

    /// Turns the checks of later launches on or off.
    fn hopperEmulatorSetChecks(on: u32) {
        state()?.settings.checks.store(on != 0, Ordering::Relaxed);
        Ok(())
    }

    /// Instructions of warps that a CTA of later launches may execute.
    fn hopperEmulatorSetBudget(instructions: u64) {
        state()?.settings.budget.store(instructions, Ordering::Relaxed);
        Ok(())
    }
}
