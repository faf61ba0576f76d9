//! Plain data that crosses the border: written by the host, read by the kernel.

use crate::config::{MAX_PARTS, WARPGROUP_ROWS};
use crate::fast_divide::FastDivisor;
use crate::schedule::TileSchedule;

/// A TMA descriptor (`CUtensorMap`), opaque: `cuTensorMapEncodeTiled` writes it, the copy engine reads it.
///
/// The driver wants it 64-byte aligned, in host memory and as a kernel parameter. rustc cannot pass a by-value kernel parameter of that
/// alignment, so the type declares less and `cargo xtask ptx` raises the alignment of the PTX parameter.
#[repr(C, align(16))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

/// How one tensor's coordinates are formed: a dimension that the caller broadcasts by stride 0 is encoded with extent 1, and its
/// coordinate is multiplied by 0 instead of 1.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoordinateSteps {
    /// 1, or 0 if every head is the same one.
    pub head: u32,
    /// 1, or 0 if every batch entry is the same one.
    pub batch: u32,
}

/// The arguments of a forward kernel, beside its four tensor maps.
///
/// The maps describe Q, K, V and O in four dimensions, innermost first: `[head_dim, seqlen, heads, batch]`, with boxes of
/// `[64, 64, 1, 1]` for Q and O and `[64, tile_n, 1, 1]` for K and V, 128-byte swizzle, and the true head_dim as inner extent (so that loads
/// fill with zeros and stores are clipped). Those of a general kernel have one dimension more, see [`FeatureParams`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardParams {
    /// Device address of the log-sum-exp, f32 `[batch, num_heads, seqlen_q]`, contiguous; 0 to leave it out.
    pub lse: u64,
    /// Device address of this launch's [`crate::schedule::SchedulerSlot`], or 0 for the static order (shapes that are not `dynamic` never
    /// read it). The host keeps a table of slots per context, zeroed once: an eager launch takes the slot of its stream, whose launches are
    /// ordered; a captured one that of its capture and stream; with no slot left the order is static.
    pub scheduler: u64,
    /// Tiles and their order.
    pub schedule: TileSchedule,
    /// Query heads per key head.
    pub heads_per_kv: FastDivisor,
    /// Query heads.
    pub num_heads: u32,
    /// Query rows, at least 1.
    pub seqlen_q: u32,
    /// Keys; may be 0, and then the maps of K and V are never read.
    pub seqlen_k: u32,
    /// softmax_scale * log2(e): logits are kept in units of log2.
    pub softmax_scale_log2: f32,
    /// Coordinates of Q.
    pub q_steps: CoordinateSteps,
    /// Coordinates of K.
    pub k_steps: CoordinateSteps,
    /// Coordinates of V.
    pub v_steps: CoordinateSteps,
}

/// What the general kernels take besides [`ForwardParams`]: lengths of single sequences, a window, numbers a head.
///
/// The sequences of Q and O are *ragged* if `q` has an address, those of K and V if `k` has. A ragged tensor is `[rows, heads]` with the
/// sequences somewhere in it, and its map says (`forward/sequence.rs`) where one of them ends. `seqlen_q` and `seqlen_k` of [`ForwardParams`]
/// then are what no sequence exceeds.
///
/// All maps have five dimensions, the second of which tells the heads apart that share row tiles. Those of ragged tensors are
/// `[head_dim, heads, RAGGED_ROWS, total rows + 1, RAGGED_ROWS + 1]`. The others are `[head_dim, 1, rows, heads, batch]`, but for Q and O, where
/// heads share row tiles, `[head_dim, heads_per_kv, rows, num_heads_k, batch]`. Boxes of Q and O are `[64, 2^pack_log2, 64 / 2^pack_log2, 1, 1]`,
/// those of K and V `[64, 1, tile_n, 1, 1]`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FeatureParams {
    /// Queries of each batch entry.
    pub q: Lengths,
    /// Keys of each batch entry.
    pub k: Lengths,
    /// Device address of a logit a head that joins each row's sum, f32 `[num_heads]`, in natural units, not scaled; 0 for none.
    pub sinks: u64,
    /// Device address of the slopes of ALiBi, f32 `[num_heads]`; read by the kernels compiled for it.
    pub alibi_slopes: u64,
    /// Rows from one batch entry's first to the next one's in Q, K, V and O, where they are ragged without being packed.
    pub batch_rows: [u32; 4],
    /// Batch entries.
    pub batch: u32,
    /// Query `i` sees key `j` only if `i + seqlen_k - seqlen_q - j <= window_left`: at most [`MAX_SEQLEN`], which hides none.
    pub window_left: u32,
    /// Query `i` sees key `j` only if `j - (i + seqlen_k - seqlen_q) <= window_right`: at most [`MAX_SEQLEN`], which hides none.
    pub window_right: u32,
    /// Factor of Q K^T before the score function, whose result [`ForwardParams::softmax_scale_log2`] multiplies.
    pub score_scale: f32,
    /// How many row tiles lie side by side over the query heads of one key head: `ceil(heads_per_kv / 2^pack_log2)`.
    pub head_tiles: FastDivisor,
    /// A row tile's rows are those of `2^pack_log2` query heads of one key head (of fewer, in the last tile over these), the heads of one query
    /// side by side: row `r` is query `r >> pack_log2`, head `r % 2^pack_log2`. At most [`MAX_PACK_LOG2`]; 0 in the kernels whose score
    /// function looks at heads or positions, and where Q's heads are broadcast; of ragged queries `2^pack_log2` divides the heads of a key head.
    pub pack_log2: u32,
}

/// log2 of a math warpgroup's 64 rows: so many heads share a row tile at most.
pub const MAX_PACK_LOG2: u32 = 6;

const _: () = assert!(WARPGROUP_ROWS == 1 << MAX_PACK_LOG2);

/// How long the sequences of a batch are, and where they begin.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lengths {
    /// Device address of the row at which each sequence begins in a packed tensor, and at which the last one ends: i32 `[batch + 1]`, ascending.
    /// 0 if each batch entry has rows of its own.
    pub cu_seqlens: u64,
    /// Device address of how many of a sequence's rows count, i32 `[batch]`; 0 for all.
    pub seqused: u64,
    /// All rows of a packed tensor, otherwise those of a batch entry: what no sequence exceeds.
    pub rows: u32,
    /// Fills the struct up to its alignment.
    pub reserved: u32,
}

impl FeatureParams {
    /// What the plain kernels compute.
    pub const NONE: Self = Self {
        q: Lengths::ALL,
        k: Lengths::ALL,
        sinks: 0,
        alibi_slopes: 0,
        batch_rows: [0; 4],
        batch: 0,
        window_left: MAX_SEQLEN,
        window_right: MAX_SEQLEN,
        score_scale: 1.0,
        head_tiles: match FastDivisor::new(1) {
            Some(one) => one,
            None => unreachable!(),
        },
        pack_log2: 0,
    };
}

impl Lengths {
    /// All rows of every batch entry.
    pub const ALL: Self = Self { cu_seqlens: 0, seqused: 0, rows: 0, reserved: 0 };
}

/// A tensor `[batch, seqlen, num_heads, head_dim]` that is read or written by ordinary instructions; strides in bytes, multiples of 16.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TensorAddress {
    /// Device address of its first element.
    pub address: u64,
    /// From one batch entry to the next.
    pub batch_stride: u64,
    /// From one row of the sequence to the next.
    pub row_stride: u64,
    /// From one head to the next.
    pub head_stride: u64,
}

/// What attention made of some of the keys.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// O.
    pub o: TensorAddress,
    /// Device address of the log-sum-exp, f32 `[batch, num_heads, seqlen]`, contiguous.
    pub lse: u64,
}

/// The argument of a kernel that combines.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CombineParams {
    /// The first `count` are in use.
    pub parts: [Part; MAX_PARTS],
    /// The output.
    pub o: TensorAddress,
    /// Device address of the output's log-sum-exp, as [`Part::lse`]; 0 to leave it out.
    pub lse: u64,
    /// Device address of a logit a head that joins each row's sum once, f32 `[num_heads]`, in natural units; 0 for none.
    pub sinks: u64,
    /// How many parts there are.
    pub count: u32,
    /// Rows times pieces of 8 columns.
    pub items: u32,
    /// Pieces of 8 columns in a row.
    pub chunks: FastDivisor,
    /// Rows of a head.
    pub seqlen: FastDivisor,
    /// Heads of a batch entry.
    pub num_heads: FastDivisor,
    /// Fills the struct up to its alignment.
    pub reserved: u32,
}

/// The longest sequence, queries or keys: tile arithmetic is signed 32-bit, with room for one tile beyond the end.
pub const MAX_SEQLEN: u32 = i32::MAX as u32 - 1024;

/// Where a ragged sequence ends in its map (`forward/sequence.rs`), and so the most rows that a ragged tensor has, with the gaps between its
/// sequences.
pub const RAGGED_ROWS: u32 = 1 << 30;

/// Bytes of a kernel's own parameter, at most (`forward_kernel!`).
pub const MAX_ARGS_BYTES: usize = 2048;

/// Which launches a kernel of `forward_kernel!` is made for: to be raised with every change of what a general kernel is handed (maps, parameters, shared
/// memory, CTAs), so that a kernel made before it is refused.
pub const INTERFACE: u32 = 3;

/// The version of this crate: kernels of another one may take other parameters.
pub const VERSION: [u32; 3] =
    [number(env!("CARGO_PKG_VERSION_MAJOR")), number(env!("CARGO_PKG_VERSION_MINOR")), number(env!("CARGO_PKG_VERSION_PATCH"))];

const fn number(digits: &str) -> u32 {
    let (digits, mut value, mut i) = (digits.as_bytes(), 0, 0);
    while i < digits.len() {
        value = 10 * value + (digits[i] - b'0') as u32;
        i += 1;
    }
    value
}
