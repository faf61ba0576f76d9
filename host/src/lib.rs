//! Fused attention (FlashAttention) for NVIDIA Hopper GPUs in pure Rust: `O = softmax(softmax_scale * Q K^T + mask) V` and its log-sum-exp,
//! without ever storing the matrix of logits. The kernels are written in Rust and built in as PTX: to use them takes stable Rust and the
//! NVIDIA driver (CUDA 12.3 or newer), no CUDA toolkit and no C++ compiler.
//!
#![cfg_attr(feature = "cust", doc = "```no_run")]
#![cfg_attr(not(feature = "cust"), doc = "```ignore")]
//! use half::bf16;
//! use hopper_attention::{Attention, Layout, Tensor};
//!
//! let _context = cust::quick_init()?;
//! // Tensors are [batch, seqlen, heads, head_dim]. Here 32 query heads share 8 key heads.
//! let (q_layout, kv_layout) = (Layout::bshd([1, 4096, 32, 128]), Layout::bshd([1, 4096, 8, 128]));
//! let (q_values, kv_values) = (vec![bf16::ONE; 4096 * 32 * 128], vec![bf16::ONE; 4096 * 8 * 128]);
//! let q = Tensor::from_slice(&q_values, q_layout)?;
//! let k = Tensor::from_slice(&kv_values, kv_layout)?;
//! let v = Tensor::from_slice(&kv_values, kv_layout)?;
//!
//! let output = Attention::new().causal(true).forward(&q, &k, &v)?;
//! let o: Vec<bf16> = output.o.to_vec()?; // [1, 4096, 32, 128]
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Layers
//!
//! - [`Attention`], [`Tensor`], [`TensorView`]: for users of the crate `cust` (feature `cust`, on by default). [`Attention::forward`] is
//!   safe and waits; [`Attention::forward_into`] is unsafe and enqueues.
//! - [`raw`]: device addresses, a raw stream and the current context, for users of candle, cudarc, burn or anything else.
//! - [`mod@reference`]: the same attention on the CPU, to judge results by (feature `reference`, on by default).
//!
//! # Features
//!
//! | | | brings |
//! |---|---|---|
//! | `cust` | default | [`Attention`] and its tensors; cust, whose build script wants a CUDA folder (the repository's `examples/` say how to give it one) |
//! | `reference` | default | [`mod@reference`]; rayon |
//! | `cli` | | the program `hopper-attention`; clap, safetensors, and both of the above |
//!
//! With `default-features = false` [`raw`] remains, and the types it speaks of: for inference in candle, cudarc or burn, with nothing to build
//! but this library, and no environment variable to set.
//!
//! # What is computed
//!
//! | | |
//! |---|---|
//! | elements | f16 and bf16; products accumulate in f32, the softmax is f32 |
//! | head_dim | every multiple of 8 up to 256; that of V and O may be another than that of Q and K |
//! | lengths | seqlen_q and seqlen_k independent, 0 to 2^31 - 1025, no multiples of anything |
//! | sequences of several lengths | packed, or padded with lengths, Q and K/V each in its own way, up to 2^30 rows; the lengths stay on the device ([`raw::forward_with`]) |
//! | mask | none, causal, or a window: query `i` sees keys from `p - window_left` to `p + window_right`, with `p = i + seqlen_k - seqlen_q`; causal is `window_right = 0` |
//! | logits | a soft cap, or ALiBi; attention sinks |
//! | functions of your own | a mask and a score function in Rust, compiled into a kernel of your own: [`CustomKernel`], [`raw::forward_custom`] |
//! | heads | num_heads any multiple of num_heads_k |
//! | size | at most 2^30 - 1 row tiles a call, of 128 or 192 queries of a head; in [`raw::combine`] an O of at most 32 GiB |
//! | strides | multiples of 8 elements below 2^39, batch, sequence and heads in any order ([`Layout`]); 0 broadcasts an input over batch or heads |
//! | GPU | compute capability 9.0: H100, H200, GH200 and their kin |
//!
//! [`raw::combine`] merges attention over disjoint sets of keys: a context in chunks, a prefix that many sequences share, several devices.
//!
//! Not there: backward, dropout, a soft cap and ALiBi together, paged keys, a split over the keys for decoding, FP8.
//!
//! Results are bitwise repeatable, and a row's result does not depend on the rest of the batch.
//!
//! A row that sees no key, or only logits of -inf, has `O = 0` and `LSE = -inf`, or with a sink `LSE = sink`. NaN or infinity in Q or K
//! reaches only the rows that see it; in V it reaches every row of the 64 that a math warpgroup takes together, if one of them may see its key
//! tile, since the tensor core multiplies it by 0 (as in FlashAttention-3 and cuDNN). Keys beyond seqlen_k reach nothing, whatever lies there in memory.
//!
//! # Environment variables
//!
//! | | |
//! |---|---|
//! | `HOPPER_ATTENTION_DRIVER` | path of a library to open instead of `libcuda.so.1` |
//! | `HOPPER_ATTENTION_PTX_DIR` | folder of PTX files to use instead of the built-in ones, see [`raw::set_ptx_dir`] |

// docs.rs marks what a feature adds.
#![cfg_attr(docsrs, feature(doc_cfg))]
// The overview names what the features would add.
#![cfg_attr(not(all(feature = "cust", feature = "reference")), allow(rustdoc::broken_intra_doc_links))]

#[cfg(feature = "cust")]
mod arrays;
#[cfg(feature = "cust")]
mod attention;
mod context;
mod custom;
mod dtype;
#[cfg(any(feature = "cust", feature = "reference"))]
mod element;
mod error;
mod head_dims;
mod kernels;
mod launch;
mod layout;
mod lengths;
mod memory;
mod plan;
pub mod raw;
#[cfg(feature = "reference")]
pub mod reference;
mod signature;
mod slots;
#[cfg(feature = "cust")]
mod tensor;

#[cfg(feature = "cust")]
pub use arrays::Arrays;
#[cfg(feature = "cust")]
pub use attention::{Attention, Output};
pub use custom::{ArgsBytes, CustomKernel};
pub use dtype::DType;
#[cfg(any(feature = "cust", feature = "reference"))]
pub use element::Element;
pub use error::Error;
pub use head_dims::HeadDims;
pub use hopper_attention_driver::{CUresult, LoadError};
pub use layout::{Dim, Layout};
#[cfg(feature = "cust")]
pub use tensor::{Tensor, TensorView, TensorViewMut};

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_to_any_thread<T: Send + Sync + 'static>() {}

    #[test]
    fn what_users_hold_goes_to_any_thread() {
        goes_to_any_thread::<Error>();
        goes_to_any_thread::<(raw::Tensor4, raw::Lse, raw::Options, raw::Arrays, Layout, HeadDims, CustomKernel<ArgsBytes>)>();
        #[cfg(feature = "cust")]
        {
            goes_to_any_thread::<(Attention, Arrays<'static>, Output<half::f16>, Tensor<half::bf16>)>();
            goes_to_any_thread::<(TensorView<'static, half::f16>, TensorViewMut<'static, half::f16>)>();
        }
        #[cfg(feature = "reference")]
        goes_to_any_thread::<(reference::Problem<'static, half::f16>, reference::Attention<f64, f64>)>();
    }
}
