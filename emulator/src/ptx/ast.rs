//! The syntax tree: names are still text, types and operands are not yet checked against each other.

use super::{Span, Type};

/// One PTX module.
#[derive(Debug, Default)]
pub struct Module {
    /// `.version`, major and minor.
    pub version: (u32, u32),
    /// `.target`, the first word.
    pub target: String,
    /// Module-scope variables.
    pub variables: Vec<Variable>,
    /// Entries and device functions, with or without a body.
    pub functions: Vec<Function>,
}

/// A state space in which a variable is declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// `.global`
    Global,
    /// `.const`
    Const,
    /// `.shared`
    Shared,
    /// `.local`
    Local,
    /// `.param`
    Param,
}

/// A declared variable or parameter.
#[derive(Clone, Debug)]
pub struct Variable {
    /// Name.
    pub name: String,
    /// State space.
    pub space: Space,
    /// Element type.
    pub ty: Type,
    /// Alignment in bytes.
    pub align: u32,
    /// Size in bytes; 0 for an extern array without extent.
    pub size: u32,
    /// `.extern`
    pub external: bool,
    /// Initial values.
    pub init: Vec<Init>,
    /// Where it is declared.
    pub span: Span,
}

/// One initial value of an array.
#[derive(Clone, Debug)]
pub enum Init {
    /// Bits of a number.
    Bits(u64),
    /// The address of a variable, generic or in its own space, plus an offset.
    Address { symbol: String, generic: bool, offset: i64 },
}

/// A kernel entry or a device function.
#[derive(Debug, Default)]
pub struct Function {
    /// Name.
    pub name: String,
    /// `.entry`
    pub is_entry: bool,
    /// Return parameters of a device function.
    pub returns: Vec<Variable>,
    /// Parameters.
    pub params: Vec<Variable>,
    /// Performance directives: `.maxntid`, `.reqntid`, `.minnctapersm`, `.maxnreg`, `.reqnctapercluster`, ...
    pub directives: Vec<(String, Vec<u32>)>,
    /// The body; `None` for a declaration.
    pub body: Option<Vec<Statement>>,
    /// Where it is declared.
    pub span: Span,
}

/// A statement of a function body.
#[derive(Debug)]
pub enum Statement {
    /// `name:`
    Label(String),
    /// `.reg .b32 %r<7>;`
    Registers(Type, Vec<RegisterName>),
    /// `.shared`, `.local` or `.param` declaration.
    Variable(Variable),
    /// `{ ... }`
    Block(Vec<Statement>),
    /// An instruction.
    Instruction(Instruction),
}

/// A register declaration, single or numbered.
#[derive(Debug)]
pub struct RegisterName {
    /// The name, or its prefix.
    pub name: String,
    /// `<n>` declares `name0` to `name(n-1)`.
    pub count: Option<u32>,
}

/// An instruction.
#[derive(Debug)]
pub struct Instruction {
    /// `@p` or `@!p`: the predicate's name, and whether it is negated.
    pub guard: Option<(String, bool)>,
    /// The whole opcode, such as `add.rn.f32`.
    pub opcode: String,
    /// Operands in order.
    pub operands: Vec<Operand>,
    /// Where it stands.
    pub span: Span,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register, a special register, a variable or a label.
    Name(String),
    /// `name+offset` outside brackets.
    NameOffset(String, i64),
    /// `!p`
    Not(String),
    /// `_`
    Discard,
    /// An integer; negative ones are sign-extended.
    Int(u64),
    /// `0f3F800000` or a decimal: bits of an f32 and of an f64.
    Float(f64),
    /// `0fXXXXXXXX`, the bits.
    F32Bits(u32),
    /// `a|b`: two destinations.
    Pair(Box<Operand>, Box<Operand>),
    /// `{a, b, ...}`
    Vector(Vec<Operand>),
    /// `(a, b, ...)`
    List(Vec<Operand>),
    /// `[base+offset]`, with the coordinates of a tensor access.
    Address { base: Box<Operand>, offset: i64, coords: Vec<Operand> },
}
