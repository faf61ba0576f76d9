//! A CUDA driver that does nothing but what a test tells it, and notes every call: compiled by the test that opens it. The functions that
//! are not here are added by `compile.rs`, and only return their code. Every pointer is one that the library under test passes to a driver, so
//! what CUDA asks of it holds, or a test has found a fault.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

static VALUES: Mutex<Option<HashMap<String, u64>>> = Mutex::new(None);
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Sets a value that a call answers with; a function's own name stands for the code that it returns.
#[unsafe(no_mangle)]
unsafe extern "C" fn script_set(name: *const c_char, value: u64) {
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap().to_owned();
    VALUES.lock().unwrap().get_or_insert_default().insert(name, value);
}

/// Forgets all values and calls.
#[unsafe(no_mangle)]
extern "C" fn script_reset() {
    *VALUES.lock().unwrap() = None;
    NOTES.lock().unwrap().clear();
}

/// The calls since the last time, one a line; the caller frees nothing.
#[unsafe(no_mangle)]
extern "C" fn script_take_notes() -> *const c_char {
    let notes = std::mem::take(&mut *NOTES.lock().unwrap());
    CString::new(notes.join("\n")).unwrap().into_raw()
}

fn value(name: &str, default: u64) -> u64 {
    VALUES.lock().unwrap().as_ref().and_then(|values| values.get(name).copied()).unwrap_or(default)
}

fn note(text: String) -> u32 {
    let code = value(text.split(' ').next().unwrap(), 0) as u32;
    NOTES.lock().unwrap().push(text);
    code
}

/// Writes a value at an address that the caller gave.
macro_rules! answer {
    ($target:ident = $value:expr) => {
        unsafe { *$target = $value as _ }
    };
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    answer!(version = value("driver_version", 13000));
    note("cuDriverGetVersion".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(_: u32, _: *mut *const c_char) -> u32 {
    1
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(_: u32, _: *mut *const c_char) -> u32 {
    1
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    answer!(count = 1);
    note("cuDeviceGetCount".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    answer!(device = ordinal);
    note("cuDeviceGet".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, _: c_int) -> u32 {
    answer!(context = 0xC0u64);
    note("cuDevicePrimaryCtxRetain".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetId(_: *mut c_void, id: *mut u64) -> u32 {
    answer!(id = value("context_id", 1));
    note("cuCtxGetId".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: *mut u64) -> u32 {
    answer!(context = value("context", 0xC0));
    note("cuCtxGetCurrent".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: *mut c_int) -> u32 {
    answer!(device = value("device", 0));
    note("cuCtxGetDevice".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, _: c_int) -> u32 {
    let text = b"Scripted GPU\0";
    assert!(text.len() <= len as usize);
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
    note("cuDeviceGetName".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(result: *mut c_int, attribute: u32, _: c_int) -> u32 {
    let default = match attribute {
        16 => 132,
        75 => 9,
        76 => 0,
        97 => 227 << 10,
        _ => panic!("attribute {attribute}"),
    };
    answer!(result = value(&format!("attribute_{attribute}"), default));
    note("cuDeviceGetAttribute".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32 {
    static NEXT: AtomicU64 = AtomicU64::new(0x50_0000_0000);
    answer!(address = NEXT.fetch_add(bytes.next_multiple_of(512) as u64, Ordering::Relaxed));
    note(format!("cuMemAlloc_v2 {bytes}"))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamCreate(stream: *mut u64, flags: c_uint) -> u32 {
    answer!(stream = 0xFEu64);
    note(format!("cuStreamCreate {flags}"))
}

#[unsafe(no_mangle)]
extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> u32 {
    let given = unsafe { *mode };
    answer!(mode = 0);
    note(format!("cuThreadExchangeStreamCaptureMode {given}"))
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCaptureInfo_v2(_: u64, status: *mut u32, id: *mut u64, _: *mut u64, _: *mut u64, _: *mut usize) -> u32 {
    answer!(status = value("capturing", 0));
    answer!(id = 7);
    note("cuStreamGetCaptureInfo_v2".into())
}

/// A stream's handle is its id.
#[unsafe(no_mangle)]
extern "C" fn cuStreamGetId(stream: u64, id: *mut u64) -> u32 {
    answer!(id = stream);
    note("cuStreamGetId".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamGetCtx(_: u64, context: *mut u64) -> u32 {
    answer!(context = value("stream_context", 0xC0));
    note("cuStreamGetCtx".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuPointerGetAttribute(result: *mut c_void, attribute: u32, address: u64) -> u32 {
    match attribute {
        1 => unsafe { *result.cast::<u64>() = value(&format!("context_of_{address:#x}"), 0xC0) },
        9 => unsafe { *result.cast::<c_int>() = value(&format!("device_of_{address:#x}"), 0) as c_int },
        11 => unsafe { *result.cast::<u64>() = value(&format!("start_of_{address:#x}"), address) },
        12 => unsafe { *result.cast::<u64>() = value(&format!("size_of_{address:#x}"), 1 << 32) },
        _ => panic!("attribute {attribute}"),
    }
    note(format!("cuPointerGetAttribute {attribute} {address:#x}")).max(value(&format!("code_of_{attribute}_of_{address:#x}"), 0) as u32)
}

/// Every 4 bytes are the number `word_at_<address>`.
#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut u32, from: u64, bytes: usize, stream: u64) -> u32 {
    let word = value(&format!("word_at_{from:#x}"), 0) as u32;
    unsafe { std::slice::from_raw_parts_mut(to, bytes / 4) }.fill(word);
    note(format!("cuMemcpyDtoHAsync_v2 {from:#x} {bytes} {stream}"))
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleLoadDataEx(
    module: *mut u64,
    image: *const c_char,
    count: u32,
    options: *const u32,
    values: *const *mut c_void,
) -> u32 {
    let image = unsafe { CStr::from_ptr(image) }.to_str().unwrap();
    let entry = image.split(".entry ").nth(1).and_then(|rest| rest.split(['(', '\n', ' ']).next()).unwrap_or("?");
    answer!(module = 0xA0u64);
    let code = note(format!("cuModuleLoadDataEx {entry}"));
    if code != 0 {
        let (options, values) =
            unsafe { (std::slice::from_raw_parts(options, count as usize), std::slice::from_raw_parts(values, count as usize)) };
        assert_eq!(options, [5, 6]);
        let log = b"ptxas fatal: scripted\0";
        assert!(values[1] as usize >= log.len());
        unsafe { std::ptr::copy_nonoverlapping(log.as_ptr(), values[0].cast(), log.len()) };
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn cuModuleGetFunction(function: *mut u64, _: u64, name: *const c_char) -> u32 {
    answer!(function = 0xF0u64);
    note(format!("cuModuleGetFunction {}", unsafe { CStr::from_ptr(name) }.to_str().unwrap()))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(_: u64, attribute: u32, value: c_int) -> u32 {
    note(format!("cuFuncSetAttribute {attribute} {value}"))
}

/// The map holds the tensor's address.
#[unsafe(no_mangle)]
extern "C" fn cuTensorMapEncodeTiled(
    map: *mut u64,
    _: u32,
    rank: u32,
    address: u64,
    _: *const u64,
    _: *const u64,
    _: *const u32,
    _: *const u32,
    _: u32,
    _: u32,
    _: u32,
    _: u32,
) -> u32 {
    assert!((4..=5).contains(&rank) && map as usize % 64 == 0);
    answer!(map = address);
    note("cuTensorMapEncodeTiled".into())
}

#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    function: u64,
    grid: u32,
    _: u32,
    _: u32,
    threads: u32,
    _: u32,
    _: u32,
    smem: u32,
    stream: u64,
    params: *const *const u64,
    _: *const c_void,
) -> u32 {
    // A kernel that combines has one parameter, and no shared memory.
    if smem == 0 {
        return note(format!("cuLaunchKernel {function:#x} grid={grid} threads={threads} smem={smem} stream={stream}"));
    }
    let params = unsafe { std::slice::from_raw_parts(params, 5) };
    let maps: Vec<_> = params[..4].iter().map(|map| format!("{:#x}", unsafe { **map })).collect();
    // ForwardParams begins with the addresses of the LSE and of the scheduler slot.
    let (lse, scheduler) = unsafe { (*params[4], *params[4].add(1)) };
    note(format!(
        "cuLaunchKernel {function:#x} grid={grid} threads={threads} smem={smem} stream={stream} maps={} lse={lse:#x} scheduler={scheduler:#x}",
        maps.join(",")
    ))
}
