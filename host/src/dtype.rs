//! Types of elements: by name, and as Rust types.

use std::fmt;

/// Element type of Q, K, V and O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl DType {
    /// Bytes of an element of every type so far.
    pub(crate) const BYTES: u32 = 2;

    /// Bytes of one element.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => Self::BYTES as usize,
        }
    }

    /// The name as kernel entries spell it, `f16` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
