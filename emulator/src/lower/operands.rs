//! Operands of instructions: which register, constant, variable or address each of them names.

use super::builder::{Builder, Lowered, Place};
use super::op::{Address, Bank, Reg, Slot, Space};
use super::{Constant, Special, bank_of};
use crate::ptx::Type;
use crate::ptx::ast::{self, Instruction, Operand};

impl Builder<'_> {
    fn find_register(&self, name: &str) -> Option<(Type, Reg)> {
        self.frames.last()?.scopes.iter().rev().find_map(|scope| scope.registers.get(name).copied())
    }

    pub(super) fn find_place(&mut self, name: &str) -> Option<Place> {
        let local = self.frames.last()?.scopes.iter().rev().find_map(|scope| scope.variables.get(name).copied());
        if local.is_some() {
            return local;
        }
        if let Some(&place) = self.shared.get(name) {
            return Some(place);
        }
        if let Some(global) = self.globals.iter().find(|global| global.name == name) {
            return Some(Place { space: Space::Global, address: Constant::Global(global.offset) });
        }
        let module = self.module;
        let variable = module.variables.iter().find(|v| v.name == name && v.space == ast::Space::Shared)?;
        let place = self.place_shared(variable);
        self.shared.insert(name.to_string(), place);
        Some(place)
    }

    /// The slot of a constant.
    pub fn constant(&mut self, bank: Bank, value: Constant) -> Reg {
        if let Some(&slot) = self.constants.get(&(bank, value)) {
            return Reg { bank, slot };
        }
        let reg = self.new_register(bank);
        self.constants.insert((bank, value), reg.slot);
        self.kernel.constants.push((reg, value));
        reg
    }

    fn immediate(&mut self, operand: &Operand, ty: Type) -> Lowered<Constant> {
        let bits = match (operand, ty) {
            (Operand::Int(value), Type::Pred) => u64::from(*value != 0),
            (Operand::Int(value), Type::F32 | Type::F64) if *value != 0 => {
                return self.error(format!("the integer {value} stands where a floating-point number belongs"));
            }
            (Operand::Int(value), _) => *value,
            (Operand::F32Bits(bits), Type::F64) => f64::from(f32::from_bits(*bits)).to_bits(),
            (Operand::F32Bits(bits), _) => u64::from(*bits),
            (Operand::Float(value), Type::F64 | Type::B64) => value.to_bits(),
            (Operand::Float(value), Type::F32 | Type::B32) => u64::from((*value as f32).to_bits()),
            (Operand::Float(_), _) => return self.error("a floating-point number stands where an integer belongs"),
            _ => return self.error("an operand of a kind that does not fit here"),
        };
        let mask = if ty == Type::Pred || ty.bits() >= 64 { u64::MAX } else { (1 << ty.bits()) - 1 };
        Ok(Constant::Bits(bits & mask))
    }

    /// A source operand of type `ty`, in the bank of that type.
    pub fn source(&mut self, operand: &Operand, ty: Type) -> Lowered<Reg> {
        let reg = self.source_any(operand, ty)?;
        if reg.bank != bank_of(ty) {
            return self.error(format!("{operand:?} does not have the width of {ty:?}"));
        }
        Ok(reg)
    }

    /// A source operand that may be wider than `ty`.
    pub fn source_any(&mut self, operand: &Operand, ty: Type) -> Lowered<Reg> {
        let (name, offset) = match operand {
            Operand::Name(name) => (name, 0),
            Operand::NameOffset(name, offset) => (name, *offset),
            other => {
                let constant = self.immediate(other, ty)?;
                return Ok(self.constant(bank_of(ty), constant));
            }
        };
        if let Some((_, reg)) = self.find_register(name) {
            self.reads.push(reg);
            return Ok(reg);
        }
        if let Some(special) = special_register(name) {
            return Ok(self.constant(bank_of(ty), Constant::Special(special)));
        }
        match self.find_place(name) {
            Some(place) => Ok(self.constant(bank_of(ty), offset_constant(place.address, offset))),
            None => self.error(format!("`{name}` is not declared")),
        }
    }

    /// A destination of type `ty`.
    pub fn dest(&mut self, operand: &Operand, ty: Type) -> Lowered<Reg> {
        match self.dest_any(operand)? {
            Some(reg) if reg.bank == bank_of(ty) => Ok(reg),
            Some(_) => self.error(format!("{operand:?} does not have the width of {ty:?}")),
            // `_`: the result goes to a register that nobody reads.
            None => Ok(self.new_register(bank_of(ty))),
        }
    }

    /// A destination that may be wider than its type, or `_`.
    pub fn dest_any(&mut self, operand: &Operand) -> Lowered<Option<Reg>> {
        match operand {
            Operand::Discard => Ok(None),
            Operand::Name(name) => match self.find_register(name) {
                Some((_, reg)) => {
                    self.writes.push(reg);
                    Ok(Some(reg))
                }
                None => self.error(format!("`{name}` is no register")),
            },
            _ => self.error("a register is missing here"),
        }
    }

    /// A source predicate, possibly negated.
    pub fn predicate(&mut self, operand: &Operand) -> Lowered<(Slot, bool)> {
        match operand {
            Operand::Not(name) => Ok((self.source(&Operand::Name(name.clone()), Type::Pred)?.slot, true)),
            other => Ok((self.source(other, Type::Pred)?.slot, false)),
        }
    }

    /// `[base+offset]` in `space`; a variable's own space wins for `.param`, whose variables may live in local memory.
    pub fn address(&mut self, operand: &Operand, space: Space) -> Lowered<(Address, Space)> {
        let Operand::Address { base, offset, .. } = operand else { return self.error("an address in brackets is missing here") };
        match base.as_ref() {
            Operand::Name(name) => {
                if let Some((ty, reg)) = self.find_register(name) {
                    if reg.bank == Bank::Pred || ty.bytes() < 4 {
                        return self.error(format!("`{name}` cannot hold an address"));
                    }
                    self.reads.push(reg);
                    return Ok((Address { base: reg, offset: *offset }, space));
                }
                let Some(place) = self.find_place(name) else { return self.error(format!("`{name}` is not declared")) };
                let fits = place.space == space || space == Space::Generic || (space == Space::Param && place.space == Space::Local);
                if !fits {
                    return self.error(format!("`{name}` lies in another space than the instruction says"));
                }
                let base = self.constant(Bank::Double, place.address);
                Ok((Address { base, offset: *offset }, place.space))
            }
            Operand::Int(value) => {
                let base = self.constant(Bank::Double, Constant::Bits(*value));
                Ok((Address { base, offset: *offset }, space))
            }
            _ => self.error("an address needs a register, a variable or a constant"),
        }
    }

    pub fn operands<'o, const N: usize>(&self, instruction: &'o Instruction) -> Lowered<&'o [Operand; N]> {
        match instruction.operands.as_slice().try_into() {
            Ok(operands) => Ok(operands),
            Err(_) => self.error(format!("{} operands are expected, {} are given", N, instruction.operands.len())),
        }
    }
}

fn offset_constant(constant: Constant, offset: i64) -> Constant {
    match constant {
        Constant::Bits(bits) => Constant::Bits(bits.wrapping_add_signed(offset)),
        Constant::Global(at) => Constant::Global(at.wrapping_add_signed(offset)),
        Constant::DynamicShared(at) => Constant::DynamicShared(at + offset),
        Constant::Special(_) => constant,
    }
}

fn special_register(name: &str) -> Option<Special> {
    let axis = |suffix: &str| match suffix {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    let name = name.strip_prefix('%')?;
    if let Some((base, suffix)) = name.split_once('.') {
        let axis = axis(suffix)?;
        return Some(match base {
            "tid" => Special::Tid(axis),
            "ntid" => Special::Ntid(axis),
            "ctaid" | "clusterid" => Special::Ctaid(axis),
            "nctaid" | "nclusterid" => Special::Nctaid(axis),
            "cluster_ctaid" => Special::Zero,
            "cluster_nctaid" => Special::One,
            _ => return None,
        });
    }
    Some(match name {
        "laneid" => Special::LaneId,
        "warpid" => Special::WarpId,
        "nwarpid" => Special::WarpCount,
        "smid" => Special::SmId,
        "nsmid" => Special::SmCount,
        "gridid" => Special::GridId,
        "lanemask_eq" => Special::LaneMaskEq,
        "lanemask_le" => Special::LaneMaskLe,
        "lanemask_lt" => Special::LaneMaskLt,
        "lanemask_ge" => Special::LaneMaskGe,
        "lanemask_gt" => Special::LaneMaskGt,
        "dynamic_smem_size" => Special::DynamicSharedBytes,
        "total_smem_size" => Special::TotalSharedBytes,
        "cluster_ctarank" => Special::Zero,
        "cluster_nctarank" => Special::One,
        _ => return None,
    })
}
