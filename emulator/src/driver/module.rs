//! Modules: PTX text becomes kernels.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::abi::{In, Out, Text, read_image};
use super::capture;
use super::error::{Code, Outcome};
use super::state::*;
use crate::lower::{self, Kernel, Program, SHARED_RESERVED};
use crate::machine::{Allocation, AllocationKind};
use crate::ptx;

/// Dynamic shared memory that a launch may ask for without opting in, bytes.
const DEFAULT_SHARED: u32 = 48 * 1024;
/// The most shared memory of a block, bytes.
const MAX_SHARED: u32 = 227 * 1024;
/// The newest PTX that a driver of CUDA 13.0 reads.
const NEWEST_PTX: (u32, u32) = (9, 0);

/// A loaded module.
pub struct Module {
    pub handle: Handle,
    pub context: Arc<Context>,
    pub program: Program,
    pub source: String,
    pub data: Option<Arc<Allocation>>,
}

/// A kernel of a module.
pub struct Function {
    pub module: Arc<Module>,
    pub index: usize,
    pub max_dynamic_shared: AtomicU32,
}

impl Function {
    pub fn kernel(&self) -> &Kernel {
        &self.module.program.kernels[self.index]
    }

    /// The most threads of a block.
    pub fn max_threads(&self) -> u32 {
        self.kernel().max_threads.map_or(1024, |(count, _, _)| count.min(1024))
    }

    fn static_shared(&self) -> u32 {
        self.kernel().static_shared_end - SHARED_RESERVED
    }
}

/// The buffers in which the caller wants messages of the compiler.
#[derive(Default)]
struct Logs {
    buffers: [Option<(usize, usize)>; 2],
    sizes_at: [Option<usize>; 2],
}

impl Logs {
    fn parse(options: &[u32], values: &[usize]) -> Self {
        let mut logs = Self::default();
        let value = |wanted| options.iter().position(|&option| option == wanted).map(|at| (at, values[at]));
        for (i, (buffer, size)) in [(3, 4), (5, 6)].into_iter().enumerate() {
            if let (Some((_, address)), Some((at, bytes))) = (value(buffer), value(size)) {
                logs.buffers[i] = Some((address, bytes & 0xffff_ffff));
                logs.sizes_at[i] = Some(at);
            }
        }
        logs
    }

    /// Writes the information log (0) or the error log (1).
    fn write(&self, which: usize, text: &str, values: Out<usize>) {
        let Some((address, bytes)) = self.buffers[which] else { return };
        if address == 0 || bytes == 0 {
            return;
        }
        let mut data = text.as_bytes().to_vec();
        data.truncate(bytes - 1);
        let written = data.len();
        data.push(0);
        super::abi::write_host(address, &data);
        if let Some(at) = self.sizes_at[which] {
            // The size's slot gets the bytes written, as the driver does it.
            super::abi::write_host(values.address() + at * size_of::<usize>(), &written.to_le_bytes());
        }
    }
}

fn compile(text: &str) -> Result<Program, (Code, String)> {
    let module = ptx::parse(text).map_err(|error| (Code::INVALID_PTX, format!("ptx {error}")))?;
    let (major, minor) = module.version;
    if module.version > NEWEST_PTX {
        return Err((Code::UNSUPPORTED_PTX_VERSION, format!("PTX .version {major}.{minor} is newer than 9.0")));
    }
    let target = module.target.trim_start_matches("sm_").trim_end_matches(char::is_alphabetic).parse::<u32>().unwrap_or(0);
    let specific = module.target.ends_with(char::is_alphabetic);
    if module.version == (0, 0) || target == 0 {
        return Err((Code::INVALID_PTX, "the PTX has no .version or no .target".to_string()));
    }
    if target > 90 || (specific && target != 90) {
        return Err((Code::INVALID_PTX, format!("a program with .target '{}' cannot be compiled to architecture 'sm_90'", module.target)));
    }
    lower::lower(&module, text).map_err(|error| (Code::INVALID_PTX, format!("ptx {error}")))
}

fn load(image: usize, logs: &Logs, values: Out<usize>) -> Outcome<Handle> {
    let context = current()?;
    capture::refuse_unsafe_call()?;
    if image == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let bytes = read_image(image);
    let Ok(source) = String::from_utf8(bytes) else {
        logs.write(1, "the emulator executes PTX text; this image is binary", values);
        return Err(Code::NO_BINARY_FOR_GPU);
    };
    if source.starts_with("\x7fELF") {
        logs.write(1, "the emulator executes PTX text; this image is a cubin", values);
        return Err(Code::NO_BINARY_FOR_GPU);
    }
    let source = replaced(source)?;
    match compile(&source) {
        Ok(program) => {
            let names: Vec<&str> = program.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
            logs.write(0, &format!("hopper emulator: {} kernels: {}", names.len(), names.join(", ")), values);
            let state = state()?;
            let data = place_data(state, &program, &context)?;
            let make = |handle| Module { handle, context, program, source, data };
            Ok(state.modules.insert_with(make).0)
        }
        Err((code, message)) => {
            logs.write(1, &message, values);
            state()?.set_report(format!("PTX refused: {message}"));
            Err(code)
        }
    }
}

/// `HOPPER_EMULATOR_REPLACE=entry=file`: a module that holds the entry is replaced by the file's text. Mutation runs use it.
fn replaced(source: String) -> Outcome<String> {
    let Ok(setting) = std::env::var("HOPPER_EMULATOR_REPLACE") else { return Ok(source) };
    match setting.split_once('=') {
        Some((entry, path)) if source.contains(&format!(".entry {entry}(")) => {
            std::fs::read_to_string(path).map_err(|_| Code::FILE_NOT_FOUND)
        }
        _ => Ok(source),
    }
}

fn place_data(state: &State, program: &Program, context: &Context) -> Outcome<Option<Arc<Allocation>>> {
    if program.data.is_empty() {
        return Ok(None);
    }
    let bytes = program.data.len() as u64;
    let placed = state.memory.allocate(bytes, AllocationKind::ModuleData, context.handle as u64).ok_or(Code::OUT_OF_MEMORY)?;
    placed.write(placed.base, &program.data);
    for &(at, target) in &program.relocations {
        placed.write(placed.base + at, &(placed.base + target).to_le_bytes());
    }
    Ok(Some(placed))
}

/// A function's attribute (`CUfunction_attribute`).
fn attribute(function: &Function, number: u32) -> Outcome<i32> {
    let kernel = function.kernel();
    let (major, minor) = function.module.program.version;
    let registers = kernel.max_threads.map_or(255, |(threads, _, _)| (65536 / threads.next_multiple_of(128).max(128)).min(255) / 8 * 8);
    Ok(match number {
        0 => function.max_threads(),
        1 => function.static_shared(),
        2 => 0,
        3 => kernel.local_bytes,
        4 => kernel.max_registers.map_or(registers, |most| most.min(registers)),
        5 => 10 * major + minor,
        6 => 90,
        7 | 10..=16 => 0,
        8 => function.max_dynamic_shared.load(Ordering::Relaxed),
        9 => return Ok(-1),
        _ => return Err(Code::INVALID_VALUE),
    } as i32)
}

api! {
    fn cuModuleLoad(module: Out<Handle>, path: Text) {
        let path = PathBuf::from(path.get()?);
        let mut text = std::fs::read(path).map_err(|_| Code::FILE_NOT_FOUND)?;
        text.push(0);
        let none: Vec<usize> = Vec::new();
        let logs = Logs::parse(&[], &none);
        module.set(load(text.as_ptr() as usize, &logs, module)?)
    }

    fn cuModuleLoadData(module: Out<Handle>, image: usize) {
        let handle = load(image, &Logs::default(), module)?;
        module.set(handle)
    }

    fn cuModuleLoadDataEx(module: Out<Handle>, image: usize, count: u32, options: In<u32>, values: Out<usize>) {
        let options = options.all(count as usize)?;
        let given = if count == 0 { Vec::new() } else { In::<usize>::from(values).all(count as usize)? };
        let logs = Logs::parse(&options, &given);
        module.set(load(image, &logs, values)?)
    }

    fn cuModuleLoadFatBinary(_module: Out<Handle>, _image: usize) {
        Err(Code::NO_BINARY_FOR_GPU)
    }

    fn cuModuleUnload(module: Handle) {
        let state = state()?;
        current()?;
        let gone = state.modules.remove(module)?;
        state.queue.wait_all();
        state.functions.retain(|function| function.module.handle != module);
        if let Some(data) = &gone.data {
            state.memory.free(data.base, |kind| kind == AllocationKind::ModuleData);
        }
        Ok(())
    }

    fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) {
        current()?;
        let state = state()?;
        let module = state.modules.get(module)?;
        let name = name.get()?;
        let index = module.program.kernels.iter().position(|kernel| kernel.name == name).ok_or(Code::NOT_FOUND)?;
        // One handle for one kernel, however often it is asked for.
        let known = state.functions.find(|f| f.module.handle == module.handle && f.index == index);
        if let Some(handle) = known {
            return function.set(handle);
        }
        let static_shared = module.program.kernels[index].static_shared_end - SHARED_RESERVED;
        let max_dynamic_shared = AtomicU32::new(DEFAULT_SHARED.saturating_sub(static_shared));
        function.set(state.functions.insert_with(|_| Function { module, index, max_dynamic_shared }).0)
    }

    fn cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, module: Handle, name: Text) {
        current()?;
        let module = state()?.modules.get(module)?;
        let name = name.get()?;
        let found = module.program.globals.iter().find(|global| global.name == name).ok_or(Code::NOT_FOUND)?;
        let base = module.data.as_ref().map_or(0, |data| data.base);
        address.set_if_wanted(base + found.offset);
        bytes.set_if_wanted(found.bytes as usize);
        Ok(())
    }

    fn cuFuncGetAttribute(value: Out<i32>, number: u32, function: Handle) {
        let function = state()?.functions.get(function)?;
        value.set(attribute(&function, number)?)
    }

    fn cuFuncSetAttribute(function: Handle, number: u32, value: i32) {
        let function = state()?.functions.get(function)?;
        match number {
            8 => {
                let most = MAX_SHARED - function.static_shared().min(MAX_SHARED);
                let value = u32::try_from(value).ok().filter(|&value| value <= most).ok_or(Code::INVALID_VALUE)?;
                function.max_dynamic_shared.store(value, Ordering::Relaxed);
                Ok(())
            }
            // Hints, and what clusters may do.
            9 | 14 | 15 => Ok(()),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuFuncSetCacheConfig(function: Handle, _config: u32) {
        state()?.functions.get(function).map(drop)
    }

    fn cuFuncSetSharedMemConfig(function: Handle, _config: u32) {
        state()?.functions.get(function).map(drop)
    }

    fn cuFuncGetModule(module: Out<Handle>, function: Handle) {
        let function = state()?.functions.get(function)?;
        module.set(function.module.handle)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: Handle, threads: i32, shared: usize) {
        let function = state()?.functions.get(function)?;
        if threads <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        let warps = (threads as u32).div_ceil(32);
        let registers = attribute(&function, 4)?.max(1) as u32;
        let by_registers = 65536 / (registers.next_multiple_of(8) * 32 * warps.next_multiple_of(4)).max(1);
        let by_shared = 233_472 / (function.static_shared() + shared as u32 + SHARED_RESERVED);
        blocks.set((64 / warps).min(by_registers).min(by_shared).min(32) as i32)
    }
}
