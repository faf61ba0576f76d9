//! C entry points of `hopper-attention`, for programs in other languages. The library needs the NVIDIA driver at run time and nothing else.
//!
//! ```c
//! #include <stdint.h>
//!
//! // A tensor [batch, seqlen, heads, head_dim] in device memory; the same rules as hopper_attention::raw::Tensor4.
//! typedef struct {
//!     uint64_t address;      // device address of the first element, a multiple of 16
//!     uint64_t shape[4];     // batch, seqlen, heads, head_dim
//!     uint64_t strides[3];   // of batch, seqlen and heads, in elements; head_dim is contiguous
//!     int32_t  dtype;        // HOPPER_ATTENTION_F16 or HOPPER_ATTENTION_BF16
//! } hopper_attention_tensor;
//!
//! enum { HOPPER_ATTENTION_F16 = 0, HOPPER_ATTENTION_BF16 = 1 };
//!
//! // Enqueues o = softmax(softmax_scale * q k^T + mask) v on `stream`, a CUstream or cudaStream_t of the current context, and returns
//! // without waiting. All memory stays allocated, and untouched by others, until the work is done.
//! //   lse            device address of float[batch][num_heads][seqlen_q] for the log-sum-exp, or 0
//! //   lse_len        how many floats there is room for
//! //   causal         not 0: query i sees key j only if j <= i + seqlen_k - seqlen_q
//! //   softmax_scale  points to the factor of the logits, in host memory; NULL means 1 / sqrt(head_dim)
//! // Returns 0, or one of the codes below; nothing was launched then.
//! int32_t hopper_attention_forward(const hopper_attention_tensor *q, const hopper_attention_tensor *k, const hopper_attention_tensor *v,
//!                                  const hopper_attention_tensor *o, uint64_t lse, uint64_t lse_len, int32_t causal,
//!                                  const float *softmax_scale, void *stream);
//!
//! enum {
//!     HOPPER_ATTENTION_INVALID = 1,            // an argument contradicts another, or is out of range
//!     HOPPER_ATTENTION_UNSUPPORTED = 2,        // well defined, but not what these kernels compute
//!     HOPPER_ATTENTION_NO_DRIVER = 3,
//!     HOPPER_ATTENTION_NO_CONTEXT = 4,         // no CUDA context is current on this thread
//!     HOPPER_ATTENTION_UNSUITABLE_DEVICE = 5,  // not a Hopper GPU
//!     HOPPER_ATTENTION_DRIVER_TOO_OLD = 6,
//!     HOPPER_ATTENTION_LOAD = 7,               // the driver could not load the kernel
//!     HOPPER_ATTENTION_DRIVER = 8,             // another call of the driver failed
//!     HOPPER_ATTENTION_INTERNAL = 9,           // a fault of this library
//! };
//!
//! // What went wrong in this thread's latest call of hopper_attention_forward, "" if it succeeded. Valid until its next such call.
//! const char *hopper_attention_last_error(void);
//! ```

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::panic::catch_unwind;

use hopper_attention::{DType, Error, Layout, raw};

/// A tensor in device memory, as the C declaration has it.
#[repr(C)]
pub struct CTensor {
    /// Device address of the first element.
    pub address: u64,
    /// `[batch, seqlen, heads, head_dim]`.
    pub shape: [u64; 4],
    /// Elements between neighbours along `[batch, seqlen, heads]`.
    pub strides: [u64; 3],
    /// 0 for f16, 1 for bf16.
    pub dtype: i32,
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Enqueues attention; see the C declaration in the crate's documentation.
///
/// # Safety
///
/// The tensors and `softmax_scale` are null or point to what they say. Of device memory and `stream` the same is asked as of
/// [`hopper_attention::raw::forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hopper_attention_forward(
    q: *const CTensor,
    k: *const CTensor,
    v: *const CTensor,
    o: *const CTensor,
    lse: u64,
    lse_len: u64,
    causal: i32,
    softmax_scale: *const f32,
    stream: *mut c_void,
) -> i32 {
    let outcome = catch_unwind(|| {
        // SAFETY: the caller's promise about pointers, and about device memory and the stream.
        unsafe {
            let [q, k, v, o] = [tensor("q", q)?, tensor("k", k)?, tensor("v", v)?, tensor("o", o)?];
            let lse = (lse != 0).then_some(raw::Lse { address: lse, len: lse_len as usize });
            let mut options = raw::Options::new().causal(causal != 0);
            options.softmax_scale = softmax_scale.as_ref().copied();
            raw::forward(&q, &k, &v, &o, lse, &options, stream.cast())
        }
    });
    let (code, message) = match outcome {
        Ok(Ok(())) => (0, String::new()),
        Ok(Err(error)) => (code_of(&error), error.to_string()),
        Err(_) => (9, "a fault of hopper-attention: it panicked, and said where on standard error".into()),
    };
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // While a thread ends its message may be gone already; the code is returned all the same.
    let _ = LAST_ERROR.try_with(|last| last.replace(message));
    code
}

/// The message of this thread's latest failure; see the C declaration in the crate's documentation.
#[unsafe(no_mangle)]
pub extern "C" fn hopper_attention_last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// # Safety
///
/// `tensor` is null or points to a tensor.
unsafe fn tensor(name: &str, tensor: *const CTensor) -> Result<raw::Tensor4, Error> {
    // SAFETY: the caller's promise.
    let Some(tensor) = (unsafe { tensor.as_ref() }) else {
        return Err(invalid(name.to_owned(), "null".to_owned(), "a tensor"));
    };
    let dtype = match tensor.dtype {
        0 => DType::F16,
        1 => DType::Bf16,
        other => return Err(invalid(format!("{name}.dtype"), other.to_string(), "0 (f16) or 1 (bf16)")),
    };
    let layout = Layout { shape: tensor.shape.map(|extent| extent as usize), strides: tensor.strides.map(|stride| stride as usize) };
    Ok(raw::Tensor4 { address: tensor.address, dtype, layout })
}

fn invalid(field: String, value: String, requirement: &str) -> Error {
    Error::Invalid { field, value, requirement: requirement.to_owned() }
}

fn code_of(error: &Error) -> i32 {
    match error {
        Error::Invalid { .. } => 1,
        Error::Unsupported { .. } => 2,
        Error::NoDriver(_) => 3,
        Error::NoContext => 4,
        Error::UnsuitableDevice { .. } => 5,
        Error::DriverTooOld { .. } => 6,
        Error::Load { .. } | Error::PtxFile { .. } => 7,
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::ptr;

    use super::*;

    fn contiguous(address: u64, [batch, seqlen, heads, head_dim]: [u64; 4]) -> CTensor {
        let strides = [seqlen * heads * head_dim, heads * head_dim, head_dim];
        CTensor { address, shape: [batch, seqlen, heads, head_dim], strides, dtype: 1 }
    }

    fn forward(q: *const CTensor, o: &CTensor, softmax_scale: *const f32) -> (i32, String) {
        let kv = contiguous(0x20000, [1, 9, 1, 64]);
        // SAFETY: the pointers are null or of live tensors; every call here fails, or has nothing to do, before the device is touched.
        let code = unsafe { hopper_attention_forward(q, &kv, &kv, o, 0, 0, 1, softmax_scale, ptr::null_mut()) };
        // SAFETY: the message is a string until this thread's next call.
        (code, unsafe { CStr::from_ptr(hopper_attention_last_error()) }.to_str().unwrap().to_owned())
    }

    #[test]
    fn codes_and_messages() {
        let (q, o) = (contiguous(0x10000, [1, 9, 2, 64]), contiguous(0x40000, [1, 9, 2, 64]));
        assert_eq!(forward(ptr::null(), &o, ptr::null()), (1, "q is null, but must be a tensor".into()));
        let (code, message) = forward(&q, &o, &0.0);
        assert!(code == 1 && message.starts_with("softmax_scale is 0"), "{code} {message}");
        let (code, message) = forward(&CTensor { dtype: 7, ..contiguous(0x10000, [1, 9, 2, 64]) }, &o, ptr::null());
        assert!(code == 1 && message.starts_with("q.dtype is 7"), "{code} {message}");
        let (code, message) = forward(&contiguous(0x10002, [1, 9, 2, 64]), &o, ptr::null());
        assert!(code == 2 && message.contains("q.address"), "{code} {message}");
        // No queries: nothing to do, and no message is left over.
        let empty = contiguous(0, [1, 0, 2, 64]);
        assert_eq!(forward(&empty, &empty, ptr::null()), (0, String::new()));
    }
}
