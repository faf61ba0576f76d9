//! A tensor as the copy engine (TMA) sees it: `cuTensorMapEncodeTiled`'s rules, CUDA driver API, section "Tensor Map Object Management".

use std::fmt::Display;

use hopper_attention_kernels::config::PANEL_COLUMNS;
use hopper_attention_kernels::params::{CoordinateSteps, RAGGED_ROWS};

use super::packing::Packing;
use super::region::Region;
use crate::raw::Tensor4;
use crate::{DType, Dim, Error};

/// Strides must be below this, in bytes.
pub(super) const STRIDE_LIMIT_BYTES: u64 = 1 << 40;
/// Addresses and strides must be multiples of this.
const ALIGNMENT_BYTES: u64 = 16;
const ALIGNMENT_ELEMENTS: u64 = ALIGNMENT_BYTES / DType::BYTES as u64;

/// A tensor map before its encoding, innermost dimension first: `[head_dim, seqlen, heads, batch]`, or of a ragged tensor
/// `[head_dim, RAGGED_ROWS, heads, total + 1]`; [`MapDescription::encoded`] has them as the kernel's coordinates are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapDescription {
    pub address: u64,
    pub dtype: DType,
    pub dims: [u64; 4],
    /// Of the three outer dimensions.
    pub strides_bytes: [u64; 3],
    /// Columns and rows.
    pub box_dims: [u32; 2],
    pub form: Form,
}

/// Which kernels a map is for, and so how its dimensions are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A plain kernel.
    Plain,
    /// A general kernel. Heads that share row tiles have a dimension of their own inside of the rows', so that they lie side by side in a
    /// box; where none do, it has one entry, and the heads stay together.
    General(Packing),
    /// A general kernel, for sequences that have lengths of their own.
    Ragged {
        /// log2 of how many heads lie side by side in a box.
        pack_log2: u32,
    },
}

/// What `cuTensorMapEncodeTiled` is told of the dimensions, as far as `rank` goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncodedDims {
    pub rank: u32,
    pub dims: [u64; 5],
    pub strides_bytes: [u64; 4],
    pub box_dims: [u32; 5],
}

impl MapDescription {
    /// The dimensions in the order of the kernel's coordinates (`FeatureParams` and `TensorMaps` in the kernels' crate).
    pub fn encoded(&self) -> EncodedDims {
        let ([head_dim, rows, heads, last], [row, head, last_stride]) = (self.dims, self.strides_bytes);
        let [columns, box_rows] = self.box_dims;
        let (dims, strides_bytes, pack_log2) = match self.form {
            Form::Plain => {
                let (dims, strides_bytes) = ([head_dim, rows, heads, last, 1], [row, head, last_stride, 0]);
                return EncodedDims { rank: 4, dims, strides_bytes, box_dims: [columns, box_rows, 1, 1, 1] };
            }
            Form::General(Packing { pack_log2: 0, .. }) => {
                ([head_dim, 1, rows, heads, last], [head_dim * DType::BYTES as u64, row, head, last_stride], 0)
            }
            Form::General(Packing { heads_per_kv, pack_log2 }) => {
                ([head_dim, heads_per_kv, rows, heads / heads_per_kv, last], [head, row, heads_per_kv * head, last_stride], pack_log2)
            }
            Form::Ragged { pack_log2 } => {
                let back = back_by(row);
                ([head_dim, heads, rows, last, RAGGED_ROWS as u64 + 1], [head, row, last_stride, back], pack_log2)
            }
        };
        EncodedDims { rank: 5, dims, strides_bytes, box_dims: [columns, 1 << pack_log2, box_rows >> pack_log2, 1, 1] }
    }
}

/// The stride that, `RAGGED_ROWS` times, leads back by as many rows of `row` bytes, modulo 2^64.
fn back_by(row: u64) -> u64 {
    const { assert!(RAGGED_ROWS.is_power_of_two()) };
    let step = 1 << (64 - RAGGED_ROWS.ilog2());
    step - row % step
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

impl Mapped {
    /// The same tensor for a general kernel, which packs heads so.
    pub fn into_general(self, packing: Packing) -> Self {
        Self { map: MapDescription { form: Form::General(packing), ..self.map }, ..self }
    }

    /// The same tensor for a general kernel, which packs heads so, with sequences that have lengths of their own; and the rows from one batch
    /// entry to the next.
    ///
    /// The map has the rows twice: `[head_dim, heads, RAGGED_ROWS, total + 1, RAGGED_ROWS + 1]` with strides `[head, row, row, W]`, where
    /// `RAGGED_ROWS * W` is `-RAGGED_ROWS * row` modulo 2^64. `total` rows, in steps of the row stride, reach from the first batch entry's first
    /// to the last one's last. For row `r` of a sequence of `len` rows that begins at row `start` the kernel asks for `RAGGED_ROWS - len + r`,
    /// `start + len` and `RAGGED_ROWS`, which add up to the tensor's row `start + r`; and from `r = len` on the first of the three is out of
    /// bounds, so the hardware fills with zeros and clips there.
    pub fn into_ragged(self, name: &str, packing: Packing) -> Result<(Self, u32), Error> {
        let [head_dim, rows, heads, batch] = self.map.dims;
        let row_bytes = head_dim * DType::BYTES as u64;
        let [batch_stride, row_stride, heads_stride] = self.region.strides();
        // Of one row the stride is nobody's, so that of the batch entries will do.
        let row_stride = [row_stride, batch_stride, row_bytes].into_iter().find(|&stride| stride > 0).unwrap_or(row_bytes);
        let refuse = |dim: Dim, stride: u64, requirement: String| {
            let field = format!("{name}.{}_stride", dim.name());
            Err(Error::unsupported(field, stride / DType::BYTES as u64, requirement + ", as its sequences have lengths of their own"))
        };
        if !batch_stride.is_multiple_of(row_stride) {
            return refuse(Dim::Batch, batch_stride, format!("a multiple of {name}.seqlen_stride = {}", row_stride / DType::BYTES as u64));
        }
        if row_stride < row_bytes {
            return refuse(Dim::Batch, batch_stride, "at least head_dim elements".into());
        }
        if heads > 1 && heads_stride < row_bytes {
            return refuse(Dim::Heads, heads_stride, "0 or at least head_dim elements".into());
        }
        let batch_rows = batch_stride / row_stride;
        // No overflow: the region spans as much.
        let total = (batch - 1) * batch_rows + rows;
        if total > u64::from(RAGGED_ROWS) {
            let value = format!("such that the last row is number {total}, counted in steps of {name}.seqlen_stride");
            return Err(Error::unsupported(format!("{name}.layout"), value, format!("such that it is at most {RAGGED_ROWS}")));
        }
        let map = MapDescription {
            dims: [head_dim, RAGGED_ROWS as u64, heads, total + 1],
            strides_bytes: [row_stride, self.map.strides_bytes[1], row_stride],
            form: Form::Ragged { pack_log2: packing.pack_log2 },
            ..self.map
        };
        Ok((Self { map, ..self }, batch_rows as u32))
    }
}

/// Describes `tensor`, which is not empty, to be copied in boxes of `rows` rows; `name` is what errors call it.
pub(crate) fn describe(name: &dyn Display, tensor: &Tensor4, rows: u32, role: Role) -> Result<Mapped, Error> {
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
        box_dims: [PANEL_COLUMNS, rows],
        form: Form::Plain,
    };
    let steps = CoordinateSteps { head: (heads_stride != 0) as u32, batch: (batch_stride != 0) as u32 };
    Ok(Mapped { map, steps, region })
}

/// The stride of `dim` in bytes, 0 for a dimension of one entry.
fn stride_bytes(name: &dyn Display, tensor: &Tensor4, dim: Dim, role: Role) -> Result<u64, Error> {
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
