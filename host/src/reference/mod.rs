//! Attention on the CPU, to judge the kernels by.
//!
//! Two computations of the same function, multi-threaded, on host memory with any strides:
//!
//! - [`exact`]: the definition, in f64 throughout. What every result is compared with.
//! - [`tiled`]: FlashAttention-2's online softmax (arXiv 2307.08691, Algorithm 1) in the kernel's own order and precision. It says how far
//!   a right kernel may be from `exact`, and models what the tensor core does with NaN and infinity.
//!
//! ```text
//! S   = score(softmax_scale * Q K^T)               identity, soft cap or ALiBi
//! lse = ln(exp(sink) + sum_j exp(S_ij))            natural logarithm; over the visible keys
//! O   = sum_j exp(S_ij - lse_i) V_j                softmax(S) V if there is no sink
//! ```
//!
//! With `d = i + seqlen_k - seqlen_q`, key j is visible to query i iff `d - window_left <= j <= d + window_right`; causal is a right bound
//! of 0, and there need be no bound. A query that sees no key, or whose visible logits are all -inf, has O = 0 and lse = sink, which is
//! -inf if there is none. A visible logit that is NaN or +inf, or such a sink, makes that row's O and lse NaN. With grouped heads, query
//! head h reads key head `h / (num_heads / num_heads_k)`.
//!
//! ```
//! use half::bf16;
//! use hopper_attention::Layout;
//! use hopper_attention::reference::{HostTensor, Problem, exact};
//!
//! let values = vec![bf16::ONE; 2 * 5 * 3 * 64];
//! let x = HostTensor::new(&values, Layout::bshd([2, 5, 3, 64]))?; // [batch, seqlen, num_heads, head_dim]
//! let attention = exact::attention(&Problem::new(x, x, x)?.causal(true));
//! assert!(attention.o.iter().all(|&o| (o - 1.0).abs() < 1e-12));
//! # Ok::<(), hopper_attention::Error>(())
//! ```

pub mod exact;
mod problem;
mod rows;
pub mod tiled;

#[cfg(test)]
mod tests;

pub use problem::{HostTensor, Problem};
pub use rows::{Attention, Row};
