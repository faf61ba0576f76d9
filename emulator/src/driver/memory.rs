//! Memory: allocation, copies, fills.

use std::sync::Arc;

use super::abi::{Out, read_host, write_host};
use super::error::{Code, Outcome};
use super::queue::Work;
use super::state::*;
use super::stream::{Stream, enqueue, resolve, wait_for};
use super::{capture, context, device};
use crate::machine::{Allocation, AllocationKind};

fn allocate(bytes: usize, kind: AllocationKind) -> Outcome<Arc<Allocation>> {
    let context = current()?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    state()?.memory.allocate(bytes as u64, kind, context.handle as u64).ok_or(Code::OUT_OF_MEMORY)
}

/// The allocation that holds a range of device addresses.
fn find(address: u64, bytes: usize) -> Outcome<Arc<Allocation>> {
    let map = state()?.memory.snapshot();
    map.find(address).filter(|a| a.contains(address, bytes as u64)).cloned().ok_or(Code::INVALID_VALUE)
}

/// Whether host memory is known to the driver, so that copies with it need not be staged.
fn is_pinned(address: usize) -> bool {
    raw_state().memory.snapshot().find(address as u64).is_some()
}

/// Runs work on the default stream, and waits for it.
fn synchronously(work: Work) -> Outcome {
    capture::refuse_unsafe_call()?;
    let stream = resolve(0)?;
    let ticket = enqueue(&stream, &[], work)?;
    wait_for(&stream.context, &[ticket])
}

fn to_device(to: u64, from: usize, bytes: usize, pinned: bool) -> Outcome<Work> {
    if from == 0 && bytes > 0 {
        return Err(Code::INVALID_VALUE);
    }
    let memory = if bytes == 0 { None } else { Some(find(to, bytes)?) };
    // Pageable memory is copied when the call is made; pinned memory when its turn comes.
    let staged = if pinned { None } else { Some(read_host(from, bytes)) };
    Ok(Arc::new(move || {
        if let Some(memory) = &memory {
            match &staged {
                Some(data) => memory.write(to, data),
                None => memory.write(to, &read_host(from, bytes)),
            }
        }
        Ok(())
    }))
}

fn to_host(to: usize, from: u64, bytes: usize) -> Outcome<Work> {
    if to == 0 && bytes > 0 {
        return Err(Code::INVALID_VALUE);
    }
    let memory = if bytes == 0 { None } else { Some(find(from, bytes)?) };
    Ok(Arc::new(move || {
        if let Some(memory) = &memory {
            let mut data = vec![0; bytes];
            memory.read(from, &mut data);
            write_host(to, &data);
        }
        Ok(())
    }))
}

fn between(to: u64, from: u64, bytes: usize) -> Outcome<Work> {
    if bytes == 0 {
        return Ok(Arc::new(|| Ok(())));
    }
    let (source, target) = (find(from, bytes)?, find(to, bytes)?);
    Ok(Arc::new(move || {
        let mut data = vec![0; bytes];
        source.read(from, &mut data);
        target.write(to, &data);
        Ok(())
    }))
}

/// A copy between any two addresses of the unified space.
fn unified(to: u64, from: u64, bytes: usize) -> Outcome<Work> {
    match (find(to, bytes), find(from, bytes)) {
        (Ok(_), Ok(_)) => between(to, from, bytes),
        (Ok(_), Err(_)) => to_device(to, from as usize, bytes, false),
        (Err(_), Ok(_)) => to_host(to as usize, from, bytes),
        (Err(code), Err(_)) => Err(code),
    }
}

/// A fill of `count` elements of `N` bytes, `pitch` bytes apart in each of `height` rows.
fn fill<const N: usize>(to: u64, value: [u8; N], width: usize, pitch: usize, height: usize) -> Outcome<Work> {
    if width == 0 || height == 0 {
        return Ok(Arc::new(|| Ok(())));
    }
    if !to.is_multiple_of(N as u64) || (height > 1 && pitch < width * N) {
        return Err(Code::INVALID_VALUE);
    }
    let bytes = (height - 1) * pitch + width * N;
    let memory = find(to, bytes)?;
    Ok(Arc::new(move || {
        let row: Vec<u8> = value.iter().copied().cycle().take(width * N).collect();
        for y in 0..height {
            memory.write(to + (y * pitch) as u64, &row);
        }
        Ok(())
    }))
}

/// Fills return before they are done, also those without a stream.
fn fill_now(work: Work) -> Outcome {
    enqueue(&resolve(0)?, &[], work).map(drop)
}

fn on(stream: Handle, work: Work) -> Outcome {
    enqueue(&resolve(stream)?, &[], work).map(drop)
}

fn device_to_host(stream: &Arc<Stream>, to: usize, from: u64, bytes: usize) -> Outcome {
    let ticket = enqueue(stream, &[], to_host(to, from, bytes)?)?;
    // A copy to pageable memory has ended when the call returns.
    if is_pinned(to) || stream.capture().is_some() { Ok(()) } else { wait_for(&stream.context, &[ticket]) }
}

fn pointer_attribute(value: Out<u8>, attribute: u32, address: u64) -> Outcome {
    let context = current()?;
    let map = state()?.memory.snapshot();
    let found = map.find(address).ok_or(Code::INVALID_VALUE)?;
    let device = state()?.contexts.get(found.context as usize).map_or(context.device, |owner| owner.device);
    let word = |x: u32| value.set_all(&x.to_le_bytes());
    let double = |x: u64| value.set_all(&x.to_le_bytes());
    match attribute {
        1 => double(found.context),
        2 => word(if found.kind == AllocationKind::PinnedHost { 1 } else { 2 }),
        3 => double(address),
        4 if found.kind.is_host() => double(address),
        8 => value.set_all(&[u8::from(found.kind == AllocationKind::Managed)]),
        9 => word(device as u32),
        11 => double(found.base),
        12 => double(found.bytes),
        13 => value.set_all(&[1]),
        _ => Err(Code::INVALID_VALUE),
    }
}

api! {
    fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) {
        current()?;
        let (used, all) = state()?.memory.usage();
        free.set((all - used) as usize)?;
        total.set(all as usize)
    }

    fn cuMemAlloc_v2(address: Out<u64>, bytes: usize) {
        capture::refuse_unsafe_call()?;
        address.set(allocate(bytes, AllocationKind::Device)?.base)
    }

    fn cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, _element: u32) {
        capture::refuse_unsafe_call()?;
        let row = width.next_multiple_of(512);
        let made = allocate(row.checked_mul(height).ok_or(Code::OUT_OF_MEMORY)?, AllocationKind::Device)?;
        pitch.set(row)?;
        address.set(made.base)
    }

    fn cuMemAllocManaged(address: Out<u64>, bytes: usize, _flags: u32) {
        address.set(allocate(bytes, AllocationKind::Managed)?.base)
    }

    fn cuMemAllocAsync(address: Out<u64>, bytes: usize, stream: Handle) {
        resolve(stream)?;
        address.set(allocate(bytes, AllocationKind::Device)?.base)
    }

    fn cuMemFree_v2(address: u64) {
        let state = state()?;
        current()?;
        if address == 0 {
            return Ok(());
        }
        capture::refuse_unsafe_call()?;
        // Freeing waits for the work that may use the memory.
        state.queue.wait_all();
        let freeable = |kind| matches!(kind, AllocationKind::Device | AllocationKind::Managed);
        if state.memory.free(address, freeable) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    fn cuMemFreeAsync(address: u64, stream: Handle) {
        let state = state()?;
        let stream = resolve(stream)?;
        if address == 0 {
            return Ok(());
        }
        if find(address, 1)?.base != address {
            return Err(Code::INVALID_VALUE);
        }
        let work = Arc::new(move || {
            state.memory.free(address, |kind| kind == AllocationKind::Device);
            Ok(())
        });
        enqueue(&stream, &[], work).map(drop)
    }

    fn cuMemAllocHost_v2(address: Out<u64>, bytes: usize) {
        address.set(allocate(bytes, AllocationKind::PinnedHost)?.base)
    }

    fn cuMemHostAlloc(address: Out<u64>, bytes: usize, _flags: u32) {
        address.set(allocate(bytes, AllocationKind::PinnedHost)?.base)
    }

    fn cuMemFreeHost(address: u64) {
        let state = state()?;
        state.queue.wait_all();
        if state.memory.free(address, |kind| kind == AllocationKind::PinnedHost) { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, host: u64, _flags: u32) {
        find(host, 1)?;
        device.set(host)
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) {
        current()?;
        let found = find(address, 1).map_err(|_| Code::NOT_FOUND)?;
        base.set_if_wanted(found.base);
        bytes.set_if_wanted(found.bytes as usize);
        Ok(())
    }

    fn cuPointerGetAttribute(value: Out<u8>, attribute: u32, address: u64) {
        pointer_attribute(value, attribute, address)
    }

    fn cuMemcpy(to: u64, from: u64, bytes: usize) {
        synchronously(unified(to, from, bytes)?)
    }

    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle) {
        on(stream, unified(to, from, bytes)?)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: usize) {
        current()?;
        synchronously(to_device(to, from, bytes, false)?)
    }

    fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: usize) {
        current()?;
        synchronously(to_host(to, from, bytes)?)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize) {
        current()?;
        synchronously(between(to, from, bytes)?)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: Handle) {
        let stream = resolve(stream)?;
        let pinned = is_pinned(from) || stream.capture().is_some();
        enqueue(&stream, &[], to_device(to, from, bytes, pinned)?).map(drop)
    }

    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: Handle) {
        device_to_host(&resolve(stream)?, to, from, bytes)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) {
        on(stream, between(to, from, bytes)?)
    }

    fn cuMemcpyPeer(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize) {
        context::resolve(to_context)?;
        context::resolve(from_context)?;
        synchronously(between(to, from, bytes)?)
    }

    fn cuMemcpyPeerAsync(to: u64, _to_context: Handle, from: u64, _from_context: Handle, bytes: usize, stream: Handle) {
        on(stream, between(to, from, bytes)?)
    }

    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) {
        fill_now(fill(to, [value], count, 0, 1)?)
    }

    fn cuMemsetD16_v2(to: u64, value: u16, count: usize) {
        fill_now(fill(to, value.to_le_bytes(), count, 0, 1)?)
    }

    fn cuMemsetD32_v2(to: u64, value: u32, count: usize) {
        fill_now(fill(to, value.to_le_bytes(), count, 0, 1)?)
    }

    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) {
        on(stream, fill(to, [value], count, 0, 1)?)
    }

    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) {
        on(stream, fill(to, value.to_le_bytes(), count, 0, 1)?)
    }

    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) {
        on(stream, fill(to, value.to_le_bytes(), count, 0, 1)?)
    }

    fn cuMemsetD2D8_v2(to: u64, pitch: usize, value: u8, width: usize, height: usize) {
        fill_now(fill(to, [value], width, pitch, height)?)
    }

    fn cuMemsetD2D32_v2(to: u64, pitch: usize, value: u32, width: usize, height: usize) {
        fill_now(fill(to, value.to_le_bytes(), width, pitch, height)?)
    }

    fn cuMemPrefetchAsync(address: u64, bytes: usize, target: i32, stream: Handle) {
        resolve(stream)?;
        if target != -1 {
            device::check(target)?;
        }
        find(address, bytes).map(drop)
    }

    fn cuMemAdvise(address: u64, bytes: usize, _advice: u32, _device: i32) {
        find(address, bytes).map(drop)
    }
}
