//! Loads, stores and atomics.

use std::sync::Arc;

use super::address::{Target, resolve};
use super::cta::Cta;
use super::fault::{Fault, FaultKind, Step};
use super::memory::Allocation;
use super::observer::{AccessKind, Agent, Observer};
use super::scalar::{sign_extend, truncate};
use super::warp::{Warp, lanes};
use crate::lower::SHARED_RESERVED;
use crate::lower::op::{Access, Address, Atomic, AtomicFn, Order, Scope, Space};
use crate::ptx::Type;

impl<'a, O: Observer> Cta<'a, O> {
    /// The address that a lane's operand names.
    pub(super) fn lane_address(&self, warp: &Warp, address: Address, lane: usize) -> u64 {
        warp.get(address.base, lane).wrapping_add_signed(address.offset)
    }

    fn target(space: Space, address: u64) -> Target {
        match space {
            Space::Generic => resolve(address),
            Space::Global => Target::Global(address),
            Space::Shared => Target::Shared(address & 0xffff_ffff),
            Space::Local => Target::Local(address),
            Space::Param => Target::Param(address),
        }
    }

    /// The offset in shared memory of an operand in `space`, checked for `bytes` bytes.
    pub(super) fn shared_address(&self, warp: &Warp, address: Address, space: Space, lane: usize, bytes: u32, align: u32) -> Step<u32> {
        let raw = self.lane_address(warp, address, lane);
        match Self::target(space, raw) {
            Target::Shared(offset) => self.check_shared(offset, bytes, align).map_err(|fault| fault.thread(warp.thread(lane))),
            _ => {
                let message = format!("0x{raw:x} is no address of shared memory");
                Err(Fault::new(FaultKind::IllegalAddress, message).thread(warp.thread(lane)))
            }
        }
    }

    pub(super) fn check_shared(&self, offset: u64, bytes: u32, align: u32) -> Step<u32> {
        let end = self.shared.len() as u64;
        if offset < u64::from(SHARED_RESERVED) || offset + u64::from(bytes) > end {
            let message =
                format!("{bytes} bytes at shared 0x{offset:x}, outside of the CTA's shared memory, 0x{SHARED_RESERVED:x} to 0x{end:x}");
            return Err(Fault::new(FaultKind::IllegalAddress, message));
        }
        if !offset.is_multiple_of(u64::from(align)) {
            return Err(Fault::new(FaultKind::Misaligned, format!("shared 0x{offset:x} is no multiple of {align}")));
        }
        Ok(offset as u32)
    }

    /// The allocation that holds `bytes` bytes at a global address.
    pub(super) fn global(&mut self, address: u64, bytes: u64, align: u64) -> Step<&'a Arc<Allocation>> {
        if !address.is_multiple_of(align) {
            return Err(Fault::new(FaultKind::Misaligned, format!("global 0x{address:x} is no multiple of {align}")));
        }
        if let Some(recent) = self.recent
            && recent.contains(address, bytes)
        {
            return Ok(recent);
        }
        let map = &self.launch.memory;
        match map.find(address).filter(|allocation| allocation.contains(address, bytes)) {
            Some(found) => {
                self.recent = Some(found);
                Ok(found)
            }
            None => {
                let at = map.find(address).map_or(address, |allocation| allocation.base + allocation.bytes);
                let message = format!("{bytes} bytes at global 0x{address:x}, {}", map.describe(at));
                Err(Fault::new(FaultKind::IllegalAddress, message))
            }
        }
    }

    fn local_offset(&self, thread: u32, offset: u64, bytes: u32) -> Step<usize> {
        let size = u64::from(self.kernel.local_bytes);
        if offset + u64::from(bytes) > size {
            let message = format!("{bytes} bytes at local 0x{offset:x}; the thread has {size}");
            return Err(Fault::new(FaultKind::IllegalAddress, message));
        }
        if !offset.is_multiple_of(u64::from(bytes)) {
            return Err(Fault::new(FaultKind::Misaligned, format!("local 0x{offset:x} is no multiple of {bytes}")));
        }
        Ok((u64::from(thread) * size + offset) as usize)
    }

    pub(super) fn load(&mut self, warp: &mut Warp, access: &Access, mask: u32) -> Step<()> {
        let element = access.ty.bytes();
        for lane in lanes(mask) {
            let thread = warp.thread(lane);
            let address = self.lane_address(warp, access.address, lane);
            let values = self.read(thread, access, address).map_err(|fault| fault.thread(thread))?;
            for (i, reg) in access.regs.iter().enumerate() {
                let Some(reg) = *reg else { continue };
                let at = i * element as usize;
                let mut bits = [0; 8];
                bits[..element as usize].copy_from_slice(&values[at..at + element as usize]);
                let bits = u64::from_le_bytes(bits);
                let value = if access.ty.is_signed() { sign_extend(access.ty, bits) as u64 } else { bits };
                warp.set(reg, lane, value);
            }
        }
        Ok(())
    }

    fn read(&mut self, thread: u32, access: &Access, address: u64) -> Step<[u8; 64]> {
        let (element, bytes) = (access.ty.bytes(), access.ty.bytes() * access.regs.len() as u32);
        let mut values = [0; 64];
        let kind = if access.order == Order::Weak { AccessKind::Read } else { AccessKind::Atomic { write: false } };
        match Self::target(access.space, address) {
            Target::Shared(offset) => {
                let offset = self.check_shared(offset, bytes, bytes)?;
                self.observer.shared(Agent::Thread(thread), self.pc, offset, bytes, kind)?;
                values[..bytes as usize].copy_from_slice(&self.shared[offset as usize..(offset + bytes) as usize]);
            }
            Target::Global(address) => {
                let memory = self.global(address, u64::from(bytes), u64::from(bytes))?;
                self.observer.global(Agent::Thread(thread), self.pc, memory, address, u64::from(bytes), kind)?;
                for at in (0..bytes).step_by(element as usize) {
                    let value = memory.load(address + u64::from(at), element);
                    values[at as usize..(at + element) as usize].copy_from_slice(&value.to_le_bytes()[..element as usize]);
                }
                if matches!(access.order, Order::Acquire | Order::AcqRel) && access.scope >= Scope::Gpu {
                    self.observer.ordered(thread, address, true, false);
                }
            }
            Target::Local(offset) => {
                let at = self.local_offset(thread, offset, bytes)?;
                self.observer.local(thread, offset as u32, bytes, false)?;
                values[..bytes as usize].copy_from_slice(&self.local[at..at + bytes as usize]);
            }
            Target::Param(offset) => {
                let params = &self.launch.params;
                let Some(from) = usize::try_from(offset).ok().and_then(|at| params.get(at..at + bytes as usize)) else {
                    let message = format!("{bytes} bytes at parameter offset {offset}; the kernel has {}", params.len());
                    return Err(Fault::new(FaultKind::IllegalAddress, message));
                };
                values[..bytes as usize].copy_from_slice(from);
            }
        }
        Ok(values)
    }

    pub(super) fn store(&mut self, warp: &mut Warp, access: &Access, mask: u32) -> Step<()> {
        let element = access.ty.bytes() as usize;
        for lane in lanes(mask) {
            let thread = warp.thread(lane);
            let address = self.lane_address(warp, access.address, lane);
            let mut values = [0; 64];
            for (i, reg) in access.regs.iter().enumerate() {
                let value = reg.map_or(0, |reg| warp.get(reg, lane));
                values[i * element..(i + 1) * element].copy_from_slice(&value.to_le_bytes()[..element]);
            }
            self.write(thread, access, address, &values).map_err(|fault| fault.thread(thread))?;
        }
        Ok(())
    }

    fn write(&mut self, thread: u32, access: &Access, address: u64, values: &[u8; 64]) -> Step<()> {
        let (element, bytes) = (access.ty.bytes(), access.ty.bytes() * access.regs.len() as u32);
        let kind = if access.order == Order::Weak { AccessKind::Write } else { AccessKind::Atomic { write: true } };
        match Self::target(access.space, address) {
            Target::Shared(offset) => {
                let offset = self.check_shared(offset, bytes, bytes)?;
                self.no_mbarrier(offset, bytes)?;
                self.observer.shared(Agent::Thread(thread), self.pc, offset, bytes, kind)?;
                self.shared[offset as usize..(offset + bytes) as usize].copy_from_slice(&values[..bytes as usize]);
            }
            Target::Global(address) => {
                let memory = self.global(address, u64::from(bytes), u64::from(bytes))?;
                self.observer.global(Agent::Thread(thread), self.pc, memory, address, u64::from(bytes), kind)?;
                if access.order == Order::Release && access.scope >= Scope::Gpu {
                    self.observer.ordered(thread, address, false, true);
                }
                for at in (0..bytes).step_by(element as usize) {
                    let mut bits = [0; 8];
                    bits[..element as usize].copy_from_slice(&values[at as usize..(at + element) as usize]);
                    memory.store(address + u64::from(at), element, u64::from_le_bytes(bits));
                }
            }
            Target::Local(offset) => {
                let at = self.local_offset(thread, offset, bytes)?;
                self.observer.local(thread, offset as u32, bytes, true)?;
                self.local[at..at + bytes as usize].copy_from_slice(&values[..bytes as usize]);
            }
            Target::Param(_) => return Err(Fault::new(FaultKind::IllegalAddress, "a store to a kernel parameter")),
        }
        Ok(())
    }

    /// Ordinary accesses to a live mbarrier are undefined.
    pub(super) fn no_mbarrier(&self, offset: u32, bytes: u32) -> Step<()> {
        match self.mbarriers.touching(offset, bytes) {
            None => Ok(()),
            Some(address) => {
                let message = format!("{bytes} bytes at shared 0x{offset:x} are written over the live mbarrier 0x{address:x}");
                Err(Fault::new(FaultKind::Protocol, message))
            }
        }
    }

    pub(super) fn atomic(&mut self, warp: &mut Warp, atomic: &Atomic, mask: u32) -> Step<()> {
        for lane in lanes(mask) {
            let thread = warp.thread(lane);
            let address = self.lane_address(warp, atomic.address, lane);
            let (b, c) = (warp.get(atomic.b, lane), atomic.c.map_or(0, |c| warp.get(c, lane)));
            let old = self.atomic_lane(thread, atomic, address, b, c).map_err(|fault| fault.thread(thread))?;
            if let Some(dest) = atomic.dest {
                warp.set(dest, lane, old);
            }
        }
        Ok(())
    }

    fn atomic_lane(&mut self, thread: u32, atomic: &Atomic, address: u64, b: u64, c: u64) -> Step<u64> {
        let bytes = atomic.ty.bytes();
        let kind = AccessKind::Atomic { write: true };
        let update = |old| atomic_result(atomic.function, atomic.ty, old, b, c);
        match Self::target(atomic.space, address) {
            Target::Shared(offset) => {
                let offset = self.check_shared(offset, bytes, bytes)?;
                self.no_mbarrier(offset, bytes)?;
                self.observer.shared(Agent::Thread(thread), self.pc, offset, bytes, kind)?;
                let cell = &mut self.shared[offset as usize..(offset + bytes) as usize];
                let mut old = [0; 8];
                old[..bytes as usize].copy_from_slice(cell);
                let old = u64::from_le_bytes(old);
                cell.copy_from_slice(&update(old).to_le_bytes()[..bytes as usize]);
                Ok(old)
            }
            Target::Global(address) => {
                let memory = self.global(address, u64::from(bytes), u64::from(bytes))?;
                self.observer.global(Agent::Thread(thread), self.pc, memory, address, u64::from(bytes), kind)?;
                let wide = atomic.scope >= Scope::Gpu;
                let acquire = wide && matches!(atomic.order, Order::Acquire | Order::AcqRel);
                let release = wide && matches!(atomic.order, Order::Release | Order::AcqRel);
                if release {
                    self.observer.ordered(thread, address, false, true);
                }
                let old = memory.update(address, bytes, update);
                if acquire {
                    self.observer.ordered(thread, address, true, false);
                }
                Ok(old)
            }
            _ => Err(Fault::new(FaultKind::IllegalAddress, "an atomic in local or parameter memory")),
        }
    }
}

/// The new value of an atomic.
pub fn atomic_result(function: AtomicFn, ty: Type, old: u64, b: u64, c: u64) -> u64 {
    use crate::lower::op::{Bank, Reg, Scalar, ScalarFn};
    let of = |function| {
        let scalar = Scalar { function, ty, ftz: false, saturate: false, dest: Reg { bank: Bank::Word, slot: 0 }, sources: [None; 4] };
        super::scalar::evaluate(&scalar, [old, b, 0, 0])
    };
    match function {
        AtomicFn::Add => of(ScalarFn::Add),
        AtomicFn::Min => of(ScalarFn::Min),
        AtomicFn::Max => of(ScalarFn::Max),
        AtomicFn::And => old & b,
        AtomicFn::Or => old | b,
        AtomicFn::Xor => old ^ b,
        AtomicFn::Exchange => truncate(ty, b),
        AtomicFn::CompareSwap => {
            if truncate(ty, old) == truncate(ty, b) {
                truncate(ty, c)
            } else {
                old
            }
        }
        AtomicFn::Inc => {
            if truncate(ty, old) >= truncate(ty, b) {
                0
            } else {
                old + 1
            }
        }
        AtomicFn::Dec => {
            if old == 0 || truncate(ty, old) > truncate(ty, b) {
                truncate(ty, b)
            } else {
                old - 1
            }
        }
    }
}
