//! From tensors and options to a launch, without a device: every rule about arguments is here, and nothing here can fail on a GPU.

mod combine;
mod map;
mod region;
#[cfg(test)]
mod tests;

use hopper_attention_kernels::config::{TileConfig, WARPGROUP_ROWS, forward_config};
use hopper_attention_kernels::fast_divide::FastDivisor;
use hopper_attention_kernels::params::{CoordinateSteps, ForwardParams, MAX_SEQLEN};
use hopper_attention_kernels::schedule::TileSchedule;

pub(crate) use combine::CombinePlan;
pub(crate) use map::MapDescription;
use map::{Mapped, Role, describe};
pub(crate) use region::Region;

use crate::raw::{Lse, Options, Tensor4};
use crate::{DType, Dim, Error};

/// K and V of the heads that are worked on at once should stay in this much of the L2 cache. An H200 has 50 MiB, of which each half holds
/// copies of what its own SMs read, and Q and O pass through it too. Of 2 to 64 MiB this was the best from 1k keys on
/// (benches/recorded/h200/tried.md).
const L2_BYTES: u64 = 16 << 20;
/// Short sequences did better with less: so much for each key of a head.
const L2_BYTES_PER_KEY: u64 = 16 << 10;

/// From so many keys on the static order is faster over all heads at once: what its sections save in L2 reads they then lose in idle CTAs at
/// the end of each (benches/recorded/h200/tried.md, "static" and "static, sections").
const STATIC_ONE_SECTION_SEQLEN_K: u32 = 4096;

/// A launch of a forward kernel, but for the device and the stream: the grid is [`Plan::grid`], and `params.scheduler` is 0.
#[derive(Debug)]
pub(crate) struct Plan {
    pub config: TileConfig,
    pub dtype: DType,
    pub params: ForwardParams,
    /// Q, K, V, O; `None` for K and V of no keys.
    pub maps: [Option<MapDescription>; 4],
    /// What is read and written of Q, K, V, O and LSE.
    pub regions: [Option<Region>; 5],
}

impl Plan {
    /// Checks everything that can be checked without a device. `None` if there is no row to write.
    pub fn new(q: &Tensor4, k: &Tensor4, v: &Tensor4, o: &Tensor4, lse: Option<Lse>, options: &Options) -> Result<Option<Self>, Error> {
        let shape = Shape::of(q, k, v)?;
        Shape::check_output(q, o)?;
        let Some(Inputs { config, softmax_scale_log2, rows, schedule, q, k, v }) = Inputs::of(&shape, q, k, v, options)? else {
            return Ok(None);
        };
        let lse = lse.map(|lse| lse_region("lse", lse, rows)).transpose()?;
        let o = describe("o", o, WARPGROUP_ROWS, Role::Output)?;
        check_overlaps(&q, k.as_ref(), v.as_ref(), &o, lse.as_ref())?;
        let no_steps = CoordinateSteps { head: 0, batch: 0 };
        let steps = |mapped: &Option<Mapped>| mapped.as_ref().map_or(no_steps, |mapped| mapped.steps);
        let params = ForwardParams {
            lse: lse.map_or(0, |lse| lse.bytes().start),
            scheduler: 0,
            schedule,
            heads_per_kv: FastDivisor::new((shape.heads / shape.heads_k) as u32).expect("a schedule has at most 2^30 heads"),
            num_heads: shape.heads as u32,
            seqlen_q: shape.seqlen_q as u32,
            seqlen_k: shape.seqlen_k as u32,
            softmax_scale_log2,
            q_steps: q.steps,
            k_steps: steps(&k),
            v_steps: steps(&v),
        };
        let regions = [Some(q.region), k.as_ref().map(|k| k.region), v.as_ref().map(|v| v.region), Some(o.region), lse];
        let maps = [Some(q.map), k.map(|k| k.map), v.map(|v| v.map), Some(o.map)];
        Ok(Some(Self { config, dtype: q.map.dtype, params, maps, regions }))
    }

    /// Checks what can be checked before there is memory for O.
    #[cfg(feature = "cust")]
    pub fn check_inputs(q: &Tensor4, k: &Tensor4, v: &Tensor4, options: &Options) -> Result<(), Error> {
        Inputs::of(&Shape::of(q, k, v)?, q, k, v, options).map(drop)
    }

    /// CTAs of the persistent grid: one for each multiprocessor, as far as there are tiles.
    pub fn grid(&self, multiprocessors: u32) -> u32 {
        self.params.schedule.num_tiles().min(multiprocessors)
    }

    /// Whether CTAs of that grid draw tiles: where the kernel can, tiles differ in length, and some CTA has more than its first.
    pub fn draws_tiles(&self, grid: u32) -> bool {
        let schedule = &self.params.schedule;
        self.config.dynamic && schedule.m_blocks() > 1 && schedule.num_tiles() > grid
    }

    /// The order for a launch whose tiles would be drawn, but for which there is no slot to draw from.
    pub fn static_schedule(&self) -> TileSchedule {
        let schedule = self.params.schedule;
        if self.params.seqlen_k < STATIC_ONE_SECTION_SEQLEN_K {
            return schedule;
        }
        let (num_heads, m_blocks) = (u64::from(self.params.num_heads), u64::from(schedule.m_blocks()));
        let all_heads = u64::from(schedule.num_tiles()) / m_blocks;
        TileSchedule::new(all_heads / num_heads, num_heads, m_blocks, all_heads).unwrap_or(schedule)
    }
}

/// What follows from the inputs and options.
struct Inputs {
    config: TileConfig,
    softmax_scale_log2: f32,
    /// Rows of O.
    rows: u64,
    schedule: TileSchedule,
    q: Mapped,
    /// K and V; `None` if there are no keys.
    k: Option<Mapped>,
    v: Option<Mapped>,
}

impl Inputs {
    /// `None` if there is no row to write.
    fn of(shape: &Shape, q: &Tensor4, k: &Tensor4, v: &Tensor4, options: &Options) -> Result<Option<Self>, Error> {
        let config = kernel_config("q.head_dim", shape.head_dim, options.causal)?;
        let softmax_scale_log2 = softmax_scale_log2(options.softmax_scale, shape.head_dim)?;
        let Some(rows) = shape.rows()? else {
            return Ok(None);
        };
        let keys = |name, tensor| (shape.seqlen_k > 0).then(|| describe(name, tensor, config.tile_n, Role::Input)).transpose();
        let q = describe("q", q, WARPGROUP_ROWS, Role::Input)?;
        let (k, v) = (keys("k", k)?, keys("v", v)?);
        let schedule = shape.schedule(&config)?;
        Ok(Some(Self { config, softmax_scale_log2, rows, schedule, q, k, v }))
    }
}

/// The kernel that serves `head_dim`; `field` is what errors call it.
pub(crate) fn kernel_config(field: &str, head_dim: usize, causal: bool) -> Result<TileConfig, Error> {
    let supported = head_dim.is_multiple_of(8) && (8..=256).contains(&head_dim);
    let config = if supported { forward_config(head_dim as u32, causal) } else { None };
    config.ok_or_else(|| Error::unsupported(field, head_dim, "a multiple of 8 from 8 to 256"))
}

/// softmax_scale * log2(e): the kernel's exponentials are powers of two.
fn softmax_scale_log2(scale: Option<f32>, head_dim: usize) -> Result<f32, Error> {
    let scale = scale.unwrap_or_else(|| (1.0 / (head_dim as f64).sqrt()) as f32);
    let scale_log2 = (f64::from(scale) * std::f64::consts::LOG2_E) as f32;
    if scale > 0.0 && scale_log2.is_finite() {
        return Ok(scale_log2);
    }
    Err(Error::invalid("softmax_scale", scale, "above 0 and finite, also when multiplied by log2(e) in f32"))
}

/// The extents, consistent with each other.
struct Shape {
    batch: usize,
    seqlen_q: usize,
    seqlen_k: usize,
    heads: usize,
    heads_k: usize,
    head_dim: usize,
}

impl Shape {
    fn of(q: &Tensor4, k: &Tensor4, v: &Tensor4) -> Result<Self, Error> {
        check_dtype("k", k, q)?;
        check_dtype("v", v, q)?;
        check_extents(("k", k), ("q", q), &[Dim::Batch, Dim::HeadDim])?;
        check_extents(("v", v), ("k", k), &[Dim::Batch, Dim::Seqlen, Dim::Heads, Dim::HeadDim])?;
        let [batch, seqlen_q, heads, head_dim] = q.layout.shape;
        let [_, seqlen_k, heads_k, _] = k.layout.shape;
        // Only 0 is a multiple of 0.
        if !heads.is_multiple_of(heads_k) {
            return Err(Error::invalid("q.heads", heads, format!("a multiple of k.heads = {heads_k}")));
        }
        for (field, seqlen) in [("q.seqlen", seqlen_q), ("k.seqlen", seqlen_k)] {
            if seqlen > MAX_SEQLEN as usize {
                return Err(Error::unsupported(field, seqlen, format!("at most {MAX_SEQLEN}")));
            }
        }
        Ok(Self { batch, seqlen_q, seqlen_k, heads, heads_k, head_dim })
    }

    /// O is like Q.
    fn check_output(q: &Tensor4, o: &Tensor4) -> Result<(), Error> {
        check_dtype("o", o, q)?;
        check_extents(("o", o), ("q", q), &[Dim::Batch, Dim::Seqlen, Dim::Heads, Dim::HeadDim])
    }

    /// Rows of O, each with an LSE; `None` if there is no row.
    fn rows(&self) -> Result<Option<u64>, Error> {
        if self.batch == 0 || self.heads == 0 || self.seqlen_q == 0 {
            return Ok(None);
        }
        let rows = [self.heads, self.seqlen_q].into_iter().try_fold(self.batch as u64, |rows, extent| rows.checked_mul(extent as u64));
        rows.map(Some).ok_or_else(|| self.too_many("batch * num_heads * seqlen_q", u64::MAX))
    }

    fn schedule(&self, config: &TileConfig) -> Result<TileSchedule, Error> {
        let m_blocks = (self.seqlen_q as u64).div_ceil(config.tile_m as u64);
        let section_heads = if config.causal {
            let kv_bytes = 2 * self.seqlen_k.max(1) as u64 * config.head_dim as u64 * DType::BYTES as u64;
            (L2_BYTES.min(L2_BYTES_PER_KEY * self.seqlen_k as u64) / kv_bytes).max(1)
        } else {
            1
        };
        let schedule = TileSchedule::new(self.batch as u64, self.heads as u64, m_blocks, section_heads);
        schedule.ok_or_else(|| self.too_many("batch * num_heads * row tiles", u32::MAX as u64 / 4))
    }

    fn too_many(&self, field: &str, limit: u64) -> Error {
        let Self { batch, heads, seqlen_q, .. } = self;
        let value = format!("too large for batch = {batch}, num_heads = {heads}, seqlen_q = {seqlen_q}");
        Error::unsupported(field, value, format!("at most {limit}"))
    }
}

fn check_dtype(name: &str, tensor: &Tensor4, q: &Tensor4) -> Result<(), Error> {
    if tensor.dtype == q.dtype {
        return Ok(());
    }
    Err(Error::invalid(format!("{name}.dtype"), tensor.dtype.name(), format!("{}, the dtype of q", q.dtype.name())))
}

fn check_extents((name, tensor): (&str, &Tensor4), (other_name, other): (&str, &Tensor4), dims: &[Dim]) -> Result<(), Error> {
    let differs = dims.iter().find(|&&dim| tensor.layout.extent(dim) != other.layout.extent(dim));
    differs.map_or(Ok(()), |&dim| {
        let requirement = format!("{}, as in {other_name}", other.layout.extent(dim));
        Err(Error::invalid(format!("{name}.{}", dim.name()), tensor.layout.extent(dim), requirement))
    })
}

/// What a kernel reads or writes of an LSE, which errors call `name`: `rows` f32.
fn lse_region(name: &str, lse: Lse, rows: u64) -> Result<Region, Error> {
    if (lse.len as u64) < rows {
        return Err(Error::invalid(format!("{name}.len"), lse.len, format!("at least batch * num_heads * seqlen_q = {rows}")));
    }
    if !lse.address.is_multiple_of(4) || lse.address == 0 {
        return Err(Error::invalid(format!("{name}.address"), format!("{:#x}", lse.address), "a multiple of 4 bytes, and not null"));
    }
    let region = rows.checked_mul(4).and_then(|bytes| Region::contiguous(lse.address, bytes));
    region.ok_or_else(|| Error::invalid(format!("{name}.len"), lse.len, format!("within the address space, from {:#x} on", lse.address)))
}

/// No two rows of O may share memory, and neither O nor LSE may lie in any other tensor.
fn check_overlaps(q: &Mapped, k: Option<&Mapped>, v: Option<&Mapped>, o: &Mapped, lse: Option<&Region>) -> Result<(), Error> {
    check_rows_apart(o)?;
    let regions = [("q", Some(&q.region)), ("k", k.map(|k| &k.region)), ("v", v.map(|v| &v.region)), ("o", Some(&o.region))];
    let outputs = [("o", Some(&o.region), &regions[..3]), ("lse", lse, &regions[..])];
    for (name, output, others) in outputs {
        let Some(output) = output else { continue };
        for (other_name, other) in others {
            if let Some(other) = other {
                check_apart(name, output, other_name, other)?;
            }
        }
    }
    Ok(())
}

/// No two rows of O share memory.
fn check_rows_apart(o: &Mapped) -> Result<(), Error> {
    if o.region.rows_are_disjoint() {
        return Ok(());
    }
    let value = format!("{:?} bytes for [seqlen, heads, batch] = {:?}", o.map.strides_bytes, &o.map.dims[1..]);
    let requirement = "such that rows do not overlap: each stride at least what the row and the dimensions of smaller strides span";
    Err(Error::invalid("o.strides", value, requirement))
}

/// What is written shares no memory with `other`.
fn check_apart(name: &str, output: &Region, other_name: &str, other: &Region) -> Result<(), Error> {
    if output.is_disjoint(other) {
        return Ok(());
    }
    let (bytes, other) = (output.bytes(), other.bytes());
    let requirement = format!("provably apart from {other_name} at {:#x}..{:#x}", other.start, other.end);
    Err(Error::invalid(name, format!("at {:#x}..{:#x}", bytes.start, bytes.end), requirement))
}
