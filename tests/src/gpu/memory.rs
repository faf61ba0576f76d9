//! Device memory, with poison around what is used.

use super::{check, driver};
use crate::{Failure, ensure};
use hopper_attention_driver::{CUdeviceptr, CUresult};

/// A NaN of f16 and of bf16, and as a pair of f32, that no arithmetic produces.
pub const POISON: u16 = 0x7fda;
/// Poisoned bytes before and behind guarded memory: more than a key tile of the widest head.
pub const GUARD_BYTES: usize = 128 << 10;

/// Device memory of the current context.
#[derive(Debug)]
pub struct Buffer {
    address: CUdeviceptr,
    bytes: usize,
}

impl Buffer {
    /// At least one byte, uninitialised.
    pub fn new(bytes: usize) -> Result<Self, Failure> {
        let mut address = 0;
        // SAFETY: `address` is writable.
        let code = unsafe { driver()?.cuMemAlloc_v2(&mut address, bytes.max(1)) };
        check("cuMemAlloc", code).map_err(|failure| failure.during(format_args!("{bytes} bytes of device memory")))?;
        Ok(Self { address, bytes })
    }

    /// The device address.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Sets `bytes` bytes from `offset` on to [`POISON`], two by two. Returns when it is done.
    pub fn poison(&self, offset: usize, bytes: usize) -> Result<(), Failure> {
        assert!(bytes.is_multiple_of(2) && offset + bytes <= self.bytes);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: the range lies within the allocation, and no test leaves work on it behind.
        check("cuMemsetD16", unsafe { driver()?.cuMemsetD16_v2(self.address + offset as u64, POISON, bytes / 2) })?;
        // A memset may return before it is done, and streams that do not block would overtake it.
        // SAFETY: the call has no arguments.
        check("cuCtxSynchronize", unsafe { driver()?.cuCtxSynchronize() })
    }

    /// Writes `data` from byte `offset` on. Returns when it is done.
    pub fn write<T: bytemuck::NoUninit>(&self, offset: usize, data: &[T]) -> Result<(), Failure> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        assert!(offset + bytes.len() <= self.bytes);
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the range lies within the allocation, and no test leaves work on it behind.
        check("cuMemcpyHtoD", unsafe { driver()?.cuMemcpyHtoD_v2(self.address + offset as u64, bytes.as_ptr().cast(), bytes.len()) })?;
        // SAFETY: the call has no arguments.
        check("cuCtxSynchronize", unsafe { driver()?.cuCtxSynchronize() })
    }

    /// Reads `count` elements from byte `offset` on.
    pub fn read<T: bytemuck::Pod>(&self, offset: usize, count: usize) -> Result<Vec<T>, Failure> {
        let mut data = vec![T::zeroed(); count];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut data);
        assert!(offset + bytes.len() <= self.bytes);
        if !bytes.is_empty() {
            // SAFETY: the range lies within the allocation.
            let code = unsafe { driver()?.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), self.address + offset as u64, bytes.len()) };
            check("cuMemcpyDtoH", code)?;
        }
        Ok(data)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Ok(driver) = driver() {
            // SAFETY: the allocation is this value's own; freeing waits for work that uses it.
            let _: CUresult = unsafe { driver.cuMemFree_v2(self.address) };
        }
    }
}

/// Memory between two guards; everything is [`POISON`] at first.
#[derive(Debug)]
pub struct Guarded {
    buffer: Buffer,
    start: usize,
    bytes: usize,
}

impl Guarded {
    /// `bytes` bytes (even), beginning `offset` bytes (below 256, even) behind a multiple of 256.
    pub fn new(bytes: usize, offset: usize) -> Result<Self, Failure> {
        assert!(offset < 256 && offset.is_multiple_of(2) && bytes.is_multiple_of(2));
        let start = GUARD_BYTES + offset;
        let buffer = Buffer::new(start + bytes + GUARD_BYTES)?;
        buffer.poison(0, start + bytes + GUARD_BYTES)?;
        Ok(Self { buffer, start, bytes })
    }

    /// The device address behind the first guard.
    pub fn address(&self) -> CUdeviceptr {
        self.buffer.address() + self.start as u64
    }

    /// Poisons the memory between the guards.
    pub fn poison(&self) -> Result<(), Failure> {
        self.buffer.poison(self.start, self.bytes)
    }

    /// Writes `data` from the first byte on.
    pub fn write<T: bytemuck::NoUninit>(&self, data: &[T]) -> Result<(), Failure> {
        assert!(size_of_val(data) <= self.bytes);
        self.buffer.write(self.start, data)
    }

    /// Reads everything between the guards.
    pub fn read<T: bytemuck::Pod>(&self) -> Result<Vec<T>, Failure> {
        self.buffer.read(self.start, self.bytes / size_of::<T>())
    }

    /// Fails if a guard was written to.
    pub fn check_guards(&self, name: &str) -> Result<(), Failure> {
        let end = self.start + self.bytes;
        for (side, offset, bytes) in [("before", 0, self.start), ("behind", end, GUARD_BYTES)] {
            let guard: Vec<u16> = self.buffer.read(offset, bytes / 2)?;
            let changed = guard.iter().position(|&value| value != POISON);
            ensure!(changed.is_none(), "memory {side} {name} was written to, {changed:?} elements into the guard");
        }
        Ok(())
    }
}
