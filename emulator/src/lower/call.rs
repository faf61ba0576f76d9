//! Calls of device functions: inlined, since there is no stack.

use super::builder::{Builder, Frame, LexicalScope, Lowered};
use super::op::{Op, Slot};
use crate::ptx::ast::{Function, Instruction, Operand};
use crate::ptx::{MAX_LOCAL_BYTES, MAX_REGISTERS};

/// Calls inside each other: the decoder recurses over them.
const MAX_CALL_DEPTH: usize = 32;
/// Instructions, and places to return to, of a kernel with all that it calls.
const MAX_INSTRUCTIONS: usize = 1 << 20;

impl Builder<'_> {
    /// Inlines a call: parameters are local variables of the caller, `ret` jumps behind the call.
    pub(super) fn call(&mut self, instruction: &Instruction, guard: Option<(Slot, bool)>) -> Lowered<()> {
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
        if self.frames.len() > MAX_CALL_DEPTH {
            return self.error(format!("more than {MAX_CALL_DEPTH} calls inside each other"));
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
        self.check_growth(function)
    }

    /// Calls are inlined each time, so that a short text may become a large kernel.
    fn check_growth(&self, function: &Function) -> Lowered<()> {
        let (kernel, name) = (&self.kernel, &function.name);
        let registers = u64::from(kernel.words) + u64::from(kernel.doubles) + u64::from(kernel.preds);
        let grown = [
            (kernel.code.len().max(self.labels.len()) as u64, MAX_INSTRUCTIONS as u64, "instructions and labels"),
            (registers, 2 * u64::from(MAX_REGISTERS), "registers and constants"),
            (u64::from(kernel.local_bytes), u64::from(MAX_LOCAL_BYTES), "bytes of local memory a thread"),
        ];
        match grown.iter().find(|(found, most, _)| found > most) {
            Some((_, most, what)) => self.error(format!("with `{name}` inlined, the kernel has more than {most} {what}")),
            None => Ok(()),
        }
    }
}
