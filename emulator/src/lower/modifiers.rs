//! The dotted suffixes of an opcode, taken one by one; what nobody takes is refused.

use crate::ptx::Type;

/// What is left of an opcode's suffixes.
pub struct Modifiers<'a> {
    rest: Vec<&'a str>,
}

impl<'a> Modifiers<'a> {
    /// Splits `add.rn.f32` into the base `add` and the suffixes.
    pub fn split(opcode: &'a str) -> (&'a str, Self) {
        let mut parts = opcode.split('.');
        (parts.next().unwrap_or(""), Self { rest: parts.collect() })
    }

    /// Takes a suffix if it is there.
    pub fn take(&mut self, name: &str) -> bool {
        let found = self.rest.iter().position(|part| *part == name);
        if let Some(at) = found {
            self.rest.remove(at);
        }
        found.is_some()
    }

    /// Takes the first suffix that `choose` knows.
    pub fn take_map<T>(&mut self, choose: impl Fn(&str) -> Option<T>) -> Option<T> {
        let (at, value) = self.rest.iter().enumerate().find_map(|(at, part)| choose(part).map(|value| (at, value)))?;
        self.rest.remove(at);
        Some(value)
    }

    /// Takes the first type.
    pub fn take_type(&mut self) -> Option<Type> {
        self.take_map(Type::parse)
    }

    /// Looks at the next suffix.
    pub fn peek(&self) -> Option<&'a str> {
        self.rest.first().copied()
    }

    /// What nobody has taken.
    pub fn leftover(&self) -> Option<&'a str> {
        self.peek()
    }
}
