//! The PTX front end: text to tokens, tokens to a syntax tree.

pub mod ast;
mod declarations;
mod lexer;
mod parser;
mod types;

pub use parser::{MAX_LOCAL_BYTES, MAX_REGISTERS, parse};
pub use types::Type;

use std::fmt;

/// Where a piece of PTX stands in its source text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Byte offset of the first character.
    pub start: u32,
    /// Byte offset behind the last character.
    pub end: u32,
    /// Line, counted from 1.
    pub line: u32,
}

/// PTX that is wrong, or that this emulator does not know: never skipped, always named.
#[derive(Clone, Debug)]
pub struct PtxError {
    /// Line in the source text, counted from 1.
    pub line: u32,
    /// What is wrong.
    pub message: String,
    /// The source text at fault.
    pub text: String,
}

impl fmt::Display for PtxError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.message)?;
        if !self.text.is_empty() {
            write!(f, "\n    {}", self.text)?;
        }
        Ok(())
    }
}
