//! From the syntax tree to decoded kernels: names resolved, types checked, calls inlined, control flow analysed.

mod alu;
mod asynchronous;
mod builder;
mod call;
mod control;
mod convert;
mod memory;
mod modifiers;
pub mod op;
mod operands;
mod parts;
mod sync;

use std::ops::Range;

use crate::ptx::ast::{Init, Module};
use crate::ptx::{PtxError, Span, Type};
use op::{Bank, Op, Reg, Slot};

/// First byte of shared memory that a program owns; the hardware keeps what lies below.
pub const SHARED_RESERVED: u32 = 1024;

/// Global and constant variables of a module, bytes: a limit of the emulator.
const MAX_DATA_BYTES: u64 = 1 << 30;

/// A special register, whose value a warp knows when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    WarpCount,
    SmId,
    SmCount,
    GridId,
    LaneMaskEq,
    LaneMaskLe,
    LaneMaskLt,
    LaneMaskGe,
    LaneMaskGt,
    DynamicSharedBytes,
    TotalSharedBytes,
    Zero,
    One,
}

/// A value that fills a slot before the first instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Constant {
    Bits(u64),
    Special(Special),
    /// Address of a module-scope global, as an offset into the module's data.
    Global(u64),
    /// Offset of the dynamic shared memory.
    DynamicShared(i64),
}

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub offset: u32,
    pub bytes: u32,
}

/// A decoded instruction and what observers and reports need of it.
#[derive(Clone, Debug)]
pub struct Instr {
    pub op: Op,
    /// Predicate slot, and whether it is negated.
    pub guard: Option<(Slot, bool)>,
    pub span: Span,
    /// Registers read and written, in the kernel's pool.
    pub reads: Range<u32>,
    pub writes: Range<u32>,
}

/// A kernel, ready to run.
#[derive(Debug)]
pub struct Kernel {
    pub name: String,
    pub code: Vec<Instr>,
    /// The registers that instructions name in `reads` and `writes`.
    pub pool: Vec<Reg>,
    pub words: u32,
    pub doubles: u32,
    pub preds: u32,
    pub constants: Vec<(Reg, Constant)>,
    pub params: Vec<Param>,
    pub param_bytes: u32,
    /// End of the static shared memory, [`SHARED_RESERVED`] included.
    pub static_shared_end: u32,
    /// Alignment that the dynamic shared memory asks for.
    pub dynamic_shared_align: u32,
    pub local_bytes: u32,
    /// `.maxntid` or `.reqntid`: the most threads of a CTA, and whether exactly so many.
    pub max_threads: Option<(u32, [u32; 3], bool)>,
    pub max_registers: Option<u32>,
    pub cluster: Option<[u32; 3]>,
    /// Named registers, for reports.
    pub names: Vec<(Reg, String)>,
}

impl Kernel {
    /// The source text of an instruction, on one line.
    pub fn text<'s>(&self, source: &'s str, pc: u32) -> &'s str {
        let span = self.code[pc as usize].span;
        source.get(span.start as usize..span.end as usize).unwrap_or("").trim()
    }

    /// Offset of the dynamic shared memory.
    pub fn dynamic_shared(&self) -> u32 {
        self.static_shared_end.next_multiple_of(self.dynamic_shared_align.max(16))
    }

    /// The name by which the program calls a register.
    pub fn register_name(&self, reg: Reg) -> &str {
        self.names.iter().find(|(r, _)| *r == reg).map_or("a constant", |(_, name)| name)
    }
}

/// A global variable's place in the module's data.
#[derive(Clone, Debug)]
pub struct GlobalSymbol {
    pub name: String,
    pub offset: u64,
    pub bytes: u64,
}

/// A module, ready to run.
#[derive(Debug)]
pub struct Program {
    pub version: (u32, u32),
    pub kernels: Vec<Kernel>,
    /// Initial contents of the module's globals.
    pub data: Vec<u8>,
    pub globals: Vec<GlobalSymbol>,
    /// 64-bit addresses to be put into `data`: (where, offset of the target in `data`).
    pub relocations: Vec<(u64, u64)>,
}

/// Decodes every entry of a module.
pub fn lower(module: &Module, source: &str) -> Result<Program, PtxError> {
    let mut program =
        Program { version: module.version, kernels: Vec::new(), data: Vec::new(), globals: Vec::new(), relocations: Vec::new() };
    layout_globals(module, &mut program)?;
    for function in module.functions.iter().filter(|function| function.is_entry && function.body.is_some()) {
        let mut kernel = builder::lower_entry(module, &program.globals, function, source)?;
        control::resolve_reconvergence(&mut kernel.code);
        program.kernels.push(kernel);
    }
    Ok(program)
}

fn layout_globals(module: &Module, program: &mut Program) -> Result<(), PtxError> {
    use crate::ptx::ast::Space;
    let is_global = |space| matches!(space, Space::Global | Space::Const);
    for variable in module.variables.iter().filter(|v| is_global(v.space)) {
        if variable.external {
            return Err(PtxError {
                line: variable.span.line,
                message: format!("`{}` is extern: there is nothing to link it with", variable.name),
                text: String::new(),
            });
        }
        let offset = (program.data.len() as u64).next_multiple_of(u64::from(variable.align.max(16)));
        if offset + u64::from(variable.size) > MAX_DATA_BYTES {
            return Err(PtxError {
                line: variable.span.line,
                message: format!("with `{}`, the module's variables have more than {MAX_DATA_BYTES} bytes", variable.name),
                text: String::new(),
            });
        }
        program.data.resize((offset + u64::from(variable.size)) as usize, 0);
        program.globals.push(GlobalSymbol { name: variable.name.clone(), offset, bytes: u64::from(variable.size) });
    }
    for variable in module.variables.iter().filter(|v| is_global(v.space)) {
        let base = program.globals.iter().find(|g| g.name == variable.name).map_or(0, |g| g.offset);
        for (i, init) in variable.init.iter().enumerate() {
            let bytes = variable.ty.bytes() as usize;
            let at = base + (i * bytes) as u64;
            match init {
                Init::Bits(bits) => {
                    let bits = if variable.ty == Type::F32 && *bits > u64::from(u32::MAX) {
                        u64::from((f64::from_bits(*bits) as f32).to_bits())
                    } else {
                        *bits
                    };
                    let end = (at as usize + bytes).min(program.data.len());
                    program.data[at as usize..end].copy_from_slice(&bits.to_le_bytes()[..end - at as usize]);
                }
                Init::Address { symbol, offset, .. } => {
                    let Some(target) = program.globals.iter().find(|g| g.name == *symbol) else {
                        return Err(PtxError {
                            line: variable.span.line,
                            message: format!("`{symbol}` in an initialiser is no global variable"),
                            text: String::new(),
                        });
                    };
                    program.relocations.push((at, target.offset.wrapping_add_signed(*offset)));
                }
            }
        }
    }
    Ok(())
}

/// The bank that holds values of a type.
pub fn bank_of(ty: Type) -> Bank {
    match ty {
        Type::Pred => Bank::Pred,
        Type::B64 | Type::U64 | Type::S64 | Type::F64 | Type::B128 => Bank::Double,
        _ => Bank::Word,
    }
}
