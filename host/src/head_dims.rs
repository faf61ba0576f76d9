//! The head dims of a problem, where a kernel is asked for ahead of its tensors.

use std::fmt::{Display, Formatter, Result};

/// The head dims of Q and K, and of V and O. One number stands for both, and a pair `(head_dim, head_dim_v)` for each:
///
/// ```
/// use hopper_attention::HeadDims;
///
/// assert_eq!(HeadDims::from(128), HeadDims { head_dim: 128, head_dim_v: 128 });
/// assert_eq!(HeadDims::from((192, 128)), HeadDims { head_dim: 192, head_dim_v: 128 });
/// ```
///
/// As text they are what kernels' names have: `128`, or `192_128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HeadDims {
    /// Of Q and K.
    pub head_dim: usize,
    /// Of V and O.
    pub head_dim_v: usize,
}

impl From<usize> for HeadDims {
    fn from(head_dim: usize) -> Self {
        Self { head_dim, head_dim_v: head_dim }
    }
}

impl From<(usize, usize)> for HeadDims {
    fn from((head_dim, head_dim_v): (usize, usize)) -> Self {
        Self { head_dim, head_dim_v }
    }
}

impl Display for HeadDims {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self { head_dim, head_dim_v } if head_dim == head_dim_v => write!(f, "{head_dim}"),
            Self { head_dim, head_dim_v } => write!(f, "{head_dim}_{head_dim_v}"),
        }
    }
}
