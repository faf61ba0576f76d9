//! What is known of each CUDA context: its device, its scheduler slots, and the kernels loaded so far.
//!
//! A context is known by the id that `cuCtxGetId` gives, which is never used again; the address of a destroyed context is. What a
//! destroyed context leaves here is one [`Context`], 17 KiB of host memory, and it goes as soon as another context is met at the same
//! address (or, on a thread that used it last, when that thread uses another). Modules and slots are the context's own: the driver
//! frees them with it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use hopper_attention_driver::{
    CUcontext, CUctx_st, CUdevice, CUdevice_attribute, CUfunc_st, CUfunction, CUfunction_attribute, CUjit_option, CUresult, CUstream,
    CUstreamCaptureMode, Driver,
};
use hopper_attention_kernels::config::{FEWER_ROWS, FORWARD, GENERAL, TileConfig};

use crate::Error;
use crate::custom::Kernel;
use crate::error::{check, driver};
use crate::kernels::{self, Ptx};
use crate::slots::Slots;

/// A context whose device can run the kernels.
pub(crate) struct Context {
    id: u64,
    handle: Handle<CUctx_st>,
    pub device: CUdevice,
    pub multiprocessors: u32,
    pub driver: &'static Driver,
    pub slots: Slots,
    kernels: [OnceLock<Handle<CUfunc_st>>; kernels::COUNT],
    /// The caller's own, by their ids.
    custom_kernels: RwLock<HashMap<u64, Handle<CUfunc_st>>>,
    /// Held while a module is loaded, so that threads do not load the same one.
    loading: Mutex<()>,
}

/// A context or function of the driver.
struct Handle<T>(*mut T);
// SAFETY: the CUDA driver API allows the use of its handles from any thread, and nothing here reads what they point to.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

static CONTEXTS: RwLock<Vec<Arc<Context>>> = RwLock::new(Vec::new());

thread_local! {
    /// The context that this thread used last, so that the usual call takes no lock.
    static LAST: RefCell<Option<Arc<Context>>> = const { RefCell::new(None) };
}

impl Context {
    /// The calling thread's current context.
    pub fn current() -> Result<Arc<Self>, Error> {
        let driver = driver()?;
        let mut id = 0;
        // SAFETY: a null context means the current one; `id` is writable.
        let code = unsafe { driver.cuCtxGetId(ptr::null_mut(), &mut id) };
        check("cuCtxGetId", code).map_err(|error| if has_current(driver) { error } else { Error::NoContext })?;
        // While the thread ends its locals may be gone; the list serves then.
        let last = LAST.try_with(|last| last.borrow().clone().filter(|context| context.id == id)).ok().flatten();
        if let Some(context) = last {
            return Ok(context);
        }
        let known = |contexts: &[Arc<Self>]| contexts.iter().find(|context| context.id == id).cloned();
        let found = known(&CONTEXTS.read().unwrap_or_else(PoisonError::into_inner));
        let context = match found {
            Some(context) => context,
            None => {
                // Not under the lock: the driver takes its time, and threads in other contexts need not wait for it.
                let examined = Self::examine(driver, id)?;
                let mut contexts = CONTEXTS.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(context) = known(&contexts) {
                    drop(contexts);
                    examined.discard()?;
                    context
                } else {
                    let context = Arc::new(examined);
                    contexts.retain(|other| other.handle.0 != context.handle.0);
                    contexts.push(context.clone());
                    context
                }
            }
        };
        let _ = LAST.try_with(|last| last.replace(Some(context.clone())));
        Ok(context)
    }

    /// Learns the current context's device, and refuses one that cannot run the kernels.
    fn examine(driver: &'static Driver, id: u64) -> Result<Self, Error> {
        let (mut handle, mut device) = (ptr::null_mut(), 0);
        // SAFETY: `handle` is writable.
        check("cuCtxGetCurrent", unsafe { driver.cuCtxGetCurrent(&mut handle) })?;
        // SAFETY: `device` is writable.
        check("cuCtxGetDevice", unsafe { driver.cuCtxGetDevice(&mut device) })?;
        let attribute = |attribute| {
            let mut value: c_int = 0;
            // SAFETY: `value` is writable, and `device` comes from the driver.
            check("cuDeviceGetAttribute", unsafe { driver.cuDeviceGetAttribute(&mut value, attribute, device) })?;
            Ok::<_, Error>(value.max(0) as u32)
        };
        let unsuitable =
            |found: String, needed: String| Err(Error::UnsuitableDevice { device: device_name(driver, device), found, needed });
        let major = attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(CUdevice_attribute::COMPUTE_CAPABILITY_MINOR)?;
        if (major, minor) != (9, 0) {
            let needed = "compute capability 9.0 exactly (Hopper: H100, H200, H800, H20, GH200)".into();
            return unsuitable(format!("compute capability {major}.{minor}"), needed);
        }
        let smem_bytes = attribute(CUdevice_attribute::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let needed = FORWARD.iter().chain(&FEWER_ROWS).chain(&GENERAL).map(TileConfig::smem_bytes).max().unwrap_or(0);
        if smem_bytes < needed {
            return unsuitable(format!("{smem_bytes} bytes of shared memory for a block"), format!("{needed}"));
        }
        let multiprocessors = attribute(CUdevice_attribute::MULTIPROCESSOR_COUNT)?;
        let _relaxed = RelaxedCapture::enter(driver)?;
        Ok(Self {
            id,
            handle: Handle(handle),
            device,
            multiprocessors,
            driver,
            slots: Slots::new(driver)?,
            kernels: [const { OnceLock::new() }; kernels::COUNT],
            custom_kernels: RwLock::new(HashMap::new()),
            loading: Mutex::new(()),
        })
    }

    /// Gives up what another thread of the same context was first to make. `self` is the current context.
    fn discard(self) -> Result<(), Error> {
        let _relaxed = RelaxedCapture::enter(self.driver)?;
        self.slots.free(self.driver);
        Ok(())
    }

    /// A kernel, by its place in [`kernels::KERNELS`]; loaded at the first call. `self` is the current context.
    pub fn kernel(&self, index: usize) -> Result<CUfunction, Error> {
        let slot = &self.kernels[index];
        if let Some(function) = slot.get() {
            return Ok(function.0);
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = slot.get() {
            return Ok(function.0);
        }
        let kernel = &kernels::KERNELS[index];
        let function = load(self.driver, kernel.entry, kernel.smem_bytes, &kernel.ptx()?)?;
        Ok(slot.get_or_init(|| Handle(function)).0)
    }

    /// A kernel of the caller's own; loaded at the first call. `self` is the current context.
    pub fn custom_kernel(&self, kernel: &Kernel) -> Result<CUfunction, Error> {
        let loaded = || {
            let kernels = self.custom_kernels.read().unwrap_or_else(PoisonError::into_inner);
            kernels.get(&kernel.id()).map(|function| function.0)
        };
        if let Some(function) = loaded() {
            return Ok(function);
        }
        let _loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = loaded() {
            return Ok(function);
        }
        let ptx = Ptx { text: kernel.ptx().into(), file: None };
        let function = load(self.driver, kernel.entry(), kernel.config().smem_bytes(), &ptx)?;
        self.custom_kernels.write().unwrap_or_else(PoisonError::into_inner).insert(kernel.id(), Handle(function));
        Ok(function)
    }

    /// The driver's handle.
    pub fn handle(&self) -> CUcontext {
        self.handle.0
    }

    /// A launch refused the function and stream together: says so where the stream is one of another context.
    pub fn explain(&self, error: Error, stream: CUstream) -> Error {
        if !matches!(error, Error::Driver { code: CUresult::INVALID_HANDLE | CUresult::INVALID_CONTEXT, .. }) {
            return error;
        }
        let mut owner: CUcontext = ptr::null_mut();
        // SAFETY: `owner` is writable, and the caller of the launch answers for the stream being alive.
        let code = unsafe { self.driver.cuStreamGetCtx(stream, &mut owner) };
        if code == CUresult::SUCCESS && owner != self.handle.0 {
            return Error::invalid("stream", "of another context", "of the context that is current on this thread");
        }
        error
    }
}

/// Whether the calling thread has a current context; not so before cuInit.
fn has_current(driver: &Driver) -> bool {
    let mut context = ptr::null_mut();
    // SAFETY: `context` is writable.
    let code = unsafe { driver.cuCtxGetCurrent(&mut context) };
    code == CUresult::SUCCESS && !context.is_null()
}

fn device_name(driver: &Driver, device: CUdevice) -> String {
    let mut name = [0u8; 256];
    // SAFETY: the driver writes at most 256 bytes, the NUL included.
    let code = unsafe { driver.cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), name.len() as c_int, device) };
    match code.ok() {
        Ok(()) => until_nul(&name),
        Err(_) => format!("device {device}"),
    }
}

fn until_nul(bytes: &[u8]) -> String {
    let text = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).trim().to_owned()
}

/// Compiles a kernel's module into the current context, also while some stream is being captured.
fn load(driver: &'static Driver, entry: &str, smem_bytes: u32, ptx: &Ptx) -> Result<CUfunction, Error> {
    let failed = |code: CUresult, log: &str| Error::Load { entry: entry.to_owned(), file: ptx.file.clone(), code, log: log.to_owned() };
    let image = CString::new(ptx.text.as_bytes()).map_err(|_| failed(CUresult::INVALID_PTX, "the PTX holds a NUL character"))?;
    let _relaxed = RelaxedCapture::enter(driver)?;
    let mut log = vec![0u8; 16 << 10];
    let mut options = [CUjit_option::ERROR_LOG_BUFFER, CUjit_option::ERROR_LOG_BUFFER_SIZE_BYTES];
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), ptr::without_provenance_mut(log.len())];
    let mut module = ptr::null_mut();
    // SAFETY: the image ends in NUL; the two options have the two values that they take, and the log is as long as the second says.
    let code = unsafe {
        driver.cuModuleLoadDataEx(&mut module, image.as_ptr().cast(), options.len() as u32, options.as_mut_ptr(), values.as_mut_ptr())
    };
    if let Err(code) = code.ok() {
        let log = Some(until_nul(&log)).filter(|log| !log.is_empty()).unwrap_or_else(|| "(empty)".into());
        return Err(too_old(driver, code, ptx).unwrap_or_else(|| failed(code, &log)));
    }
    let name = CString::new(entry).expect("the PTX, which names the entry, holds no NUL");
    let mut function = ptr::null_mut();
    // SAFETY: `module` was loaded above, and `name` ends in NUL.
    let found = match unsafe { driver.cuModuleGetFunction(&mut function, module, name.as_ptr()) } {
        CUresult::NOT_FOUND => Err(failed(CUresult::NOT_FOUND, "the PTX holds no entry of this name")),
        code => check("cuModuleGetFunction", code),
    };
    let ready = found.and_then(|()| {
        // SAFETY: `function` is of the module loaded above.
        let code = unsafe { driver.cuFuncSetAttribute(function, CUfunction_attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes as c_int) };
        check("cuFuncSetAttribute", code)
    });
    if let Err(error) = ready {
        // SAFETY: nothing uses the module, as its function is not handed out. A failure to unload leaves it to the context.
        let _ = unsafe { driver.cuModuleUnload(module) };
        return Err(error);
    }
    Ok(function)
}

/// What `code` means if the driver does not know the PTX version.
fn too_old(driver: &Driver, code: CUresult, ptx: &Ptx) -> Option<Error> {
    if code != CUresult::UNSUPPORTED_PTX_VERSION {
        return None;
    }
    let needs = kernels::ptx_version(&ptx.text)?;
    let mut version: c_int = 0;
    // SAFETY: `version` is writable.
    unsafe { driver.cuDriverGetVersion(&mut version) }.ok().ok()?;
    let found = (version as u32 / 1000, version as u32 % 1000 / 10);
    Some(Error::DriverTooOld { found, needed: kernels::cuda_version_of_ptx(needs), ptx: needs, file: ptx.file.clone() })
}

/// While it lives, this thread may make calls that a capture in progress would otherwise forbid and be broken by. What is done meanwhile
/// (loading a module, making memory) records nothing in a stream that is being captured.
struct RelaxedCapture {
    driver: &'static Driver,
    previous: CUstreamCaptureMode,
}

impl RelaxedCapture {
    fn enter(driver: &'static Driver) -> Result<Self, Error> {
        let mut mode = CUstreamCaptureMode::RELAXED;
        // SAFETY: `mode` is read and written.
        check("cuThreadExchangeStreamCaptureMode", unsafe { driver.cuThreadExchangeStreamCaptureMode(&mut mode) })?;
        Ok(Self { driver, previous: mode })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: as above. The call that entered succeeded, so there is no error to report.
        let _ = unsafe { self.driver.cuThreadExchangeStreamCaptureMode(&mut self.previous) };
    }
}
