//! `forward_kernel!`: a forward kernel of one's own functions, in one's own crate.

/// Defines a forward kernel: an entry with a score function and a mask function compiled in.
///
/// ```ignore
/// hopper_attention_kernels::forward_kernel!(documents_hdim64_bf16 {
///     head_dim: 64,             // 64, 96, 128, 192 or 256: the native sizes; smaller head_dims run on it with zero fill
///     tile_n: 64,               // optional: keys a step: 16, 32, 48, 64, 80, 96, 112 or 128; fewer leave more registers to the functions
///     dtype: Bf16,              // or F16
///     args: DocumentArgs,       // #[repr(C)] and Copy, at most 16 bytes aligned: the kernel's own parameter
///     score: RelativeBias,      // ScoreMod<DocumentArgs>; `Identity` for none
///     mask: SameDocument,       // MaskMod<DocumentArgs>; `Open` for none
/// });
/// ```
///
/// Windows, the causal one among them, packed and padded sequences of any lengths, grouped heads and sinks work with it as with the kernels that
/// ship. The crate says `#![cfg_attr(target_arch = "nvptx64", feature(abi_ptx, asm_experimental_arch))]`, puts this macro behind
/// `#[cfg(target_arch = "nvptx64")]`, and is built by `hopper-attention-builder`.
#[macro_export]
macro_rules! forward_kernel {
    ($(#[$attribute:meta])* $entry:ident {
        head_dim: $head_dim:expr, $(tile_n: $tile_n:expr,)? dtype: $dtype:ident, args: $args:ty, score: $score:ty, mask: $mask:ty $(,)?
    }) => {
        $crate::forward_entry!($(#[$attribute])* #[allow(improper_ctypes_definitions)] $entry {
            shape: $crate::config::custom_shape($head_dim, $crate::given!($($tile_n)?)),
            dtype: $dtype,
            args: $args,
            score: $score,
            mask: $mask,
            custom: true,
            parameters: (features: $crate::params::FeatureParams, args: $args),
            features: &features,
            arguments: &args,
            // Read by the builder, which hands it on to the host: what there is to know of the kernel before it is launched.
            facts: {
                const VERSION: [u32; 3] = $crate::params::VERSION;
                const ARGS_BYTES: usize = ::core::mem::size_of::<$args>();
                const SHAPE: $crate::config::TileConfig = $crate::config::custom_shape($head_dim, $crate::given!($($tile_n)?));
                const { SHAPE.check() };
                const { assert!(::core::mem::align_of::<$args>() <= 16 && ARGS_BYTES <= $crate::params::MAX_ARGS_BYTES) };
                ::core::arch::asm!(
                    "// attention_kernel {major}.{minor}.{patch} interface {interface} head_dim {head_dim} tile_n {tile_n} bf16 {bf16} has_score {has_score} args_bytes {args_bytes}",
                    major = const VERSION[0],
                    minor = const VERSION[1],
                    patch = const VERSION[2],
                    interface = const $crate::params::INTERFACE,
                    head_dim = const SHAPE.head_dim,
                    tile_n = const SHAPE.tile_n,
                    bf16 = const ($crate::config::DType::$dtype as u32 == $crate::config::DType::Bf16 as u32) as u32,
                    has_score = const !<$score as $crate::function::ScoreMod<$args>>::IS_IDENTITY as u32,
                    args_bytes = const ARGS_BYTES,
                    options(nomem, nostack)
                );
            },
        });
    };
}

/// The entry of a forward kernel, with all that only an entry's own body can say.
#[doc(hidden)]
#[macro_export]
macro_rules! forward_entry {
    ($(#[$attribute:meta])* $entry:ident {
        shape: $shape:expr, dtype: $dtype:ident, args: $args:ty, score: $score:ty, mask: $mask:ty, custom: $custom:literal,
        parameters: ($($parameter:ident: $type:ty),*), features: $features:expr, arguments: $arguments:expr, facts: $facts:block $(,)?
    }) => {
        $(#[$attribute])*
        ///
        /// # Safety
        /// The launch is that of `hopper_attention_kernels::forward::forward`.
        #[unsafe(no_mangle)]
        pub unsafe extern "ptx-kernel" fn $entry(
            q: $crate::params::TensorMap,
            k: $crate::params::TensorMap,
            v: $crate::params::TensorMap,
            o: $crate::params::TensorMap,
            params: $crate::params::ForwardParams,
            $($parameter: $type),*
        ) {
            const TILE: $crate::config::TileConfig = $shape;
            struct Entry;
            impl $crate::forward::Kernel for Entry {
                const TILE: $crate::config::TileConfig = TILE;
                const DTYPE: $crate::config::DType = $crate::config::DType::$dtype;
                type Scores = [u32; TILE.tile_n as usize / 2];
                type Output = [u32; TILE.head_dim_v as usize / 2];
                type Args = $args;
                type Score = $score;
                type Mask = $mask;
                const CUSTOM: bool = $custom;
            }
            // The maps are used by address only.
            let _ = (q, k, v, o);
            // SAFETY: the launch's promise, passed on. The comment is read by the builder, which writes the launch bounds that no compiler can.
            unsafe {
                ::core::arch::asm!("// launch_bounds {threads}", threads = const TILE.threads(), options(nomem, nostack));
                $facts
                let maps = $crate::forward::TensorMaps {
                    q: $crate::parameter_address!($entry, 0),
                    k: $crate::parameter_address!($entry, 1),
                    v: $crate::parameter_address!($entry, 2),
                    o: $crate::parameter_address!($entry, 3),
                };
                $crate::forward::forward::<Entry, { TILE.registers().0 }, { TILE.registers().1 }>(
                    maps, &params, $features, $arguments,
                );
            }
        }
    };
}

/// An option's value, if there is one.
#[doc(hidden)]
#[macro_export]
macro_rules! given {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

/// The generic address of the entry's parameter number `$index`, which stays in constant memory: a reference would copy it to local memory.
#[doc(hidden)]
#[macro_export]
macro_rules! parameter_address {
    ($entry:ident, $index:literal) => {{
        let address: u64;
        ::core::arch::asm!(concat!("{{ .reg .b64 t; mov.b64 t, ", stringify!($entry), "_param_", $index, "; cvta.param.u64 {}, t; }}"),
             out(reg64) address, options(pure, nomem, nostack));
        address
    }};
}
