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
        /// Shared memory of a block without opting in, bytes.
        MAX_SHARED_MEMORY_PER_BLOCK = 8,
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
        /// Threads of the largest block that can be launched.
        MAX_THREADS_PER_BLOCK = 0,
        /// Static shared memory, bytes.
        SHARED_SIZE_BYTES = 1,
        /// Local memory of a thread, bytes: more than 0 means spills.
        LOCAL_SIZE_BYTES = 3,
        /// Registers of a thread.
        NUM_REGS = 4,
        /// Version of the PTX it was compiled from, times ten.
        PTX_VERSION = 5,
        /// Architecture it was compiled for, times ten.
        BINARY_VERSION = 6,
        /// Dynamic shared memory that a launch may ask for, bytes.
        MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    }

    /// `CU_POINTER_ATTRIBUTE_*`.
    CUpointer_attribute(c_uint) {
        /// The context that the memory belongs to (a `CUcontext`).
        CONTEXT = 1,
        /// Where the memory lies (a [`CUmemorytype`]).
        MEMORY_TYPE = 2,
        /// The address by which the device reaches it (a `CUdeviceptr`).
        DEVICE_POINTER = 3,
        /// Whether it is managed memory (a `c_uint`, 0 or 1).
        IS_MANAGED = 8,
        /// The device that the memory belongs to (a `c_int`).
        DEVICE_ORDINAL = 9,
        /// Start of the allocation (a `CUdeviceptr`).
        RANGE_START_ADDR = 11,
        /// Size of the allocation in bytes (a `usize`).
        RANGE_SIZE = 12,
    }

    /// `CU_MEMORYTYPE_*`.
    CUmemorytype(c_uint) {
        /// Host memory.
        HOST = 1,
        /// Device memory.
        DEVICE = 2,
        /// An array.
        ARRAY = 3,
        /// Unified memory.
        UNIFIED = 4,
    }

    /// `CU_JIT_*`: what `cuModuleLoadDataEx` can be told.
    CUjit_option(c_uint) {
        /// Registers of a thread (`c_uint` in the pointer's place).
        MAX_REGISTERS = 0,
        /// Buffer for notes (`*mut c_char`).
        INFO_LOG_BUFFER = 3,
        /// In: bytes of that buffer; out: bytes written (`c_uint` in the pointer's place).
        INFO_LOG_BUFFER_SIZE_BYTES = 4,
        /// Buffer for errors (`*mut c_char`).
        ERROR_LOG_BUFFER = 5,
        /// In: bytes of that buffer; out: bytes written (`c_uint` in the pointer's place).
        ERROR_LOG_BUFFER_SIZE_BYTES = 6,
        /// 0 to 4 (`c_uint` in the pointer's place).
        OPTIMIZATION_LEVEL = 7,
        /// Whether the logs are verbose (`c_int` in the pointer's place).
        LOG_VERBOSE = 12,
    }

    /// `CU_STREAM_CAPTURE_STATUS_*`.
    CUstreamCaptureStatus(c_uint) {
        /// The stream is not being captured.
        NONE = 0,
        /// The stream is being captured.
        ACTIVE = 1,
        /// The capture is broken and must be ended.
        INVALIDATED = 2,
    }

    /// `CU_STREAM_CAPTURE_MODE_*`.
    CUstreamCaptureMode(c_uint) {
        /// Unsafe calls of any thread are refused.
        GLOBAL = 0,
        /// Unsafe calls of the capturing thread are refused.
        THREAD_LOCAL = 1,
        /// No call is refused.
        RELAXED = 2,
    }

    /// `CU_TENSOR_MAP_DATA_TYPE_*`.
    CUtensorMapDataType(c_uint) {
        /// IEEE half precision.
        FLOAT16 = 6,
        /// IEEE single precision.
        FLOAT32 = 7,
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
        /// Rows lie as they are.
        NONE = 0,
        /// 16-byte chunks permuted within 32 bytes.
        SWIZZLE_32B = 1,
        /// 16-byte chunks permuted within 64 bytes.
        SWIZZLE_64B = 2,
        /// 16-byte chunks permuted within 128 bytes.
        SWIZZLE_128B = 3,
    }

    /// `CU_TENSOR_MAP_L2_PROMOTION_*`.
    CUtensorMapL2promotion(c_uint) {
        /// No promotion.
        NONE = 0,
        /// L2 fetches 64 bytes.
        L2_64B = 1,
        /// L2 fetches 128 bytes.
        L2_128B = 2,
        /// L2 fetches 256 bytes.
        L2_256B = 3,
    }

    /// `CU_TENSOR_MAP_FLOAT_OOB_FILL_*`: what a load reads outside the tensor.
    CUtensorMapFloatOOBfill(c_uint) {
        /// Zeros.
        NONE = 0,
        /// A NaN that multiply-adds take for zero.
        NAN_REQUEST_ZERO_FMA = 1,
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

/// The shape of a launch, for `cuLaunchKernelEx`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchConfig {
    /// Blocks of the grid, x, y, z.
    pub grid_dim: [c_uint; 3],
    /// Threads of a block, x, y, z.
    pub block_dim: [c_uint; 3],
    /// Dynamic shared memory of a block.
    pub shared_mem_bytes: c_uint,
    /// The stream to launch on.
    pub stream: CUstream,
    /// Array of `num_attrs` attributes; may be null when there are none.
    pub attrs: *mut CUlaunchAttribute,
    /// Length of `attrs`.
    pub num_attrs: c_uint,
}

/// One attribute of a launch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CUlaunchAttribute {
    /// `CU_LAUNCH_ATTRIBUTE_*`.
    pub id: c_uint,
    /// The value, as the attribute lays it out (a C union of 64 bytes, aligned to 8).
    pub value: [u64; 8],
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
    use std::mem::{align_of, offset_of, size_of};
    assert!(size_of::<CUtensorMap>() == 128 && align_of::<CUtensorMap>() == 64);
    assert!(size_of::<CUlaunchAttribute>() == 72 && offset_of!(CUlaunchAttribute, value) == 8);
    assert!(size_of::<CUlaunchConfig>() == 56 && offset_of!(CUlaunchConfig, stream) == 32);
    assert!(size_of::<CUdeviceptr>() == size_of::<*mut c_void>(), "CUDA has 64-bit hosts only");
};
