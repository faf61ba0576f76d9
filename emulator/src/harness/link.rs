//! The driver's functions that the harness calls, of this emulator or of a library that is opened.

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;

use super::spec::{Map, Spec};

macro_rules! link {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        /// Addresses of the driver's functions.
        #[allow(non_snake_case)]
        pub struct Link {
            emulator: bool,
            set_seed: Option<usize>,
            last_report: Option<usize>,
            set_checks: Option<usize>,
            set_budget: Option<usize>,
            $($name: usize,)*
        }

        #[allow(non_snake_case, clippy::too_many_arguments)]
        impl Link {
            /// Takes each function's address from `look_up`.
            pub fn new(look_up: impl Fn(&str) -> Option<usize>) -> Result<Self, String> {
                let set_seed = look_up("hopperEmulatorSetSeed");
                Ok(Self {
                    emulator: set_seed.is_some(),
                    set_seed,
                    last_report: look_up("hopperEmulatorLastReport"),
                    set_checks: look_up("hopperEmulatorSetChecks"),
                    set_budget: look_up("hopperEmulatorSetBudget"),
                    $($name: look_up(stringify!($name)).ok_or_else(|| format!("the driver has no {}", stringify!($name)))?,)*
                })
            }

            $(
                fn $name(&self, $($arg: $type),*) -> u32 {
                    // SAFETY: the driver's ABI gives the function of this name this type.
                    let call = unsafe { std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> u32>(self.$name) };
                    // SAFETY: the harness passes pointers to its own locals and handles that the driver has returned.
                    unsafe { call($($arg),*) }
                }
            )*
        }
    };
}

link! {
    cuInit(flags: u32);
    cuDeviceGet(device: *mut i32, ordinal: i32);
    cuCtxCreate_v2(context: *mut usize, flags: u32, device: i32);
    cuCtxDestroy_v2(context: usize);
    cuModuleLoadDataEx(module: *mut usize, image: *const c_char, count: u32, options: *mut u32, values: *mut *mut c_void);
    cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char);
    cuFuncSetAttribute(function: usize, attribute: u32, value: i32);
    cuMemAlloc_v2(address: *mut u64, bytes: usize);
    cuMemcpyHtoD_v2(to: u64, from: *const u8, bytes: usize);
    cuMemcpyDtoH_v2(to: *mut u8, from: u64, bytes: usize);
    cuTensorMapEncodeTiled(
        map: *mut MapBytes, element: u32, rank: u32, address: u64, dims: *const u64, strides: *const u64, boxes: *const u32,
        element_strides: *const u32, interleave: u32, swizzle: u32, promotion: u32, fill: u32
    );
    cuLaunchKernel(
        function: usize, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: usize, params: *mut *mut c_void,
        extra: usize
    );
    cuCtxSynchronize();
}

/// A `CUtensorMap`.
#[repr(C, align(64))]
pub struct MapBytes([u8; 128]);

impl Link {
    /// This library itself.
    pub fn emulator() -> Self {
        let exports = crate::exports();
        let look_up = |name: &str| exports.iter().find(|(exported, _)| *exported == name).map(|&(_, address)| address);
        Self::new(look_up).expect("the emulator exports what its harness calls")
    }

    /// Whether it is an emulator: whether it takes seeds and gives reports.
    pub fn is_emulator(&self) -> bool {
        self.emulator
    }

    fn set(address: Option<usize>, value: u64) {
        if let Some(address) = address {
            // SAFETY: the emulator's own function of this type; a narrower argument takes the low half.
            let call = unsafe { std::mem::transmute::<usize, extern "C" fn(u64) -> u32>(address) };
            call(value);
        }
    }

    /// The seed of later launches; a real driver has none.
    pub fn set_seed(&self, seed: u64) {
        self.cuInit(0);
        Self::set(self.set_seed, seed);
    }

    /// Turns the checks of later launches on or off.
    pub fn set_checks(&self, on: bool) {
        self.cuInit(0);
        Self::set(self.set_checks, u64::from(on));
    }

    /// Instructions that a CTA of later launches may execute.
    pub fn set_budget(&self, instructions: u64) {
        self.cuInit(0);
        Self::set(self.set_budget, instructions);
    }

    fn report(&self) -> String {
        let Some(address) = self.last_report else { return String::new() };
        let mut buffer = vec![0u8; 1 << 16];
        // SAFETY: the emulator's own function of this type.
        let call = unsafe { std::mem::transmute::<usize, extern "C" fn(*mut u8, usize, *mut usize) -> u32>(address) };
        call(buffer.as_mut_ptr(), buffer.len(), null_mut());
        let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
        String::from_utf8_lossy(&buffer[..end]).into_owned()
    }
}

fn ok(code: u32, call: &str) -> Result<(), String> {
    if code == 0 { Ok(()) } else { Err(format!("{call} failed with {code}")) }
}

/// A context of its own, which goes with everything in it.
pub struct Session<'a> {
    link: &'a Link,
    context: usize,
}

impl<'a> Session<'a> {
    /// Makes a context on device 0.
    pub fn open(link: &'a Link) -> Result<Self, String> {
        ok(link.cuInit(0), "cuInit")?;
        let (mut device, mut context) = (0, 0);
        ok(link.cuDeviceGet(&mut device, 0), "cuDeviceGet")?;
        ok(link.cuCtxCreate_v2(&mut context, 0, device), "cuCtxCreate")?;
        Ok(Self { link, context })
    }

    /// Loads a module and finds its kernel; the error is the compiler's log.
    pub fn load(&self, source: &str, kernel: Option<&str>) -> Result<usize, String> {
        let image = CString::new(source).map_err(|_| "the file holds a NUL".to_string())?;
        let mut log = vec![0u8; 1 << 14];
        let mut options = [5, 6];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), log.len() as *mut c_void];
        let mut module = 0;
        let code = self.link.cuModuleLoadDataEx(&mut module, image.as_ptr(), 2, options.as_mut_ptr(), values.as_mut_ptr());
        if code != 0 {
            let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
            return Err(format!("{} (code {code})", String::from_utf8_lossy(&log[..end])));
        }
        let name = match kernel {
            Some(name) => name.to_string(),
            None => first_entry(source).ok_or("the file has no kernel")?,
        };
        let name = CString::new(name).map_err(|_| "the kernel's name holds a NUL".to_string())?;
        let mut function = 0;
        ok(self.link.cuModuleGetFunction(&mut function, module, name.as_ptr()), "cuModuleGetFunction")?;
        Ok(function)
    }

    /// Device memory.
    pub fn allocate(&self, bytes: usize) -> Result<u64, String> {
        let mut address = 0;
        ok(self.link.cuMemAlloc_v2(&mut address, bytes), "cuMemAlloc")?;
        Ok(address)
    }

    /// Copies to the device.
    pub fn upload(&self, address: u64, bytes: &[u8]) -> Result<(), String> {
        ok(self.link.cuMemcpyHtoD_v2(address, bytes.as_ptr(), bytes.len()), "cuMemcpyHtoD")
    }

    /// Copies from the device.
    pub fn download(&self, address: u64, bytes: usize) -> Result<Vec<u8>, String> {
        let mut data = vec![0; bytes];
        ok(self.link.cuMemcpyDtoH_v2(data.as_mut_ptr(), address, bytes), "cuMemcpyDtoH")?;
        Ok(data)
    }

    /// Encodes a tensor map; the error is the driver's report.
    pub fn encode(&self, map: &Map, base: u64) -> Result<Vec<u8>, String> {
        let mut bytes = Box::new(MapBytes([0; 128]));
        let code = self.link.cuTensorMapEncodeTiled(
            &mut *bytes,
            map.element,
            map.dims.len() as u32,
            base + map.offset,
            map.dims.as_ptr(),
            map.strides.as_ptr(),
            map.boxes.as_ptr(),
            map.element_strides.as_ptr(),
            0,
            map.swizzle,
            0,
            u32::from(map.fill_nan),
        );
        if code == 0 { Ok(bytes.0.to_vec()) } else { Err(format!("code {code}: {}", self.link.report())) }
    }

    /// Launches and waits; the error is the code and the report.
    pub fn launch(&self, function: usize, spec: &Spec, values: &[Vec<u8>]) -> Result<(), (u32, String)> {
        let fail = |code: u32| if code == 0 { Ok(()) } else { Err((code, self.link.report())) };
        if spec.shared_bytes > 48 * 1024 {
            fail(self.link.cuFuncSetAttribute(function, 8, spec.shared_bytes as i32))?;
        }
        let mut params: Vec<*mut c_void> = values.iter().map(|value| value.as_ptr().cast_mut().cast()).collect();
        let ([gx, gy, gz], [bx, by, bz]) = (spec.grid, spec.block);
        fail(self.link.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, spec.shared_bytes, 0, params.as_mut_ptr(), 0))?;
        fail(self.link.cuCtxSynchronize())
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.link.cuCtxDestroy_v2(self.context);
    }
}

fn first_entry(source: &str) -> Option<String> {
    let at = source.find(".entry")? + ".entry".len();
    let name = source[at..].trim_start();
    let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$'))?;
    Some(name[..end].to_string())
}
