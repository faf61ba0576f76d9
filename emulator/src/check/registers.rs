//! Registers: values that nothing has written, and the rules of `wgmma` for the registers of products in flight.

use crate::lower::op::{Bank, MatrixA, Op, Reg, Wgmma};
use crate::lower::{Instr, Kernel};
use crate::machine::{Fault, FaultKind, Step, Warp, lanes};

/// What is known of a warp's registers.
pub struct Registers {
    words: Vec<u32>,
    doubles: Vec<u32>,
    preds: Vec<u32>,
    /// Number of the last instruction that accessed and that wrote a word, outside of products.
    touched: Vec<u64>,
    written: Vec<u64>,
    /// Number (from 1) of the last product that has a word as accumulator, and as part of A.
    accumulates: Vec<u64>,
    feeds: Vec<u64>,
    /// Instructions so far, and at the last `wgmma.fence`.
    now: u64,
    fenced: u64,
    /// Products issued, and known to be over.
    issued: u64,
    waited: u64,
    /// First accumulator and count of the last product: the next may go on with the same without a fence.
    shape: (u32, u32),
}

impl Registers {
    /// A warp's registers before the first instruction.
    pub fn new(kernel: &Kernel) -> Self {
        let words = kernel.words as usize;
        let mut registers = Self {
            words: vec![0; words],
            doubles: vec![0; kernel.doubles as usize],
            preds: vec![0; kernel.preds as usize],
            touched: vec![0; words],
            written: vec![0; words],
            accumulates: vec![0; words],
            feeds: vec![0; words],
            now: 0,
            fenced: 0,
            issued: 0,
            waited: 0,
            shape: (0, 0),
        };
        for &(reg, _) in &kernel.constants {
            *registers.known(reg) = u32::MAX;
        }
        registers
    }

    fn known(&mut self, reg: Reg) -> &mut u32 {
        match reg.bank {
            Bank::Word => &mut self.words[reg.slot as usize],
            Bank::Double => &mut self.doubles[reg.slot as usize],
            Bank::Pred => &mut self.preds[reg.slot as usize],
        }
    }

    /// `wgmma.fence`
    pub fn fence(&mut self) {
        self.fenced = self.now;
    }

    /// Products up to this number are over.
    pub fn waited(&mut self, upto: u64) {
        self.waited = self.waited.max(upto);
    }

    /// Products issued that nobody has waited for.
    pub fn in_flight(&self) -> u64 {
        self.issued - self.waited.min(self.issued)
    }

    /// An instruction of the lanes of `mask`.
    pub fn instruction(&mut self, kernel: &Kernel, warp: &Warp, instr: &Instr, mask: u32) -> Step<()> {
        self.now += 1;
        let reads = &kernel.pool[instr.reads.start as usize..instr.reads.end as usize];
        let writes = &kernel.pool[instr.writes.start as usize..instr.writes.end as usize];
        if let Op::Wgmma(product) = &instr.op {
            return self.product(kernel, warp, product, reads, mask);
        }
        let mut known = mask;
        for &reg in reads {
            known &= *self.known(reg);
            if reg.bank == Bank::Word {
                self.check_read(kernel, warp, reg, mask)?;
            }
        }
        // Of what it chooses between, a selection needs only the one that is chosen.
        if let Some(chosen_known) = self.known_of_selection(warp, &instr.op) {
            known = mask & chosen_known;
        }
        // Copies may move what nobody has written, if nobody looks at it.
        let copies = matches!(
            instr.op,
            Op::Mov32 { .. } | Op::Mov64 { .. } | Op::MovPred { .. } | Op::Select32 { .. } | Op::Select64 { .. } | Op::Pack64 { .. }
        );
        if known != mask && !copies {
            let lane = lanes(mask & !known).next().unwrap_or(0);
            let reg = reads.iter().copied().find(|&reg| *self.known(reg) >> lane & 1 == 0);
            let name = reg.map_or("a register", |reg| kernel.register_name(reg));
            let message = format!("the register {name} is read, which nothing has written");
            return Err(Fault::new(FaultKind::Uninitialised, message).thread(warp.thread(lane)));
        }
        for &reg in writes {
            let initialised = self.known(reg);
            *initialised = *initialised & !mask | known;
            if reg.bank == Bank::Word {
                self.check_write(kernel, warp, reg, mask)?;
            }
        }
        Ok(())
    }

    /// The lanes in which the result of a selection is known, if this is one.
    fn known_of_selection(&self, warp: &Warp, op: &Op) -> Option<u32> {
        let (p, negated, a, b) = match *op {
            Op::Select32 { a, b, p, negated, .. } => (p, negated, self.words[a as usize], self.words[b as usize]),
            Op::Select64 { a, b, p, negated, .. } => (p, negated, self.doubles[a as usize], self.doubles[b as usize]),
            _ => return None,
        };
        let chosen = if negated { !warp.preds[p as usize] } else { warp.preds[p as usize] };
        Some(self.preds[p as usize] & (chosen & a | !chosen & b))
    }

    fn check_read(&mut self, kernel: &Kernel, warp: &Warp, reg: Reg, mask: u32) -> Step<()> {
        let at = reg.slot as usize;
        self.touched[at] = self.now;
        if self.accumulates[at] > self.waited {
            return Err(self.in_use(kernel, warp, reg, mask, "read", "accumulator"));
        }
        Ok(())
    }

    fn check_write(&mut self, kernel: &Kernel, warp: &Warp, reg: Reg, mask: u32) -> Step<()> {
        let at = reg.slot as usize;
        self.touched[at] = self.now;
        self.written[at] = self.now;
        if self.accumulates[at] > self.waited {
            return Err(self.in_use(kernel, warp, reg, mask, "written", "accumulator"));
        }
        if self.feeds[at] > self.waited {
            return Err(self.in_use(kernel, warp, reg, mask, "written", "operand A"));
        }
        Ok(())
    }

    fn in_use(&self, kernel: &Kernel, warp: &Warp, reg: Reg, mask: u32, how: &str, what: &str) -> Box<Fault> {
        let name = kernel.register_name(reg);
        let message = format!("the register {name} is {how} while it is {what} of a product in flight; wgmma.wait_group is missing");
        Fault::new(FaultKind::Race, message).thread(warp.thread(lanes(mask).next().unwrap_or(0)))
    }

    fn product(&mut self, kernel: &Kernel, warp: &Warp, product: &Wgmma, reads: &[Reg], mask: u32) -> Step<()> {
        let fault = |kind, message: String| Fault::new(kind, message).thread(warp.thread(0));
        if self.fenced == 0 {
            return Err(fault(FaultKind::Race, "the first product of a warp comes without wgmma.fence before it".to_string()));
        }
        for &reg in reads {
            if *self.known(reg) & mask != mask {
                let message = format!("the register {} is read by a product, and nothing has written it", kernel.register_name(reg));
                return Err(fault(FaultKind::Uninitialised, message));
            }
        }
        if let MatrixA::Registers(regs) = product.a {
            for slot in regs {
                let name = kernel.register_name(Reg { bank: Bank::Word, slot });
                if self.written[slot as usize] > self.fenced {
                    let message = format!("the register {name} of A was written after the last wgmma.fence");
                    return Err(fault(FaultKind::Race, message));
                }
                if self.accumulates[slot as usize] > self.waited {
                    let message = format!("the register {name} of A is accumulator of a product in flight; wgmma.wait_group is missing");
                    return Err(fault(FaultKind::Race, message));
                }
                self.feeds[slot as usize] = self.issued + 1;
            }
        }
        let shape = (product.accumulators[0], product.n);
        let scale_d = (warp.preds[product.scale_d as usize] != 0) != product.scale_d_negated;
        for &slot in &product.accumulators {
            let at = slot as usize;
            let name = || kernel.register_name(Reg { bank: Bank::Word, slot }).to_string();
            if self.touched[at] > self.fenced {
                let message = format!("the accumulator {} was accessed after the last wgmma.fence", name());
                return Err(fault(FaultKind::Race, message));
            }
            if self.feeds[at] > self.waited && self.feeds[at] <= self.issued {
                let message = format!("the accumulator {} is operand A of a product in flight", name());
                return Err(fault(FaultKind::Race, message));
            }
            if self.accumulates[at] > self.waited && shape != self.shape && self.accumulates[at] == self.issued {
                let message = format!("the accumulator {} belongs to a product of another shape in flight", name());
                return Err(fault(FaultKind::Race, message));
            }
            if scale_d && self.words[at] & mask != mask {
                return Err(fault(FaultKind::Uninitialised, format!("the accumulator {} is added to, and nothing has written it", name())));
            }
            self.words[at] = u32::MAX;
            self.accumulates[at] = self.issued + 1;
        }
        self.shape = shape;
        self.issued += 1;
        Ok(())
    }
}
