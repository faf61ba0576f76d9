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
//! // What hopper_attention_forward_with takes besides. All 0, but for the window's -1, means nothing of it. Addresses are of device memory,
//! // 0 for an array that there is not.
//! typedef struct {
//!     uint64_t sinks;          // float[num_heads]: a logit a head that joins each row's sum
//!     uint64_t alibi_slopes;   // float[num_heads]
//!     uint64_t cu_seqlens_q;   // int32_t[batch + 1]: where each sequence begins in q and o, [1, total_q, num_heads, head_dim]
//!     uint64_t cu_seqlens_k;   // int32_t[batch + 1]: the same of k and v
//!     uint64_t seqused_q;      // int32_t[batch]: how many rows of each sequence are queries
//!     uint64_t seqused_k;      // int32_t[batch]: the same of keys
//!     uint64_t batch;          // how many sequences there are; read where one of the four before is not 0
//!     int64_t  window_left;    // query i sees key j only if j >= i + seqlen_k - seqlen_q - window_left; below 0: open
//!     int64_t  window_right;   // query i sees key j only if j <= i + seqlen_k - seqlen_q + window_right; below 0: open
//!     float    softcap;        // s becomes softcap * tanh(s / softcap); 0: none
//! } hopper_attention_features;
//!
//! // hopper_attention_forward with these; NULL for `features` means none. With cu_seqlens_q `lse` is float[num_heads][total_q]. Rows that are
//! // no queries are not written. See hopper_attention::raw::forward_with.
//! int32_t hopper_attention_forward_with(const hopper_attention_tensor *q, const hopper_attention_tensor *k,
//!                                       const hopper_attention_tensor *v, const hopper_attention_tensor *o, uint64_t lse,
//!                                       uint64_t lse_len, int32_t causal, const float *softmax_scale,
//!                                       const hopper_attention_features *features, void *stream);
//!
//! // A forward kernel with score and mask functions of the caller's own, written in Rust (README.md, "Masks and scores of your own").
//! typedef struct hopper_attention_kernel hopper_attention_kernel;
//!
//! // Makes a kernel of the text of a PTX file that hopper-attention-builder made, `ptx_bytes` of UTF-8, which may be freed afterwards. Make
//! // one of each file and keep it: a context loads it at its first launch, and for each kernel made here again. Needs no context.
//! //   kernel         where the kernel goes; NULL goes there on failure
//! int32_t hopper_attention_kernel_from_ptx(const char *ptx, uint64_t ptx_bytes, hopper_attention_kernel **kernel);
//!
//! // Frees a kernel that no thread is calling, and no thread will. Work that was enqueued goes on, and contexts keep what they loaded until
//! // they are destroyed. NULL is let be.
//! void hopper_attention_kernel_free(hopper_attention_kernel *kernel);
//!
//! // hopper_attention_forward_with by a kernel of the caller's own, which any number of threads may use at once.
//! //   args           the kernel's own parameter in host memory, with the layout of the type that forward_kernel! was given as `args`; copied
//! //                  before this returns. Device memory that it names stays allocated and unwritten until the work is done. NULL where there
//! //                  is none
//! //   args_bytes     sizeof *args, 0 where there is none; refused unless it is the size of the kernel's parameter
//! // A soft cap, ALiBi, and head_dims or a dtype that are not the kernel's are refused, too. See hopper_attention::raw::forward_custom.
//! int32_t hopper_attention_forward_custom(const hopper_attention_kernel *kernel, const void *args, uint64_t args_bytes,
//!                                         const hopper_attention_tensor *q, const hopper_attention_tensor *k,
//!                                         const hopper_attention_tensor *v, const hopper_attention_tensor *o, uint64_t lse,
//!                                         uint64_t lse_len, int32_t causal, const float *softmax_scale,
//!                                         const hopper_attention_features *features, void *stream);
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
//! // What went wrong in this thread's latest call of a function that returns a code, "" if it succeeded. Valid until its next such call.
//! const char *hopper_attention_last_error(void);
//! ```

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_void};
use std::panic::{UnwindSafe, catch_unwind};
use std::{ptr, slice};

use hopper_attention::{ArgsBytes, CustomKernel, DType, Dim, Error, Layout, raw};

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

/// Lengths, a window and what is done to logits, as the C declaration has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CFeatures {
    /// f32 `[num_heads]`, or 0.
    pub sinks: u64,
    /// f32 `[num_heads]`, or 0.
    pub alibi_slopes: u64,
    /// i32 `[batch + 1]`, or 0.
    pub cu_seqlens_q: u64,
    /// i32 `[batch + 1]`, or 0.
    pub cu_seqlens_k: u64,
    /// i32 `[batch]`, or 0.
    pub seqused_q: u64,
    /// i32 `[batch]`, or 0.
    pub seqused_k: u64,
    /// How many sequences the four have.
    pub batch: u64,
    /// Keys before a query's own, or below 0 for all.
    pub window_left: i64,
    /// Keys behind a query's own, or below 0 for all.
    pub window_right: i64,
    /// The soft cap, or 0.
    pub softcap: f32,
}

impl CFeatures {
    /// Nothing of all that.
    pub const NONE: Self = Self {
        sinks: 0,
        alibi_slopes: 0,
        cu_seqlens_q: 0,
        cu_seqlens_k: 0,
        seqused_q: 0,
        seqused_k: 0,
        batch: 0,
        window_left: -1,
        window_right: -1,
        softcap: 0.0,
    };

    fn options(&self, causal: bool, softmax_scale: Option<f32>) -> raw::Options {
        let bound = |bound: i64| usize::try_from(bound).ok();
        let mut options = raw::Options::new().causal(causal).window(bound(self.window_left), bound(self.window_right));
        options.softmax_scale = softmax_scale;
        options.softcap = (self.softcap != 0.0).then_some(self.softcap);
        options
    }

    fn arrays(&self, num_heads: usize) -> raw::Arrays {
        let array = |address, len| (address != 0).then_some(raw::Array { address, len });
        let (batch, mut arrays) = (self.batch as usize, raw::Arrays::new());
        arrays.sinks = array(self.sinks, num_heads);
        arrays.alibi_slopes = array(self.alibi_slopes, num_heads);
        arrays.cu_seqlens_q = array(self.cu_seqlens_q, batch.saturating_add(1));
        arrays.cu_seqlens_k = array(self.cu_seqlens_k, batch.saturating_add(1));
        arrays.seqused_q = array(self.seqused_q, batch);
        arrays.seqused_k = array(self.seqused_k, batch);
        arrays
    }
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
    // SAFETY: the caller's promise; there are no features.
    unsafe { hopper_attention_forward_with(q, k, v, o, lse, lse_len, causal, softmax_scale, ptr::null(), stream) }
}

/// Enqueues attention with features; see the C declaration in the crate's documentation.
///
/// # Safety
///
/// The tensors, `softmax_scale` and `features` are null or point to what they say. Of device memory and `stream` the same is asked as of
/// [`hopper_attention::raw::forward_with`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hopper_attention_forward_with(
    q: *const CTensor,
    k: *const CTensor,
    v: *const CTensor,
    o: *const CTensor,
    lse: u64,
    lse_len: u64,
    causal: i32,
    softmax_scale: *const f32,
    features: *const CFeatures,
    stream: *mut c_void,
) -> i32 {
    report(|| {
        // SAFETY: the caller's promise about pointers, and about device memory and the stream.
        unsafe {
            let call = Call::of([q, k, v, o], lse, lse_len, causal, softmax_scale, features)?;
            raw::forward_with(&call.q, &call.k, &call.v, &call.o, call.lse, &call.options, &call.arrays, stream.cast())
        }
    })
}

/// A kernel of the caller's own functions, as the C declaration has it.
pub struct CKernel(CustomKernel<ArgsBytes>);

/// Makes a kernel of its PTX; see the C declaration in the crate's documentation.
///
/// # Safety
///
/// `ptx` is null or points to `ptx_bytes` bytes; `kernel` is null or points to room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hopper_attention_kernel_from_ptx(ptx: *const c_char, ptx_bytes: u64, kernel: *mut *mut CKernel) -> i32 {
    report(|| {
        if kernel.is_null() {
            return Err(invalid("kernel".to_owned(), "null".to_owned(), "where the kernel goes"));
        }
        // SAFETY: the caller's promise; it is not null.
        unsafe { kernel.write(ptr::null_mut()) };
        // SAFETY: the caller's promise.
        let ptx = unsafe { bytes("ptx", ptx.cast::<u8>(), ptx_bytes)? };
        let text = str::from_utf8(ptx).map_err(|error| {
            let value = format!("no UTF-8 from byte {} on", error.valid_up_to());
            invalid("ptx".to_owned(), value, "the text of a PTX file")
        })?;
        let made = Box::new(CKernel(CustomKernel::from_ptx_untyped(text)?));
        // SAFETY: as above.
        unsafe { kernel.write(Box::into_raw(made)) };
        Ok(())
    })
}

/// Frees a kernel; see the C declaration in the crate's documentation.
///
/// # Safety
///
/// `kernel` is null or comes from [`hopper_attention_kernel_from_ptx`], has not been freed, and nothing uses it any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hopper_attention_kernel_free(kernel: *mut CKernel) {
    if !kernel.is_null() {
        // SAFETY: the caller's promise: it is a box that `hopper_attention_kernel_from_ptx` gave away.
        drop(unsafe { Box::from_raw(kernel) });
    }
}

/// Enqueues attention by a kernel of the caller's own functions; see the C declaration in the crate's documentation.
///
/// # Safety
///
/// `kernel` is null or one of [`hopper_attention_kernel_from_ptx`] that has not been freed; `args` is null or points to `args_bytes` bytes; the
/// rest is as [`hopper_attention_forward_with`] asks. Of what `args` says the same is asked as of [`hopper_attention::raw::forward_custom`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hopper_attention_forward_custom(
    kernel: *const CKernel,
    args: *const c_void,
    args_bytes: u64,
    q: *const CTensor,
    k: *const CTensor,
    v: *const CTensor,
    o: *const CTensor,
    lse: u64,
    lse_len: u64,
    causal: i32,
    softmax_scale: *const f32,
    features: *const CFeatures,
    stream: *mut c_void,
) -> i32 {
    report(|| {
        // SAFETY: the caller's promise about pointers, about the parameter, and about device memory and the stream.
        unsafe {
            let Some(CKernel(kernel)) = kernel.as_ref() else {
                return Err(invalid("kernel".to_owned(), "null".to_owned(), "a kernel"));
            };
            let args = bytes("args", args.cast(), args_bytes)?;
            let call = Call::of([q, k, v, o], lse, lse_len, causal, softmax_scale, features)?;
            raw::forward_custom(kernel, args, &call.q, &call.k, &call.v, &call.o, call.lse, &call.options, &call.arrays, stream.cast())
        }
    })
}

/// What the calls have in common, converted.
struct Call {
    q: raw::Tensor4,
    k: raw::Tensor4,
    v: raw::Tensor4,
    o: raw::Tensor4,
    lse: Option<raw::Lse>,
    options: raw::Options,
    arrays: raw::Arrays,
}

impl Call {
    /// # Safety
    ///
    /// The pointers are null or point to what their types say.
    unsafe fn of(
        [q, k, v, o]: [*const CTensor; 4],
        lse: u64,
        lse_len: u64,
        causal: i32,
        softmax_scale: *const f32,
        features: *const CFeatures,
    ) -> Result<Self, Error> {
        // SAFETY: the caller's promise.
        unsafe {
            let [q, k, v, o] = [tensor("q", q)?, tensor("k", k)?, tensor("v", v)?, tensor("o", o)?];
            let lse = (lse != 0).then_some(raw::Lse { address: lse, len: lse_len as usize });
            let features = features.as_ref().copied().unwrap_or(CFeatures::NONE);
            let options = features.options(causal != 0, softmax_scale.as_ref().copied());
            Ok(Self { q, k, v, o, lse, options, arrays: features.arrays(q.layout.extent(Dim::Heads)) })
        }
    }
}

/// Does the work of a function that returns a code, and keeps the message.
fn report(work: impl FnOnce() -> Result<(), Error> + UnwindSafe) -> i32 {
    let (code, message) = match catch_unwind(work) {
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

/// # Safety
///
/// `T` is a byte, initialised or not; `address` is null or points to `len` of them, which live and stay as they are for `'a`.
unsafe fn bytes<'a, T>(name: &str, address: *const T, len: u64) -> Result<&'a [T], Error> {
    if len == 0 {
        return Ok(&[]);
    }
    if address.is_null() {
        return Err(invalid(name.to_owned(), "null".to_owned(), &format!("{len} bytes")));
    }
    if len > isize::MAX as u64 {
        return Err(invalid(format!("{name}_bytes"), len.to_string(), "as many as memory can hold"));
    }
    // SAFETY: the caller's promise, and no more than a slice may have.
    Ok(unsafe { slice::from_raw_parts(address, len as usize) })
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

    use hopper_attention_kernels::params::{FeatureParams, ForwardParams, INTERFACE, TensorMap, VERSION};

    use super::*;

    fn contiguous(address: u64, [batch, seqlen, heads, head_dim]: [u64; 4]) -> CTensor {
        let strides = [seqlen * heads * head_dim, heads * head_dim, head_dim];
        CTensor { address, shape: [batch, seqlen, heads, head_dim], strides, dtype: 1 }
    }

    fn forward(q: *const CTensor, o: &CTensor, softmax_scale: *const f32) -> (i32, String) {
        let kv = contiguous(0x20000, [1, 9, 1, 64]);
        // SAFETY: the pointers are null or of live tensors; every call here fails, or has nothing to do, before the device is touched.
        with_message(unsafe { hopper_attention_forward(q, &kv, &kv, o, 0, 0, 1, softmax_scale, ptr::null_mut()) })
    }

    fn with_message(code: i32) -> (i32, String) {
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

    #[test]
    fn features_arrive() {
        let (q, o) = (contiguous(0x10000, [1, 9, 2, 64]), contiguous(0x40000, [1, 9, 2, 64]));
        let forward = |features: CFeatures| {
            let (kv, none, stream) = (contiguous(0x20000, [1, 9, 1, 64]), ptr::null(), ptr::null_mut());
            // SAFETY: as above.
            with_message(unsafe { hopper_attention_forward_with(&q, &kv, &kv, &o, 0, 0, 0, none, &features, stream) })
        };
        let refused = |features: CFeatures, code: i32, start: &str| {
            let (found, message) = forward(features);
            assert!(found == code && message.starts_with(start), "{found} {message}");
        };
        let none = CFeatures::NONE;
        refused(CFeatures { softcap: -1.0, ..none }, 1, "softcap is -1");
        refused(CFeatures { softcap: 1.0, alibi_slopes: 0x50000, ..none }, 2, "unsupported: softcap is 1 together");
        refused(CFeatures { sinks: 0x50002, ..none }, 1, "sinks.address is 0x50002");
        refused(CFeatures { cu_seqlens_q: 0x50000, batch: 3, ..none }, 1, "k.batch is 1, but must be 3");
        refused(CFeatures { cu_seqlens_k: 0x50000, batch: u64::MAX, ..none }, 1, "cu_seqlens_k.len");
        refused(CFeatures { seqused_q: 0x50000, batch: 2, ..none }, 1, "seqused_q.len is 2, but must be 1");
        refused(CFeatures { seqused_k: 0x50000, batch: 0, ..none }, 1, "seqused_k.len is 0, but must be 1");
        let options = CFeatures { window_left: 7, window_right: 0, softcap: 2.0, ..none }.options(false, None);
        assert_eq!(options, raw::Options::new().window(Some(7), Some(0)).softcap(2.0));
        assert_eq!(none.options(true, Some(0.5)), raw::Options::new().causal(true).softmax_scale(0.5));
    }

    /// The head of what hopper-attention-builder makes of a kernel with a parameter of 24 bytes; the driver never sees it.
    fn ptx() -> String {
        let (version, map) = (VERSION.map(|number| number.to_string()).join("."), size_of::<TensorMap>());
        let sizes = [map, map, map, map, size_of::<ForwardParams>(), size_of::<FeatureParams>(), 24];
        let parameters = sizes.map(|bytes| format!(".param .align 8 .b8 mine[{bytes}]")).join(",\n");
        let facts = format!("interface {INTERFACE} head_dim 64 tile_n 128 bf16 1 has_score 1 args_bytes 24");
        format!("// attention_kernel {version} {facts}\n.visible .entry mine(\n{parameters}\n)\n.maxntid 384, 1, 1\n{{\n}}\n")
    }

    fn load(ptx: &[u8]) -> (i32, String, *mut CKernel) {
        let mut kernel = ptr::dangling_mut();
        // SAFETY: the text and the room for the kernel are there.
        let (code, message) = with_message(unsafe { hopper_attention_kernel_from_ptx(ptx.as_ptr().cast(), ptx.len() as u64, &mut kernel) });
        (code, message, kernel)
    }

    #[test]
    fn what_is_no_kernel_is_refused() {
        let refused = |ptx: &[u8], start: &str| {
            let (code, message, kernel) = load(ptx);
            assert!(code == 1 && message.starts_with(start) && kernel.is_null(), "{code} {message} {kernel:?}");
        };
        let good = ptx();
        refused(b"", "ptx is a text with 0 entries");
        refused(b"// caf\xe9", "ptx is no UTF-8 from byte 6 on, but must be");
        refused(format!("{good}\0").as_bytes(), "ptx is a text with a NUL character, but must be");
        refused(
            good.replacen("// attention_kernel", "// another", 1).as_bytes(),
            "ptx is mine, but must be a kernel that forward_kernel! defines",
        );
        let other = good.replacen(&format!("interface {INTERFACE}"), "interface 0", 1);
        refused(other.as_bytes(), &format!("ptx is mine, made with version {}, interface 0, but must be", env!("CARGO_PKG_VERSION")));
        let mut kernel = ptr::dangling_mut();
        for (ptx, ptx_bytes, start) in [
            (ptr::null(), 9, "ptx is null, but must be 9 bytes"),
            (c"".as_ptr(), u64::MAX, "ptx_bytes is 18446744073709551615, but must be"),
        ] {
            // SAFETY: there is room for the kernel; the text is refused before it is read.
            let (code, message) = with_message(unsafe { hopper_attention_kernel_from_ptx(ptx, ptx_bytes, &mut kernel) });
            assert!(code == 1 && message.starts_with(start) && kernel.is_null(), "{code} {message}");
        }
        // SAFETY: null is refused.
        let answer = with_message(unsafe { hopper_attention_kernel_from_ptx(good.as_ptr().cast(), good.len() as u64, ptr::null_mut()) });
        assert_eq!(answer, (1, "kernel is null, but must be where the kernel goes".into()));
    }

    #[test]
    fn kernels_of_ones_own() {
        let (code, message, kernel) = load(ptx().as_bytes());
        assert!(code == 0 && message.is_empty(), "{code} {message}");
        let call = |kernel, args, args_bytes, head_dim: u64, seqlen: u64, features: &CFeatures| {
            let [q, o] = [0x10000, 0x40000].map(|address| contiguous(address, [1, seqlen, 2, head_dim]));
            let (kv, none, stream) = (contiguous(0x20000, [1, 9, 1, head_dim]), ptr::null(), ptr::null_mut());
            // SAFETY: the kernel is null or alive, and the parameter null or as long as is said; every call fails, or has nothing to do, before
            // the device is touched.
            with_message(unsafe {
                hopper_attention_forward_custom(kernel, args, args_bytes, &q, &kv, &kv, &o, 0, 0, 1, none, features, stream)
            })
        };
        let (args, none) = ([0u64; 3], &CFeatures::NONE);
        let args = args.as_ptr().cast::<c_void>();
        let refused = |(code, message): (i32, String), expected: i32, start: &str| {
            assert!(code == expected && message.starts_with(start), "{code} {message}");
        };
        refused(call(ptr::null(), args, 24, 64, 9, none), 1, "kernel is null, but must be a kernel");
        refused(call(kernel, ptr::null(), 24, 64, 9, none), 1, "args is null, but must be 24 bytes");
        refused(call(kernel, args, 16, 64, 9, none), 1, "args is of 16 bytes, but must be of 24 bytes, like the parameter that mine");
        refused(call(kernel, ptr::null(), 0, 64, 9, none), 1, "args is of 0 bytes");
        refused(call(kernel, args, u64::MAX, 64, 9, none), 1, "args_bytes is 18446744073709551615");
        // What follows the checks of the kernel's own arguments is the same as without it, but for what it does not serve.
        refused(call(kernel, args, 24, 72, 9, none), 2, "unsupported: q.head_dim is 72");
        refused(call(kernel, args, 24, 64, 9, &CFeatures { softcap: 1.0, ..*none }), 2, "unsupported: softcap is 1");
        refused(call(kernel, args, 24, 64, 9, &CFeatures { sinks: 0x50002, ..*none }), 1, "sinks.address is 0x50002");
        assert_eq!(call(kernel, args, 24, 64, 0, none), (0, String::new()));
        // SAFETY: it is not used again; null is let be.
        unsafe {
            hopper_attention_kernel_free(kernel);
            hopper_attention_kernel_free(ptr::null_mut());
        }
    }
}
