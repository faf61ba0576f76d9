//! The kernels' entries, one for each shape and element type, and what only an entry's own body can say.

use crate::combine::combine;
use crate::config::{COMBINE_THREADS, DType, TileConfig, forward_config, general_config};
use crate::forward::{Kernel, TensorMaps, forward, score};
use crate::params::{CombineParams, FeatureParams, ForwardParams, TensorMap};
use core::arch::asm;

/// The generic address of the entry's parameter number `$index`, which stays in constant memory: a reference would copy it to local memory.
macro_rules! parameter_address {
    ($entry:ident, $index:literal) => {{
        let address: u64;
        asm!(concat!("{{ .reg .b64 t; mov.b64 t, ", stringify!($entry), "_param_", $index, "; cvta.param.u64 {}, t; }}"),
             out(reg64) address, options(pure, nomem, nostack));
        address
    }};
}

/// What the kernel is told of features: its last parameter, if it has one.
macro_rules! features {
    () => {
        &FeatureParams::NONE
    };
    ($features:ident) => {
        &$features
    };
}

/// Name, shape, elements, score function, registers of S and of O; general kernels also name the parameter that the others do without.
macro_rules! forward_kernels {
    ($($entry:ident: $shape:expr, $dtype:ident, $score:ident, $scores:literal, $output:literal $(, $features:ident)?;)*) => { $(
        #[doc = concat!("Forward, ", stringify!($shape), ", elements ", stringify!($dtype), ", score function ", stringify!($score), ".")]
        ///
        /// # Safety
        /// As [`crate::forward::forward`].
        #[unsafe(no_mangle)]
        #[cfg_attr(feature = "nvvm", nvvm_internal::kernel)]
        pub unsafe extern "ptx-kernel" fn $entry(
            q: TensorMap, k: TensorMap, v: TensorMap, o: TensorMap, params: ForwardParams $(, $features: FeatureParams)?
        ) {
            struct Entry;
            impl Kernel for Entry {
                const TILE: TileConfig = $shape;
                const DTYPE: DType = DType::$dtype;
                type Scores = [u32; $scores];
                type Output = [u32; $output];
                type Score = score::$score;
            }
            const TILE: TileConfig = Entry::TILE;
            // The maps are used by address only.
            let _ = (q, k, v, o);
            // SAFETY: the launch's promise, passed on. The comment is read by `cargo xtask ptx`, which writes the launch bounds that no
            // compiler can.
            unsafe {
                asm!("// launch_bounds {threads}", threads = const TILE.threads(), options(nomem, nostack));
                let maps = TensorMaps {
                    q: parameter_address!($entry, 0),
                    k: parameter_address!($entry, 1),
                    v: parameter_address!($entry, 2),
                    o: parameter_address!($entry, 3),
                };
                let features = features!($($features)?);
                forward::<Entry, { TILE.q_stages }, { TILE.registers().0 }, { TILE.registers().1 }>(maps, &params, features);
            }
        }
    )* };
}

macro_rules! combine_kernels {
    ($($entry:ident: $dtype:ident;)*) => { $(
        #[doc = concat!("Merges attention over disjoint sets of keys, elements ", stringify!($dtype), ".")]
        ///
        /// # Safety
        /// As [`crate::combine::combine`].
        #[unsafe(no_mangle)]
        #[cfg_attr(feature = "nvvm", nvvm_internal::kernel)]
        pub unsafe extern "ptx-kernel" fn $entry(params: CombineParams) {
            // SAFETY: the launch's promise, passed on. The comment is read by `cargo xtask ptx`.
            unsafe {
                asm!("// launch_bounds {threads}", threads = const COMBINE_THREADS, options(nomem, nostack));
                combine(DType::$dtype, &params, parameter_address!($entry, 0));
            }
        }
    )* };
}

combine_kernels! {
    flash_combine_f16_sm90: F16;
    flash_combine_bf16_sm90: Bf16;
}

#[inline]
const fn shape(head_dim: u32, causal: bool) -> TileConfig {
    native(forward_config(head_dim, causal), head_dim)
}

#[inline]
const fn general_shape(head_dim: u32) -> TileConfig {
    native(general_config(head_dim), head_dim)
}

#[inline]
const fn native(config: Option<TileConfig>, head_dim: u32) -> TileConfig {
    match config {
        Some(config) if config.head_dim == head_dim => config,
        _ => panic!("no such shape in the table"),
    }
}

// Registers of S (tile_n / 2) and O (head_dim / 2): `Kernel::CONSISTENT` holds them to the table.
forward_kernels! {
    flash_fwd_hdim64_f16_sm90: shape(64, false), F16, Identity, 64, 32;
    flash_fwd_hdim64_f16_causal_sm90: shape(64, true), F16, Identity, 64, 32;
    flash_fwd_hdim64_bf16_sm90: shape(64, false), Bf16, Identity, 64, 32;
    flash_fwd_hdim64_bf16_causal_sm90: shape(64, true), Bf16, Identity, 64, 32;
    flash_fwd_hdim96_f16_sm90: shape(96, false), F16, Identity, 56, 48;
    flash_fwd_hdim96_f16_causal_sm90: shape(96, true), F16, Identity, 48, 48;
    flash_fwd_hdim96_bf16_sm90: shape(96, false), Bf16, Identity, 56, 48;
    flash_fwd_hdim96_bf16_causal_sm90: shape(96, true), Bf16, Identity, 48, 48;
    flash_fwd_hdim128_f16_sm90: shape(128, false), F16, Identity, 64, 64;
    flash_fwd_hdim128_f16_causal_sm90: shape(128, true), F16, Identity, 64, 64;
    flash_fwd_hdim128_bf16_sm90: shape(128, false), Bf16, Identity, 64, 64;
    flash_fwd_hdim128_bf16_causal_sm90: shape(128, true), Bf16, Identity, 64, 64;
    flash_fwd_hdim192_f16_sm90: shape(192, false), F16, Identity, 40, 96;
    flash_fwd_hdim192_f16_causal_sm90: shape(192, true), F16, Identity, 40, 96;
    flash_fwd_hdim192_bf16_sm90: shape(192, false), Bf16, Identity, 40, 96;
    flash_fwd_hdim192_bf16_causal_sm90: shape(192, true), Bf16, Identity, 40, 96;
    flash_fwd_hdim256_f16_sm90: shape(256, false), F16, Identity, 32, 128;
    flash_fwd_hdim256_f16_causal_sm90: shape(256, true), F16, Identity, 32, 128;
    flash_fwd_hdim256_bf16_sm90: shape(256, false), Bf16, Identity, 32, 128;
    flash_fwd_hdim256_bf16_causal_sm90: shape(256, true), Bf16, Identity, 32, 128;
}

// The general kernels.
forward_kernels! {
    flash_fwd_hdim64_f16_general_sm90: general_shape(64), F16, Identity, 56, 32, features;
    flash_fwd_hdim64_f16_general_softcap_sm90: general_shape(64), F16, SoftCap, 56, 32, features;
    flash_fwd_hdim64_f16_general_alibi_sm90: general_shape(64), F16, Alibi, 56, 32, features;
    flash_fwd_hdim64_bf16_general_sm90: general_shape(64), Bf16, Identity, 56, 32, features;
    flash_fwd_hdim64_bf16_general_softcap_sm90: general_shape(64), Bf16, SoftCap, 56, 32, features;
    flash_fwd_hdim64_bf16_general_alibi_sm90: general_shape(64), Bf16, Alibi, 56, 32, features;
    flash_fwd_hdim96_f16_general_sm90: general_shape(96), F16, Identity, 48, 48, features;
    flash_fwd_hdim96_f16_general_softcap_sm90: general_shape(96), F16, SoftCap, 48, 48, features;
    flash_fwd_hdim96_f16_general_alibi_sm90: general_shape(96), F16, Alibi, 48, 48, features;
    flash_fwd_hdim96_bf16_general_sm90: general_shape(96), Bf16, Identity, 48, 48, features;
    flash_fwd_hdim96_bf16_general_softcap_sm90: general_shape(96), Bf16, SoftCap, 48, 48, features;
    flash_fwd_hdim96_bf16_general_alibi_sm90: general_shape(96), Bf16, Alibi, 48, 48, features;
    flash_fwd_hdim128_f16_general_sm90: general_shape(128), F16, Identity, 64, 64, features;
    flash_fwd_hdim128_f16_general_softcap_sm90: general_shape(128), F16, SoftCap, 64, 64, features;
    flash_fwd_hdim128_f16_general_alibi_sm90: general_shape(128), F16, Alibi, 64, 64, features;
    flash_fwd_hdim128_bf16_general_sm90: general_shape(128), Bf16, Identity, 64, 64, features;
    flash_fwd_hdim128_bf16_general_softcap_sm90: general_shape(128), Bf16, SoftCap, 64, 64, features;
    flash_fwd_hdim128_bf16_general_alibi_sm90: general_shape(128), Bf16, Alibi, 64, 64, features;
    flash_fwd_hdim192_f16_general_sm90: general_shape(192), F16, Identity, 40, 96, features;
    flash_fwd_hdim192_f16_general_softcap_sm90: general_shape(192), F16, SoftCap, 40, 96, features;
    flash_fwd_hdim192_f16_general_alibi_sm90: general_shape(192), F16, Alibi, 40, 96, features;
    flash_fwd_hdim192_bf16_general_sm90: general_shape(192), Bf16, Identity, 40, 96, features;
    flash_fwd_hdim192_bf16_general_softcap_sm90: general_shape(192), Bf16, SoftCap, 40, 96, features;
    flash_fwd_hdim192_bf16_general_alibi_sm90: general_shape(192), Bf16, Alibi, 40, 96, features;
    flash_fwd_hdim256_f16_general_sm90: general_shape(256), F16, Identity, 32, 128, features;
    flash_fwd_hdim256_f16_general_softcap_sm90: general_shape(256), F16, SoftCap, 32, 128, features;
    flash_fwd_hdim256_f16_general_alibi_sm90: general_shape(256), F16, Alibi, 32, 128, features;
    flash_fwd_hdim256_bf16_general_sm90: general_shape(256), Bf16, Identity, 32, 128, features;
    flash_fwd_hdim256_bf16_general_softcap_sm90: general_shape(256), Bf16, SoftCap, 32, 128, features;
    flash_fwd_hdim256_bf16_general_alibi_sm90: general_shape(256), Bf16, Alibi, 32, 128, features;
}
