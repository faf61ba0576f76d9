//! Why a test fails, in words.

use std::fmt;

/// What went wrong.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure(pub String);

impl Failure {
    /// The same, with what was being done put before it.
    #[must_use]
    pub fn during(self, what: impl fmt::Display) -> Self {
        Self(format!("{what}: {}", self.0))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self(message)
    }
}

impl From<&str> for Failure {
    fn from(message: &str) -> Self {
        Self(message.to_string())
    }
}

impl From<hopper_attention::Error> for Failure {
    fn from(error: hopper_attention::Error) -> Self {
        Self(format!("the library returned an error: {error}"))
    }
}

/// Returns a [`Failure`] with the given message unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($holds:expr, $($message:tt)+) => {
        // Written this way, a comparison with NaN fails.
        let holds: bool = $holds;
        if !holds {
            return Err($crate::Failure(format!($($message)+)));
        }
    };
}
