//! Recursive-descent parser of a PTX module.

use super::ast::*;
use super::lexer::{Token, tokenize};
use super::{PtxError, Span, Type};

/// Registers that a function may declare. A warp of the emulator keeps 32 values of each.
pub const MAX_REGISTERS: u32 = 1 << 16;
/// Local memory of a thread, bytes (CUDA C++ programming guide, "Compute Capabilities").
pub const MAX_LOCAL_BYTES: u32 = 512 * 1024;
/// Parameters of a kernel, bytes (PTX ISA, ".param").
const MAX_PARAMETER_BYTES: u32 = 32764;
/// Shared memory of a CTA, bytes.
const MAX_SHARED_BYTES: u32 = 227 * 1024;
/// Blocks, vectors and initial values inside each other: parser and decoder recurse over them.
const MAX_NESTING: u32 = 64;

/// Parses the text of a module.
pub fn parse(source: &str) -> Result<Module, PtxError> {
    let tokens = tokenize(source)?;
    Parser { source, tokens, at: 0, depth: 0, declared: Declared::default() }.module()
}

pub(super) struct Parser<'a> {
    source: &'a str,
    tokens: Vec<(Token<'a>, Span)>,
    pub(super) at: usize,
    depth: u32,
    declared: Declared,
}

/// What a function has declared so far: registers, and bytes with the gaps of alignment counted at their largest.
#[derive(Default)]
struct Declared {
    registers: u64,
    local: u64,
    shared: u64,
}

pub(super) type Parsed<T> = Result<T, PtxError>;

/// Linkage directives before a variable or a function.
#[derive(Default)]
struct Linkage {
    external: bool,
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> Option<&Token<'a>> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    pub(super) fn peek_word(&self) -> Option<&'a str> {
        match self.peek() {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    pub(super) fn span(&self) -> Span {
        self.tokens.get(self.at).or_else(|| self.tokens.last()).map(|&(_, span)| span).unwrap_or_default()
    }

    pub(super) fn error<T>(&self, message: impl Into<String>) -> Parsed<T> {
        let line = self.span().line;
        let text = self.source.lines().nth((line as usize).saturating_sub(1)).unwrap_or("").trim().to_string();
        Err(PtxError { line, message: message.into(), text })
    }

    pub(super) fn advance(&mut self) -> Parsed<Token<'a>> {
        let Some((token, _)) = self.tokens.get(self.at) else { return self.error("the text ends too early") };
        self.at += 1;
        Ok(token.clone())
    }

    pub(super) fn accept(&mut self, punct: char) -> bool {
        let found = self.peek() == Some(&Token::Punct(punct));
        self.at += usize::from(found);
        found
    }

    pub(super) fn accept_word(&mut self, word: &str) -> bool {
        let found = self.peek_word() == Some(word);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, punct: char) -> Parsed<()> {
        if self.accept(punct) { Ok(()) } else { self.error(format!("`{punct}` is missing here")) }
    }

    pub(super) fn word(&mut self) -> Parsed<&'a str> {
        match self.peek_word() {
            Some(word) => {
                self.at += 1;
                Ok(word)
            }
            None => self.error("a name is missing here"),
        }
    }

    pub(super) fn integer(&mut self) -> Parsed<u32> {
        match self.peek() {
            Some(&Token::Int(value)) if value <= u64::from(u32::MAX) => {
                self.at += 1;
                Ok(value as u32)
            }
            _ => self.error("an integer is missing here"),
        }
    }

    /// Parses something that may hold its like, to a limited depth.
    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == MAX_NESTING {
            return self.error(format!("more than {MAX_NESTING} levels of nesting"));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn limit(&self, what: &str, found: u64, most: u32) -> Parsed<()> {
        if found <= u64::from(most) { Ok(()) } else { self.error(format!("{found} {what}; at most {most} are possible")) }
    }

    fn count_memory(&mut self, variables: &[Variable]) -> Parsed<()> {
        for variable in variables {
            let bytes = u64::from(variable.size).next_multiple_of(u64::from(variable.align.max(1)));
            match variable.space {
                Space::Local | Space::Param => self.declared.local += bytes,
                Space::Shared => self.declared.shared += bytes,
                Space::Global | Space::Const => {}
            }
        }
        self.limit("bytes of local memory a thread", self.declared.local, MAX_LOCAL_BYTES)?;
        self.limit("bytes of shared memory", self.declared.shared, MAX_SHARED_BYTES)
    }

    fn module(mut self) -> Parsed<Module> {
        let mut module = Module::default();
        while self.peek().is_some() {
            let mut linkage = Linkage::default();
            loop {
                match self.peek_word() {
                    Some(".extern") => linkage.external = true,
                    Some(".visible" | ".weak" | ".common") => {}
                    _ => break,
                }
                self.at += 1;
            }
            match self.peek_word() {
                Some(".version") => {
                    self.at += 1;
                    let span = self.span();
                    self.advance()?;
                    module.version = parse_version(&self.source[span.start as usize..span.end as usize]).unwrap_or_default();
                }
                Some(".target") => {
                    self.at += 1;
                    module.target = self.word()?.to_string();
                    while self.accept(',') {
                        self.word()?;
                    }
                }
                Some(".address_size") => {
                    self.at += 1;
                    if self.integer()? != 64 {
                        return self.error("only 64-bit addresses are supported");
                    }
                }
                Some(".file" | ".loc" | ".alias" | ".pragma") => self.skip_line_directive()?,
                Some(".section") => self.skip_section()?,
                Some(".entry" | ".func") => module.functions.push(self.function()?),
                Some(".global" | ".const" | ".shared") => {
                    let known = module.variables.len();
                    self.variables(linkage.external, &mut module.variables)?;
                    self.count_memory(&module.variables[known..])?;
                }
                Some(".callprototype") => return self.error("indirect calls are not supported"),
                _ => return self.error("a module-scope directive that this emulator does not know"),
            }
        }
        Ok(module)
    }

    /// `.file 1 "x.rs"`, `.loc 1 2 3`: no semicolon ends them in every dialect, so everything on the line goes.
    fn skip_line_directive(&mut self) -> Parsed<()> {
        let line = self.span().line;
        while self.peek().is_some() && self.span().line == line {
            self.at += 1;
        }
        Ok(())
    }

    fn skip_section(&mut self) -> Parsed<()> {
        while !self.accept('{') {
            self.advance()?;
        }
        let mut depth = 1;
        while depth > 0 {
            match self.advance()? {
                Token::Punct('{') => depth += 1,
                Token::Punct('}') => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn function(&mut self) -> Parsed<Function> {
        let span = self.span();
        self.declared = Declared::default();
        let mut function = Function { is_entry: self.word()? == ".entry", span, ..Function::default() };
        if self.peek() == Some(&Token::Punct('(')) {
            function.returns = self.parameters()?;
        }
        function.name = self.word()?.to_string();
        if self.peek() == Some(&Token::Punct('(')) {
            function.params = self.parameters()?;
            let bytes = function.params.iter().map(|param| u64::from(param.size).next_multiple_of(u64::from(param.align.max(1)))).sum();
            self.limit("bytes of parameters", bytes, MAX_PARAMETER_BYTES)?;
        }
        loop {
            match self.peek() {
                Some(&Token::Punct(';')) => {
                    self.at += 1;
                    return Ok(function);
                }
                Some(&Token::Punct('{')) => {
                    function.body = Some(self.block()?);
                    return Ok(function);
                }
                Some(&Token::Word(word)) if word.starts_with('.') => {
                    self.at += 1;
                    let mut values = Vec::new();
                    while let Some(&Token::Int(_)) = self.peek() {
                        values.push(self.integer()?);
                        self.accept(',');
                    }
                    if let Some(&Token::Text(_)) = self.peek() {
                        self.at += 1;
                    }
                    if matches!(word, ".maxntid" | ".reqntid") {
                        let threads = values.iter().fold(1u32, |product, &value| product.saturating_mul(value));
                        self.limit("threads of a CTA", threads.into(), 1024)?;
                    }
                    function.directives.push((word.to_string(), values));
                }
                _ => return self.error("a function needs a body or a semicolon"),
            }
        }
    }

    fn block(&mut self) -> Parsed<Vec<Statement>> {
        self.expect('{')?;
        let mut statements = Vec::new();
        while !self.accept('}') {
            self.statement(&mut statements)?;
        }
        Ok(statements)
    }

    fn statement(&mut self, into: &mut Vec<Statement>) -> Parsed<()> {
        match self.peek() {
            Some(&Token::Punct('{')) => into.push(Statement::Block(self.nested(Self::block)?)),
            Some(&Token::Punct(';')) => self.at += 1,
            Some(&Token::Punct('@')) => into.push(self.instruction()?),
            Some(&Token::Word(".reg")) => self.registers(into)?,
            Some(&Token::Word(".shared" | ".local" | ".param" | ".global" | ".const")) => {
                let mut variables = Vec::new();
                self.variables(false, &mut variables)?;
                self.count_memory(&variables)?;
                into.extend(variables.into_iter().map(Statement::Variable));
            }
            Some(&Token::Word(".loc" | ".file")) => self.skip_line_directive()?,
            Some(&Token::Word(".pragma")) => {
                while !self.accept(';') {
                    self.advance()?;
                }
            }
            Some(&Token::Word(word)) => {
                if matches!(self.tokens.get(self.at + 1), Some((Token::Punct(':'), _))) {
                    self.at += 2;
                    if matches!(self.peek_word(), Some(".branchtargets" | ".callprototype" | ".calltargets")) {
                        return self.error("indirect branches and calls are not supported");
                    }
                    into.push(Statement::Label(word.to_string()));
                } else if word.starts_with('.') {
                    return self.error(format!("the directive `{word}` is not known to this emulator"));
                } else {
                    into.push(self.instruction()?);
                }
            }
            _ => return self.error("a statement is missing here"),
        }
        Ok(())
    }

    fn registers(&mut self, into: &mut Vec<Statement>) -> Parsed<()> {
        self.at += 1;
        let word = self.word()?;
        let Some(ty) = Type::parse(word.trim_start_matches('.')) else {
            return self.error(format!("`{word}` is no register type that this emulator knows"));
        };
        let mut names = Vec::new();
        loop {
            let name = self.word()?.to_string();
            let mut count = None;
            if self.accept('<') {
                count = Some(self.integer()?);
                self.expect('>')?;
            }
            self.declared.registers += u64::from(count.unwrap_or(1));
            self.limit("registers", self.declared.registers, MAX_REGISTERS)?;
            names.push(RegisterName { name, count });
            if !self.accept(',') {
                break;
            }
        }
        self.expect(';')?;
        into.push(Statement::Registers(ty, names));
        Ok(())
    }

    fn instruction(&mut self) -> Parsed<Statement> {
        let start = self.span();
        let mut guard = None;
        if self.accept('@') {
            let negated = self.accept('!');
            guard = Some((self.word()?.to_string(), negated));
        }
        let opcode = self.word()?.to_string();
        let mut operands = Vec::new();
        while !self.accept(';') {
            operands.push(self.operand()?);
            if !self.accept(',') && self.peek() != Some(&Token::Punct(';')) {
                return self.error("`,` or `;` is missing here");
            }
        }
        let end = self.tokens[self.at - 1].1.end;
        Ok(Statement::Instruction(Instruction { guard, opcode, operands, span: Span { start: start.start, end, line: start.line } }))
    }

    pub(super) fn operand(&mut self) -> Parsed<Operand> {
        let first = self.nested(Self::simple_operand)?;
        if self.accept('|') {
            let second = self.nested(Self::simple_operand)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn sequence(&mut self, close: char) -> Parsed<Vec<Operand>> {
        let mut items = Vec::new();
        while !self.accept(close) {
            items.push(self.operand()?);
            if !self.accept(',') && self.peek() != Some(&Token::Punct(close)) {
                return self.error(format!("`,` or `{close}` is missing here"));
            }
        }
        Ok(items)
    }

    fn simple_operand(&mut self) -> Parsed<Operand> {
        Ok(match self.advance()? {
            Token::Word("_") => Operand::Discard,
            Token::Word(word) => {
                let name = word.to_string();
                match self.offset()? {
                    Some(offset) => Operand::NameOffset(name, offset),
                    None => Operand::Name(name),
                }
            }
            Token::Int(value) => Operand::Int(value),
            Token::F32(bits) => Operand::F32Bits(bits),
            Token::F64(value) => Operand::Float(value),
            Token::Punct('-') => match self.advance()? {
                Token::Int(value) => Operand::Int(value.wrapping_neg()),
                Token::F64(value) => Operand::Float(-value),
                _ => return self.error("a number must follow `-`"),
            },
            Token::Punct('!') => Operand::Not(self.word()?.to_string()),
            Token::Punct('{') => Operand::Vector(self.sequence('}')?),
            Token::Punct('(') => Operand::List(self.sequence(')')?),
            Token::Punct('[') => self.address()?,
            _ => {
                self.at -= 1;
                return self.error("an operand is missing here");
            }
        })
    }

    /// `+4` or `-4` behind a name.
    fn offset(&mut self) -> Parsed<Option<i64>> {
        let sign = if self.accept('+') {
            1
        } else if self.accept('-') {
            -1
        } else {
            return Ok(None);
        };
        let sign = if self.accept('-') { -sign } else { sign };
        match self.advance()? {
            Token::Int(value) => Ok(Some(sign * value as i64)),
            _ => self.error("a constant offset is missing here"),
        }
    }

    fn address(&mut self) -> Parsed<Operand> {
        let base = match self.nested(Self::simple_operand)? {
            Operand::NameOffset(name, offset) => (Operand::Name(name), offset),
            other => (other, 0),
        };
        let mut coords = Vec::new();
        if self.accept(',') {
            match self.operand()? {
                Operand::Vector(items) => coords = items,
                _ => return self.error("a vector of coordinates is missing here"),
            }
        }
        self.expect(']')?;
        Ok(Operand::Address { base: Box::new(base.0), offset: base.1, coords })
    }
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = ".version 8.3\n.target sm_90a\n.address_size 64\n";

    #[test]
    fn a_kernel_with_a_scoped_wait_loop() {
        let source = format!(
            "{HEADER}.visible .entry k(\n.param .align 64 .b8 k_param_0[128],\n.param .u64 .ptr .global .align 16 k_param_1)\n\
             .maxntid 384, 1, 1\n{{ .reg .b32 %r<4>;\n{{ .reg .pred p; LW: mbarrier.try_wait.parity.shared::cta.b64 p, [%r1+8], 1; \
             @!p bra.uni LW; }} ret; }}"
        );
        let module = parse(&source).unwrap();
        assert_eq!(module.version, (8, 3));
        let kernel = &module.functions[0];
        assert_eq!(kernel.params.iter().map(|p| (p.size, p.align)).collect::<Vec<_>>(), vec![(128, 64), (8, 8)]);
        assert_eq!(kernel.directives, vec![(".maxntid".to_string(), vec![384, 1, 1])]);
        let Some(Statement::Block(inner)) = kernel.body.as_ref().and_then(|body| body.get(1)) else { panic!("no block") };
        assert_eq!(inner.len(), 4);
    }

    #[test]
    fn tensor_operands_and_pairs() {
        let source = format!("{HEADER}.entry k() {{ a.b [%r1], [%rd1, {{0, %r2}}], [%r3]; c p|q, -1, 0f3f800000; }}");
        let module = parse(&source).unwrap();
        let body = module.functions[0].body.as_ref().unwrap();
        let Statement::Instruction(first) = &body[0] else { panic!() };
        assert!(matches!(&first.operands[1], Operand::Address { coords, .. } if coords.len() == 2));
        let Statement::Instruction(second) = &body[1] else { panic!() };
        assert!(matches!(&second.operands[0], Operand::Pair(..)));
        assert_eq!(second.operands[1], Operand::Int(u64::MAX));
    }

    #[test]
    fn errors_name_line_and_text() {
        let error = parse(&format!("{HEADER}.entry k() {{\n  add.s32 %r1 %r2;\n}}")).unwrap_err();
        assert_eq!((error.line, error.text.as_str()), (5, "add.s32 %r1 %r2;"));
        assert!(parse(&format!("{HEADER}.entry k() {{ ret;")).is_err());
    }

    #[test]
    fn initialisers() {
        let module = parse(&format!("{HEADER}.global .align 8 .u64 t[2] = {{ generic(s)+4, 7 }};\n.const .b8 c[] = {{1,2,3}};")).unwrap();
        assert_eq!(module.variables[0].init.len(), 2);
        assert_eq!(module.variables[1].size, 3);
    }
}
