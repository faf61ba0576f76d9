//! One instruction of one group.

use super::address::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, Target, resolve};
use super::cta::{Cta, Flow};
use super::fault::{Fault, FaultKind, Step};
use super::observer::Observer;
use super::warp::{FULL, LANES, Wait, Warp, lanes};
use super::{scalar, vector};
use crate::lower::Instr;
use crate::lower::op::*;
use crate::ptx::Type;

fn flip(value: u32, negated: bool) -> u32 {
    if negated { !value } else { value }
}

impl<'a, O: Observer> Cta<'a, O> {
    /// Executes an instruction for the lanes of `mask`, which is not empty.
    pub(super) fn execute(&mut self, warp: &mut Warp, instr: &Instr, mask: u32) -> Step<Flow> {
        match &instr.op {
            &Op::Mov32 { d, a } => {
                let value = warp.words[a as usize];
                warp.set_words(d, mask, &value);
            }
            &Op::Mov64 { d, a } => {
                let value = warp.doubles[a as usize];
                warp.set_doubles(d, mask, &value);
            }
            &Op::Int32 { f, d, a, b } => warp.words2(mask, d, a, b, |x, y| vector::int32(f, x, y)),
            &Op::F32 { f, ftz, d, a, b } => warp.words2(mask, d, a, b, |x, y| vector::float32(f, ftz, x, y)),
            &Op::Fma32 { ftz, d, a, b, c } => {
                let value = vector::fma32(ftz, &warp.words[a as usize], &warp.words[b as usize], &warp.words[c as usize]);
                warp.set_words(d, mask, &value);
            }
            &Op::Unary32 { f, ftz, d, a } => {
                let value = vector::unary32(f, ftz, &warp.words[a as usize]);
                warp.set_words(d, mask, &value);
            }
            &Op::PackHalf { bf16, d, hi, lo } => warp.words2(mask, d, hi, lo, |x, y| vector::pack_half(bf16, x, y)),
            &Op::Set32 { compare, class, ftz, d, a, b } => {
                let value = vector::set32(compare, class, ftz, &warp.words[a as usize], &warp.words[b as usize]);
                warp.set_pred(d, mask, value);
            }
            &Op::Select32 { d, a, b, p, negated } => {
                let chosen = flip(warp.preds[p as usize], negated);
                warp.select32(mask, d, a, b, chosen);
            }
            &Op::Select64 { d, a, b, p, negated } => {
                let chosen = flip(warp.preds[p as usize], negated);
                warp.select64(mask, d, a, b, chosen);
            }
            &Op::Int64 { f, d, a, b } => {
                let value = vector::int64(f, &warp.doubles[a as usize], &warp.doubles[b as usize]);
                warp.set_doubles(d, mask, &value);
            }
            &Op::Mad32 { d, a, b, c } => {
                let (x, y, z) = (&warp.words[a as usize], &warp.words[b as usize], &warp.words[c as usize]);
                let value = std::array::from_fn(|lane| x[lane].wrapping_mul(y[lane]).wrapping_add(z[lane]));
                warp.set_words(d, mask, &value);
            }
            &Op::MulWide32 { signed, d, a, b } => {
                let (x, y) = (&warp.words[a as usize], &warp.words[b as usize]);
                let value = std::array::from_fn(|lane| {
                    if signed {
                        (i64::from(x[lane] as i32) * i64::from(y[lane] as i32)) as u64
                    } else {
                        u64::from(x[lane]) * u64::from(y[lane])
                    }
                });
                warp.set_doubles(d, mask, &value);
            }
            Op::Load(access) => self.load(warp, access, mask)?,
            Op::Store(access) => self.store(warp, access, mask)?,
            _ => return self.execute_rare(warp, instr, mask),
        }
        Ok(Flow::Next)
    }

    fn execute_rare(&mut self, warp: &mut Warp, instr: &Instr, mask: u32) -> Step<Flow> {
        match &instr.op {
            &Op::MovPred { d, a } => {
                let value = warp.preds[a as usize];
                warp.set_pred(d, mask, value);
            }
            &Op::NotPred { d, a } => {
                let value = !warp.preds[a as usize];
                warp.set_pred(d, mask, value);
            }
            &Op::LogicPred { f, d, a, b, negate_a, negate_b } => {
                let (x, y) = (flip(warp.preds[a as usize], negate_a), flip(warp.preds[b as usize], negate_b));
                let value = match f {
                    Logic::And => x & y,
                    Logic::Or => x | y,
                    Logic::Xor => x ^ y,
                };
                warp.set_pred(d, mask, value);
            }
            Op::Pack64 { .. } | Op::Unpack64 { .. } | Op::Pack32 { .. } | Op::Unpack32 { .. } => pack(warp, &instr.op, mask),
            Op::Scalar(scalar) => {
                for lane in lanes(mask) {
                    let sources = scalar.sources.map(|source| source.map_or(0, |reg| warp.get(reg, lane)));
                    let value = scalar::evaluate(scalar, sources);
                    warp.set(scalar.dest, lane, value);
                }
            }
            &Op::Carry { subtract, carry_in, carry_out, d, a, b } => carry(warp, mask, (subtract, carry_in, carry_out), (d, a, b)),
            Op::SetPred(set) => set_predicate(warp, set, mask),
            &Op::Clock { d, nanoseconds } => {
                let value = if nanoseconds { self.launch.started.elapsed().as_nanos() as u64 } else { self.executed };
                lanes(mask).for_each(|lane| warp.set(d, lane, value));
            }
            &Op::Cvta { d, a, space, to_space } => {
                for lane in lanes(mask) {
                    let value = convert_address(warp.get(a, lane), space, to_space);
                    warp.set(d, lane, value);
                }
            }
            &Op::IsSpace { d, a, space } => {
                for lane in lanes(mask) {
                    let found = match resolve(warp.doubles[a as usize][lane]) {
                        Target::Global(_) => Space::Global,
                        Target::Shared(_) => Space::Shared,
                        Target::Local(_) => Space::Local,
                        Target::Param(_) => Space::Param,
                    };
                    warp.set_pred(d, 1 << lane, if found == space { FULL } else { 0 });
                }
            }
            Op::Atomic(atomic) => self.atomic(warp, atomic, mask)?,
            Op::Fence(fence) => self.fence(warp, *fence, mask),
            Op::Barrier(barrier) => return self.barrier(warp, barrier, mask),
            Op::WarpSync { .. } | Op::Shuffle { .. } | Op::Vote { .. } | Op::Match { .. } | Op::Redux { .. } | Op::Elect { .. } => {
                return self.try_exchange(warp, instr, mask);
            }
            &Op::ActiveMask { d } => warp.set_words(d, mask, &[mask; LANES]),
            Op::MbarrierInit { .. }
            | Op::MbarrierInval { .. }
            | Op::MbarrierExpectTx { .. }
            | Op::MbarrierCompleteTx { .. }
            | Op::Arrive(_)
            | Op::PendingCount { .. } => self.mbarrier(warp, &instr.op, mask)?,
            Op::Wait(wait) => return self.mbarrier_wait(warp, wait, mask),
            Op::BulkTensor(copy) => self.issue_tensor(warp, copy, mask)?,
            Op::BulkCopy(copy) => self.issue_copy(warp, copy, mask)?,
            Op::BulkCommit => self.bulk_commit(warp, mask),
            &Op::BulkWait { pending, read } => {
                if !self.bulk_wait_over(warp, mask, pending, read) {
                    return Ok(Flow::Wait { wait: Wait::Bulk { pending, read }, again: false });
                }
            }
            Op::Wgmma(product) => self.issue_product(warp, product, mask)?,
            Op::WgmmaFence => {
                self.require_converged(warp, mask)?;
                self.observer.product_fence(warp.index);
            }
            Op::WgmmaCommit => {
                self.require_converged(warp, mask)?;
                let issued = warp.products.issued;
                warp.products.committed.push_back(issued);
            }
            &Op::WgmmaWait { pending } => return self.product_wait(warp, pending, mask),
            Op::MatrixMove(matrix) => self.matrix_move(warp, matrix, mask)?,
            &Op::SetMaxRegisters { increase, count } => return self.set_registers(warp, increase, count, mask),
            Op::Trap => return Err(self.lane_fault(FaultKind::Trap, "the program has trapped", warp, mask)),
            Op::Nop => {}
            _ => return Err(Fault::new(FaultKind::Unsupported, "an instruction without an implementation")),
        }
        Ok(Flow::Next)
    }

    /// A fault of the first lane of `mask`.
    pub(super) fn lane_fault(&self, kind: FaultKind, message: impl Into<String>, warp: &Warp, mask: u32) -> Box<Fault> {
        let lane = lanes(mask).next().unwrap_or(0);
        Fault::new(kind, message).thread(warp.thread(lane))
    }

    /// `.aligned`: all lanes of the warp that have not exited must be here.
    pub(super) fn require_converged(&self, warp: &Warp, mask: u32) -> Step<()> {
        if mask == warp.live {
            return Ok(());
        }
        let missing = warp.live & !mask;
        let message = format!("an instruction with .aligned is executed without the lanes 0x{missing:08x} of its warp");
        Err(self.lane_fault(FaultKind::Protocol, message, warp, mask))
    }

    fn set_registers(&mut self, warp: &mut Warp, increase: bool, count: u32, mask: u32) -> Step<Flow> {
        self.require_converged(warp, mask)?;
        let wrong = if increase { count < warp.registers } else { count > warp.registers };
        if wrong {
            let verb = if increase { "inc" } else { "dec" };
            let message = format!("setmaxnreg.{verb} to {count} registers, but the warp has {}", warp.registers);
            return Err(self.lane_fault(FaultKind::Protocol, message, warp, mask));
        }
        if !increase {
            self.free_registers += (warp.registers - count) * LANES as u32;
            warp.registers = count;
        } else if !self.try_grow(warp, count) {
            return Ok(Flow::Wait { wait: Wait::Registers { count }, again: false });
        }
        Ok(Flow::Next)
    }

    /// Takes registers from the pool if they are there.
    pub(super) fn try_grow(&mut self, warp: &mut Warp, count: u32) -> bool {
        let wanted = (count - warp.registers) * LANES as u32;
        if wanted > self.free_registers {
            return false;
        }
        self.free_registers -= wanted;
        warp.registers = count;
        true
    }

    fn fence(&mut self, warp: &Warp, fence: Fence, mask: u32) {
        match fence {
            Fence::ProxyAsync => self.observer.proxy_fence(warp.index, mask),
            Fence::MbarrierInit => self.observer.mbarrier_init_fence(warp.index, mask),
            Fence::Memory(_) => self.observer.memory_fence(warp.index, mask),
            Fence::ProxyOther => {}
        }
    }
}

fn convert_address(address: u64, space: Space, to_space: bool) -> u64 {
    let window = match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
        Space::Global | Space::Generic => return address,
    };
    if to_space { address.wrapping_sub(window) } else { address.wrapping_add(window) }
}

fn pack(warp: &mut Warp, op: &Op, mask: u32) {
    let word = |slot| Reg { bank: Bank::Word, slot };
    for lane in lanes(mask) {
        match *op {
            Op::Pack64 { d, lo, hi } => {
                let value = u64::from(warp.words[hi as usize][lane]) << 32 | u64::from(warp.words[lo as usize][lane]);
                warp.doubles[d as usize][lane] = value;
            }
            Op::Pack32 { d, lo, hi } => {
                warp.words[d as usize][lane] = warp.words[hi as usize][lane] << 16 | warp.words[lo as usize][lane] & 0xffff;
            }
            Op::Unpack64 { lo, hi, a } => {
                let value = warp.doubles[a as usize][lane];
                lo.into_iter().for_each(|slot| warp.set(word(slot), lane, value & 0xffff_ffff));
                hi.into_iter().for_each(|slot| warp.set(word(slot), lane, value >> 32));
            }
            Op::Unpack32 { lo, hi, a } => {
                let value = u64::from(warp.words[a as usize][lane]);
                lo.into_iter().for_each(|slot| warp.set(word(slot), lane, value & 0xffff));
                hi.into_iter().for_each(|slot| warp.set(word(slot), lane, value >> 16));
            }
            _ => {}
        }
    }
}

fn carry(warp: &mut Warp, mask: u32, (subtract, carry_in, carry_out): (bool, bool, bool), (d, a, b): (Reg, Reg, Reg)) {
    let bits = if d.bank == Bank::Double { 64 } else { 32 };
    for lane in lanes(mask) {
        let (x, y) = (u128::from(warp.get(a, lane)), u128::from(warp.get(b, lane)));
        let flag = u128::from(carry_in && warp.carry >> lane & 1 != 0);
        let value = if subtract { x.wrapping_sub(y).wrapping_sub(flag) } else { x + y + flag };
        warp.set(d, lane, value as u64);
        if carry_out {
            let out = value >> bits & 1 != 0;
            warp.carry = warp.carry & !(1 << lane) | u32::from(out) << lane;
        }
    }
}

fn set_predicate(warp: &mut Warp, set: &SetPredicate, mask: u32) {
    for lane in lanes(mask) {
        let result = scalar::compare(set.compare, set.ty, set.ftz, warp.get(set.a, lane), warp.get(set.b, lane));
        let combine = |result: bool| match set.combine {
            None => result,
            Some((logic, slot, negated)) => {
                let c = (warp.preds[slot as usize] >> lane & 1 != 0) ^ negated;
                match logic {
                    Logic::And => result & c,
                    Logic::Or => result | c,
                    Logic::Xor => result ^ c,
                }
            }
        };
        let (p, q) = (combine(result), combine(!result));
        match set.set {
            Some((ty, reg)) => {
                let one = if ty == Type::F32 { u64::from(1f32.to_bits()) } else { 0xffff_ffff };
                warp.set(reg, lane, if p { one } else { 0 });
            }
            None => {
                let bit = |value: bool| if value { FULL } else { 0 };
                set.dest.into_iter().for_each(|slot| warp.set_pred(slot, 1 << lane, bit(p)));
                set.complement.into_iter().for_each(|slot| warp.set_pred(slot, 1 << lane, bit(q)));
            }
        }
    }
}
