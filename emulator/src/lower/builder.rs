//! Builds one kernel: scopes, registers, constants, labels, inlined calls.

use std::collections::HashMap;

use super::modifiers::Modifiers;
use super::op::{Address, Bank, Op, Reg, Slot, Space};
use super::{Constant, GlobalSymbol, Instr, Kernel, Param, SHARED_RESERVED, Special, alu, asynchronous, bank_of, convert, memory, sync};
use crate::ptx::ast::{self, Function, Instruction, Module, Operand, Statement, Variable};
use crate::ptx::{PtxError, Span, Type};

pub type Lowered<T> = Result<T, PtxError>;

/// Where a variable lies: a space, and a constant that is its address there.
#[derive(Clone, Copy)]
struct Place {
    space: Space,
    address: Constant,
}

#[derive(Default)]
struct LexicalScope {
    registers: HashMap<String, (Type, Reg)>,
    labels: HashMap<String, usize>,
    variables: HashMap<String, Place>,
}

/// Names visible in one function; an inlined call starts with none of its caller's.
#[derive(Default)]
struct Frame {
    function: String,
    scopes: Vec<LexicalScope>,
    return_label: Option<usize>,
}

pub struct Builder<'m> {
    module: &'m Module,
    globals: &'m [GlobalSymbol],
    source: &'m str,
    kernel: Kernel,
    frames: Vec<Frame>,
    constants: HashMap<(Bank, Constant), Slot>,
    labels: Vec<Option<u32>>,
    jumps: Vec<(usize, usize)>,
    shared: HashMap<String, Place>,
    reads: Vec<Reg>,
    writes: Vec<Reg>,
    span: Span,
}

/// Decodes one entry.
pub fn lower_entry(module: &Module, globals: &[GlobalSymbol], function: &Function, source: &str) -> Lowered<Kernel> {
    let kernel = Kernel {
        name: function.name.clone(),
        code: Vec::new(),
        pool: Vec::new(),
        words: 0,
        doubles: 0,
        preds: 0,
        constants: Vec::new(),
        params: Vec::new(),
        param_bytes: 0,
        static_shared_end: SHARED_RESERVED,
        dynamic_shared_align: 16,
        local_bytes: 0,
        max_threads: None,
        max_registers: None,
        cluster: None,
        names: Vec::new(),
    };
    let mut builder = Builder {
        module,
        globals,
        source,
        kernel,
        frames: vec![Frame { function: function.name.clone(), ..Frame::default() }],
        constants: HashMap::new(),
        labels: Vec::new(),
        jumps: Vec::new(),
        shared: HashMap::new(),
        reads: Vec::new(),
        writes: Vec::new(),
        span: function.span,
    };
    builder.directives(function)?;
    builder.entry_params(function);
    builder.body(function)?;
    builder.emit(Op::Exit, None);
    builder.finish()
}

impl<'m> Builder<'m> {
    pub fn error<T>(&self, message: impl Into<String>) -> Lowered<T> {
        let text = self.source.get(self.span.start as usize..self.span.end as usize).unwrap_or("");
        let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if text.len() > 300 {
            let cut = (0..=300).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
            text.truncate(cut);
            text.push_str(" ...");
        }
        Err(PtxError { line: self.span.line, message: message.into(), text })
    }

    fn frame(&mut self) -> &mut Frame {
        self.frames.last_mut().expect("a function is being lowered")
    }

    fn scope(&mut self) -> &mut LexicalScope {
        self.frame().scopes.last_mut().expect("a block is being lowered")
    }

    fn directives(&mut self, function: &Function) -> Lowered<()> {
        for (name, values) in &function.directives {
            let xyz = || [0, 1, 2].map(|i| values.get(i).copied().unwrap_or(1));
            match name.as_str() {
                ".maxntid" => self.kernel.max_threads = Some((xyz().iter().product(), xyz(), false)),
                ".reqntid" => self.kernel.max_threads = Some((xyz().iter().product(), xyz(), true)),
                ".maxnreg" => self.kernel.max_registers = values.first().copied(),
                ".reqnctapercluster" => self.kernel.cluster = Some(xyz()),
                ".minnctapersm" | ".maxnctapersm" | ".pragma" | ".noreturn" | ".explicitcluster" | ".maxclusterrank" => {}
                _ => return self.error(format!("the directive `{name}` is not known to this emulator")),
            }
        }
        Ok(())
    }

    fn entry_params(&mut self, function: &Function) {
        let mut scope = LexicalScope::default();
        let mut offset = 0u32;
        for param in &function.params {
            offset = offset.next_multiple_of(param.align.max(1));
            self.kernel.params.push(Param { offset, bytes: param.size });
            let place = Place { space: Space::Param, address: Constant::Bits(u64::from(offset)) };
            scope.variables.insert(param.name.clone(), place);
            offset += param.size;
        }
        self.kernel.param_bytes = offset;
        self.frame().scopes.push(scope);
    }

    fn body(&mut self, function: &Function) -> Lowered<()> {
        match &function.body {
            Some(statements) => self.block(statements),
            None => self.error(format!("`{}` has no body", function.name)),
        }
    }

    fn block(&mut self, statements: &[Statement]) -> Lowered<()> {
        let mut scope = LexicalScope::default();
        for statement in statements {
            if let Statement::Label(name) = statement {
                if scope.labels.insert(name.clone(), self.labels.len()).is_some() {
                    return self.error(format!("the label `{name}` stands twice in one block"));
                }
                self.labels.push(None);
            }
        }
        self.frame().scopes.push(scope);
        for statement in statements {
            match statement {
                Statement::Label(name) => {
                    let label = self.scope().labels[name];
                    self.labels[label] = Some(self.kernel.code.len() as u32);
                }
                Statement::Registers(ty, names) => self.declare_registers(*ty, names),
                Statement::Variable(variable) => self.declare_variable(variable)?,
                Statement::Block(inner) => self.block(inner)?,
                Statement::Instruction(instruction) => self.instruction(instruction)?,
            }
        }
        self.frame().scopes.pop();
        Ok(())
    }

    fn new_register(&mut self, bank: Bank) -> Reg {
        let next = match bank {
            Bank::Word => &mut self.kernel.words,
            Bank::Double => &mut self.kernel.doubles,
            Bank::Pred => &mut self.kernel.preds,
        };
        *next += 1;
        Reg { bank, slot: *next - 1 }
    }

    fn declare_registers(&mut self, ty: Type, names: &[ast::RegisterName]) {
        for declared in names {
            let full: Vec<String> = match declared.count {
                Some(count) => (0..count).map(|i| format!("{}{i}", declared.name)).collect(),
                None => vec![declared.name.clone()],
            };
            for name in full {
                let reg = self.new_register(bank_of(ty));
                self.kernel.names.push((reg, name.clone()));
                self.scope().registers.insert(name, (ty, reg));
            }
        }
    }

    fn declare_variable(&mut self, variable: &Variable) -> Lowered<()> {
        let place = match variable.space {
            ast::Space::Shared => self.place_shared(variable),
            ast::Space::Local | ast::Space::Param => {
                let offset = self.kernel.local_bytes.next_multiple_of(variable.align.max(1));
                self.kernel.local_bytes = offset + variable.size;
                Place { space: Space::Local, address: Constant::Bits(u64::from(offset)) }
            }
            ast::Space::Global | ast::Space::Const => return self.error("a global variable inside a function is not supported"),
        };
        self.scope().variables.insert(variable.name.clone(), place);
        Ok(())
    }

    fn place_shared(&mut self, variable: &Variable) -> Place {
        if variable.external {
            self.kernel.dynamic_shared_align = self.kernel.dynamic_shared_align.max(variable.align);
            return Place { space: Space::Shared, address: Constant::DynamicShared(0) };
        }
        let offset = self.kernel.static_shared_end.next_multiple_of(variable.align.max(1));
        self.kernel.static_shared_end = offset + variable.size;
        Place { space: Space::Shared, address: Constant::Bits(u64::from(offset)) }
    }

    fn find_register(&self, name: &str) -> Option<(Type, Reg)> {
        self.frames.last()?.scopes.iter().rev().find_map(|scope| scope.registers.get(name).copied())
    }

    fn find_place(&mut self, name: &str) -> Option<Place> {
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

    pub fn unsupported<T>(&self) -> Lowered<T> {
        self.error("this form of the instruction is not known to the emulator")
    }

    /// Adds an instruction with the operands noted so far.
    pub fn emit(&mut self, op: Op, guard: Option<(Slot, bool)>) {
        let reads_start = self.kernel.pool.len() as u32;
        self.kernel.pool.append(&mut self.reads);
        let writes_start = self.kernel.pool.len() as u32;
        self.kernel.pool.append(&mut self.writes);
        let end = self.kernel.pool.len() as u32;
        let (reads, writes) = (reads_start..writes_start, writes_start..end);
        self.kernel.code.push(Instr { op, guard, span: self.span, reads, writes });
    }

    fn jump(&mut self, label: usize, guard: Option<(Slot, bool)>) {
        self.jumps.push((self.kernel.code.len(), label));
        self.emit(Op::Branch { target: 0, reconverge: u32::MAX }, guard);
    }

    fn guard(&mut self, instruction: &Instruction) -> Lowered<Option<(Slot, bool)>> {
        match &instruction.guard {
            Some((name, negated)) => {
                let reg = self.source(&Operand::Name(name.clone()), Type::Pred)?;
                Ok(Some((reg.slot, *negated)))
            }
            None => Ok(None),
        }
    }

    fn instruction(&mut self, instruction: &Instruction) -> Lowered<()> {
        self.span = instruction.span;
        let guard = self.guard(instruction)?;
        let (base, mut modifiers) = Modifiers::split(&instruction.opcode);
        match base {
            "bra" => {
                modifiers.take("uni");
                let [Operand::Name(label)] = self.operands(instruction)? else { return self.error("a label is missing here") };
                let found = self.frames.last().and_then(|f| f.scopes.iter().rev().find_map(|s| s.labels.get(label).copied()));
                let Some(target) = found else { return self.error(format!("the label `{label}` is not declared")) };
                self.jump(target, guard);
            }
            "ret" | "exit" => {
                modifiers.take("uni");
                match self.frame().return_label {
                    Some(label) if base == "ret" => self.jump(label, guard),
                    _ => self.emit(Op::Exit, guard),
                }
            }
            "call" => {
                modifiers.take("uni");
                self.call(instruction, guard)?;
            }
            _ => {
                let op = self.dispatch(base, &mut modifiers, instruction)?;
                self.emit(op, guard);
            }
        }
        match modifiers.leftover() {
            Some(part) => self.error(format!("`.{part}` is not known to the emulator here")),
            None => Ok(()),
        }
    }

    fn dispatch(&mut self, base: &str, modifiers: &mut Modifiers, instruction: &Instruction) -> Lowered<Op> {
        if let Some(op) = alu::lower(self, base, modifiers, instruction)? {
            return Ok(op);
        }
        if let Some(op) = convert::lower(self, base, modifiers, instruction)? {
            return Ok(op);
        }
        if let Some(op) = memory::lower(self, base, modifiers, instruction)? {
            return Ok(op);
        }
        if let Some(op) = sync::lower(self, base, modifiers, instruction)? {
            return Ok(op);
        }
        if let Some(op) = asynchronous::lower(self, base, modifiers, instruction)? {
            return Ok(op);
        }
        self.error(format!("the instruction `{base}` is not known to the emulator"))
    }

    /// Inlines a call: parameters are local variables of the caller, `ret` jumps behind the call.
    fn call(&mut self, instruction: &Instruction, guard: Option<(Slot, bool)>) -> Lowered<()> {
        let mut operands = instruction.operands.iter().peekable();
        let names = |list: &Operand| match list {
            Operand::List(items) => items
                .iter()
                .map(|item| match item {
                    Operand::Name(name) => Some(name.clone()),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>(),
            _ => None,
        };
        let returns = match operands.peek() {
            Some(list @ Operand::List(_)) => {
                let list = names(list);
                operands.next();
                list
            }
            _ => Some(Vec::new()),
        };
        let Some(Operand::Name(callee)) = operands.next() else { return self.error("the function's name is missing here") };
        let arguments = operands.next().map_or(Some(Vec::new()), names);
        let (Some(returns), Some(arguments)) = (returns, arguments) else {
            return self.error("arguments of a call must be variables in the space .param");
        };
        if callee == "__assertfail" {
            self.emit(Op::Trap, guard);
            return Ok(());
        }
        if self.frames.iter().any(|frame| frame.function == *callee) {
            return self.error("recursive calls are not supported");
        }
        let module = self.module;
        let Some(function) = module.functions.iter().find(|f| f.name == *callee && f.body.is_some()) else {
            return self.error(format!("unresolved extern function `{callee}`"));
        };
        self.inline(function, &returns, &arguments, guard)
    }

    fn inline(&mut self, function: &Function, returns: &[String], arguments: &[String], guard: Option<(Slot, bool)>) -> Lowered<()> {
        if function.returns.len() != returns.len() || function.params.len() != arguments.len() {
            return self.error(format!("`{}` takes another number of parameters", function.name));
        }
        let mut scope = LexicalScope::default();
        for (formal, actual) in function.returns.iter().zip(returns).chain(function.params.iter().zip(arguments)) {
            let Some(place) = self.find_place(actual) else { return self.error(format!("`{actual}` is not declared")) };
            scope.variables.insert(formal.name.clone(), place);
        }
        let after = self.labels.len();
        self.labels.push(None);
        if let Some((slot, negated)) = guard {
            self.jump(after, Some((slot, !negated)));
        }
        let frame = Frame { function: function.name.clone(), scopes: vec![scope], return_label: Some(after) };
        self.frames.push(frame);
        let span = self.span;
        self.body(function)?;
        self.span = span;
        self.frames.pop();
        self.labels[after] = Some(self.kernel.code.len() as u32);
        Ok(())
    }

    fn finish(mut self) -> Lowered<Kernel> {
        let end = self.kernel.code.len() as u32 - 1;
        for &(at, label) in &self.jumps {
            // A label at the very end of the body is the final exit.
            let to = self.labels[label].unwrap_or(end).min(end);
            if let Op::Branch { target, .. } = &mut self.kernel.code[at].op {
                *target = to;
            }
        }
        Ok(self.kernel)
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
