//! From tensors and options to a launch, without a device: every rule about arguments is here, and nothing here can fail on a GPU.

mod arrays;
mod choice;
#[cfg(test)]
mod choice_tests;
mod combine;
#[cfg(test)]
mod general_tests;
mod map;
mod packing;
#[cfg(test)]
mod packing_tests;
#[cfg(test)]
mod ragged_tests;
mod region;
mod shape;
#[cfg(test)]
mod tests;

use std::fmt::Display;

use hopper_attention_kernels::config::{TileConfig, WARPGROUP_ROWS, with_fewer_rows};
use hopper_attention_kernels::fast_divide::FastDivisor;
use hopper_attention_kernels::params::{CoordinateSteps, FeatureParams, ForwardParams, Lengths};
use hopper_attention_kernels::schedule::TileSchedule;

pub(crate) use arrays::{NAMES as ARRAY_NAMES, region as array_region};
pub(crate) use choice::{Family, Scales, Window};
pub(crate) use combine::CombinePlan;
pub(crate) use map::{EncodedDims, MapDescription};
pub(crate) use region::Region;
pub(crate) use shape::Sequences;

use crate::custom::Kernel;
use crate::raw::{Array, Arrays, Lse, Options, Tensor4};
use crate::{DType, Error};
use map::{Mapped, Role, describe};
use packing::Packing;
use shape::{Shape, Side};

/// K and V of the heads that are worked on at once should stay in this much of the L2 cache. An H200 has 50 MiB, of which each half holds
/// copies of what its own SMs read, and Q and O pass through it too. Of 2 to 64 MiB this was the best from 1k keys on
/// (benches/recorded/h200/tried.md).
const L2_BYTES: u64 = 16 << 20;
/// Short sequences did better with less: so much for each key of a head.
const L2_BYTES_PER_KEY: u64 = 16 << 10;

/// From so many keys on the static order is faster over all heads at once: what its sections save in L2 reads they then lose in idle CTAs at
/// the end of each (benches/recorded/h200/tried.md, "static" and "static, sections").
const STATIC_ONE_SECTION_SEQLEN_K: u64 = 4096;

/// A launch of a forward kernel, but for the device and the stream: the grid is [`Plan::grid`], and `params.scheduler` is 0.
#[derive(Debug)]
pub(crate) struct Plan {
    pub family: Family,
    pub config: TileConfig,
    pub dtype: DType,
    pub params: ForwardParams,
    /// What the general kernels take besides.
    pub features: Option<FeatureParams>,
    /// Q, K, V, O; `None` for K and V of no keys.
    pub maps: [Option<MapDescription>; 4],
    /// What is read and written of Q, K, V, O and LSE.
    pub regions: [Option<Region>; 5],
    /// What is read of the arrays, in the order of [`ARRAY_NAMES`].
    pub arrays: arrays::Regions,
    tiles_differ: bool,
    mean_seqlen_k: u64,
}

impl Plan {
    /// Checks everything that can be checked without a device. `None` if there is no row to write.
    /// By `kernel`, if the caller brings one.
    pub fn new(
        kernel: Option<&Kernel>,
        [q, k, v, o]: [&Tensor4; 4],
        lse: Option<Lse>,
        options: &Options,
        arrays: &Arrays,
    ) -> Result<Option<Self>, Error> {
        let shape = Shape::of(q, k, v, arrays)?;
        Shape::check_output(q, v, o)?;
        let Some(inputs) = Inputs::of(kernel, &shape, [q, k, v], Some(o), options, arrays)? else {
            return Ok(None);
        };
        let lse = lse.map(|lse| lse_region(&"lse", lse, inputs.rows)).transpose()?;
        let o = describe(&"o", o, WARPGROUP_ROWS, Role::Output)?;
        check_overlaps(&inputs, &o, lse.as_ref())?;
        let regions =
            [Some(inputs.q.region), inputs.k.as_ref().map(|k| k.region), inputs.v.as_ref().map(|v| v.region), Some(o.region), lse];
        let (o, o_rows) = for_kernel("o", o, &shape.sequences.q, inputs.config.general.then_some(inputs.packing))?;
        let params = inputs.forward_params(&shape, lse);
        let features = inputs.config.general.then(|| inputs.feature_params(&shape.sequences, arrays, o_rows));
        let Inputs { family, config, q, k, v, arrays, tiles_differ, .. } = inputs;
        let dtype = q.map.dtype;
        let maps = [Some(q.map), k.map(|k| k.map), v.map(|v| v.map), Some(o.map)];
        let mean_seqlen_k = shape.mean_seqlen_k();
        Ok(Some(Self { family, config, dtype, params, features, maps, regions, arrays, tiles_differ, mean_seqlen_k }))
    }

    /// Checks what can be checked before there is memory for O.
    #[cfg(feature = "cust")]
    pub fn check_inputs(kernel: Option<&Kernel>, [q, k, v]: [&Tensor4; 3], options: &Options, arrays: &Arrays) -> Result<(), Error> {
        Inputs::of(kernel, &Shape::of(q, k, v, arrays)?, [q, k, v], None, options, arrays).map(drop)
    }

    /// The same on tiles of fewer rows, if there is such a kernel and each of its tiles has a multiprocessor of its own: then the longest tile's time
    /// is the launch's. Key tiles stay as they are, and with them every bit.
    pub fn with_fewer_rows(mut self, multiprocessors: u32) -> Self {
        let Some(config) = with_fewer_rows(&self.config) else {
            return self;
        };
        let schedule = self.params.schedule;
        let (num_heads, heads) = (u64::from(schedule.num_heads()), u64::from(schedule.num_tiles() / schedule.m_blocks()));
        let m_blocks = u64::from(self.params.seqlen_q.div_ceil(config.tile_m));
        if heads * m_blocks <= u64::from(multiprocessors) {
            // In whatever order, since all run at once.
            if let Some(schedule) = TileSchedule::new(heads / num_heads, num_heads, m_blocks, heads) {
                (self.config, self.params.schedule) = (config, schedule);
            }
        }
        self
    }

    /// CTAs of the persistent grid: one for each multiprocessor, as far as there are tiles.
    pub fn grid(&self, multiprocessors: u32) -> u32 {
        self.params.schedule.num_tiles().min(multiprocessors)
    }

    /// Whether CTAs of that grid draw tiles: where tiles differ in length, and some CTA has more than its first.
    pub fn draws_tiles(&self, grid: u32) -> bool {
        self.tiles_differ && self.params.schedule.num_tiles() > grid
    }

    /// The order for a launch whose tiles would be drawn, but for which there is no slot to draw from.
    pub fn static_schedule(&self) -> TileSchedule {
        let schedule = self.params.schedule;
        if self.mean_seqlen_k < STATIC_ONE_SECTION_SEQLEN_K {
            return schedule;
        }
        let (num_heads, m_blocks) = (u64::from(schedule.num_heads()), u64::from(schedule.m_blocks()));
        let all_heads = u64::from(schedule.num_tiles()) / m_blocks;
        TileSchedule::new(all_heads / num_heads, num_heads, m_blocks, all_heads).unwrap_or(schedule)
    }
}

/// What follows from the inputs and options.
struct Inputs {
    family: Family,
    config: TileConfig,
    packing: Packing,
    window: Window,
    scales: Scales,
    /// Rows of O.
    rows: u64,
    schedule: TileSchedule,
    tiles_differ: bool,
    q: Mapped,
    /// K and V; `None` if there are no keys.
    k: Option<Mapped>,
    v: Option<Mapped>,
    /// Rows from one batch entry to the next in Q, K and V, where they are ragged.
    batch_rows: [u32; 3],
    arrays: arrays::Regions,
}

impl Inputs {
    /// `None` if there is no row to write. Without `o`, which the heads' packing may depend on, what follows is good for checks only.
    fn of(
        kernel: Option<&Kernel>,
        shape: &Shape,
        [q, k, v]: [&Tensor4; 3],
        o: Option<&Tensor4>,
        options: &Options,
        arrays: &Arrays,
    ) -> Result<Option<Self>, Error> {
        let head_dims = (check_head_dim("q.head_dim", shape.head_dim)?, check_head_dim("v.head_dim", shape.head_dim_v)?);
        let Sequences { q: q_side, k: k_side, .. } = &shape.sequences;
        let window = Window::of(options).within(q_side.rows, k_side.rows);
        let family = match kernel {
            None => Family::of(window, options, arrays)?,
            Some(kernel) => {
                check_kernel(kernel, shape, q.dtype)?;
                Family::of_custom(kernel, options, arrays)?
            }
        };
        let scales = Scales::of(options, shape.head_dim, family)?;
        let Some(rows) = shape.rows()? else {
            return Ok(None);
        };
        let (family, packing) = packing::choose(shape, family, head_dims, &[q, o.unwrap_or(q)]);
        let config = family.config(head_dims.0, head_dims.1);
        let general = |packing| config.general.then_some(packing);
        let (q, q_rows) = for_kernel("q", describe(&"q", q, WARPGROUP_ROWS, Role::Input)?, q_side, general(packing))?;
        let keys = |name: &str, tensor| {
            if k_side.rows == 0 {
                return Ok((None, 0));
            }
            let mapped = describe(&name, tensor, config.tile_n, Role::Input)?;
            for_kernel(name, mapped, k_side, general(Packing::OF_KEYS)).map(|(mapped, rows)| (Some(mapped), rows))
        };
        let ((k, k_rows), (v, v_rows)) = (keys("k", k)?, keys("v", v)?);
        let arrays = arrays::regions(arrays)?;
        let (schedule, tiles_differ) = schedule(shape, family, packing, window, &config)?;
        let batch_rows = [q_rows, k_rows, v_rows];
        Ok(Some(Self { family, config, packing, window, scales, rows, schedule, tiles_differ, q, k, v, batch_rows, arrays }))
    }

    fn forward_params(&self, shape: &Shape, lse: Option<Region>) -> ForwardParams {
        let no_steps = CoordinateSteps { head: 0, batch: 0 };
        let steps = |mapped: &Option<Mapped>| mapped.as_ref().map_or(no_steps, |mapped| mapped.steps);
        ForwardParams {
            lse: lse.map_or(0, |lse| lse.bytes().start),
            scheduler: 0,
            schedule: self.schedule,
            heads_per_kv: FastDivisor::new((shape.heads / shape.heads_k) as u32).expect("a schedule has at most 2^30 heads"),
            num_heads: shape.heads as u32,
            seqlen_q: shape.sequences.q.rows as u32,
            seqlen_k: shape.sequences.k.rows as u32,
            softmax_scale_log2: self.scales.softmax_log2,
            q_steps: self.q.steps,
            k_steps: steps(&self.k),
            v_steps: steps(&self.v),
        }
    }

    fn feature_params(&self, sequences: &Sequences, arrays: &Arrays, o_rows: u32) -> FeatureParams {
        let address = |array: Option<Array>| array.map_or(0, |array| array.address);
        let lengths = |side: &Side, cu_seqlens, seqused| Lengths {
            cu_seqlens: address(cu_seqlens),
            seqused: address(seqused),
            rows: side.rows as u32,
            reserved: 0,
        };
        let ([q_rows, k_rows, v_rows], [window_left, window_right]) = (self.batch_rows, self.window.as_params());
        FeatureParams {
            q: lengths(&sequences.q, arrays.cu_seqlens_q, arrays.seqused_q),
            k: lengths(&sequences.k, arrays.cu_seqlens_k, arrays.seqused_k),
            sinks: address(arrays.sinks),
            alibi_slopes: address(arrays.alibi_slopes),
            batch_rows: [q_rows, k_rows, v_rows, o_rows],
            // A schedule has at most 2^30 batch entries.
            batch: sequences.batch as u32,
            window_left,
            window_right,
            score_scale: self.scales.score,
            head_tiles: FastDivisor::new(self.packing.head_tiles() as u32).expect("a schedule has at most 2^30 heads"),
            pack_log2: self.packing.pack_log2,
        }
    }
}

/// The map as the kernel takes it, a general one if there is a packing; and the rows from one batch entry to the next, where sequences have
/// lengths of their own.
fn for_kernel(name: &str, mapped: Mapped, side: &Side, packing: Option<Packing>) -> Result<(Mapped, u32), Error> {
    match packing {
        None => Ok((mapped, 0)),
        Some(packing) if side.ragged => mapped.into_ragged(name, packing),
        Some(packing) => Ok((mapped.into_general(packing), 0)),
    }
}

/// The order of the tiles, and whether they differ in length.
///
/// A row tile has `tile_m` queries of one head, or fewer of several heads, see [`Packing`].
///
/// The row tiles of packed queries are slots: sequence `b` has those from `cu_seqlens_q[b] / tile_m + b` on. The next sequence's come no
/// earlier than its last, since `ceil(n / tile_m) <= floor((x + n) / tile_m) - floor(x / tile_m) + 1`. So the kernel finds a slot's
/// sequence by bisection, and nobody needs to know the lengths ahead of time.
///
/// Where tiles differ they are taken longest first, in sections of heads whose K and V fit the L2 cache. A plain kernel counts K and V for
/// every query head. A general one counts those of a key head once, for all the query heads that read them, and takes whole groups of
/// these; where keys are packed, as if each sequence had as many as the mean. A window does not make a section larger: its tiles are of
/// nearly one length, so that their order has little to gain.
fn schedule(shape: &Shape, family: Family, packing: Packing, window: Window, config: &TileConfig) -> Result<(TileSchedule, bool), Error> {
    let Sequences { batch, q, k } = shape.sequences;
    let (rows, tile_queries) = (q.rows as u64, u64::from(config.tile_m >> packing.pack_log2));
    let (entries, m_blocks) =
        if q.packed { (1, (rows / tile_queries).saturating_add(batch as u64)) } else { (batch as u64, rows.div_ceil(tile_queries)) };
    let lengths_differ = q.ragged || k.ragged;
    // What a mask function hides is not known.
    let is_bounded = window.is_bounded() || matches!(family, Family::Custom { .. });
    let tiles_differ = lengths_differ || (is_bounded && m_blocks > 1);
    let seqlen_k = shape.mean_seqlen_k();
    let section_heads = if lengths_differ || is_bounded {
        let kv_bytes = seqlen_k.max(1) * u64::from(config.head_dim + config.head_dim_v) * u64::from(DType::BYTES);
        let fitting = (L2_BYTES.min(L2_BYTES_PER_KEY * seqlen_k) / kv_bytes).max(1);
        if config.general { fitting.saturating_mul(packing.head_tiles()) } else { fitting }
    } else {
        1
    };
    let schedule = TileSchedule::new(entries, shape.heads_k as u64 * packing.head_tiles(), m_blocks, section_heads);
    Ok((schedule.ok_or_else(|| shape.too_many("batch * num_heads * row tiles", u64::from(u32::MAX) / 4))?, tiles_differ))
}

/// The `head_dim` of a tensor, if there are kernels for it; `field` is what errors call it.
pub(crate) fn check_head_dim(field: &str, head_dim: usize) -> Result<u32, Error> {
    if head_dim.is_multiple_of(8) && (8..=256).contains(&head_dim) {
        return Ok(head_dim as u32);
    }
    Err(Error::unsupported(field, head_dim, "a multiple of 8 from 8 to 256"))
}

/// A kernel of the caller's own serves head_dims up to its own, and one dtype.
fn check_kernel(kernel: &Kernel, shape: &Shape, dtype: DType) -> Result<(), Error> {
    for (field, head_dim) in [("q.head_dim", shape.head_dim), ("v.head_dim", shape.head_dim_v)] {
        if head_dim > kernel.head_dim() {
            return Err(Error::unsupported(
                field,
                head_dim,
                format!("at most {}, that of the kernel {}", kernel.head_dim(), kernel.entry()),
            ));
        }
    }
    if dtype != kernel.dtype() {
        return Err(Error::unsupported(
            "q.dtype",
            dtype.name(),
            format!("{}, that of the kernel {}", kernel.dtype().name(), kernel.entry()),
        ));
    }
    Ok(())
}

/// What a kernel reads or writes of an LSE, which errors call `name`: `rows` f32.
fn lse_region(name: &dyn Display, lse: Lse, rows: u64) -> Result<Region, Error> {
    if (lse.len as u64) < rows {
        return Err(Error::invalid(format!("{name}.len"), lse.len, format!("at least {rows}, one for each query of each head")));
    }
    arrays::words(name, lse.address, rows, lse.len)
}

/// No two rows of O may share memory, and neither O nor LSE may lie in any other tensor, or in an array.
fn check_overlaps(inputs: &Inputs, o: &Mapped, lse: Option<&Region>) -> Result<(), Error> {
    check_rows_apart(o)?;
    let Inputs { q, k, v, arrays, .. } = inputs;
    let regions =
        [("q", Some(&q.region)), ("k", k.as_ref().map(|k| &k.region)), ("v", v.as_ref().map(|v| &v.region)), ("o", Some(&o.region))];
    for (name, output, others) in [("o", Some(&o.region), &regions[..3]), ("lse", lse, &regions[..])] {
        let Some(output) = output else { continue };
        let arrays = ARRAY_NAMES.into_iter().map(|(name, _)| name).zip(arrays.iter().map(Option::as_ref));
        for (other_name, other) in others.iter().copied().chain(arrays) {
            if let Some(other) = other {
                check_apart(name, output, &other_name, other)?;
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
fn check_apart(name: &str, output: &Region, other_name: &dyn Display, other: &Region) -> Result<(), Error> {
    if output.is_disjoint(other) {
        return Ok(());
    }
    let (bytes, other) = (output.bytes(), other.bytes());
    let requirement = format!("provably apart from {other_name} at {:#x}..{:#x}", other.start, other.end);
    Err(Error::invalid(name, format!("at {:#x}..{:#x}", bytes.start, bytes.end), requirement))
}
