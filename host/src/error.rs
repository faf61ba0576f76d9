//! What can go wrong, each with what was found and what is needed.

use std::path::PathBuf;

use hopper_attention_driver::{CUresult, Driver, LoadError};

/// Why attention was not computed. Nothing was launched, unless the variant says otherwise.
///
/// [`Error::Invalid`], [`Error::Unsupported`] and [`Error::Driver`] stay as they are, so that what wraps this library can return them, too.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The arguments contradict each other, or would have the kernel write where it must not.
    #[error("{field} is {value}, but must be {requirement}")]
    Invalid {
        /// Which argument, such as `k.heads` or `softmax_scale`.
        field: String,
        /// What it was.
        value: String,
        /// What it must be.
        requirement: String,
    },

    /// The arguments describe an attention that is well defined, but not one that these kernels compute: another implementation can
    /// serve it.
    #[error("unsupported: {field} is {value}, but must be {requirement}")]
    Unsupported {
        /// Which argument, such as `q.head_dim` or `k.seqlen_stride`.
        field: String,
        /// What it was.
        value: String,
        /// What would be supported.
        requirement: String,
    },

    /// No CUDA driver can be opened on this machine, or it lacks functions that those of CUDA 12.3 have.
    #[error(transparent)]
    NoDriver(#[from] LoadError),

    /// The calling thread has no current CUDA context.
    #[error("no CUDA context is current on this thread; create one and make it current before the call (cust: quick_init)")]
    NoContext,

    /// The current context's device is not a Hopper GPU.
    #[error("device '{device}' has {found}, but the kernels need {needed}")]
    #[non_exhaustive]
    UnsuitableDevice {
        /// The device's name.
        device: String,
        /// The fact that rules it out.
        found: String,
        /// What the kernels need.
        needed: String,
    },

    /// The driver does not know the PTX version of the kernels.
    #[error(
        "the driver supports CUDA {}.{}, but the kernels (PTX {}.{}{}) need CUDA {}.{}; update the NVIDIA driver",
        found.0, found.1, ptx.0, ptx.1, of_file(file), needed.0, needed.1
    )]
    #[non_exhaustive]
    DriverTooOld {
        /// The newest CUDA version that the driver supports, as (major, minor).
        found: (u32, u32),
        /// The CUDA version whose driver reads that PTX.
        needed: (u32, u32),
        /// The PTX version of the kernel.
        ptx: (u32, u32),
        /// The PTX file; `None` for the PTX that is built in.
        file: Option<PathBuf>,
    },

    /// The driver could not compile or load a kernel.
    #[error("the driver could not load the kernel {entry}{}: {code}; its log: {log}", of_file(file))]
    #[non_exhaustive]
    Load {
        /// The kernel's entry.
        entry: String,
        /// The PTX file; `None` for the PTX that is built in.
        file: Option<PathBuf>,
        /// What the driver returned.
        code: CUresult,
        /// What the driver's compiler wrote, or "(empty)".
        log: String,
    },

    /// A file of the folder that replaces the built-in PTX cannot be read, or holds another kernel than this version's.
    #[error("cannot use the PTX file {}: {source}", path.display())]
    #[non_exhaustive]
    PtxFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },

    /// Another call of the driver failed. Its error may stem from earlier work of the context. `cuStreamSynchronize` is called behind a
    /// launch.
    #[error("{call} failed: {code}")]
    Driver {
        /// The driver's function.
        call: &'static str,
        /// What it returned; its [`name`](CUresult::name) and [`description`](CUresult::description) are the driver's.
        code: CUresult,
    },
}

/// ` of <file>` for a message, if there is a file.
fn of_file(file: &Option<PathBuf>) -> String {
    file.as_ref().map_or_else(String::new, |file| format!(" of {}", file.display()))
}

impl Error {
    pub(crate) fn invalid(field: impl Into<String>, value: impl ToString, requirement: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), value: value.to_string(), requirement: requirement.into() }
    }

    pub(crate) fn unsupported(field: impl Into<String>, value: impl ToString, requirement: impl Into<String>) -> Self {
        Self::Unsupported { field: field.into(), value: value.to_string(), requirement: requirement.into() }
    }
}

/// Turns the driver's code into a [`Result`].
pub(crate) fn check(call: &'static str, code: CUresult) -> Result<(), Error> {
    code.ok().map_err(|code| Error::Driver { call, code })
}

/// The driver, or [`Error::NoDriver`].
pub(crate) fn driver() -> Result<&'static Driver, Error> {
    Ok(Driver::get()?)
}

/// As [`check`], for the driver's function `call` as cust calls it. Where there is no driver cust can only say "no device"; this says why.
#[cfg(feature = "cust")]
pub(crate) fn check_cust<T>(call: &'static str, result: cust::error::CudaResult<T>) -> Result<T, Error> {
    result.map_err(|error| from_cust(call, error))
}

#[cfg(feature = "cust")]
fn from_cust(call: &'static str, error: cust::error::CudaError) -> Error {
    match Driver::get() {
        Err(missing) => Error::NoDriver(missing),
        Ok(_) => Error::Driver { call, code: CUresult(error as u32) },
    }
}

/// An error of cust that does not say which call failed.
#[cfg(feature = "cust")]
impl From<cust::error::CudaError> for Error {
    fn from(error: cust::error::CudaError) -> Self {
        from_cust("a CUDA call of cust", error)
    }
}
