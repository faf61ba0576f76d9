//! Forward attention, `O = softmax(softmax_scale * Q K^T + mask) V` and the log-sum-exp of each row, by tiles; S is never stored.
//!
//! FlashAttention-2 (arXiv 2307.08691), Algorithm 1, arranged for Hopper as in FlashAttention-3 (arXiv 2407.08608), Algorithm 2: TMA
//! producers, and math warpgroups that keep the next Q K^T in flight during the softmax of this one.
//!
//! ```text
//! producer warp 0                         each math warpgroup (64 rows)
//! for tile in schedule {                  for tile in schedule {
//!   load Q                                  S = Q K[last]^T;  mask S
//!   for n in last..=0 { load K[n] }         m, l, P = softmax S;  O = 0
//! }                                         for n in last-1..=0 {
//! producer warp 1                             start S = Q K[n]^T
//! for tile in schedule {                      start O += P V[n+1]
//!   for n in last..=0 { load V[n] }           wait S;  mask S where the tile needs it
//! }                                           wait O;  m, l, P, O = online softmax of S
//!                                           }
//!                                           O += P V[0];  O = O / l;  store O and LSE
//!                                         }
//! ```

pub mod consumer;
pub mod epilogue;
pub mod mask;
pub mod producer;
pub mod score;
pub mod sequence;
pub mod softmax;
pub mod tiles;

use crate::block_range::{block_range, min};
use crate::config::{DType, TileConfig, WARPGROUP_THREADS};
use crate::function::{MaskMod, ScoreMod};
use crate::key_range::{KeyRange, Window};
use crate::layout::smem::{RANK_STAGES, SmemLayout};
use crate::params::{FeatureParams, ForwardParams};
use crate::pipeline::Ring;
use crate::ptx::wgmma::Accumulator;
use crate::ptx::{barrier, fence, memory, register, tma, warp};
use sequence::RowTile;

/// One kernel: its shape, and the types that follow from it.
pub trait Kernel {
    /// The shape.
    const TILE: TileConfig;
    /// Elements of Q, K, V, P and O.
    const DTYPE: DType;
    /// S: 64 x tile_n.
    type Scores: Accumulator;
    /// O: 64 x head_dim_v.
    type Output: Accumulator;
    /// Whether this is a general kernel, which reads [`FeatureParams`]: any window, ragged sequences, a score function, sinks.
    const GENERAL: bool = Self::TILE.general;
    /// What the functions are told; the features, in the kernels that ship.
    type Args: Copy;
    /// What becomes of a score before the softmax.
    type Score: ScoreMod<Self::Args>;
    /// Whether the functions are a user's own, in which lanes may part.
    const CUSTOM: bool;
    /// What a general kernel hides, beside the window and the sequences' ends.
    type Mask: MaskMod<Self::Args>;
    /// Checks at compile time that the types have the shape's sizes.
    const CONSISTENT: () = assert!(Self::Scores::COLUMNS == Self::TILE.tile_n && Self::Output::COLUMNS == Self::TILE.head_dim_v);
}

/// Generic addresses of the tensor maps.
#[derive(Clone, Copy)]
pub struct TensorMaps {
    /// Q `[head_dim, seqlen_q, num_heads, batch]`, boxes of 64 columns and 64 rows. Those of a general kernel are as [`FeatureParams`] says.
    pub q: u64,
    /// K `[head_dim, seqlen_k, num_heads_k, batch]`, boxes of 64 columns and tile_n rows.
    pub k: u64,
    /// V, as K, of head_dim_v columns.
    pub v: u64,
    /// O, as Q, of head_dim_v columns.
    pub o: u64,
}

/// Named barriers. 0 is the whole CTA's.
mod named_barrier {
    pub const CTA: u32 = 0;
    /// One for each math warpgroup: its turn at the tensor cores.
    pub const TURN: u32 = 1;
    /// One for each math warpgroup: its four warps meet.
    pub const WARPGROUP: u32 = 4;
}

/// What every role knows.
#[derive(Clone, Copy)]
struct Cta<'a, Args> {
    maps: TensorMaps,
    params: &'a ForwardParams,
    /// Read by general kernels only.
    features: &'a FeatureParams,
    /// For the functions.
    args: &'a Args,
    smem: SmemLayout,
}

impl<Args> Cta<'_, Args> {
    /// The ring of one warpgroup's Q.
    #[inline(always)]
    fn q_ring<K: Kernel>(&self, warpgroup_idx: u32) -> Ring {
        Ring::new(self.smem.q_ring(warpgroup_idx), K::TILE.q_stages)
    }

    #[inline(always)]
    fn k_ring<K: Kernel>(&self) -> Ring {
        Ring::new(self.smem.k_barriers, K::TILE.kv_stages())
    }

    #[inline(always)]
    fn v_ring<K: Kernel>(&self) -> Ring {
        Ring::new(self.smem.v_barriers, K::TILE.kv_stages())
    }

    #[inline(always)]
    fn rank_ring(&self) -> Ring {
        Ring::new(self.smem.rank_barriers, RANK_STAGES)
    }
}

/// The window of a general kernel.
#[inline(always)]
fn window<K: Kernel>(cta: &Cta<K::Args>) -> Window {
    Window { left: cta.features.window_left, right: cta.features.window_right }
}

/// The key tiles that `rows` query rows of `tile` from `first_row` on visit.
#[inline(always)]
fn key_range<K: Kernel>(cta: &Cta<K::Args>, tile: &RowTile, first_row: u32, rows: u32, seqlen_q: u32, seqlen_k: u32) -> KeyRange {
    if !K::GENERAL {
        return block_range(K::TILE.causal, rows, K::TILE.tile_n, first_row, seqlen_q, seqlen_k).into();
    }
    if first_row >= seqlen_q {
        return KeyRange::EMPTY;
    }
    let last_row = min(first_row + rows, seqlen_q) - 1;
    let mut bounds = window::<K>(cta).bounds(first_row, last_row, seqlen_q, seqlen_k);
    if !K::Mask::IS_OPEN && bounds.begin < bounds.end {
        // SAFETY: the arguments are as the launch promises, and the queries lie within the tile's head.
        let by_mask = unsafe { K::Mask::of_head(cta.args, tile.head::<K>(cta)).bounds(first_row, last_row) };
        bounds = bounds.and(by_mask);
    }
    bounds.tiles(K::TILE.tile_n)
}

/// The whole kernel.
///
/// # Safety
/// By all threads of a grid of at most as many CTAs as there are tiles, of `TILE.threads()` threads and `TILE.smem_bytes()` of dynamic shared
/// memory each; the maps and `params` are as [`ForwardParams`] describes them, `features` and `args` as [`FeatureParams`] and the functions ask.
#[inline(always)]
pub unsafe fn forward<K: Kernel, const PRODUCER_REGISTERS: u32, const MATH_REGISTERS: u32>(
    maps: TensorMaps,
    params: &ForwardParams,
    features: &FeatureParams,
    args: &K::Args,
) {
    const { K::CONSISTENT };
    const { assert!(PRODUCER_REGISTERS == K::TILE.registers().0 && MATH_REGISTERS == K::TILE.registers().1) };

    let cta = Cta { maps, params, features, args, smem: SmemLayout::new(K::TILE, memory::dynamic_smem()) };
    let thread_idx = register::thread_idx();
    let lane_idx = thread_idx % 32;
    // SAFETY: scope: all lanes of the warp, before any branch.
    let warp_idx = unsafe { warp::broadcast(thread_idx / 32) };
    let warpgroup_idx = warp_idx / 4;

    if thread_idx == 0 {
        let warpgroups = K::TILE.math_warpgroups();
        // SAFETY: protocol: one thread, and the CTA barrier below comes before any use. Q is released by its warpgroup; K and V once a warp;
        // ranks, by the V producer too. Proxy: copies complete on the barriers, so their initialisation has to be visible to TMA as well.
        unsafe {
            for warpgroup_idx in 0..warpgroups {
                cta.q_ring::<K>(warpgroup_idx).init(1);
            }
            cta.k_ring::<K>().init(4 * warpgroups);
            cta.v_ring::<K>().init(4 * warpgroups);
            if K::TILE.dynamic {
                cta.rank_ring().init(4 * warpgroups + 1);
            }
            fence::proxy_async();
        }
    }
    // SAFETY: scope: all threads of the CTA, met again behind the branch.
    unsafe { barrier::sync(named_barrier::CTA, K::TILE.threads()) };

    if warpgroup_idx == 0 {
        // SAFETY: scope: the whole warpgroup, whose index all its threads agree on. Protocol: one lane of warp 0 and one of warp 1 are the
        // rings' producers; the others are done. Lifetime: no copy outlives shared memory, as the math warpgroups wait for each.
        unsafe {
            register::shrink_registers::<PRODUCER_REGISTERS>();
            if lane_idx == 0 && warp_idx == 0 {
                producer::load_q_and_k::<K>(&cta);
            } else if lane_idx == 0 && warp_idx == 1 {
                producer::load_v::<K>(&cta);
            }
        }
    } else {
        // SAFETY: scope: the whole warpgroup, as above; the producer warpgroup gives back what is asked for (TileConfig::registers).
        unsafe {
            register::grow_registers::<MATH_REGISTERS>();
            // A general kernel has no register to keep it in.
            let warp_idx = if K::GENERAL { warp::broadcast(register::thread_idx() / 32) } else { warp_idx };
            let warpgroup_idx = warp_idx / 4;
            consumer::Consumer::<K>::new(&cta, warpgroup_idx - 1, warp_idx % 4, lane_idx).run();
            // Shared memory must outlive the last store's reads, for which the thread that started it waits; with one Q stage it has.
            if K::TILE.q_stages == 2 && thread_idx.is_multiple_of(WARPGROUP_THREADS) {
                tma::wait_group_read();
            }
        }
    }
}
