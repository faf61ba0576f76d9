//! Declarations of variables and parameters, and their initial values.

use super::Type;
use super::ast::*;
use super::parser::{Parsed, Parser};

impl Parser<'_> {
    pub(super) fn parameters(&mut self) -> Parsed<Vec<Variable>> {
        self.expect('(')?;
        let mut params = Vec::new();
        while !self.accept(')') {
            self.declaration(false, &mut params)?;
            self.accept(',');
        }
        Ok(params)
    }

    pub(super) fn variables(&mut self, external: bool, into: &mut Vec<Variable>) -> Parsed<()> {
        self.declaration(external, into)?;
        while self.accept(',') {
            let like = into.last().cloned();
            let Some(like) = like else { return self.error("a declaration is missing here") };
            let variable = self.declarator(like)?;
            into.push(variable);
        }
        self.expect(';')
    }

    fn declaration(&mut self, external: bool, into: &mut Vec<Variable>) -> Parsed<()> {
        let span = self.span();
        let space = match self.word()? {
            ".global" => Space::Global,
            ".const" => Space::Const,
            ".shared" => Space::Shared,
            ".local" => Space::Local,
            ".param" | ".reg" => Space::Param,
            _ => return self.error("a state space is missing here"),
        };
        let mut align = 0;
        let mut ty = None;
        loop {
            match self.peek_word() {
                Some(".align") => {
                    self.at += 1;
                    align = self.integer()?;
                    if !align.is_power_of_two() || align > 1 << 16 {
                        return self.error(format!("the alignment {align} is no power of two up to 65536"));
                    }
                }
                Some(".attribute") => {
                    self.at += 1;
                    self.expect('(')?;
                    while !self.accept(')') {
                        self.advance()?;
                    }
                }
                Some(".ptr") => {
                    self.at += 1;
                    // The pointee's space and alignment are hints to the optimiser.
                    while matches!(self.peek_word(), Some(".global" | ".shared" | ".const" | ".local" | ".align")) {
                        if self.word()? == ".align" {
                            self.integer()?;
                        }
                    }
                }
                Some(word) if word.starts_with('.') => {
                    let Some(parsed) = Type::parse(&word[1..]) else {
                        return self.error(format!("`{word}` is no type that this emulator knows"));
                    };
                    ty = Some(parsed);
                    self.at += 1;
                }
                _ => break,
            }
        }
        let Some(ty) = ty else { return self.error("a type is missing here") };
        let align = align.max(ty.bytes());
        let like = Variable { name: String::new(), space, ty, align, size: ty.bytes(), external, init: Vec::new(), span };
        let variable = self.declarator(like)?;
        into.push(variable);
        Ok(())
    }

    fn declarator(&mut self, like: Variable) -> Parsed<Variable> {
        let element = like.ty.bytes();
        let mut variable = Variable { name: self.word()?.to_string(), size: element, init: Vec::new(), ..like };
        let mut inferred = false;
        while self.accept('[') {
            if self.accept(']') {
                variable.size = 0;
                inferred = true;
            } else {
                variable.size = variable.size.checked_mul(self.integer()?).map_or_else(|| self.error("the array is too large"), Ok)?;
                self.expect(']')?;
            }
        }
        if self.accept('=') {
            self.initialiser(&mut variable.init)?;
            if inferred {
                variable.size = variable.init.len() as u32 * element;
            }
        }
        Ok(variable)
    }

    fn initialiser(&mut self, into: &mut Vec<Init>) -> Parsed<()> {
        if self.accept('{') {
            while !self.accept('}') {
                self.nested(|parser| parser.initialiser(into))?;
                self.accept(',');
            }
            return Ok(());
        }
        let generic = self.accept_word("generic");
        if generic {
            self.expect('(')?;
        }
        let init = match self.operand()? {
            Operand::Int(bits) => Init::Bits(bits),
            Operand::F32Bits(bits) => Init::Bits(u64::from(bits)),
            Operand::Float(value) => Init::Bits(value.to_bits()),
            Operand::Name(symbol) => Init::Address { symbol, generic, offset: 0 },
            Operand::NameOffset(symbol, offset) => Init::Address { symbol, generic, offset },
            _ => return self.error("an initial value that this emulator does not know"),
        };
        if generic {
            self.expect(')')?;
        }
        let init = match init {
            Init::Address { symbol, generic, offset } if self.accept('+') => {
                let more = i64::from(self.integer()?);
                Init::Address { symbol, generic, offset: offset + more }
            }
            other => other,
        };
        into.push(init);
        Ok(())
    }
}
