//! Attention within documents that share a sequence, with a bias for each distance: the functions, and the kernels compiled for them.
//!
//! ```text
//! S_ij = softmax_scale * q_i . k_j + bias[head][distance]     distance = j - i, no further than max_distance to either side
//! S_ij = -inf  unless i and j are of the same document
//! ```
#![no_std]
#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]

use hopper_attention_kernels::function::{Head, MaskMod, Position, ScoreMod};
use hopper_attention_kernels::key_range::KeyBounds;

/// The kernels' own parameter: device addresses, and numbers.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct DocumentArgs {
    /// The document of each token, ascending: `[seqlen]`.
    pub document_of: *const u32,
    /// The first token of each document, and the end of the last: `[documents + 1]`.
    pub starts: *const u32,
    /// `[num_heads, 2 * max_distance + 1]`.
    pub bias: *const f32,
    /// The distance from which on the bias stays the same.
    pub max_distance: i32,
}

/// Tokens see those of their own document.
#[derive(Clone, Copy)]
pub struct SameDocument {
    document_of: *const u32,
    starts: *const u32,
}

impl MaskMod<DocumentArgs> for SameDocument {
    #[inline(always)]
    unsafe fn of_head(args: &DocumentArgs, _: Head) -> Self {
        Self { document_of: args.document_of, starts: args.starts }
    }

    #[inline(always)]
    unsafe fn sees(self, at: Position) -> bool {
        // SAFETY: positions lie within the sequence, and each of its tokens has a document, as the launch promises.
        unsafe { *self.document_of.add(at.query as usize) == *self.document_of.add(at.key as usize) }
    }

    #[inline(always)]
    unsafe fn bounds(self, first_query: u32, last_query: u32) -> KeyBounds {
        // SAFETY: as above; each document has its start and its end.
        unsafe {
            let first = self.starts.add(*self.document_of.add(first_query as usize) as usize);
            let last = self.starts.add(*self.document_of.add(last_query as usize) as usize);
            // From the first query's document to the last one's. Where these are one and the same, all of it is seen by all; else nothing is.
            KeyBounds { begin: *first, end: *last.add(1), whole_begin: *last, whole_end: *first.add(1) }
        }
    }
}

/// A bias for each distance, and each head.
#[derive(Clone, Copy)]
pub struct RelativeBias {
    /// That of the smallest distance.
    first: *const f32,
    max_distance: i32,
}

impl ScoreMod<DocumentArgs> for RelativeBias {
    #[inline(always)]
    unsafe fn of_head(args: &DocumentArgs, head: Head) -> Self {
        let row = head.head_idx as usize * (2 * args.max_distance as usize + 1);
        // SAFETY: each head has its row, as the launch promises.
        Self { first: unsafe { args.bias.add(row) }, max_distance: args.max_distance }
    }

    #[inline(always)]
    unsafe fn score(self, score: f32, at: Position) -> f32 {
        // Not clamp: it can panic, which no kernel may.
        let place = (self.max_distance - at.distance()).max(0).min(2 * self.max_distance);
        // SAFETY: within the row.
        score + unsafe { *self.first.add(place as usize) }
    }
}

#[cfg(target_arch = "nvptx64")]
hopper_attention_kernels::forward_kernel!(
    /// Documents and bias: bf16, head_dims up to 64.
    documents_bias_hdim64_bf16 { head_dim: 64, dtype: Bf16, args: DocumentArgs, score: RelativeBias, mask: SameDocument }
);

/// Those that the repository's benchmark measures besides.
#[cfg(all(target_arch = "nvptx64", feature = "benchmark"))]
mod benchmark {
    use hopper_attention_kernels::forward_kernel;
    use hopper_attention_kernels::function::{Identity, Open};

    use super::*;

    forward_kernel!(
        /// Documents and bias: bf16, head_dims up to 128.
        documents_bias_hdim128_bf16 { head_dim: 128, dtype: Bf16, args: DocumentArgs, score: RelativeBias, mask: SameDocument }
    );
    forward_kernel!(
        /// Documents without a bias: bf16, head_dims up to 64.
        documents_hdim64_bf16 { head_dim: 64, dtype: Bf16, args: DocumentArgs, score: Identity, mask: SameDocument }
    );
    forward_kernel!(
        /// Documents without a bias: bf16, head_dims up to 128.
        documents_hdim128_bf16 { head_dim: 128, dtype: Bf16, args: DocumentArgs, score: Identity, mask: SameDocument }
    );
    forward_kernel!(
        /// A bias in one document: bf16, head_dims up to 64.
        bias_hdim64_bf16 { head_dim: 64, dtype: Bf16, args: DocumentArgs, score: RelativeBias, mask: Open }
    );
    forward_kernel!(
        /// A bias in one document: bf16, head_dims up to 128.
        bias_hdim128_bf16 { head_dim: 128, dtype: Bf16, args: DocumentArgs, score: RelativeBias, mask: Open }
    );
}
