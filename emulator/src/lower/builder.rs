//! Builds one kernel: declarations, scopes, labels, instructions in their order.

use std::collections::HashMap;

use super::modifiers::Modifiers;
use super::op::{Bank, Op, Reg, Slot, Space};
use super::{Constant, GlobalSymbol, Instr, Kernel, Param, SHARED_RESERVED, alu, asynchronous, bank_of, convert, memory, sync};
use crate::ptx::ast::{self, Function, Instruction, Module, Operand, Statement, Variable};
use crate::ptx::{PtxError, Span, Type};

pub type Lowered<T> = Result<T, PtxError>;

/// Where a variable lies: a space, and a constant that is its address there.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) space: Space,
    pub(super) address: Constant,
}

#[derive(Default)]
pub(super) struct LexicalScope {
    pub(super) registers: HashMap<String, (Type, Reg)>,
    pub(super) labels: HashMap<String, usize>,
    pub(super) variables: HashMap<String, Place>,
}

/// Names visible in one function; an inlined call starts with none of its caller's.
#[derive(Default)]
pub(super) struct Frame {
    pub(super) function: String,
    pub(super) scopes: Vec<LexicalScope>,
    pub(super) return_label: Option<usize>,
}

pub struct Builder<'m> {
    pub(super) module: &'m Module,
    pub(super) globals: &'m [GlobalSymbol],
    source: &'m str,
    pub(super) kernel: Kernel,
    pub(super) frames: Vec<Frame>,
    pub(super) constants: HashMap<(Bank, Constant), Slot>,
    pub(super) labels: Vec<Option<u32>>,
    jumps: Vec<(usize, usize)>,
    pub(super) shared: HashMap<String, Place>,
    pub(super) reads: Vec<Reg>,
    pub(super) writes: Vec<Reg>,
    pub(super) span: Span,
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

    pub(super) fn body(&mut self, function: &Function) -> Lowered<()> {
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

    pub(super) fn new_register(&mut self, bank: Bank) -> Reg {
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

    pub(super) fn place_shared(&mut self, variable: &Variable) -> Place {
        if variable.external {
            self.kernel.dynamic_shared_align = self.kernel.dynamic_shared_align.max(variable.align);
            return Place { space: Space::Shared, address: Constant::DynamicShared(0) };
        }
        let offset = self.kernel.static_shared_end.next_multiple_of(variable.align.max(1));
        self.kernel.static_shared_end = offset + variable.size;
        Place { space: Space::Shared, address: Constant::Bits(u64::from(offset)) }
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

    pub(super) fn jump(&mut self, label: usize, guard: Option<(Slot, bool)>) {
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
