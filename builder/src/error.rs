//! What can go wrong, each with what was found and what is needed.

use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};

/// Why there are no kernels, or none that can be trusted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The folder holds no crate that could be built.
    #[error("{}: {problem}", folder.display())]
    #[non_exhaustive]
    Package {
        /// The folder that was named.
        folder: PathBuf,
        /// What is wrong with it.
        problem: String,
    },

    /// There is no source of `core` for the rustc that would compile it.
    #[error("no source of `core` for rustc {rustc}: {problem}")]
    #[non_exhaustive]
    CoreSource {
        /// The version of the rustc in use.
        rustc: String,
        /// What is missing, and how to get it.
        problem: String,
    },

    /// The crate, or one that it depends on, does not compile.
    #[error("the package {package} does not compile for {target}:\n{messages}", target = crate::TARGET)]
    #[non_exhaustive]
    Compile {
        /// The package that was to be built.
        package: String,
        /// The compiler's errors; where it had none, how cargo ended, whose own words are on stderr.
        messages: String,
    },

    /// The module is no PTX of the expected kind.
    #[error("{0}")]
    Ptx(String),

    /// Kernels hold what a kernel must not, or lack what it must have.
    #[error("{} of {total} kernels are not as they must be:{}", refused.len(), list(refused))]
    #[non_exhaustive]
    Kernels {
        /// Which, and why.
        refused: Vec<Refused>,
        /// How many kernels there are in all.
        total: usize,
    },

    /// The crate compiles, and has no kernel.
    #[error("the package {package} has no kernel: a kernel is a `#[unsafe(no_mangle)] pub extern \"ptx-kernel\" fn` of the crate itself")]
    #[non_exhaustive]
    NoKernels {
        /// The package that was built.
        package: String,
    },

    /// ptxas does not assemble kernels, or only with a spill, local memory or a warning.
    #[error("ptxas {release} objects to {} of {total} kernels:{}", refused.len(), list(refused))]
    #[non_exhaustive]
    Assembler {
        /// The release of ptxas.
        release: String,
        /// Which, and why.
        refused: Vec<Refused>,
        /// How many kernels there are in all.
        total: usize,
    },

    /// A program cannot be started, fails, or writes what is not understood.
    #[error("{command}: {problem}")]
    #[non_exhaustive]
    Program {
        /// The command line.
        command: String,
        /// What is wrong.
        problem: String,
    },

    /// A file or folder cannot be read or written.
    #[error("cannot {action} {}: {problem}", path.display())]
    #[non_exhaustive]
    File {
        /// What was tried, such as `read`.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it did not work.
        problem: io::Error,
    },
}

/// A kernel that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its entry's name.
    pub kernel: String,
    /// Why.
    pub problem: String,
}

impl Display for Refused {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        write!(formatter, "{}: {}", self.kernel, self.problem)
    }
}

fn list(refused: &[Refused]) -> String {
    refused.iter().map(|refused| format!("\n  {refused}")).collect()
}

/// Makes an [`io::Error`] say what was tried with which file.
pub(crate) fn file<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |problem| Error::File { action, path: path.to_path_buf(), problem }
}

/// Returns [`Error::Ptx`] with a message.
macro_rules! bail {
    ($($message:tt)*) => { return Err($crate::Error::Ptx(format!($($message)*))) };
}

/// Returns [`Error::Ptx`] with a message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)*) => { if !$condition { $crate::error::bail!($($message)*) } };
}

pub(crate) use {bail, ensure};
