//! Contexts, and the stack of them that each thread has.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::abi::Out;
use super::error::{Code, Outcome};
use super::state::*;
use super::{capture, device};

fn primaries(state: &State) -> MutexGuard<'_, Vec<Primary>> {
    state.primaries.lock().unwrap_or_else(PoisonError::into_inner)
}

fn handle_of(context: Option<std::sync::Arc<Context>>) -> Handle {
    context.map_or(0, |context| context.handle)
}

/// The device's limits (`CUlimit`): stack, printf buffer, malloc heap, sync depth, pending launches, L2 fetch, persisting L2.
const LIMITS: [usize; 7] = [1024, 6_553_600, 8_388_608, 2, 2048, 128, 0];

api! {
    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, ordinal: i32) {
        device::check(ordinal)?;
        let state = state()?;
        let mut primaries = primaries(state);
        let primary = &mut primaries[ordinal as usize];
        let found = primary.context.get_or_insert_with(|| new_context(state, ordinal, primary.flags, true)).clone();
        primary.retained += 1;
        context.set(found.handle)
    }

    fn cuDevicePrimaryCtxRelease_v2(ordinal: i32) {
        device::check(ordinal)?;
        let state = state()?;
        let gone = {
            let mut primaries = primaries(state);
            let primary = &mut primaries[ordinal as usize];
            if primary.retained == 0 {
                return Err(Code::INVALID_CONTEXT);
            }
            primary.retained -= 1;
            if primary.retained == 0 { primary.context.take() } else { None }
        };
        if let Some(context) = gone {
            destroy_context(state, &context);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxReset_v2(ordinal: i32) {
        device::check(ordinal)?;
        let state = state()?;
        let gone = primaries(state)[ordinal as usize].context.take();
        if let Some(context) = gone {
            destroy_context(state, &context);
            // Those who have retained it go on with a fresh one.
            let mut primaries = primaries(state);
            let primary = &mut primaries[ordinal as usize];
            if primary.retained > 0 {
                primary.context = Some(new_context(state, ordinal, primary.flags, true));
            }
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxSetFlags_v2(ordinal: i32, flags: u32) {
        device::check(ordinal)?;
        let mut primaries = primaries(state()?);
        primaries[ordinal as usize].flags = flags;
        if let Some(context) = &primaries[ordinal as usize].context {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxGetState(ordinal: i32, flags: Out<u32>, active: Out<i32>) {
        device::check(ordinal)?;
        let primaries = primaries(state()?);
        flags.set(primaries[ordinal as usize].flags)?;
        active.set(i32::from(primaries[ordinal as usize].context.is_some()))
    }

    fn cuCtxCreate_v2(context: Out<Handle>, flags: u32, ordinal: i32) {
        device::check(ordinal)?;
        let made = new_context(state()?, ordinal, flags, false);
        context.set(made.handle)?;
        push_current(made);
        Ok(())
    }

    fn cuCtxDestroy_v2(context: Handle) {
        let state = state()?;
        let found = state.contexts.get(context)?;
        if found.primary {
            return Err(Code::INVALID_CONTEXT);
        }
        destroy_context(state, &found);
        if current_or_none().is_some_and(|current| current.handle == context) {
            pop_current();
        }
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        push_current(state()?.contexts.get(context)?);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        state()?;
        let popped = pop_current().ok_or(Code::INVALID_CONTEXT)?;
        context.set_if_wanted(popped.handle);
        Ok(())
    }

    fn cuCtxSetCurrent(context: Handle) {
        let state = state()?;
        set_current(if context == 0 { None } else { Some(state.contexts.get(context)?) });
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        state()?;
        context.set(handle_of(current_or_none()))
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        state()?;
        device.set(current_or_none().ok_or(Code::INVALID_CONTEXT)?.device)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(current()?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxGetId(context: Handle, id: Out<u64>) {
        let state = state()?;
        let found = if context == 0 { current_or_none().ok_or(Code::INVALID_CONTEXT)? } else { state.contexts.get(context)? };
        id.set((found.handle as u64 / 64) & 0xffff_ffff)
    }

    fn cuCtxGetApiVersion(context: Handle, version: Out<u32>) {
        let state = state()?;
        if context != 0 {
            state.contexts.get(context)?;
        } else {
            current()?;
        }
        version.set(3020)
    }

    fn cuCtxSynchronize() {
        let context = current()?;
        capture::refuse_unsafe_call()?;
        state()?.queue.wait_all();
        context.error().map_or(Ok(()), Err)
    }

    fn cuCtxSetLimit(limit: u32, _value: usize) {
        current()?;
        if (limit as usize) < LIMITS.len() { Ok(()) } else { Err(Code::INVALID_VALUE) }
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        current()?;
        value.set(*LIMITS.get(limit as usize).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuCtxGetCacheConfig(config: Out<u32>) {
        current()?;
        config.set(0)
    }

    fn cuCtxSetCacheConfig(_config: u32) {
        current().map(drop)
    }

    fn cuCtxGetSharedMemConfig(config: Out<u32>) {
        current()?;
        config.set(1)
    }

    fn cuCtxSetSharedMemConfig(_config: u32) {
        current().map(drop)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.set_if_wanted(0);
        greatest.set_if_wanted(-5);
        Ok(())
    }

    fn cuCtxEnablePeerAccess(context: Handle, _flags: u32) {
        current()?;
        state()?.contexts.get(context).map(drop)
    }
}

/// The handle of a context that C passes, or the current one for 0.
pub fn resolve(context: Handle) -> Outcome<std::sync::Arc<Context>> {
    if context == 0 { current() } else { state()?.contexts.get(context) }
}
