//! Calls that are refused: a right one, spoiled in one place.

use crate::call::Call;
use crate::gpu::Stream;
use crate::{Failure, ensure};
use hopper_attention::Error;

/// What spoils a right call, and what the library must say of it.
#[derive(Clone, Copy, Debug)]
pub struct Refusal {
    /// The test's name.
    pub name: &'static str,
    /// The field that the error must name.
    pub field: &'static str,
    /// Whether another implementation could do it: `Unsupported` instead of `Invalid`.
    pub unsupported: bool,
    /// Spoils it.
    pub spoil: fn(&mut Call),
}

impl Refusal {
    /// Must be [`Error::Invalid`].
    pub fn invalid(name: &'static str, field: &'static str, spoil: fn(&mut Call)) -> Self {
        Self { name, field, unsupported: false, spoil }
    }

    /// Must be [`Error::Unsupported`].
    pub fn unsupported(name: &'static str, field: &'static str, spoil: fn(&mut Call)) -> Self {
        Self { name, field, unsupported: true, spoil }
    }

    /// Spoils a right call, and fails unless it is refused as it must be. What the call was to write is the caller's to look at.
    pub fn check(&self, mut call: Call, stream: &Stream) -> Result<(), Failure> {
        (self.spoil)(&mut call);
        // SAFETY: the call is refused before anything is launched; that it is, is what is checked.
        let answer = unsafe { call.enqueue(stream) };
        let named = match &answer {
            Err(Error::Invalid { field, .. }) => !self.unsupported && field == self.field,
            Err(Error::Unsupported { field, .. }) => self.unsupported && field == self.field,
            _ => false,
        };
        ensure!(named, "expected an error that names {}, got {answer:?}", self.field);
        stream.wait(|| "a call that was refused".to_string())
    }
}
