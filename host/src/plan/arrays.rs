//! Arrays of 4-byte numbers that a kernel reads.

use std::fmt::Display;

use hopper_attention_driver::CUdeviceptr;

use super::Region;
use crate::Error;
use crate::raw::{Array, Arrays};

/// What errors call each array that a call may bring, and its length; in the order of [`in_order`].
pub(crate) const NAMES: [(&str, &str); 6] = [
    ("sinks", "sinks.len"),
    ("alibi_slopes", "alibi_slopes.len"),
    ("cu_seqlens_q", "cu_seqlens_q.len"),
    ("cu_seqlens_k", "cu_seqlens_k.len"),
    ("seqused_q", "seqused_q.len"),
    ("seqused_k", "seqused_k.len"),
];

/// What is read of each array, in the order of [`NAMES`].
pub(crate) type Regions = [Option<Region>; NAMES.len()];

fn in_order(arrays: &Arrays) -> [Option<Array>; NAMES.len()] {
    let Arrays { sinks, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k } = *arrays;
    [sinks, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k]
}

/// What is read of the arrays, none of which is empty.
pub(crate) fn regions(arrays: &Arrays) -> Result<Regions, Error> {
    let mut regions = [None; NAMES.len()];
    for ((region, array), (name, _)) in regions.iter_mut().zip(in_order(arrays)).zip(NAMES) {
        *region = array.map(|array| self::region(name, array)).transpose()?;
    }
    Ok(regions)
}

/// What is read of an array, which is not empty; `name` is what errors call it.
pub(crate) fn region(name: &str, Array { address, len }: Array) -> Result<Region, Error> {
    words(&name, address, len as u64, len)
}

/// The memory of `count` 4-byte numbers from `address` on, of an array which is `len` long; `name` is what errors call it.
pub(crate) fn words(name: &dyn Display, address: CUdeviceptr, count: u64, len: usize) -> Result<Region, Error> {
    if !address.is_multiple_of(4) || address == 0 {
        return Err(Error::invalid(format!("{name}.address"), format!("{address:#x}"), "a multiple of 4 bytes, and not null"));
    }
    let region = count.checked_mul(4).and_then(|bytes| Region::contiguous(address, bytes));
    region.ok_or_else(|| Error::invalid(format!("{name}.len"), len, format!("within the address space, from {address:#x} on")))
}
