//! The driver's functions that this project calls (the library, its tests and benchmark, its examples), each with its C type, looked up by
//! name once.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};
use std::sync::OnceLock;

use crate::library::{Library, LoadError};
#[cfg(test)]
use crate::test_support::{Class, Signature};
use crate::types::*;

/// One line a function, as `cuda.h` declares it; the name is the one that the library exports, version suffix included.
macro_rules! driver_table {
    ($(fn $name:ident($($arg:ident: $type:ty),*);)*) => {
        /// The functions of an opened CUDA driver, as methods under CUDA's names. See the CUDA driver API for what each does.
        #[allow(non_snake_case)]
        pub struct Driver {
            $($name: unsafe extern "C" fn($($type),*) -> CUresult,)*
        }

        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Driver {
            /// The names that a library must export to serve as driver.
            pub const SYMBOLS: &[&str] = &[$(stringify!($name)),*];

            fn load(library: &Library) -> Result<Self, LoadError> {
                Ok(Self {
                    $($name: {
                        let address = library.require(const { c_name(concat!(stringify!($name), "\0")) })?;
                        // SAFETY: the driver's ABI gives the function of this name this type, and the library is never closed.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> CUresult>(address) }
                    },)*
                })
            }

            $(
                #[doc = concat!("Calls `", stringify!($name), "`.")]
                ///
                /// # Safety
                ///
                /// What the CUDA driver API asks of this function's arguments: pointers valid for what it reads and writes, handles
                /// alive, device memory in use by nobody else.
                #[inline]
                pub unsafe fn $name(&self, $($arg: $type),*) -> CUresult {
                    // SAFETY: passed on to the caller.
                    unsafe { (self.$name)($($arg),*) }
                }
            )*
        }

        /// How each function is called, for comparison with other declarations of it.
        #[cfg(test)]
        fn signatures() -> Vec<(&'static str, Vec<Class>)> {
            vec![$((stringify!($name), <unsafe extern "C" fn($($type),*) -> CUresult>::classes())),*]
        }
    };
}

/// `name`, which ends in NUL, as a C string.
const fn c_name(name: &str) -> &std::ffi::CStr {
    match std::ffi::CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("no NUL at the end"),
    }
}

driver_table! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuGetErrorName(error: CUresult, text: *mut *const c_char);
    fn cuGetErrorString(error: CUresult, text: *mut *const c_char);

    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice);

    fn cuCtxCreate_v2(context: *mut CUcontext, flags: c_uint, device: CUdevice);
    fn cuCtxDestroy_v2(context: CUcontext);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxGetId(context: CUcontext, id: *mut c_ulonglong);
    fn cuCtxSynchronize();

    fn cuModuleLoadDataEx(
        module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut CUjit_option, values: *mut *mut c_void
    );
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuFuncSetAttribute(function: CUfunction, attribute: CUfunction_attribute, value: c_int);
    fn cuLaunchKernel(
        function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint,
        shared_mem_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void
    );
    fn cuTensorMapEncodeTiled(
        map: *mut CUtensorMap, data_type: CUtensorMapDataType, rank: c_uint, address: *mut c_void, dims: *const u64,
        strides_bytes: *const u64, box_dims: *const c_uint, element_strides: *const c_uint, interleave: CUtensorMapInterleave,
        swizzle: CUtensorMapSwizzle, l2_promotion: CUtensorMapL2promotion, oob_fill: CUtensorMapFloatOOBfill
    );

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuPointerGetAttribute(value: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr);
    fn cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize);
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemsetD8_v2(to: CUdeviceptr, value: c_uchar, count: usize);
    fn cuMemsetD16_v2(to: CUdeviceptr, value: c_ushort, count: usize);
    fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream);

    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext);
    fn cuStreamGetId(stream: CUstream, id: *mut c_ulonglong);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut c_ulonglong, graph: *mut CUgraph,
        dependencies: *mut *const CUgraphNode, num_dependencies: *mut usize
    );
    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);

    fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
    fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(exec: CUgraphExec);
    fn cuGraphDestroy(graph: CUgraph);

    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
}

impl Driver {
    /// The process's driver: opened by the first call, whose outcome every later call repeats. `cuInit` is left to the caller.
    ///
    /// # Errors
    ///
    /// [`LoadError`] when no driver can be opened, or when it is too old to have every function of this table.
    pub fn get() -> Result<&'static Self, LoadError> {
        static DRIVER: OnceLock<Result<Driver, LoadError>> = OnceLock::new();
        DRIVER.get_or_init(|| Library::get().and_then(Self::load)).as_ref().map_err(Clone::clone)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::test_support::{TemporaryFile, compile_library_from};

    /// A library of functions that each return 1000 plus their place in the list.
    fn library_of(symbols: &[&str], name: &str) -> TemporaryFile {
        let function = |(place, symbol)| format!("#[unsafe(no_mangle)] extern \"C\" fn {symbol}() -> u32 {{ 1000 + {place} }}\n");
        compile_library_from(&symbols.iter().enumerate().map(function).collect::<String>(), name)
    }

    fn load(file: &TemporaryFile) -> Result<Driver, LoadError> {
        // The library stays open, as in use.
        Driver::load(Box::leak(Box::new(Library::open(Some(file.as_ref().into()))?)))
    }

    #[test]
    fn functions_are_found_by_name() {
        let driver = load(&library_of(Driver::SYMBOLS, "complete")).expect("every function is there");
        let place = Driver::SYMBOLS.iter().position(|&symbol| symbol == "cuCtxSynchronize").expect("it is in the list");
        // SAFETY: the function takes no arguments.
        assert_eq!(unsafe { driver.cuCtxSynchronize() }, CUresult(1000 + place as u32));
    }

    #[test]
    fn a_driver_that_is_too_old() {
        let code = r#"
            #[unsafe(no_mangle)] extern "C" fn cuInit(_flags: u32) -> u32 { 0 }
            #[unsafe(no_mangle)] unsafe extern "C" fn cuDriverGetVersion(version: *mut i32) -> u32 { unsafe { *version = 11040 }; 0 }
        "#;
        let file = compile_library_from(code, "old");
        let error = load(&file).err().expect("it lacks most functions");
        let library = file.as_ref().display().to_string();
        assert_eq!(error, LoadError::MissingSymbol { library, symbol: "cuGetErrorName", version: Some((11, 4)) });
        assert!(error.to_string().contains("(CUDA 11.4) has no cuGetErrorName; install a driver for CUDA 12.3 or newer"), "{error}");
    }

    #[test]
    fn a_library_that_is_no_driver() {
        let file = compile_library_from(r#"#[unsafe(no_mangle)] extern "C" fn malloc_trim(_pad: usize) -> i32 { 0 }"#, "other");
        let error = load(&file).err().expect("it has no function of a driver");
        let library = file.as_ref().display().to_string();
        assert!(error.to_string().starts_with(&format!("'{library}' is no CUDA driver")), "{error}");
        assert_eq!(error, LoadError::NotADriver { library });
    }

    #[test]
    fn no_function_may_be_missing() {
        let (last, others) = Driver::SYMBOLS.split_last().expect("functions");
        let error = load(&library_of(others, "incomplete")).err().expect("it lacks one function");
        assert!(matches!(error, LoadError::MissingSymbol { symbol, .. } if symbol == *last), "{error}");
    }

    #[test]
    fn signatures_agree_with_the_import_list() {
        let imports: BTreeMap<_, _> = crate::import_shim::tests::signatures().into_iter().collect();
        let (shared, newer): (Vec<_>, Vec<_>) = signatures().into_iter().partition(|(name, _)| imports.contains_key(name));
        for (name, classes) in shared {
            assert_eq!(classes, imports[name], "{name}");
        }
        // CUDA 12's, and the one that the shim answers itself.
        let newer: Vec<_> = newer.into_iter().map(|(name, _)| name).collect();
        assert_eq!(newer, ["cuGetErrorString", "cuCtxGetId", "cuTensorMapEncodeTiled", "cuStreamGetId"]);
    }
}
