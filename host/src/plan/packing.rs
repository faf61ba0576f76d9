//! How many query heads of one key head share a row tile of a general kernel, and which plain calls run there for the sake of it.
//!
//! A row tile takes the time of its key tiles, whether all of its rows are queries or one. So where queries are few, query heads are packed side
//! by side: 8 queries of each of 8 heads fill 64 rows of one tile, instead of 8 rows in each of 8 tiles. It moves no bit of a result, since
//! rows do not know of each other.

use hopper_attention_kernels::config::config_of_lengths;
use hopper_attention_kernels::params::MAX_PACK_LOG2;

use super::Family;
use super::map::STRIDE_LIMIT_BYTES;
use super::shape::Shape;
use crate::raw::Tensor4;
use crate::{DType, Dim};

/// So many row tiles, or fewer, have a multiprocessor each (an H200 has 132), and fewer of them would take no less time.
const TILES_AT_ONCE: u128 = 132;
/// As many heads as a schedule of one row tile a head takes.
const MAX_HEADS: usize = 1 << 30;

/// How the query heads of a key head share row tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    /// Query heads of a key head.
    pub heads_per_kv: u64,
    /// log2 of how many of them share a row tile.
    pub pack_log2: u32,
}

impl Packing {
    /// Of K and V: a head at a time.
    pub const OF_KEYS: Self = Self { heads_per_kv: 1, pack_log2: 0 };

    /// How many row tiles lie side by side over the query heads of a key head.
    pub fn head_tiles(self) -> u64 {
        self.heads_per_kv.div_ceil(1 << self.pack_log2)
    }

    /// Twice `tile_m` times the row tiles of a key head in a sequence. Where the host does not know each sequence's length, half a row tile is
    /// counted for its last one.
    fn cost(self, queries: Queries, tile_m: u32) -> u128 {
        let tile_m = u128::from(tile_m);
        let packed = |queries: u64| u128::from(queries) << self.pack_log2;
        let rows = match queries {
            Queries::Each(queries) => 2 * packed(queries).next_multiple_of(tile_m),
            Queries::Mean(queries) => 2 * packed(queries) + tile_m,
        };
        rows * u128::from(self.head_tiles())
    }

    /// As many heads as make the fewest row tiles, where that saves one in eight.
    fn best(queries: Queries, heads_per_kv: u64, tile_m: u32) -> Self {
        // The map of a ragged tensor has no dimension left in which a key head's heads would end.
        let most = match queries {
            Queries::Each(_) => MAX_PACK_LOG2,
            Queries::Mean(_) => MAX_PACK_LOG2.min(heads_per_kv.trailing_zeros()),
        };
        let all = (0..=most).map(|pack_log2| Self { heads_per_kv, pack_log2 });
        let unpacked = Self { heads_per_kv, pack_log2: 0 };
        let best = all.min_by_key(|packing| packing.cost(queries, tile_m)).unwrap_or(unpacked);
        if 8 * best.cost(queries, tile_m) <= 7 * unpacked.cost(queries, tile_m) { best } else { unpacked }
    }
}

/// What the host knows of the queries of a sequence.
#[derive(Clone, Copy, Debug)]
enum Queries {
    /// Each sequence has so many.
    Each(u64),
    /// So many in the mean, or at most.
    Mean(u64),
}

impl Queries {
    fn of(shape: &Shape) -> Self {
        let (batch, q) = (shape.sequences.batch as u64, shape.sequences.q);
        match (q.ragged, q.packed) {
            (false, _) => Self::Each(q.rows as u64),
            (true, false) => Self::Mean(q.rows as u64),
            (true, true) => Self::Mean((q.rows as u64).div_ceil(batch.max(1))),
        }
    }
}

/// The family that runs a call of `family`, and how heads are packed there; `q_and_o` are those tensors, or Q alone.
///
/// A plain kernel does not pack. Where both kernels have key tiles of one size, their results are the same, bit by bit, so that the choice may
/// depend on anything: the general kernel is taken where it halves the number of row tiles, and these are many. Elsewhere it depends on
/// nothing but head_dim, mask and lengths ([`config_of_lengths`]), as results may.
pub(super) fn choose(shape: &Shape, family: Family, (head_dim, head_dim_v): (u32, u32), q_and_o: &[&Tensor4]) -> (Family, Packing) {
    let heads_per_kv = (shape.heads / shape.heads_k) as u64;
    let (queries, unpacked) = (Queries::of(shape), Packing { heads_per_kv, pack_log2: 0 });
    let general = family.of_few_queries();
    let config = general.config(head_dim, head_dim_v);
    let can_pack = general.packs_heads() && shape.heads <= MAX_HEADS && q_and_o.iter().all(|tensor| has_heads_apart(tensor, heads_per_kv));
    let packed = if can_pack { Packing::best(queries, heads_per_kv, config.tile_m) } else { unpacked };
    let Family::Plain { causal } = family else {
        return (family, packed);
    };
    let plain = family.config(head_dim, head_dim_v);
    if plain.tile_n != config.tile_n {
        let config = config_of_lengths(head_dim, head_dim_v, causal, shape.sequences.q.rows, shape.sequences.k.rows);
        return if config.is_some_and(|config| config.general) { (general, packed) } else { (family, unpacked) };
    }
    let (before, after) = (unpacked.cost(queries, plain.tile_m), packed.cost(queries, config.tile_m));
    let tiles = (shape.sequences.batch as u128 * shape.heads_k as u128).saturating_mul(before) / (2 * u128::from(plain.tile_m));
    if 2 * after <= before && tiles > TILES_AT_ONCE { (general, packed) } else { (family, unpacked) }
}

/// Whether a map can have the heads of a key head in a dimension of its own, inside of that of the rows.
fn has_heads_apart(tensor: &Tensor4, heads_per_kv: u64) -> bool {
    let (stride, head_dim) = (tensor.layout.strides[Dim::Heads as usize] as u64, tensor.layout.extent(Dim::HeadDim) as u64);
    let group_bytes = stride.checked_mul(DType::BYTES as u64).and_then(|bytes| bytes.checked_mul(heads_per_kv));
    stride >= head_dim && group_bytes.is_some_and(|bytes| bytes < STRIDE_LIMIT_BYTES)
}
