//! Launches and tensor maps.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::abi::{In, Out, read_host};
use super::error::{Code, Outcome};
use super::module::Function;
use super::state::*;
use super::stream::{enqueue, resolve};
use crate::check::Checks;
use crate::machine::{FaultKind, Launch, NoChecks, Schedule, Step, TensorMap, run_grid};

/// `CUlaunchConfig`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: Handle,
    attributes: In<LaunchAttribute>,
    count: u32,
}

/// `CUlaunchAttribute`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchAttribute {
    id: u32,
    value: [u64; 8],
}

const ATTRIBUTE_CLUSTER: u32 = 4;

fn check_shape(function: &Function, grid: [u32; 3], block: [u32; 3], shared_bytes: u32) -> Outcome {
    let threads = block.iter().map(|&n| u64::from(n)).product::<u64>();
    let legal_grid = grid.iter().all(|&n| n > 0) && grid[0] <= i32::MAX as u32 && grid[1] <= 65535 && grid[2] <= 65535;
    let legal_block = threads > 0 && block[0] <= 1024 && block[1] <= 1024 && block[2] <= 64 && threads <= 1024;
    if !legal_grid || !legal_block {
        return Err(Code::INVALID_VALUE);
    }
    if let Some((most, shape, exact)) = function.kernel().max_threads
        && (threads > u64::from(most) || (exact && block != shape))
    {
        return Err(Code::INVALID_VALUE);
    }
    if function.kernel().cluster.is_some_and(|cluster| cluster != [1; 3]) {
        return Err(Code::NOT_SUPPORTED);
    }
    let registers = function.kernel().max_registers.unwrap_or(0);
    if u64::from(registers) * threads.next_multiple_of(128) > 65536 {
        return Err(Code::LAUNCH_OUT_OF_RESOURCES);
    }
    if shared_bytes > function.max_dynamic_shared.load(Ordering::Relaxed) {
        return Err(Code::INVALID_VALUE);
    }
    Ok(())
}

/// Copies the arguments, given one by one or as one buffer.
fn arguments(function: &Function, params: In<usize>, extra: In<usize>) -> Outcome<Vec<u8>> {
    let kernel = function.kernel();
    let mut bytes = vec![0; kernel.param_bytes as usize];
    if !extra.is_null() {
        let (mut address, mut size, mut at) = (0, 0, 0);
        loop {
            match extra.all(at + 2).map(|all| (all[at], all[at + 1]))? {
                (1, value) => address = value,
                (2, value) => size = In::<usize>::at(value).get()?,
                (0, _) => break,
                _ => return Err(Code::INVALID_VALUE),
            }
            at += 2;
        }
        let given = read_host(address, size.min(bytes.len()));
        bytes[..given.len()].copy_from_slice(&given);
        return Ok(bytes);
    }
    let addresses = params.all(kernel.params.len())?;
    for (param, address) in kernel.params.iter().zip(addresses) {
        if address == 0 {
            return Err(Code::INVALID_VALUE);
        }
        let at = param.offset as usize;
        bytes[at..at + param.bytes as usize].copy_from_slice(&read_host(address, param.bytes as usize));
    }
    Ok(bytes)
}

fn fault_code(kind: FaultKind) -> Code {
    match kind {
        FaultKind::IllegalAddress => Code::ILLEGAL_ADDRESS,
        FaultKind::Misaligned => Code::MISALIGNED_ADDRESS,
        FaultKind::IllegalInstruction => Code::ILLEGAL_INSTRUCTION,
        FaultKind::Budget | FaultKind::Deadlock => Code::LAUNCH_TIMEOUT,
        FaultKind::Unsupported => Code::NOT_SUPPORTED,
        FaultKind::Trap | FaultKind::Race | FaultKind::Uninitialised | FaultKind::Protocol => Code::LAUNCH_FAILED,
    }
}

/// Runs a grid to its end.
fn execute(function: &Function, grid: [u32; 3], block: [u32; 3], shared_bytes: u32, params: &[u8]) -> Outcome {
    let state = state()?;
    let settings = &state.settings;
    let checks = settings.checks.load(Ordering::Relaxed);
    let launch = Launch {
        kernel: function.kernel(),
        source: &function.module.source,
        grid,
        block,
        shared_bytes,
        params: params.to_vec(),
        memory: state.memory.snapshot(),
        module_data: function.module.data.as_ref().map_or(0, |data| data.base),
        schedule: Schedule { seed: settings.seed.load(Ordering::Relaxed) },
        budget: settings.budget.load(Ordering::Relaxed),
        grid_id: state.launches.fetch_add(1, Ordering::Relaxed),
        sm_count: settings.sm_count,
        threads: settings.threads,
        started: Instant::now(),
    };
    let result: Step<u64> = if checks {
        let shared = Checks::shared(&launch);
        run_grid(&launch, |cta| Checks::new(&launch, &shared, cta))
    } else {
        run_grid(&launch, |_| NoChecks)
    };
    match result {
        Ok(executed) => {
            if std::env::var_os("HOPPER_EMULATOR_TRACE").is_some() {
                let seconds = launch.started.elapsed().as_secs_f64();
                eprintln!("hopper emulator: {} {grid:?} {block:?}: {executed} warp instructions, {seconds:.3} s", launch.kernel.name);
            }
            Ok(())
        }
        Err(fault) => {
            state.set_report(fault.to_string());
            Err(fault_code(fault.kind))
        }
    }
}

fn launch(function: Handle, config: &LaunchConfig, params: In<usize>, extra: In<usize>) -> Outcome {
    let function = state()?.functions.get(function)?;
    let stream = resolve(config.stream)?;
    for attribute in config.attributes.all(config.count as usize)? {
        let cluster = [attribute.value[0] as u32, (attribute.value[0] >> 32) as u32, attribute.value[1] as u32];
        if attribute.id == ATTRIBUTE_CLUSTER && cluster != [1; 3] {
            return Err(Code::NOT_SUPPORTED);
        }
    }
    if function.module.context.handle != stream.context.handle {
        return Err(Code::INVALID_HANDLE);
    }
    let (grid, block, shared_bytes) = (config.grid, config.block, config.shared_bytes);
    check_shape(&function, grid, block, shared_bytes)?;
    let params = arguments(&function, params, extra)?;
    enqueue(&stream, &[], Arc::new(move || execute(&function, grid, block, shared_bytes, &params))).map(drop)
}

fn encode(
    (element, rank, address): (u32, u32, u64),
    dims: In<u64>,
    strides: In<u64>,
    (boxes, steps): (In<u32>, In<u32>),
    (interleave, swizzle, promotion, fill): (u32, u32, u32, u32),
) -> Outcome<[u64; 16]> {
    if !(1..=5).contains(&rank) || promotion > 3 {
        return Err(Code::INVALID_VALUE);
    }
    let count = rank as usize;
    let strides = strides.all(count - 1)?;
    let (dims, boxes, steps) = (dims.all(count)?, boxes.all(count)?, steps.all(count)?);
    match TensorMap::new(element, rank, address, &dims, &strides, &boxes, &steps, interleave, swizzle, fill) {
        Ok(map) => Ok(map.encode()),
        Err(message) => {
            raw_state().set_report(format!("cuTensorMapEncodeTiled: {message}"));
            Err(Code::INVALID_VALUE)
        }
    }
}

api! {
    fn cuLaunchKernel(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared_bytes: u32, stream: Handle, params: In<usize>,
        extra: In<usize>
    ) {
        let none = In::at(0);
        let config = LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, stream, attributes: none, count: 0 };
        launch(function, &config, params, extra)
    }

    fn cuLaunchKernelEx(config: In<LaunchConfig>, function: Handle, params: In<usize>, extra: In<usize>) {
        launch(function, &config.get()?, params, extra)
    }

    fn cuLaunchCooperativeKernel(
        function: Handle, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared_bytes: u32, stream: Handle, params: In<usize>
    ) {
        let none = In::at(0);
        let config = LaunchConfig { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes, stream, attributes: none, count: 0 };
        launch(function, &config, params, In::at(0))
    }

    fn cuTensorMapEncodeTiled(
        map: Out<[u64; 16]>, element: u32, rank: u32, address: u64, dims: In<u64>, strides: In<u64>, boxes: In<u32>, steps: In<u32>,
        interleave: u32, swizzle: u32, promotion: u32, fill: u32
    ) {
        if !map.address().is_multiple_of(64) {
            return Err(Code::INVALID_VALUE);
        }
        map.set(encode((element, rank, address), dims, strides, (boxes, steps), (interleave, swizzle, promotion, fill))?)
    }

    fn cuTensorMapReplaceAddress(map: Out<[u64; 16]>, address: u64) {
        let mut tensor = TensorMap::decode(&map.get()?).ok_or(Code::INVALID_VALUE)?;
        if address == 0 || !address.is_multiple_of(16) {
            return Err(Code::INVALID_VALUE);
        }
        tensor.address = address;
        map.set(tensor.encode())
    }
}
