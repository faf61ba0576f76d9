//! The kernels that exist, and the shape of each: one table, read by the kernels at compile time and by the host at run time.

/// Element types of Q, K, V and O.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl DType {
    /// Bytes of one element.
    pub const BYTES: u32 = 2;
}

/// Columns of a shared-memory panel: 64 elements of 2 bytes are one row of the 128-byte swizzle.
pub const PANEL_COLUMNS: u32 = 64;
/// Query rows of one math warpgroup: wgmma's M.
pub const WARPGROUP_ROWS: u32 = 64;
/// Math warpgroups of a CTA, at most.
pub const MAX_MATH_WARPGROUPS: u32 = 3;
/// Threads of a warpgroup.
pub const WARPGROUP_THREADS: u32 = 128;
/// Stages of the K ring and of the V ring, at most.
pub const MAX_KV_STAGES: u32 = 4;
/// Stages of both, at least.
const MIN_KV_STAGES: u32 = 2;
/// Bytes kept behind the tiles for mbarriers and for the ranks of the tiles under way.
pub const BARRIER_BYTES: u32 = 512;
/// Registers of an SM.
const REGISTER_FILE: u32 = 64 * 1024;
/// The running maximum (its absolute value, in log2 units) from which logits are scaled and rounded before it is subtracted: from here on
/// an ulp of it is 1, and its rounding, which a fused multiply-add would undo, would move P by a factor of more than sqrt 2.
pub const ROUND_FIRST: f32 = (1 << 23) as f32;
/// What a thread's part of a row's sum over one key tile may come to before the row's maximum is looked for again. No weight is larger, which
/// leaves f16 a factor of 16 (of V, see `raw::forward` in the host library); and rows of unit variance that begin with a low maximum, at the
/// causal diagonal, still fit the next key tile.
pub const MAX_SUM: f32 = (1 << 12) as f32;
/// Shared memory that one CTA can have on compute capability 9.0.
pub const MAX_SMEM_BYTES: u32 = 227 * 1024;

/// Parts that one launch of the kernel that combines can take.
pub const MAX_PARTS: usize = 64;
/// Columns that a thread of that kernel merges: 16 bytes.
pub const COMBINE_COLUMNS: u32 = 8;
/// Threads of a CTA of that kernel.
pub const COMBINE_THREADS: u32 = 256;

/// The shape of one forward kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileConfig {
    /// Native head_dim of Q and K: smaller ones run on it with zero fill.
    pub head_dim: u32,
    /// Native head_dim of V and O, likewise.
    pub head_dim_v: u32,
    /// Whether the causal mask is compiled in.
    pub causal: bool,
    /// Query rows of a CTA: 64 for each math warpgroup.
    pub tile_m: u32,
    /// Keys of one step.
    pub tile_n: u32,
    /// Q buffers: with two, the next tile's Q arrives while this one computes.
    pub q_stages: u32,
    /// Whether CTAs draw tiles from a counter, if the launch has one: pays where tiles differ in length.
    pub dynamic: bool,
    /// Whether any window, ragged sequences, a score function and sinks are compiled in (`FeatureParams`).
    pub general: bool,
}

impl TileConfig {
    /// Math warpgroups.
    pub const fn math_warpgroups(&self) -> u32 {
        self.tile_m / WARPGROUP_ROWS
    }

    /// Threads of a CTA: one producer warpgroup and the math warpgroups.
    pub const fn threads(&self) -> u32 {
        WARPGROUP_THREADS * (1 + self.math_warpgroups())
    }

    /// Panels of 64 columns that a row of Q or K takes.
    pub const fn panels(&self) -> u32 {
        self.head_dim.div_ceil(PANEL_COLUMNS)
    }

    /// Panels of a row of V or O.
    pub const fn panels_v(&self) -> u32 {
        self.head_dim_v.div_ceil(PANEL_COLUMNS)
    }

    /// Bytes of one math warpgroup's rows of Q, and of its O on the way out, which has no more panels.
    pub const fn q_warpgroup_bytes(&self) -> u32 {
        WARPGROUP_ROWS * self.panels() * PANEL_COLUMNS * DType::BYTES
    }

    /// Bytes of one tile of K.
    pub const fn k_bytes(&self) -> u32 {
        self.tile_n * self.panels() * PANEL_COLUMNS * DType::BYTES
    }

    /// Bytes of one tile of V.
    pub const fn v_bytes(&self) -> u32 {
        self.tile_n * self.panels_v() * PANEL_COLUMNS * DType::BYTES
    }

    /// Bytes of all Q buffers.
    #[inline(always)]
    pub const fn q_bytes(&self) -> u32 {
        self.q_stages * self.math_warpgroups() * self.q_warpgroup_bytes()
    }

    /// Dynamic shared memory with so many stages of K and V.
    #[inline(always)]
    const fn smem_bytes_of(&self, kv_stages: u32) -> u32 {
        self.q_bytes() + kv_stages * (self.k_bytes() + self.v_bytes()) + BARRIER_BYTES
    }

    /// Stages of the K ring and of the V ring: four where shared memory holds them, which lets the next row tile's first keys arrive while this
    /// one's last are used: up to 5 % with few keys a row. A third one of K alone bought at most 2 %, and cost others (benches/recorded/h200/tried.md).
    #[inline(always)]
    pub const fn kv_stages(&self) -> u32 {
        if self.smem_bytes_of(MAX_KV_STAGES) <= MAX_SMEM_BYTES { MAX_KV_STAGES } else { MIN_KV_STAGES }
    }

    /// Dynamic shared memory of a CTA.
    pub const fn smem_bytes(&self) -> u32 {
        self.smem_bytes_of(self.kv_stages())
    }

    /// Whether a warpgroup looks whether its rows see but the first half of the last key tile: under the causal mask every other one does, where
    /// a tile has twice as many keys as a warpgroup has rows; with 112 keys three in seven do. With 96 it is one in three, and looking cost more than it
    /// saved (benches/recorded/h200/tried.md).
    pub const fn looks_for_half(&self) -> bool {
        (self.causal || self.general) && self.tile_n > 96
    }

    /// Whether one copy of the loop's step serves the key tiles under the mask and the others: for head_dim 192 and 256. With two, a copy's products
    /// were a third of a kernel's, most of what the driver compiles at its first use, which took up to 1.3 s. The branch costs next to nothing beside so
    /// many products, but up to 9 % where they are fewer (benches/recorded/h200/tried.md).
    pub const fn one_step(&self) -> bool {
        (self.causal || self.general) && self.panels() >= 3
    }

    /// Registers of a producer thread and of a math thread, after `setmaxnreg`. A warpgroup each, they add up to no more than a CTA is
    /// launched with (64 Ki by the threads, in steps of 8 a thread: 3 x 168 or 4 x 128), or the math threads would wait for ever. Drawing
    /// tiles takes a producer more, and finding their sequences more still.
    pub const fn registers(&self) -> (u32, u32) {
        match (self.math_warpgroups(), self.dynamic, self.general) {
            (2, false, _) => (24, 240),
            (2, true, false) => (40, 232),
            (2, true, true) => (56, 224),
            (_, _, false) => (32, 160),
            (_, _, true) => (56, 152),
        }
    }

    /// With another head_dim of V and O.
    const fn with_head_dim_v(self, head_dim_v: u32) -> Self {
        Self { head_dim_v, ..self }
    }

    /// Panics, at compile time, unless a kernel of this shape can be.
    pub const fn check(&self) {
        assert!(self.head_dim.is_multiple_of(16) && self.head_dim <= 256, "wgmma takes K in steps of 16");
        assert!(
            self.head_dim_v.is_multiple_of(16) && self.head_dim_v <= 256,
            "O is stored in steps of 16 columns; wgmma's N is at most 256"
        );
        assert!(self.panels_v() <= self.panels(), "O leaves through the place of Q");
        assert!(
            self.tile_n.is_multiple_of(16) && self.tile_n <= 256,
            "P is the A operand, in steps of 16 keys; a TMA box has at most 256 rows"
        );
        assert!(self.tile_m.is_multiple_of(WARPGROUP_ROWS) && self.math_warpgroups() >= 2 && self.math_warpgroups() <= MAX_MATH_WARPGROUPS);
        assert!(self.q_stages == 1 || self.q_stages == 2);
        assert!(self.smem_bytes() <= MAX_SMEM_BYTES, "shared memory");
        assert!(self.q_stages.is_power_of_two() && self.kv_stages().is_power_of_two(), "PipelineState::advance");
        let (producer, math) = self.registers();
        let launched = REGISTER_FILE / self.threads() / 8 * 8;
        assert!(producer.is_multiple_of(8) && math.is_multiple_of(8) && producer >= 24 && math <= 256, "what setmaxnreg takes");
        assert!(producer <= launched && launched <= math, "producers shrink, math warpgroups grow");
        assert!(producer + math * self.math_warpgroups() <= launched * (1 + self.math_warpgroups()), "the pool of a CTA");
        // S, P and O live in registers at once, beside about 24 for addresses and the softmax state.
        assert!(self.tile_n / 2 + self.tile_n / 4 + self.head_dim_v / 2 + 24 <= math, "registers of a math thread");
    }
}

const fn tile(head_dim: u32, causal: bool, tile_m: u32, tile_n: u32, q_stages: u32) -> TileConfig {
    TileConfig { head_dim, head_dim_v: head_dim, causal, tile_m, tile_n, q_stages, dynamic: causal, general: false }
}

const fn general(head_dim: u32, tile_m: u32, tile_n: u32, q_stages: u32) -> TileConfig {
    TileConfig { head_dim, head_dim_v: head_dim, causal: false, tile_m, tile_n, q_stages, dynamic: true, general: true }
}

/// What a general kernel makes of a score before the softmax.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScoreFunction {
    /// Nothing.
    Identity,
    /// `softcap * tanh(score / softcap)`.
    SoftCap,
    /// `score - slope * |i + seqlen_k - seqlen_q - j|`, a slope a head (ALiBi, arXiv 2108.12409).
    Alibi,
}

impl ScoreFunction {
    /// All of them, in the order of the kernels' table.
    pub const ALL: [Self; 3] = [Self::Identity, Self::SoftCap, Self::Alibi];
}

/// The plain kernels' shapes, by head_dim and head_dim_v, full before causal.
pub const FORWARD: [TileConfig; 12] = [
    // Bound by exponentials: a third math warpgroup hides them.
    tile(64, false, 192, 128, 2),
    tile(64, true, 192, 128, 2),
    // Three math warpgroups again; as many keys as the registers of a math thread allow.
    tile(96, false, 192, 112, 2),
    tile(96, true, 192, 96, 2),
    // Shared memory would hold 160 keys, but 144 and 160 were no faster (benches/recorded/h200/tried.md).
    tile(128, false, 128, 128, 2),
    // Under the mask three math warpgroups are faster, with as many keys as their registers leave room for, and steps of 64 visit fewer masked keys;
    // without it, 6 % slower for 512 and 1k keys, and at most 1 % faster for more (benches/recorded/h200/tried.md).
    tile(128, true, 192, 64, 2),
    // As many keys as shared memory holds beside one Q, since Q is read anew for each tile of them; two Q buffers would leave room for 96. By
    // reasoning: nothing of it has been measured.
    tile(192, false, 128, 128, 1).with_head_dim_v(128),
    tile(192, true, 128, 128, 1).with_head_dim_v(128),
    // For 96 and 112 keys the registers do not suffice. Two Q buffers would fit, and have not been measured.
    tile(192, false, 128, 80, 1),
    tile(192, true, 128, 80, 1),
    // Shared memory would hold 80 keys; 64 are up to 6 % faster (benches/recorded/h200/tried.md).
    tile(256, false, 128, 64, 1),
    tile(256, true, 128, 64, 1),
];

/// Shapes of fewer rows than [`FORWARD`] has for the same heads and mask, for problems of so few row tiles that more of them have a multiprocessor
/// each. Their key tiles are the same, so that no bit of a result depends on which of the two runs.
pub const FEWER_ROWS: [TileConfig; 1] = [
    // 16 heads of 1024 queries are 96 tiles of 192 rows or 128 of 128, on 132 multiprocessors.
    tile(128, true, 128, 64, 2),
];

/// The general kernels' shapes, by head_dim and head_dim_v: masks of any window, ragged sequences. Tiles differ in length.
/// They are those of the plain causal kernels, but for 64, where a math thread's registers hold no more than 112 keys.
pub const GENERAL: [TileConfig; 6] = [
    general(64, 192, 112, 2),
    general(96, 192, 96, 2),
    general(128, 192, 64, 2),
    general(192, 128, 128, 1).with_head_dim_v(128),
    general(192, 128, 80, 1),
    general(256, 128, 64, 1),
];

/// Those of them that there are with a score function, too. No model is known that has one and unequal head dims: there the kernels for equal
/// ones serve.
pub const SCORED: [TileConfig; 5] = [GENERAL[0], GENERAL[1], GENERAL[2], GENERAL[4], GENERAL[5]];

/// The shapes of kernels with functions of a user's own (`forward_kernel!`), by head_dim. Functions need registers too: two math warpgroups have
/// the most, and with these many keys 24 to 80 of a thread's remain for them.
pub const CUSTOM: [TileConfig; 5] =
    [general(64, 128, 128, 2), general(96, 128, 96, 2), general(128, 128, 96, 2), general(192, 128, 80, 1), general(256, 128, 64, 1)];

const _: () = {
    check_all(&FORWARD);
    check_all(&FEWER_ROWS);
    check_all(&GENERAL);
    check_all(&SCORED);
    check_all(&CUSTOM);
};

#[allow(dead_code, reason = "Rust 1.88 does not count what a constant calls as used")]
const fn check_all(table: &[TileConfig]) {
    let mut i = 0;
    while i < table.len() {
        table[i].check();
        let mut later = i + 1;
        while later < table.len() {
            assert!(
                table[later].head_dim >= table[i].head_dim && table[later].head_dim_v >= table[i].head_dim_v,
                "the first shape that holds a problem is the smallest"
            );
            later += 1;
        }
        i += 1;
    }
}

/// The general kernels' shapes that there are with a score function.
pub const fn general_shapes(scores: ScoreFunction) -> &'static [TileConfig] {
    match scores {
        ScoreFunction::Identity => &GENERAL,
        ScoreFunction::SoftCap | ScoreFunction::Alibi => &SCORED,
    }
}

/// So many keys are many: with fewer, what a general kernel saves by packing query heads is little beside the rest of a call.
pub const MANY_KEYS: usize = 1024;

/// The shape whose key tiles attention without a window, lengths, scores or sinks is computed in: the plain one; or the general one, which packs
/// query heads (`FeatureParams::pack_log2`), for at most half a row tile of queries on [`MANY_KEYS`]. Where the two have key tiles of one size,
/// it is the plain one, and either may run.
pub const fn config_of_lengths(head_dim: u32, head_dim_v: u32, causal: bool, seqlen_q: usize, seqlen_k: usize) -> Option<TileConfig> {
    match (forward_config(head_dim, head_dim_v, causal), general_config(head_dim, head_dim_v, ScoreFunction::Identity)) {
        (Some(plain), Some(general)) => {
            let few_queries = seqlen_q <= plain.tile_m as usize / 2 && seqlen_k >= MANY_KEYS;
            Some(if few_queries && plain.tile_n != general.tile_n { general } else { plain })
        }
        _ => None,
    }
}

/// The shape of the general kernel with a score function that serves `head_dim` and `head_dim_v` (1 to 256): the smallest that holds both.
pub const fn general_config(head_dim: u32, head_dim_v: u32, scores: ScoreFunction) -> Option<TileConfig> {
    smallest(general_shapes(scores), head_dim, head_dim_v, false)
}

/// The shape of the plain kernel that serves `head_dim` and `head_dim_v` (1 to 256): the smallest that holds both.
pub const fn forward_config(head_dim: u32, head_dim_v: u32, causal: bool) -> Option<TileConfig> {
    smallest(&FORWARD, head_dim, head_dim_v, causal)
}

/// The shape of fewer rows that may run in the place of a plain one.
pub const fn with_fewer_rows(config: &TileConfig) -> Option<TileConfig> {
    let mut i = 0;
    while i < FEWER_ROWS.len() {
        let fewer = FEWER_ROWS[i];
        if !config.general && config.head_dim == fewer.head_dim && config.head_dim_v == fewer.head_dim_v && config.causal == fewer.causal {
            return Some(fewer);
        }
        i += 1;
    }
    None
}

/// The shape of fewer rows of these native sizes.
#[inline]
pub const fn shape_of_fewer_rows(head_dim: u32, head_dim_v: u32, causal: bool) -> TileConfig {
    native(with_fewer_rows(&shape(head_dim, head_dim_v, causal)), head_dim, head_dim_v)
}

/// The shape of a plain kernel of these native sizes.
#[inline]
pub const fn shape(head_dim: u32, head_dim_v: u32, causal: bool) -> TileConfig {
    native(forward_config(head_dim, head_dim_v, causal), head_dim, head_dim_v)
}

/// The shape of a general kernel of these native sizes.
#[inline]
pub const fn general_shape(head_dim: u32, head_dim_v: u32) -> TileConfig {
    native(general_config(head_dim, head_dim_v, ScoreFunction::Identity), head_dim, head_dim_v)
}

/// The shape of a kernel with functions of a user's own, of this native size; with other than the table's keys a step where `tile_n` is given.
#[inline]
pub const fn custom_shape(head_dim: u32, tile_n: Option<u32>) -> TileConfig {
    let shape = native(custom_config(head_dim), head_dim, head_dim);
    match tile_n {
        Some(tile_n) => TileConfig { tile_n, ..shape },
        None => shape,
    }
}

/// The shape in [`CUSTOM`] that serves `head_dim`.
pub const fn custom_config(head_dim: u32) -> Option<TileConfig> {
    smallest(&CUSTOM, head_dim, head_dim, false)
}

#[inline]
const fn native(config: Option<TileConfig>, head_dim: u32, head_dim_v: u32) -> TileConfig {
    match config {
        Some(config) if config.head_dim == head_dim && config.head_dim_v == head_dim_v => config,
        _ => panic!("the head dims are no native sizes in the table"),
    }
}

const fn smallest(table: &[TileConfig], head_dim: u32, head_dim_v: u32, causal: bool) -> Option<TileConfig> {
    let mut i = 0;
    while i < table.len() {
        if table[i].head_dim >= head_dim && table[i].head_dim_v >= head_dim_v && table[i].causal == causal {
            return Some(table[i]);
        }
        i += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_native_size() {
        for (head_dim, native) in [(8, 64), (64, 64), (72, 96), (96, 96), (104, 128), (136, 192), (200, 256), (256, 256)] {
            for causal in [false, true] {
                let config = forward_config(head_dim, head_dim, causal).unwrap();
                assert_eq!((config.head_dim, config.head_dim_v, config.causal), (native, native, causal));
            }
        }
        for (head_dim, head_dim_v, native) in [
            (192, 128, (192, 128)),
            (136, 8, (192, 128)),
            (192, 136, (192, 192)),
            (128, 192, (192, 192)),
            (128, 128, (128, 128)),
            (8, 96, (96, 96)),
        ] {
            let config = forward_config(head_dim, head_dim_v, true).unwrap();
            assert_eq!((config.head_dim, config.head_dim_v), native);
        }
        let served = |scores| general_config(192, 128, scores).map(|config| config.head_dim_v);
        assert_eq!(ScoreFunction::ALL.map(served), [Some(128), Some(192), Some(192)]);
        assert_eq!(forward_config(264, 64, false), None);
        assert_eq!(forward_config(64, 264, false), None);
    }

    /// Whatever a head needs, no shape of its kind that holds it is smaller than the one chosen, in either size.
    #[test]
    fn every_pair_gets_the_smallest_shape_that_holds_it() {
        let plain = [false, true].map(|causal| (&FORWARD[..], causal, None));
        let general = ScoreFunction::ALL.map(|scores| (general_shapes(scores), false, Some(scores)));
        for (table, causal, scores) in plain.into_iter().chain(general) {
            for (head_dim, head_dim_v) in (8..=256).step_by(8).flat_map(|head_dim| (8..=256).step_by(8).map(move |v| (head_dim, v))) {
                let chosen = match scores {
                    None => forward_config(head_dim, head_dim_v, causal),
                    Some(scores) => general_config(head_dim, head_dim_v, scores),
                };
                let holds = |shape: &&TileConfig| shape.causal == causal && shape.head_dim >= head_dim && shape.head_dim_v >= head_dim_v;
                let least = |size: fn(&TileConfig) -> u32| table.iter().filter(holds).map(size).min();
                let chosen = chosen.expect("a kernel for every pair");
                assert!(holds(&&chosen) && table.contains(&chosen), "{head_dim}, {head_dim_v}: {chosen:?}");
                assert_eq!(Some(chosen.head_dim), least(|shape| shape.head_dim), "{head_dim}, {head_dim_v}");
                assert_eq!(Some(chosen.head_dim_v), least(|shape| shape.head_dim_v), "{head_dim}, {head_dim_v}");
            }
        }
    }

    #[test]
    fn fewer_rows_of_the_same_key_tiles() {
        for fewer in FEWER_ROWS {
            let usual = shape(fewer.head_dim, fewer.head_dim_v, fewer.causal);
            assert!(fewer.tile_m < usual.tile_m);
            assert_eq!((fewer.tile_n, with_fewer_rows(&usual)), (usual.tile_n, Some(fewer)));
        }
        assert_eq!(with_fewer_rows(&shape(128, 128, false)), None);
        assert_eq!(with_fewer_rows(&general_shape(128, 128)), None);
    }

    #[test]
    fn few_queries_on_many_keys_take_general_tiles() {
        for (head_dim, causal, other_tiles) in [
            (64, false, true),
            (64, true, true),
            (96, false, true),
            (96, true, false),
            (128, false, true),
            (128, true, false),
            (256, false, false),
        ] {
            let tile_m = forward_config(head_dim, head_dim, causal).unwrap().tile_m as usize;
            for (seqlen_q, seqlen_k, few) in
                [(1, MANY_KEYS, true), (tile_m / 2, 1 << 30, true), (tile_m / 2 + 1, 1 << 30, false), (1, MANY_KEYS - 1, false)]
            {
                let config = config_of_lengths(head_dim, head_dim, causal, seqlen_q, seqlen_k).unwrap();
                assert_eq!(config.general, few && other_tiles, "{head_dim} {causal} {seqlen_q} {seqlen_k}");
            }
        }
        assert_eq!(config_of_lengths(264, 64, false, 1, 1), None);
    }
}
