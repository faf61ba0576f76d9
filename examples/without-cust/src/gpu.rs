//! The little that the example needs of a GPU: a context, a stream, memory.

use std::ptr;

use half::bf16;
use hopper_attention::Error;
use hopper_attention_driver::{CU_STREAM_NON_BLOCKING, CUdevice, CUdeviceptr, CUresult, CUstream, Driver};

/// The first GPU's primary context, current on this thread, and a stream of it.
pub struct Gpu {
    driver: &'static Driver,
    device: CUdevice,
    stream: CUstream,
}

/// Device memory of elements of 2 bytes; freed when dropped.
pub struct Memory<'a> {
    gpu: &'a Gpu,
    address: CUdeviceptr,
    len: usize,
}

impl Gpu {
    pub fn new() -> Result<Self, Error> {
        let driver = Driver::get()?;
        let (mut device, mut context, mut stream) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: the outputs are writable, and each handle comes from the call before.
        unsafe {
            check("cuInit", driver.cuInit(0))?;
            check("cuDeviceGet", driver.cuDeviceGet(&mut device, 0))?;
            check("cuDevicePrimaryCtxRetain", driver.cuDevicePrimaryCtxRetain(&mut context, device))?;
            check("cuCtxSetCurrent", driver.cuCtxSetCurrent(context))?;
            check("cuStreamCreate", driver.cuStreamCreate(&mut stream, CU_STREAM_NON_BLOCKING))?;
        }
        Ok(Self { driver, device, stream })
    }

    pub fn stream(&self) -> CUstream {
        self.stream
    }

    /// New device memory that holds `values`.
    pub fn upload(&self, values: &[bf16]) -> Result<Memory<'_>, Error> {
        let (mut address, bytes) = (0, size_of_val(values));
        // SAFETY: `address` is writable.
        check("cuMemAlloc", unsafe { self.driver.cuMemAlloc_v2(&mut address, bytes) })?;
        let memory = Memory { gpu: self, address, len: values.len() };
        // SAFETY: the allocation is as large as the copy, on which everything enqueued later on this stream waits. The driver has read
        // pageable memory such as `values` when the call returns.
        let code = unsafe { self.driver.cuMemcpyHtoDAsync_v2(address, values.as_ptr().cast(), bytes, self.stream) };
        check("cuMemcpyHtoDAsync", code)?;
        Ok(memory)
    }

    /// Waits for the stream's work, and copies `memory` to `values`.
    pub fn download(&self, memory: &Memory<'_>, values: &mut [bf16]) -> Result<(), Error> {
        assert_eq!(memory.len, values.len());
        // SAFETY: both sides are that long, and `values` is borrowed until the copy is done.
        unsafe {
            let code = self.driver.cuMemcpyDtoHAsync_v2(values.as_mut_ptr().cast(), memory.address, size_of_val(values), self.stream);
            check("cuMemcpyDtoHAsync", code)?;
            check("cuStreamSynchronize", self.driver.cuStreamSynchronize(self.stream))
        }
    }
}

impl Memory<'_> {
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        // SAFETY: the address is this allocation's, and is used no more. cuMemFree waits for work that still uses it.
        let _ = unsafe { self.gpu.driver.cuMemFree_v2(self.address) };
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the stream is this value's own. No memory is left: it borrows this value.
        unsafe {
            let _ = self.driver.cuStreamDestroy_v2(self.stream);
            let _ = self.driver.cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

fn check(call: &'static str, code: CUresult) -> Result<(), Error> {
    code.ok().map_err(|code| Error::Driver { call, code })
}
