//! The card's ceiling: an 8192 x 8192 x 8192 product in bf16 by cuBLAS, opened at run time where there is one.

use std::ffi::{c_int, c_void};
use std::path::Path;
use std::ptr;

use hopper_attention_driver::CUstream;
use libloading::Library;

use crate::Result;
use crate::gpu::{Buffer, Gpu};
use crate::random;

const SIZE: usize = 8192;
/// Operations of one product.
pub const FLOPS: u64 = 2 * (SIZE as u64).pow(3);

/// File names that the loader is asked for, newest CUDA first.
const NAMES: [&str; 2] = ["libcublas.so.13", "libcublas.so.12"];

// cublas_api.h and library_types.h.
const CUDA_R_16BF: c_int = 14;
const CUBLAS_OP_N: c_int = 0;
const CUBLAS_COMPUTE_32F: c_int = 68;
const CUBLAS_GEMM_DEFAULT: c_int = -1;

type Create = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type SetStream = unsafe extern "C" fn(*mut c_void, CUstream) -> c_int;
#[rustfmt::skip]
type GemmEx = unsafe extern "C" fn(
    handle: *mut c_void, op_a: c_int, op_b: c_int, m: c_int, n: c_int, k: c_int,
    alpha: *const c_void, a: *const c_void, type_a: c_int, lda: c_int, b: *const c_void, type_b: c_int, ldb: c_int,
    beta: *const c_void, c: *mut c_void, type_c: c_int, ldc: c_int, compute: c_int, algorithm: c_int,
) -> c_int;

/// The product, ready to be enqueued.
pub struct Matmul {
    gemm: GemmEx,
    handle: *mut c_void,
    a: Buffer,
    b: Buffer,
    c: Buffer,
    _library: Library,
}

impl Matmul {
    /// Opens cuBLAS (`file`, or one that the loader finds) and fills two matrices with random values.
    pub fn open(gpu: &Gpu, file: Option<&Path>) -> Result<Self> {
        let library = open_library(file)?;
        // SAFETY: cublas_api.h declares these three functions with these types, in CUDA 12 and 13.
        let (create, set_stream, gemm) = unsafe {
            (
                *library.get::<Create>(b"cublasCreate_v2\0")?,
                *library.get::<SetStream>(b"cublasSetStream_v2\0")?,
                *library.get::<GemmEx>(b"cublasGemmEx\0")?,
            )
        };
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is written; the stream is alive.
        unsafe {
            status("cublasCreate_v2", create(&mut handle))?;
            status("cublasSetStream_v2", set_stream(handle, gpu.stream))?;
        }
        let matrix = |seed| Buffer::from_slice(gpu, &random::normal::<half::bf16>(SIZE * SIZE, seed));
        let (a, b) = (matrix(1)?, matrix(2)?);
        let c = Buffer::poisoned(gpu, SIZE * SIZE * size_of::<half::bf16>())?;
        Ok(Self { gemm, handle, a, b, c, _library: library })
    }

    /// Enqueues one product.
    pub fn enqueue(&self) -> Result<()> {
        let (size, one, zero) = (SIZE as c_int, 1.0f32, 0.0f32);
        // SAFETY: three matrices of SIZE * SIZE bf16 in device memory; the factors are f32, as this compute type wants, and read by the call.
        let code = unsafe {
            (self.gemm)(
                self.handle,
                CUBLAS_OP_N,
                CUBLAS_OP_N,
                size,
                size,
                size,
                (&raw const one).cast(),
                self.a.address as *const c_void,
                CUDA_R_16BF,
                size,
                self.b.address as *const c_void,
                CUDA_R_16BF,
                size,
                (&raw const zero).cast(),
                self.c.address as *mut c_void,
                CUDA_R_16BF,
                size,
                CUBLAS_COMPUTE_32F,
                CUBLAS_GEMM_DEFAULT,
            )
        };
        status("cublasGemmEx", code)
    }
}

fn status(call: &str, code: c_int) -> Result<()> {
    if code == 0 { Ok(()) } else { Err(format!("{call} returned {code}").into()) }
}

fn open_library(file: Option<&Path>) -> Result<Library> {
    // SAFETY: loading runs initialisers; cuBLAS is made to be loaded at any time, and a file the user names is the user's to answer for.
    let open = |file: &Path| unsafe { Library::new(file) };
    match file {
        Some(file) => Ok(open(file)?),
        None => {
            let found = NAMES.iter().find_map(|name| open(Path::new(name)).ok());
            found.ok_or_else(|| format!("not measured: no {} (--cublas names the file)", NAMES.join(" or ")).into())
        }
    }
}
