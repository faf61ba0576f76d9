//! Score and mask functions for the device tests, and the kernels compiled for them: `tests/build.rs` makes their PTX. On the host the same
//! functions are those of the references.
//!
//! | kernel | score | mask | what it shows |
//! |---|---|---|---|
//! | `comb_hdim64_f16` | | [`Comb`] | holes without bounds; scores as they are |
//! | `bias_hdim128_bf16` | [`Bias`] | | tables by sequence, head, query, key and distance; `tile_n` |
//! | `prefix_hdim64_bf16`, `prefix_hdim64_f16`, `prefix_hdim256_f16` | [`Slope`] | [`Prefix`] | both, and bounds of every legal kind |
//! | `even_hdim96_f16` | | [`Even`] | no arguments |
//! | `faults_hdim192_bf16` | [`Faults`] | | NaN, infinity and huge scores |
//! | `limit_hdim256_bf16` | [`Limit`] | | a function of the score alone, told keys of the sequence all the same |
//!
//! Each array has exactly the entries that positions within the sequences ask for: behind the last one the emulator reports a read.
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]
// Kernel entries pass structs by value.
#![cfg_attr(target_arch = "nvptx64", allow(improper_ctypes_definitions))]

use hopper_attention_kernels::function::{Head, MaskMod, Position, ScoreMod};
use hopper_attention_kernels::key_range::KeyBounds;

/// Entry `index` of an array.
///
/// # Safety
/// The array has that entry, and nobody writes it.
#[inline(always)]
unsafe fn entry<T: Copy>(array: *const T, index: u32) -> T {
    // SAFETY: as promised.
    unsafe { *array.add(index as usize) }
}

/// What [`Comb`] is told.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CombArgs {
    /// Whether there is a hole: 1, or 0. `[keys of all sequences]`.
    pub holes: *const u32,
    /// Where each sequence's begin: `[batch]`.
    pub starts: *const u32,
    /// Bits in which a query and the keys that it sees agree.
    pub bits: u32,
}

/// Holes anywhere, and teeth: nothing is known of bounds.
#[derive(Clone, Copy)]
pub struct Comb {
    holes: *const u32,
    bits: u32,
}

impl MaskMod<CombArgs> for Comb {
    #[inline(always)]
    unsafe fn of_head(args: &CombArgs, head: Head) -> Self {
        // SAFETY: each sequence has its holes, as the launch promises.
        Self { holes: unsafe { args.holes.add(entry(args.starts, head.batch_idx) as usize) }, bits: args.bits }
    }

    #[inline(always)]
    unsafe fn sees(self, at: Position) -> bool {
        // SAFETY: each key of the sequence has its entry.
        (at.query ^ at.key) & self.bits == 0 && unsafe { entry(self.holes, at.key) } == 0
    }
}

/// What [`Bias`] is told.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct BiasArgs {
    /// `[batch, num_heads, 2 * max_distance + 1]`.
    pub of_distance: *const f32,
    /// `[keys of all sequences]`.
    pub of_key: *const f32,
    /// `[queries of all sequences]`.
    pub of_query: *const f32,
    /// Where each sequence's keys begin: `[batch]`.
    pub key_starts: *const u32,
    /// Where each sequence's queries begin: `[batch]`.
    pub query_starts: *const u32,
    /// Query heads.
    pub num_heads: u32,
    /// The distance from which on the bias stays the same.
    pub max_distance: i32,
}

/// A term for each distance, a term for each key, and a factor of it for each query.
#[derive(Clone, Copy)]
pub struct Bias {
    middle: *const f32,
    of_key: *const f32,
    of_query: *const f32,
    max_distance: i32,
}

impl ScoreMod<BiasArgs> for Bias {
    #[inline(always)]
    unsafe fn of_head(args: &BiasArgs, head: Head) -> Self {
        let row = (head.batch_idx * args.num_heads + head.head_idx) * (2 * args.max_distance as u32 + 1);
        // SAFETY: each sequence has its rows, keys and queries, as the launch promises.
        unsafe {
            Self {
                middle: args.of_distance.add((row + args.max_distance as u32) as usize),
                of_key: args.of_key.add(entry(args.key_starts, head.batch_idx) as usize),
                of_query: args.of_query.add(entry(args.query_starts, head.batch_idx) as usize),
                max_distance: args.max_distance,
            }
        }
    }

    #[inline(always)]
    unsafe fn score(self, score: f32, at: Position) -> f32 {
        let distance = at.distance().max(-self.max_distance).min(self.max_distance);
        // SAFETY: within the row of distances; the sequence has this key and this query.
        unsafe { score + *self.middle.offset(distance as isize) + entry(self.of_key, at.key) * entry(self.of_query, at.query) }
    }
}

/// What [`Slope`] and [`Prefix`] are told.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct PrefixArgs {
    /// The first key of each sequence that is seen at all: `[batch]`.
    pub first: *const u32,
    /// The keys of each sequence that all queries see, of those: `[batch]`.
    pub prefix: *const u32,
    /// What the bounds are like: one of [`BOUNDS`].
    pub bounds: u32,
    /// What each key of distance costs, in natural units.
    pub slope: f32,
}

/// `score - slope * |distance| / (head_idx + 1)`.
#[derive(Clone, Copy)]
pub struct Slope {
    slope: f32,
}

impl ScoreMod<PrefixArgs> for Slope {
    #[inline(always)]
    unsafe fn of_head(args: &PrefixArgs, head: Head) -> Self {
        Self { slope: args.slope / (head.head_idx + 1) as f32 }
    }

    #[inline(always)]
    unsafe fn score(self, score: f32, at: Position) -> f32 {
        score - self.slope * (at.distance() as f32).abs()
    }
}

/// How many kinds of bounds [`Prefix`] gives: 0 is the tightest, 1 is none, and the others are legal too.
pub const BOUNDS: u32 = 9;

/// A prefix that all see, and causal behind it; the first keys are padding.
#[derive(Clone, Copy)]
pub struct Prefix {
    first: u32,
    prefix: u32,
    kind: u32,
    /// Of the last query, behind its own key.
    behind: i32,
}

impl Prefix {
    /// Behind the last key that a query sees.
    #[inline(always)]
    fn end(self, query: u32) -> u32 {
        let end = query as i32 + self.behind;
        if end > self.prefix as i32 { end as u32 } else { self.prefix }
    }

    #[inline(always)]
    fn tight(self, first_query: u32, last_query: u32) -> KeyBounds {
        KeyBounds { begin: self.first, end: self.end(last_query), whole_begin: self.first, whole_end: self.end(first_query) }
    }
}

impl MaskMod<PrefixArgs> for Prefix {
    #[inline(always)]
    unsafe fn of_head(args: &PrefixArgs, head: Head) -> Self {
        // SAFETY: each sequence has its entries, as the launch promises.
        let (first, prefix) = unsafe { (entry(args.first, head.batch_idx), entry(args.prefix, head.batch_idx)) };
        Self { first, prefix, kind: args.bounds, behind: head.seqlen_k as i32 - head.seqlen_q as i32 + 1 }
    }

    #[inline(always)]
    unsafe fn sees(self, at: Position) -> bool {
        at.key >= self.first && (at.key < self.prefix || at.key as i32 <= at.own_key)
    }

    #[inline(always)]
    unsafe fn bounds(self, first_query: u32, last_query: u32) -> KeyBounds {
        let tight = self.tight(first_query, last_query);
        let few = last_query - first_query < 64;
        match self.kind {
            0 => tight,
            // Nothing is seen whole; or by few rows, or by many.
            2 => KeyBounds { whole_begin: 0, whole_end: 0, ..tight },
            // Wider than needed on all four sides, and beyond the sequence.
            3 => KeyBounds {
                begin: tight.begin.saturating_sub(7),
                end: tight.end.saturating_add(1000),
                whole_begin: tight.whole_begin + 5,
                whole_end: tight.whole_end.saturating_sub(5),
            },
            // Less is known of few rows than of many, and the reverse.
            4 if !few => tight,
            5 if few => tight,
            // Empty, by numbers at the end of what there is.
            6 => KeyBounds { whole_begin: u32::MAX, whole_end: tight.whole_end, ..tight },
            7 => KeyBounds { end: u32::MAX, whole_begin: tight.whole_begin.max(tight.whole_end), whole_end: tight.begin, ..tight },
            // Far from what is seen, where no key is whole.
            8 => KeyBounds { whole_begin: u32::MAX, whole_end: u32::MAX, ..tight },
            _ => KeyBounds::UNKNOWN,
        }
    }
}

/// Keys at an even distance.
#[derive(Clone, Copy)]
pub struct Even;

impl MaskMod<()> for Even {
    #[inline(always)]
    unsafe fn of_head((): &(), _: Head) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn sees(self, at: Position) -> bool {
        at.distance() & 1 == 0
    }
}

/// What [`Faults`] is told: the rests of queries, divided by 16, to which something happens.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FaultArgs {
    /// All their scores are -inf.
    pub nothing: u32,
    /// Their scores at odd keys are -inf.
    pub half: u32,
    /// Their score at key [`FaultArgs::key`] is NaN,
    pub nan: u32,
    /// infinity,
    pub infinity: u32,
    /// 1e30,
    pub huge: u32,
    /// and -1e30.
    pub tiny: u32,
    /// Of each sequence that has it.
    pub key: u32,
}

/// Scores that are no ordinary numbers, in some rows.
#[derive(Clone, Copy)]
pub struct Faults {
    args: FaultArgs,
}

impl ScoreMod<FaultArgs> for Faults {
    #[inline(always)]
    unsafe fn of_head(args: &FaultArgs, _: Head) -> Self {
        Self { args: *args }
    }

    #[inline(always)]
    unsafe fn score(self, score: f32, at: Position) -> f32 {
        let (args, rest) = (self.args, at.query % 16);
        let at_key = at.key == args.key;
        if rest == args.nothing || (rest == args.half && at.key % 2 == 1) {
            f32::NEG_INFINITY
        } else if rest == args.nan && at_key {
            f32::NAN
        } else if rest == args.infinity && at_key {
            f32::INFINITY
        } else if rest == args.huge && at_key {
            1e30
        } else if rest == args.tiny && at_key {
            -1e30
        } else {
            score
        }
    }
}

/// What [`Limit`] is told.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LimitArgs {
    /// One for each key of each sequence, all equal.
    pub limits: *const f32,
    /// Where a sequence's begin.
    pub key_starts: *const u32,
}

/// Scores of at most a limit.
#[derive(Clone, Copy)]
pub struct Limit {
    limits: *const f32,
    start: u32,
}

impl ScoreMod<LimitArgs> for Limit {
    // So it is, though it looks the limit up by the key.
    const IS_OF_SCORE_ALONE: bool = true;

    #[inline(always)]
    unsafe fn of_head(args: &LimitArgs, head: Head) -> Self {
        // SAFETY: the launch promises a start for each sequence.
        Self { limits: args.limits, start: unsafe { entry(args.key_starts, head.batch_idx) } }
    }

    #[inline(always)]
    unsafe fn score(self, score: f32, at: Position) -> f32 {
        // SAFETY: the launch promises a limit for each key, and the position lies within the head.
        score.min(unsafe { entry(self.limits, self.start + at.key) })
    }
}

#[cfg(target_arch = "nvptx64")]
mod kernels {
    use super::*;
    use hopper_attention_kernels::forward_kernel;
    use hopper_attention_kernels::function::{Identity, Open};

    forward_kernel!(
        /// No score function.
        comb_hdim64_f16 { head_dim: 64, dtype: F16, args: CombArgs, score: Identity, mask: Comb }
    );
    forward_kernel!(
        /// No mask function; fewer keys a step than usual.
        bias_hdim128_bf16 { head_dim: 128, tile_n: 64, dtype: Bf16, args: BiasArgs, score: Bias, mask: Open }
    );
    forward_kernel!(
        /// Both functions, and as many tiles of keys as there can be.
        prefix_hdim64_bf16 { head_dim: 64, tile_n: 32, dtype: Bf16, args: PrefixArgs, score: Slope, mask: Prefix }
    );
    forward_kernel!(
        /// The same with so many keys a step that a warpgroup may see no more than the first half of its last ones.
        prefix_hdim64_f16 { head_dim: 64, dtype: F16, args: PrefixArgs, score: Slope, mask: Prefix }
    );
    forward_kernel!(
        /// The same with one stage of Q.
        prefix_hdim256_f16 { head_dim: 256, dtype: F16, args: PrefixArgs, score: Slope, mask: Prefix }
    );
    forward_kernel!(
        /// No arguments.
        even_hdim96_f16 { head_dim: 96, dtype: F16, args: (), score: Identity, mask: Even }
    );
    forward_kernel!(
        /// Scores that are no ordinary numbers.
        faults_hdim192_bf16 { head_dim: 192, dtype: Bf16, args: FaultArgs, score: Faults, mask: Open }
    );
    forward_kernel!(
        /// A function of the score alone, one step for masked key tiles and others.
        limit_hdim256_bf16 { head_dim: 256, dtype: Bf16, args: LimitArgs, score: Limit, mask: Open }
    );
}
