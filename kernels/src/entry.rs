//! The entries of the kernels that ship, one for each shape and element type.

use crate::combine::combine;
use crate::config::{COMBINE_THREADS, DType, general_shape, shape, shape_of_fewer_rows};
use crate::forward::score::{Alibi, SoftCap};
use crate::function::{Identity, Open};
use crate::params::{CombineParams, FeatureParams};
use crate::{forward_entry, parameter_address};
use core::arch::asm;

/// Name, shape, elements.
macro_rules! plain_kernels {
    ($($entry:ident: $shape:expr, $dtype:ident;)*) => { $(
        forward_entry!(
            #[doc = concat!("Forward, ", stringify!($shape), ", elements ", stringify!($dtype), ".")]
            #[cfg_attr(feature = "nvvm", nvvm_internal::kernel)]
            $entry {
                shape: $shape,
                dtype: $dtype,
                args: FeatureParams,
                score: Identity,
                mask: Open,
                custom: false,
                parameters: (),
                features: &FeatureParams::NONE,
                arguments: &FeatureParams::NONE,
                facts: {},
            }
        );
    )* };
}

/// Name, shape, elements, score function.
macro_rules! general_kernels {
    ($($entry:ident: $shape:expr, $dtype:ident, $score:ident;)*) => { $(
        forward_entry!(
            #[doc = concat!("Forward, ", stringify!($shape), ", elements ", stringify!($dtype), ", score function ", stringify!($score), ".")]
            #[cfg_attr(feature = "nvvm", nvvm_internal::kernel)]
            $entry {
                shape: $shape,
                dtype: $dtype,
                args: FeatureParams,
                score: $score,
                mask: Open,
                custom: false,
                parameters: (features: FeatureParams),
                features: &features,
                arguments: &features,
                facts: {},
            }
        );
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
            // SAFETY: the launch's promise, passed on. The comment is read by the builder.
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

plain_kernels! {
    flash_fwd_hdim64_f16_sm90: shape(64, 64, false), F16;
    flash_fwd_hdim64_f16_causal_sm90: shape(64, 64, true), F16;
    flash_fwd_hdim64_bf16_sm90: shape(64, 64, false), Bf16;
    flash_fwd_hdim64_bf16_causal_sm90: shape(64, 64, true), Bf16;
    flash_fwd_hdim96_f16_sm90: shape(96, 96, false), F16;
    flash_fwd_hdim96_f16_causal_sm90: shape(96, 96, true), F16;
    flash_fwd_hdim96_bf16_sm90: shape(96, 96, false), Bf16;
    flash_fwd_hdim96_bf16_causal_sm90: shape(96, 96, true), Bf16;
    flash_fwd_hdim128_f16_sm90: shape(128, 128, false), F16;
    flash_fwd_hdim128_f16_causal_sm90: shape(128, 128, true), F16;
    flash_fwd_hdim128_bf16_sm90: shape(128, 128, false), Bf16;
    flash_fwd_hdim128_bf16_causal_sm90: shape(128, 128, true), Bf16;
    flash_fwd_hdim128_f16_causal_fewer_rows_sm90: shape_of_fewer_rows(128, 128, true), F16;
    flash_fwd_hdim128_bf16_causal_fewer_rows_sm90: shape_of_fewer_rows(128, 128, true), Bf16;
    flash_fwd_hdim192_128_f16_sm90: shape(192, 128, false), F16;
    flash_fwd_hdim192_128_f16_causal_sm90: shape(192, 128, true), F16;
    flash_fwd_hdim192_128_bf16_sm90: shape(192, 128, false), Bf16;
    flash_fwd_hdim192_128_bf16_causal_sm90: shape(192, 128, true), Bf16;
    flash_fwd_hdim192_f16_sm90: shape(192, 192, false), F16;
    flash_fwd_hdim192_f16_causal_sm90: shape(192, 192, true), F16;
    flash_fwd_hdim192_bf16_sm90: shape(192, 192, false), Bf16;
    flash_fwd_hdim192_bf16_causal_sm90: shape(192, 192, true), Bf16;
    flash_fwd_hdim256_f16_sm90: shape(256, 256, false), F16;
    flash_fwd_hdim256_f16_causal_sm90: shape(256, 256, true), F16;
    flash_fwd_hdim256_bf16_sm90: shape(256, 256, false), Bf16;
    flash_fwd_hdim256_bf16_causal_sm90: shape(256, 256, true), Bf16;
}

general_kernels! {
    flash_fwd_hdim64_f16_general_sm90: general_shape(64, 64), F16, Identity;
    flash_fwd_hdim64_f16_general_softcap_sm90: general_shape(64, 64), F16, SoftCap;
    flash_fwd_hdim64_f16_general_alibi_sm90: general_shape(64, 64), F16, Alibi;
    flash_fwd_hdim64_bf16_general_sm90: general_shape(64, 64), Bf16, Identity;
    flash_fwd_hdim64_bf16_general_softcap_sm90: general_shape(64, 64), Bf16, SoftCap;
    flash_fwd_hdim64_bf16_general_alibi_sm90: general_shape(64, 64), Bf16, Alibi;
    flash_fwd_hdim96_f16_general_sm90: general_shape(96, 96), F16, Identity;
    flash_fwd_hdim96_f16_general_softcap_sm90: general_shape(96, 96), F16, SoftCap;
    flash_fwd_hdim96_f16_general_alibi_sm90: general_shape(96, 96), F16, Alibi;
    flash_fwd_hdim96_bf16_general_sm90: general_shape(96, 96), Bf16, Identity;
    flash_fwd_hdim96_bf16_general_softcap_sm90: general_shape(96, 96), Bf16, SoftCap;
    flash_fwd_hdim96_bf16_general_alibi_sm90: general_shape(96, 96), Bf16, Alibi;
    flash_fwd_hdim128_f16_general_sm90: general_shape(128, 128), F16, Identity;
    flash_fwd_hdim128_f16_general_softcap_sm90: general_shape(128, 128), F16, SoftCap;
    flash_fwd_hdim128_f16_general_alibi_sm90: general_shape(128, 128), F16, Alibi;
    flash_fwd_hdim128_bf16_general_sm90: general_shape(128, 128), Bf16, Identity;
    flash_fwd_hdim128_bf16_general_softcap_sm90: general_shape(128, 128), Bf16, SoftCap;
    flash_fwd_hdim128_bf16_general_alibi_sm90: general_shape(128, 128), Bf16, Alibi;
    flash_fwd_hdim192_128_f16_general_sm90: general_shape(192, 128), F16, Identity;
    flash_fwd_hdim192_128_bf16_general_sm90: general_shape(192, 128), Bf16, Identity;
    flash_fwd_hdim192_f16_general_sm90: general_shape(192, 192), F16, Identity;
    flash_fwd_hdim192_f16_general_softcap_sm90: general_shape(192, 192), F16, SoftCap;
    flash_fwd_hdim192_f16_general_alibi_sm90: general_shape(192, 192), F16, Alibi;
    flash_fwd_hdim192_bf16_general_sm90: general_shape(192, 192), Bf16, Identity;
    flash_fwd_hdim192_bf16_general_softcap_sm90: general_shape(192, 192), Bf16, SoftCap;
    flash_fwd_hdim192_bf16_general_alibi_sm90: general_shape(192, 192), Bf16, Alibi;
    flash_fwd_hdim256_f16_general_sm90: general_shape(256, 256), F16, Identity;
    flash_fwd_hdim256_f16_general_softcap_sm90: general_shape(256, 256), F16, SoftCap;
    flash_fwd_hdim256_f16_general_alibi_sm90: general_shape(256, 256), F16, Alibi;
    flash_fwd_hdim256_bf16_general_sm90: general_shape(256, 256), Bf16, Identity;
    flash_fwd_hdim256_bf16_general_softcap_sm90: general_shape(256, 256), Bf16, SoftCap;
    flash_fwd_hdim256_bf16_general_alibi_sm90: general_shape(256, 256), Bf16, Alibi;
}
