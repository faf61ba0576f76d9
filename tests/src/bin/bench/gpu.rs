//! The device as the benchmark uses it: its first one, one stream, plain buffers, timed events.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;

use hopper_attention_driver::{CU_STREAM_NON_BLOCKING, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUresult, CUstream, Driver};

use crate::Result;

/// Kernels of the benchmark itself. `spin` holds the stream for so many nanoseconds; `empty` takes as many bytes of parameters as a forward kernel.
fn helper_ptx(param_bytes: usize) -> String {
    format!(
        ".version 8.0
.target sm_90
.address_size 64

.visible .entry spin(.param .u64 nanoseconds)
{{
    .reg .u64 %begin, %now, %wait;
    .reg .pred %again;
    ld.param.u64 %wait, [nanoseconds];
    mov.u64 %begin, %globaltimer;
LOOP:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %again, %now, %wait;
    @%again bra LOOP;
    ret;
}}

.visible .entry empty(.param .align 64 .b8 q[128], .param .align 64 .b8 k[128], .param .align 64 .b8 v[128], .param .align 64 .b8 o[128],
    .param .align 8 .b8 params[{param_bytes}])
{{
    ret;
}}
"
    )
}

/// The first device, its primary context current on this thread, and a stream.
pub struct Gpu {
    pub driver: &'static Driver,
    pub stream: CUstream,
    pub name: String,
    pub sm_count: u32,
    spin: CUfunction,
    empty: CUfunction,
}

/// Bytes that `ForwardParams` takes as a kernel parameter.
pub const PARAM_BYTES: usize = size_of::<hopper_attention_kernels::params::ForwardParams>();

impl Gpu {
    pub fn open() -> Result<Self> {
        let driver = Driver::get()?;
        let (mut device, mut context, mut stream, mut sm_count) = (0, ptr::null_mut(), ptr::null_mut(), 0);
        let mut name = [0u8; 256];
        // SAFETY: every pointer is to a local of the type that the call writes; the handles passed on come from calls that succeeded.
        unsafe {
            driver.cuInit(0).ok()?;
            driver.cuDeviceGet(&mut device, 0).ok()?;
            driver.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device).ok()?;
            driver.cuDeviceGetAttribute(&mut sm_count, CUdevice_attribute::MULTIPROCESSOR_COUNT, device).ok()?;
            driver.cuDevicePrimaryCtxRetain(&mut context, device).ok()?;
            driver.cuCtxSetCurrent(context).ok()?;
            driver.cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING).ok()?;
        }
        let [spin, empty] = load_helpers(driver)?;
        let name = CStr::from_bytes_until_nul(&name)?.to_str()?.to_string();
        Ok(Self { driver, stream, name, sm_count: sm_count.try_into()?, spin, empty })
    }

    /// Waits until the stream is empty.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream lives as long as `self`.
        Ok(unsafe { self.driver.cuStreamSynchronize(self.stream) }.ok()?)
    }

    /// Enqueues a kernel that holds the stream for so long.
    pub fn spin(&self, seconds: f64) -> Result<()> {
        let mut nanoseconds = (seconds * 1e9) as u64;
        let mut params = [(&raw mut nanoseconds).cast::<c_void>()];
        // SAFETY: `spin` takes one u64, which the call copies.
        Ok(unsafe { self.launch(self.spin, 1, &mut params) }.ok()?)
    }

    /// Enqueues a kernel that does nothing, with parameters as large as a forward kernel's.
    pub fn launch_empty(&self, maps: &mut [[u64; 16]; 4], params: &mut [u8; PARAM_BYTES]) -> Result<()> {
        let [q, k, v, o] = maps;
        let mut pointers =
            [q.as_mut_ptr().cast(), k.as_mut_ptr().cast(), v.as_mut_ptr().cast(), o.as_mut_ptr().cast(), params.as_mut_ptr().cast()];
        // SAFETY: `empty` takes four parameters of 128 bytes and one of PARAM_BYTES, which the call copies.
        Ok(unsafe { self.launch(self.empty, 128, &mut pointers) }.ok()?)
    }

    /// # Safety
    ///
    /// `params` point to what the function's parameters are copied from.
    unsafe fn launch(&self, function: CUfunction, threads: u32, params: &mut [*mut c_void]) -> CUresult {
        // SAFETY: function and stream live as long as `self`; the parameters are the caller's promise.
        unsafe { self.driver.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, self.stream, params.as_mut_ptr(), ptr::null_mut()) }
    }
}

fn load_helpers(driver: &Driver) -> Result<[CUfunction; 2]> {
    let mut image = helper_ptx(PARAM_BYTES).into_bytes();
    image.push(0);
    let mut module = ptr::null_mut();
    // SAFETY: the image is PTX text that ends in NUL; no options.
    unsafe { driver.cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), 0, ptr::null_mut(), ptr::null_mut()) }.ok()?;
    let mut functions = [ptr::null_mut(); 2];
    for (function, name) in functions.iter_mut().zip([c"spin", c"empty"]) {
        // SAFETY: the module is loaded, and is never unloaded.
        unsafe { driver.cuModuleGetFunction(function, module, name.as_ptr()) }.ok()?;
    }
    Ok(functions)
}

/// Device memory.
pub struct Buffer {
    driver: &'static Driver,
    pub address: CUdeviceptr,
    bytes: usize,
}

impl Buffer {
    /// `bytes` of memory, every byte 0xff: as f16, bf16 or f32 that is NaN, so what no kernel writes shows.
    pub fn poisoned(gpu: &Gpu, bytes: usize) -> Result<Self> {
        let mut address = 0;
        // SAFETY: `address` is written.
        unsafe { gpu.driver.cuMemAlloc_v2(&mut address, bytes) }.ok()?;
        let buffer = Self { driver: gpu.driver, address, bytes };
        buffer.poison()?;
        Ok(buffer)
    }

    /// The same once more. Work that uses it must be done.
    pub fn poison(&self) -> Result<()> {
        // SAFETY: the memset stays within the allocation.
        unsafe {
            self.driver.cuMemsetD8_v2(self.address, 0xff, self.bytes).ok()?;
            Ok(self.driver.cuCtxSynchronize().ok()?)
        }
    }

    pub fn from_slice<T: bytemuck::Pod>(gpu: &Gpu, data: &[T]) -> Result<Self> {
        let buffer = Self::poisoned(gpu, size_of_val(data))?;
        // SAFETY: the buffer has exactly these bytes; the call returns when they are copied.
        unsafe { gpu.driver.cuMemcpyHtoD_v2(buffer.address, data.as_ptr().cast(), buffer.bytes) }.ok()?;
        Ok(buffer)
    }

    /// The whole content. Work that writes it must be done.
    pub fn to_vec<T: bytemuck::Pod>(&self) -> Result<Vec<T>> {
        let mut data = vec![T::zeroed(); self.bytes / size_of::<T>()];
        // SAFETY: `data` holds at most these bytes; the call returns when they are copied.
        unsafe { self.driver.cuMemcpyDtoH_v2(data.as_mut_ptr().cast(), self.address, size_of_val(&data[..])) }.ok()?;
        Ok(data)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `poisoned` and freed once. cuMemFree waits for work that uses it. A failure has no one to report to.
        let _ = unsafe { self.driver.cuMemFree_v2(self.address) };
    }
}

/// A point of the stream whose time can be read.
pub struct Event {
    driver: &'static Driver,
    raw: CUevent,
}

impl Event {
    /// Records a new event in the stream.
    pub fn record(gpu: &Gpu) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is written, then recorded in a live stream.
        unsafe {
            gpu.driver.cuEventCreate(&mut raw, 0).ok()?;
            let event = Self { driver: gpu.driver, raw };
            gpu.driver.cuEventRecord(raw, gpu.stream).ok()?;
            Ok(event)
        }
    }

    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives as long as `self`.
        Ok(unsafe { self.driver.cuEventSynchronize(self.raw) }.ok()?)
    }

    /// Seconds from `earlier` to this event; both must have happened.
    pub fn seconds_since(&self, earlier: &Self) -> Result<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: both events are alive.
        unsafe { self.driver.cuEventElapsedTime(&mut milliseconds, earlier.raw, self.raw) }.ok()?;
        Ok(f64::from(milliseconds) * 1e-3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: created by `record` and destroyed once. A failure has no one to report to.
        let _ = unsafe { self.driver.cuEventDestroy_v2(self.raw) };
    }
}

/// A driver version such as "580.159.04", or "unknown".
pub fn driver_version() -> String {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.split_whitespace().find(is_version).unwrap_or("unknown").to_string()
}
