//! Functions of the scores and masks, which a kernel is compiled for: attention with a term of one's own.
//!
//! ```text
//! S_ij = score(softmax_scale * (Q K^T)_ij, i, j)      [`ScoreMod`]
//! S_ij = -inf  unless  sees(i, j)                      [`MaskMod`], beside the window and the sequences' ends
//! ```
//!
//! Both are plain Rust, monomorphised into the kernel's loop (`forward_kernel!`), and compile for the host as well, where a reference can use them.
//! The soft cap and ALiBi are written with the same trait.
//!
//! `Args` is the kernel's own parameter, a `#[repr(C)]` struct of numbers and device addresses that the launch brings along.

use crate::key_range::KeyBounds;

/// One query head of one batch entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Batch entry; of packed sequences, which one.
    pub batch_idx: u32,
    /// Query head.
    pub head_idx: u32,
    /// Queries of the sequence.
    pub seqlen_q: u32,
    /// Its keys.
    pub seqlen_k: u32,
}

/// A query and a key of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Query, below [`Head::seqlen_q`].
    pub query: u32,
    /// Key, below [`Head::seqlen_k`].
    pub key: u32,
    /// The key at which the query itself stands, where the last query stands at the last key: `query + seqlen_k - seqlen_q`. Negative for the first
    /// of more queries than keys.
    pub own_key: i32,
}

impl Position {
    /// How many keys before the query's own the key stands; negative behind it.
    #[inline(always)]
    pub const fn distance(self) -> i32 {
        self.own_key - self.key as i32
    }
}

impl Head {
    /// In the place of a head that nobody looks at.
    #[cfg_attr(not(target_arch = "nvptx64"), expect(dead_code, reason = "the kernels'"))]
    pub(crate) const ANY: Self = Self { batch_idx: 0, head_idx: 0, seqlen_q: 0, seqlen_k: 0 };

    /// The position of a query and a key.
    #[inline(always)]
    pub const fn at(self, query: u32, key: u32) -> Position {
        Position { query, key, own_key: query.wrapping_add(self.seqlen_k).wrapping_sub(self.seqlen_q) as i32 }
    }
}

/// What becomes of a score between Q K^T and the softmax.
pub trait ScoreMod<Args>: Copy {
    /// Whether scores stay as they are: then [`ScoreMod::score`] is not called, and the head that [`ScoreMod::of_head`] is told of is made up.
    const IS_IDENTITY: bool = false;
    /// Whether the new score depends on nothing but the old one: then query heads may share a row tile, as far as the host has the kernel do so.
    const IS_OF_SCORE_ALONE: bool = Self::IS_IDENTITY;

    /// The function for one head: what it holds is kept in registers throughout a row tile, so it should be a word or two.
    ///
    /// # Safety
    /// `args` is what the launch promises, [`ScoreMod::score`] included.
    unsafe fn of_head(args: &Args, head: Head) -> Self;

    /// The new score, in natural units: the softmax takes `exp` of it. It is asked for hidden pairs too, and the answer is then dropped. The
    /// same pair may be asked for any number of times.
    ///
    /// # Safety
    /// `at` lies within the head that [`ScoreMod::of_head`] was told of.
    unsafe fn score(self, score: f32, at: Position) -> f32;
}

/// Which keys a query sees, of those within the window.
pub trait MaskMod<Args>: Copy {
    /// Whether it hides nothing: then no function is called.
    const IS_OPEN: bool = false;

    /// The mask for one head.
    ///
    /// # Safety
    /// `args` is what the launch promises, [`MaskMod::sees`] and [`MaskMod::bounds`] included.
    unsafe fn of_head(args: &Args, head: Head) -> Self;

    /// Whether the query sees the key.
    ///
    /// # Safety
    /// `at` lies within the head that [`MaskMod::of_head`] was told of.
    unsafe fn sees(self, at: Position) -> bool;

    /// Bounds for the queries from `first_query` to `last_query`, both included: key tiles outside of what they may see are skipped, those inside of
    /// what they all see get no mask. Too wide a bound costs time; a bound that leaves out what is seen makes wrong results, but no more than that.
    ///
    /// It has one answer for the same queries throughout a launch, whoever asks: what it reads in memory does not change meanwhile. Where those that load
    /// keys and those that wait for them were told different things, they would wait for ever.
    ///
    /// # Safety
    /// The queries lie within the head that [`MaskMod::of_head`] was told of.
    #[inline(always)]
    unsafe fn bounds(self, first_query: u32, last_query: u32) -> KeyBounds {
        let _ = (first_query, last_query);
        KeyBounds::UNKNOWN
    }
}

/// Scores as they are.
#[derive(Clone, Copy, Debug)]
pub struct Identity;

impl<Args> ScoreMod<Args> for Identity {
    const IS_IDENTITY: bool = true;

    #[inline(always)]
    unsafe fn of_head(_: &Args, _: Head) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn score(self, score: f32, _: Position) -> f32 {
        score
    }
}

/// No mask but the window.
#[derive(Clone, Copy, Debug)]
pub struct Open;

impl<Args> MaskMod<Args> for Open {
    const IS_OPEN: bool = true;

    #[inline(always)]
    unsafe fn of_head(_: &Args, _: Head) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn sees(self, _: Position) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::MAX_SEQLEN;

    #[test]
    fn the_last_query_stands_at_the_last_key() {
        for (seqlen_q, seqlen_k) in [(1, 1), (5, 9), (9, 5), (1, MAX_SEQLEN), (MAX_SEQLEN, 1), (MAX_SEQLEN, MAX_SEQLEN)] {
            let head = Head { batch_idx: 3, head_idx: 2, seqlen_q, seqlen_k };
            let last = head.at(seqlen_q - 1, seqlen_k - 1);
            assert_eq!((last.query, last.key, last.own_key, last.distance()), (seqlen_q - 1, seqlen_k - 1, seqlen_k as i32 - 1, 0));
            let first = head.at(0, 0);
            assert_eq!((first.own_key, first.distance()), (seqlen_k as i32 - seqlen_q as i32, seqlen_k as i32 - seqlen_q as i32));
            assert_eq!(head.at(0, seqlen_k - 1).distance(), 1 - seqlen_q as i32);
        }
    }
}
