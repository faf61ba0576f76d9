//! A tensor as the copy engine (TMA) sees it: `cuTensorMapEncodeTiled`'s rules, CUDA driver API, section "Tensor Map Object Management".

use hopper_attention_kernels::config::PANEL_COLUMNS;
use hopper_attention_kernels::params::CoordinateSteps;

use super::region::Region;
use crate::raw::Tensor4;
use crate::{DType, Dim, Error};

/// Strides must be below this, in bytes.
const STRIDE_LIMIT_BYTES: u64 = 1 << 40;
/// Addresses and strides must be multiples of this.
const ALIGNMENT_BYTES: u64 = 16;
const ALIGNMENT_ELEMENTS: u64 = ALIGNMENT_BYTES / DType::BYTES as u64;

/// A tensor map before its encoding, innermost dimension first: `[head_dim, seqlen, heads, batch]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapDescription {
    pub address: u64,
    pub dtype: DType,
    pub dims: [u64; 4],
    /// Of the three outer dimensions.
    pub strides_bytes: [u64; 3],
    pub box_dims: [u32; 4],
}

/// A tensor that is not empty and obeys every rule for one tensor alone.
pub(crate) struct Mapped {
    pub map: MapDescription,
    pub steps: CoordinateSteps,
    pub region: Region,
}

/// Whether a tensor is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Input,
    Output,
}

/// Describes `tensor`, which is not empty, to be copied in boxes of `rows` rows; `name` is what errors call it.
pub(crate) fn describe(name: &str, tensor: &Tensor4, rows: u32, role: Role) -> Result<Mapped, Error> {
    if tensor.address == 0 {
        return Err(Error::invalid(format!("{name}.address"), "null", "that of device memory, as the tensor is not empty"));
    }
    if !tensor.address.is_multiple_of(ALIGNMENT_BYTES) {
        let value = format!("{:#x}", tensor.address);
        return Err(Error::unsupported(format!("{name}.address"), value, "a multiple of 16 bytes"));
    }
    let [batch, seqlen, heads, head_dim] = tensor.layout.shape.map(|extent| extent as u64);
    let row_bytes = head_dim * DType::BYTES as u64;
    let stride = |dim: Dim| stride_bytes(name, tensor, dim, role);
    let strides = [stride(Dim::Batch)?, stride(Dim::Seqlen)?, stride(Dim::Heads)?];
    let region = Region::new(tensor.address, row_bytes, [(batch, strides[0]), (seqlen, strides[1]), (heads, strides[2])]);
    let region = region.ok_or_else(|| {
        let value = format!("{:?} with strides {:?}", tensor.layout.shape, tensor.layout.strides);
        Error::invalid(format!("{name}.layout"), value, format!("within the address space, from {:#x} on", tensor.address))
    })?;
    // A repeated dimension is encoded with its one entry. A dimension of one entry gets a legal stride, whatever the caller's.
    let entries = |extent: u64, stride: u64| if stride == 0 { 1 } else { extent };
    let legal = |stride: u64| if stride == 0 { row_bytes } else { stride };
    let [batch_stride, seqlen_stride, heads_stride] = strides;
    let map = MapDescription {
        address: tensor.address,
        dtype: tensor.dtype,
        dims: [head_dim, seqlen, entries(heads, heads_stride), entries(batch, batch_stride)],
        strides_bytes: [legal(seqlen_stride), legal(heads_stride), legal(batch_stride)],
        box_dims: [PANEL_COLUMNS, rows, 1, 1],
    };
    let steps = CoordinateSteps { head: (heads_stride != 0) as u32, batch: (batch_stride != 0) as u32 };
    Ok(Mapped { map, steps, region })
}

/// The stride of `dim` in bytes, 0 for a dimension of one entry.
fn stride_bytes(name: &str, tensor: &Tensor4, dim: Dim, role: Role) -> Result<u64, Error> {
    if tensor.layout.extent(dim) == 1 {
        return Ok(0);
    }
    let stride = tensor.layout.strides[dim as usize] as u64;
    let field = || format!("{name}.{}_stride", dim.name());
    let refuse = |requirement: &str| Err(Error::unsupported(field(), stride, requirement));
    match (stride, role, dim) {
        (0, Role::Output, _) => return Err(Error::invalid(field(), stride, "above 0 elements, or rows of the output overlap")),
        (0, Role::Input, Dim::Seqlen) => return refuse("above 0 elements: only batch entries and heads can be repeated"),
        // The driver asks of the innermost stride that rows lie apart.
        (_, Role::Input, Dim::Seqlen) if stride < tensor.layout.extent(Dim::HeadDim) as u64 => return refuse("at least head_dim elements"),
        _ => {}
    }
    if !stride.is_multiple_of(ALIGNMENT_ELEMENTS) {
        return refuse("a multiple of 8 elements");
    }
    match stride.checked_mul(DType::BYTES as u64) {
        Some(bytes) if bytes < STRIDE_LIMIT_BYTES => Ok(bytes),
        _ => refuse("below 2^39 elements"),
    }
}
