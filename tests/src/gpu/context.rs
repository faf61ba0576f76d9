//! Devices and contexts.

use super::{Handle, Stream, check, driver};
use crate::Failure;
use hopper_attention_driver::{CUcontext, CUdevice, CUdevice_attribute, CUresult};
use std::ffi::{CStr, c_int};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A device that can run the kernels, with its primary context.
#[derive(Debug)]
pub struct Gpu {
    /// Its number, as the driver counts.
    pub ordinal: usize,
    /// Its name.
    pub name: String,
    device: CUdevice,
    primary: Handle<CUcontext>,
}

/// The devices of compute capability 9.0, or why there is none.
pub fn gpus() -> Result<&'static [Gpu], String> {
    static GPUS: OnceLock<Result<Vec<Gpu>, String>> = OnceLock::new();
    GPUS.get_or_init(|| find().map_err(|failure| failure.0)).as_deref().map_err(Clone::clone)
}

fn find() -> Result<Vec<Gpu>, Failure> {
    let driver = driver()?;
    // SAFETY: no arguments that could be wrong.
    check("cuInit", unsafe { driver.cuInit(0) })?;
    let mut count = 0;
    // SAFETY: `count` is writable.
    check("cuDeviceGetCount", unsafe { driver.cuDeviceGetCount(&mut count) })?;
    let mut usable = Vec::new();
    let mut others = Vec::new();
    for ordinal in 0..count {
        let mut device = 0;
        // SAFETY: `device` is writable, and `ordinal` below the count.
        check("cuDeviceGet", unsafe { driver.cuDeviceGet(&mut device, ordinal) })?;
        let name = name_of(device)?;
        let capability = (
            attribute(device, CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device, CUdevice_attribute::COMPUTE_CAPABILITY_MINOR)?,
        );
        if capability != (9, 0) {
            others.push(format!("{name} has compute capability {}.{}", capability.0, capability.1));
            continue;
        }
        let mut primary = ptr::null_mut();
        // SAFETY: `primary` is writable; the context is kept until the process ends.
        check("cuDevicePrimaryCtxRetain", unsafe { driver.cuDevicePrimaryCtxRetain(&mut primary, device) })?;
        usable.push(Gpu { ordinal: ordinal as usize, name, device, primary: Handle(primary) });
    }
    if usable.is_empty() {
        others.insert(0, format!("no device of compute capability 9.0 among {count}"));
        return Err(Failure(others.join("; ")));
    }
    Ok(usable)
}

fn attribute(device: CUdevice, attribute: CUdevice_attribute) -> Result<c_int, Failure> {
    let mut value = 0;
    // SAFETY: `value` is writable, and `device` comes from the driver.
    check("cuDeviceGetAttribute", unsafe { driver()?.cuDeviceGetAttribute(&mut value, attribute, device) })?;
    Ok(value)
}

fn name_of(device: CUdevice) -> Result<String, Failure> {
    let mut name = [0u8; 256];
    // SAFETY: the driver writes at most as many bytes as it is told.
    check("cuDeviceGetName", unsafe { driver()?.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int, device) })?;
    Ok(CStr::from_bytes_until_nul(&name).map_or_else(|_| "?".to_string(), |name| name.to_string_lossy().into_owned()))
}

impl Gpu {
    /// Makes the primary context current on this thread.
    pub fn make_current(&self) -> Result<(), Failure> {
        // SAFETY: the primary context is kept until the process ends.
        check("cuCtxSetCurrent", unsafe { driver()?.cuCtxSetCurrent(self.primary.0) })
    }

    /// Does `foreground`, and meanwhile `background`, on a stream of another thread, again and again.
    pub fn beside(
        &self,
        foreground: impl FnOnce() -> Result<(), Failure>,
        background: impl Fn(&Stream) -> Result<(), Failure> + Sync,
    ) -> Result<(), Failure> {
        let done = AtomicBool::new(false);
        let again_and_again = || {
            self.make_current()?;
            let stream = Stream::new()?;
            while !done.load(Ordering::Relaxed) {
                background(&stream)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let background = scope.spawn(again_and_again);
            let outcome = foreground();
            done.store(true, Ordering::Relaxed);
            outcome.and(background.join().unwrap_or_else(|_| Err("a thread panicked".into())))
        })
    }

    /// A new context on this device, current on this thread until it is dropped.
    pub fn new_context(&self) -> Result<OwnContext, Failure> {
        let mut context = ptr::null_mut();
        // SAFETY: `context` is writable, and `device` comes from the driver.
        check("cuCtxCreate", unsafe { driver()?.cuCtxCreate_v2(&mut context, 0, self.device) })?;
        Ok(OwnContext { context: Handle(context) })
    }

    /// Waits for all work of the primary context; an error is that of any earlier work.
    pub fn synchronize(&self) -> Result<(), Failure> {
        self.make_current()?;
        // SAFETY: the call has no arguments.
        check("cuCtxSynchronize", unsafe { driver()?.cuCtxSynchronize() })
    }
}

/// A context of the test's own, destroyed when dropped.
#[derive(Debug)]
pub struct OwnContext {
    context: Handle<CUcontext>,
}

impl OwnContext {
    /// Makes it current on this thread.
    pub fn make_current(&self) -> Result<(), Failure> {
        // SAFETY: the context lives as long as `self`.
        check("cuCtxSetCurrent", unsafe { driver()?.cuCtxSetCurrent(self.context.0) })
    }
}

impl Drop for OwnContext {
    fn drop(&mut self) {
        if let Ok(driver) = driver() {
            // SAFETY: the context is this value's own, and what was made in it is dropped before it.
            let _: CUresult = unsafe { driver.cuCtxDestroy_v2(self.context.0) };
        }
    }
}

/// A device's primary context, retained and current on this thread until it is dropped. For processes that never ask for [`gpus`], which
/// keeps it retained: there the context goes with the last of these, and the next is another.
#[derive(Debug)]
pub struct PrimaryContext {
    device: CUdevice,
}

impl PrimaryContext {
    /// Retains that of a device, counted as the driver does.
    pub fn retain(ordinal: usize) -> Result<Self, Failure> {
        let (mut device, mut context) = (0, ptr::null_mut());
        // SAFETY: no arguments that could be wrong.
        check("cuInit", unsafe { driver()?.cuInit(0) })?;
        // SAFETY: `device` is writable; any ordinal may be asked for.
        check("cuDeviceGet", unsafe { driver()?.cuDeviceGet(&mut device, ordinal as c_int) })?;
        // SAFETY: `context` is writable, and `device` comes from the driver.
        check("cuDevicePrimaryCtxRetain", unsafe { driver()?.cuDevicePrimaryCtxRetain(&mut context, device) })?;
        let retained = Self { device };
        // SAFETY: the context was retained above.
        check("cuCtxSetCurrent", unsafe { driver()?.cuCtxSetCurrent(context) })?;
        Ok(retained)
    }

    /// Destroys what is in it, as `cudaDeviceReset` does, before it is released.
    ///
    /// # Errors
    ///
    /// What the driver returns.
    pub fn reset(self) -> Result<(), Failure> {
        no_current_context()?;
        // SAFETY: what was made in the context is dropped before this value, and nothing else in the process uses it.
        check("cuDevicePrimaryCtxReset", unsafe { driver()?.cuDevicePrimaryCtxReset_v2(self.device) })
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // Once released it must not be current, even where the driver would put up with that.
        if let (Ok(()), Ok(driver)) = (no_current_context(), driver()) {
            // SAFETY: this value retained it, and what was made in it is dropped before it.
            let _: CUresult = unsafe { driver.cuDevicePrimaryCtxRelease_v2(self.device) };
        }
    }
}

/// Leaves this thread without a current context.
pub fn no_current_context() -> Result<(), Failure> {
    // SAFETY: null is allowed.
    check("cuCtxSetCurrent", unsafe { driver()?.cuCtxSetCurrent(ptr::null_mut()) })
}

/// Free memory of the current context's device, in bytes.
pub fn free_bytes() -> Result<usize, Failure> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are writable.
    check("cuMemGetInfo", unsafe { driver()?.cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok(free)
}
