//! Whether tensors lie in memory of the current context, as far as the driver can tell.
//!
//! Nothing valid may be refused, so the length of the allocation counts only where a tensor cannot go on beyond it: in memory that belongs to
//! a context (`cuMemAlloc`), where `CU_POINTER_ATTRIBUTE_RANGE_*` tell the allocation's range. Stream-ordered pools and mappings (`cuMemMap`)
//! belong to a device and to no context (CUDA programming guide, "Stream-Ordered Memory Allocator", "Pointer Attributes"), and one tensor
//! may lie in several mappings side by side; of these the first and the last byte are asked for.

use std::fmt::Display;
use std::ops::Range;
use std::ptr;

use hopper_attention_driver::{CUcontext, CUdevice, CUdeviceptr, CUpointer_attribute, CUresult};

use crate::Error;
use crate::context::Context;
use crate::error::check as check_call;
#[cfg(feature = "cust")]
use crate::plan::CombinePlan;
use crate::plan::{ARRAY_NAMES, Plan};

/// Refuses a plan with tensors that are not memory of the current context `context`, or reach beyond it.
pub(crate) fn check(context: &Context, plan: &Plan) -> Result<(), Error> {
    let tensors = [("q", "q.layout"), ("k", "k.layout"), ("v", "v.layout"), ("o", "o.layout"), ("lse", "lse.len")];
    let regions = plan.regions.iter().chain(&plan.arrays);
    for ((name, extent), region) in tensors.into_iter().chain(ARRAY_NAMES).zip(regions) {
        if let Some(region) = region {
            check_tensor(context, &name, &extent, region.bytes())?;
        }
    }
    Ok(())
}

/// The same for a merging.
#[cfg(feature = "cust")]
pub(crate) fn check_combine(context: &Context, plan: &CombinePlan) -> Result<(), Error> {
    let names = [("o", "o.layout"), ("lse", "lse.len"), ("sinks", "sinks.len")];
    for ((name, extent), region) in names.into_iter().zip(&plan.others) {
        if let Some(region) = region {
            check_tensor(context, &name, &extent, region.bytes())?;
        }
    }
    for (i, (o, lse)) in plan.parts.iter().enumerate() {
        check_tensor(context, &format_args!("parts[{i}].o"), &format_args!("parts[{i}].o.layout"), o.bytes())?;
        check_tensor(context, &format_args!("parts[{i}].lse"), &format_args!("parts[{i}].lse.len"), lse.bytes())?;
    }
    Ok(())
}

/// `bytes` is not empty; `extent` is what errors call its length.
fn check_tensor(context: &Context, tensor: &dyn Display, extent: &dyn Display, bytes: Range<CUdeviceptr>) -> Result<(), Error> {
    let owner = owner(context, bytes.start)?;
    if owner == Some(context.handle()) {
        // In one allocation of this context, or in none whose range is known.
        if let Some(allocation) = allocation(context, bytes.start)? {
            return if bytes.end <= allocation.end { Ok(()) } else { Err(beyond(extent, &bytes, &allocation)) };
        }
    } else if owner.is_some() {
        let what = match device(context, bytes.start)? {
            Some(device) if device != context.device => format!("on device {device}"),
            _ => "of another context".into(),
        };
        return Err(elsewhere(context, tensor, bytes.start, &what));
    }
    for address in [bytes.start, bytes.end - 1] {
        match device(context, address)? {
            Some(device) if device == context.device => {}
            Some(device) => return Err(elsewhere(context, tensor, address, &format!("on device {device}"))),
            None if address == bytes.start => return Err(elsewhere(context, tensor, address, "which the driver does not know")),
            None => {
                let value = format!("such that its last byte is {address:#x}, which the driver does not know");
                return Err(Error::invalid(extent.to_string(), value, format!("within the memory at {:#x}", bytes.start)));
            }
        }
    }
    Ok(())
}

fn elsewhere(context: &Context, tensor: &dyn Display, address: CUdeviceptr, what: &str) -> Error {
    let requirement = format!("memory of the current context, on device {}", context.device);
    Error::invalid(format!("{tensor}.address"), format!("{address:#x}, {what}"), requirement)
}

fn beyond(extent: &dyn Display, bytes: &Range<CUdeviceptr>, allocation: &Range<CUdeviceptr>) -> Error {
    let value = format!("such that the bytes {:#x}..{:#x} are touched", bytes.start, bytes.end);
    Error::invalid(extent.to_string(), value, format!("within the allocation {:#x}..{:#x}", allocation.start, allocation.end))
}

/// The context that memory belongs to; `None` if it belongs to none, or is unknown to the driver.
fn owner(context: &Context, address: CUdeviceptr) -> Result<Option<CUcontext>, Error> {
    let owner = attribute(context, CUpointer_attribute::CONTEXT, address)?;
    Ok(owner.map(|owner| ptr::without_provenance_mut(owner as usize)).filter(|owner: &CUcontext| !owner.is_null()))
}

/// The device that memory belongs to; `None` if it is unknown to the driver.
fn device(context: &Context, address: CUdeviceptr) -> Result<Option<CUdevice>, Error> {
    // An int, which on the little-endian hosts of CUDA is the lower half of the word.
    Ok(attribute(context, CUpointer_attribute::DEVICE_ORDINAL, address)?.map(|word| word as CUdevice))
}

/// The allocation that an address lies in; `None` if the driver does not say.
fn allocation(context: &Context, address: CUdeviceptr) -> Result<Option<Range<CUdeviceptr>>, Error> {
    let Some(start) = attribute(context, CUpointer_attribute::RANGE_START_ADDR, address)? else {
        return Ok(None);
    };
    let end = attribute(context, CUpointer_attribute::RANGE_SIZE, address)?.and_then(|size| start.checked_add(size));
    // A range without the address itself is no answer.
    Ok(end.map(|end| start..end).filter(|range| range.contains(&address)))
}

/// An attribute of an address, any address; `None` if the driver does not know it.
fn attribute(context: &Context, attribute: CUpointer_attribute, address: CUdeviceptr) -> Result<Option<u64>, Error> {
    let mut word = 0u64;
    // SAFETY: the attributes that this module asks for are handles, addresses, sizes and ints, and a word has room for each.
    match unsafe { context.driver.cuPointerGetAttribute((&raw mut word).cast(), attribute, address) } {
        CUresult::INVALID_VALUE => Ok(None),
        code => check_call("cuPointerGetAttribute", code).map(|()| Some(word)),
    }
}
