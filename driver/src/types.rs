//! Types and constants of the CUDA driver's ABI, under CUDA's own names. What C declares as an enum is a transparent integer here: a
//! driver newer than this list may return any value.

#![allow(non_camel_case_types)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::fmt;
use std::ptr;

use crate::Driver;

/// A device's ordinal handle.
pub type CUdevice = c_int;
/// An address in device memory.
pub type CUdeviceptr = c_ulonglong;

macro_rules! handles {
    ($($(#[$doc:meta])* $handle:ident = *mut $opaque:ident;)*) => {$(
        #[doc = concat!("What a [`", stringify!($handle), "`] points to; known to the driver alone.")]
        #[repr(C)]
        #[derive(Debug)]
        pub struct $opaque {
            opaque: [u8; 0],
        }

        $(#[$doc])*
        pub type $handle = *mut $opaque;
    )*};
}

handles! {
    /// A context.
    CUcontext = *mut CUctx_st;
    /// A loaded module.
    CUmodule = *mut CUmod_st;
    /// A kernel of a module.
    CUfunction = *mut CUfunc_st;
    /// A stream; null is the default stream.
    CUstream = *mut CUstream_st;
    /// An event.
    CUevent = *mut CUevent_st;
    /// A graph, as capture records it.
    CUgraph = *mut CUgraph_st;
    /// A node of a graph.
    CUgraphNode = *mut CUgraphNode_st;
    /// A graph that can be launched.
    CUgraphExec = *mut CUgraphExec_st;
}

macro_rules! integers {
    ($($(#[$doc:meta])* $name:ident($repr:ty) { $($(#[$value_doc:meta])* $value:ident = $number:expr,)* })*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(pub $repr);

        impl $name {
            $($(#[$value_doc])* pub const $value: Self = Self($number);)*
        }
    )*};
}

integers! {
    /// `CU_DEVICE_ATTRIBUTE_*`.
    CUdevice_attribute(c_uint) {
        /// Streaming multiprocessors.
        MULTIPROCESSOR_COUNT = 16,
        /// Compute capability, the number before the point.
        COMPUTE_CAPABILITY_MAJOR = 75,
        /// Compute capability, the number behind the point.
        COMPUTE_CAPABILITY_MINOR = 76,
        /// Shared memory that a block can opt in to, bytes.
        MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
    }

    /// `CU_FUNC_ATTRIBUTE_*`.
    CUfunction_attribute(c_uint) {
        /// Dynamic shared memory that a launch may ask for, bytes.
        MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    }

    /// `CU_POINTER_ATTRIBUTE_*`.
    CUpointer_attribute(c_uint) {
        /// The context that the memory belongs to (a `CUcontext`).
        CONTEXT = 1,
        /// The device that the memory belongs to (a `c_int`).
        DEVICE_ORDINAL = 9,
        /// Where the allocation, or the reservation of addresses, begins (a `CUdeviceptr`).
        RANGE_START_ADDR = 11,
        /// How long it is, bytes (a `usize`).
        RANGE_SIZE = 12,
    }

    /// `CU_JIT_*`: what `cuModuleLoadDataEx` can be told.
    CUjit_option(c_uint) {
        /// Buffer for errors (`*mut c_char`).
        ERROR_LOG_BUFFER = 5,
        /// In: bytes of that buffer; out: bytes written (`c_uint` in the pointer's place).
        ERROR_LOG_BUFFER_SIZE_BYTES = 6,
    }

    /// `CU_STREAM_CAPTURE_STATUS_*`.
    CUstreamCaptureStatus(c_uint) {
        /// The stream is not being captured.
        NONE = 0,
    }

    /// `CU_STREAM_CAPTURE_MODE_*`.
    CUstreamCaptureMode(c_uint) {
        /// Unsafe calls of any thread are refused.
        GLOBAL = 0,
        /// No call is refused.
        RELAXED = 2,
    }

    /// `CU_TENSOR_MAP_DATA_TYPE_*`.
    CUtensorMapDataType(c_uint) {
        /// IEEE half precision.
        FLOAT16 = 6,
        /// bfloat16.
        BFLOAT16 = 9,
    }

    /// `CU_TENSOR_MAP_INTERLEAVE_*`.
    CUtensorMapInterleave(c_uint) {
        /// Not interleaved.
        NONE = 0,
    }

    /// `CU_TENSOR_MAP_SWIZZLE_*`.
    CUtensorMapSwizzle(c_uint) {
        /// 16-byte chunks permuted within 128 bytes.
        SWIZZLE_128B = 3,
    }

    /// `CU_TENSOR_MAP_L2_PROMOTION_*`.
    CUtensorMapL2promotion(c_uint) {
        /// L2 fetches 128 bytes.
        L2_128B = 2,
    }

    /// `CU_TENSOR_MAP_FLOAT_OOB_FILL_*`: what a load reads outside the tensor.
    CUtensorMapFloatOOBfill(c_uint) {
        /// Zeros.
        NONE = 0,
    }
}

/// Flag of `cuStreamCreate`: the stream does not wait for the default stream.
pub const CU_STREAM_NON_BLOCKING: c_uint = 1;
/// Flag of `cuEventCreate`: the event can be waited for, not timed.
pub const CU_EVENT_DISABLE_TIMING: c_uint = 2;

/// A TMA descriptor: `cuTensorMapEncodeTiled` writes it, the copy engine reads it.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CUtensorMap {
    /// Known to the driver and the device alone.
    pub opaque: [u64; 16],
}

/// What a call of the driver returned.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[must_use = "a call of the driver may have failed"]
pub struct CUresult(pub c_uint);

macro_rules! results {
    ($($name:ident = $code:literal,)*) => {
        /// `CUDA_SUCCESS` and the `CUDA_ERROR_*` codes that a caller may want to tell apart.
        #[allow(missing_docs)]
        impl CUresult {
            $(pub const $name: Self = Self($code);)*

            /// CUDA's name of the code, for the codes listed here: known without a driver.
            const fn known_name(self) -> Option<&'static str> {
                match self {
                    Self::SUCCESS => Some("CUDA_SUCCESS"),
                    $(Self::$name => Some(concat!("CUDA_ERROR_", stringify!($name))),)*
                    _ => None,
                }
            }
        }
    };
}

impl CUresult {
    /// The call succeeded.
    pub const SUCCESS: Self = Self(0);
}

results! {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEINITIALIZED = 4,
    STUB_LIBRARY = 34,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    INVALID_PTX = 218,
    JIT_COMPILER_NOT_FOUND = 221,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    CONTEXT_IS_DESTROYED = 709,
    MISALIGNED_ADDRESS = 716,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    SYSTEM_DRIVER_MISMATCH = 803,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_IMPLICIT = 906,
    UNKNOWN = 999,
}

impl CUresult {
    /// `Ok` for [`CUresult::SUCCESS`], else the code as error.
    pub const fn ok(self) -> Result<(), CUresult> {
        match self {
            Self::SUCCESS => Ok(()),
            error => Err(error),
        }
    }

    /// CUDA's name, such as `CUDA_ERROR_NOT_READY`; for a code that is not listed here, asked of the driver.
    pub fn name(self) -> Option<&'static str> {
        self.known_name().or_else(|| self.ask(Driver::cuGetErrorName))
    }

    /// The driver's description; `None` without a driver, or for a code that it does not know.
    pub fn description(self) -> Option<&'static str> {
        self.ask(Driver::cuGetErrorString)
    }

    fn ask(self, call: unsafe fn(&Driver, CUresult, *mut *const c_char) -> CUresult) -> Option<&'static str> {
        let driver = Driver::get().ok()?;
        let mut text = ptr::null();
        // SAFETY: `text` is writable; both calls take any code, and need no cuInit.
        unsafe { call(driver, self, &mut text) }.ok().ok()?;
        if text.is_null() {
            return None;
        }
        // SAFETY: on success it points to a constant, NUL-terminated string of the driver, which is never unloaded.
        unsafe { CStr::from_ptr(text) }.to_str().ok()
    }
}

/// `CUDA_ERROR_NOT_READY (600): device not ready`, or as much of it as is known.
impl fmt::Display for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name().unwrap_or("CUDA error"), self.0)?;
        match self.description() {
            Some(description) => write!(f, ": {description}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for CUresult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CUresult({}, {})", self.0, self.known_name().unwrap_or("?"))
    }
}

impl std::error::Error for CUresult {}

const _: () = {
    use std::mem::{align_of, size_of};
    assert!(size_of::<CUtensorMap>() == 128 && align_of::<CUtensorMap>() == 64);
    assert!(size_of::<CUdeviceptr>() == size_of::<*mut c_void>(), "CUDA has 64-bit hosts only");
};
