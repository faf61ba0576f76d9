//! How much is tested: everything on a GPU; where an emulator stands in for it, every kernel and every test that fits, with fewer and
//! smaller cases. Decided here and nowhere else.

use std::sync::OnceLock;
use std::time::Duration;

/// Environment variable: `gpu` (the default) or `emulator`.
pub const DEVICE_VARIABLE: &str = "HOPPER_ATTENTION_DEVICE";
/// Environment variable: how many cases each property draws.
pub const CASES_VARIABLE: &str = "HOPPER_ATTENTION_PROPERTY_CASES";

/// What the tests run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// A GPU.
    Gpu,
    /// A CPU that interprets the kernels, at some hundred MFLOP/s.
    Emulator,
}

/// (seqlen_q, seqlen_k): the lists that FlashAttention-3 is tested with, contiguous and varlen.
const LENGTHS: [(usize, usize); 26] = [
    (1, 1),
    (64, 128),
    (128, 192),
    (256, 256),
    (239, 1),
    (799, 3),
    (113, 203),
    (113, 128),
    (128, 217),
    (113, 211),
    (108, 256),
    (256, 512),
    (384, 256),
    (640, 128),
    (512, 256),
    (1024, 1024),
    (1023, 1024),
    (1024, 1023),
    (4096, 4096),
    (4224, 4224),
    (1, 3),
    (2, 1),
    (511, 1),
    (3, 513),
    (307, 256),
    (2048, 2048),
];

/// Native sizes, sizes that end within one, and sizes that are no multiple of 16.
const HEAD_DIMS: [usize; 16] = [8, 16, 24, 40, 64, 72, 80, 96, 104, 128, 136, 160, 192, 200, 248, 256];

impl Profile {
    /// The profile of this process.
    ///
    /// # Panics
    ///
    /// If the environment variable has another value than those it may have.
    pub fn get() -> Self {
        static PROFILE: OnceLock<Profile> = OnceLock::new();
        *PROFILE.get_or_init(|| match std::env::var(DEVICE_VARIABLE).as_deref() {
            Err(_) | Ok("gpu") => Self::Gpu,
            Ok("emulator") => Self::Emulator,
            Ok(other) => panic!("{DEVICE_VARIABLE} is '{other}', but must be 'gpu' or 'emulator'"),
        })
    }

    /// The name, as the environment variable spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::Emulator => "emulator",
        }
    }

    /// Sizes of a head, each with its pairs (seqlen_q, seqlen_k) of the named lists: all of them on a GPU; else the short ones, shared out
    /// among three neighbouring sizes.
    pub fn head_dims_and_lengths(self) -> Vec<(usize, Vec<(usize, usize)>)> {
        let lengths = |turn: usize| -> Vec<(usize, usize)> {
            match self {
                Self::Gpu => LENGTHS.to_vec(),
                Self::Emulator => LENGTHS.into_iter().filter(|&(q, k)| q.max(k) <= 256).skip(turn % 3).step_by(3).collect(),
            }
        };
        HEAD_DIMS.into_iter().enumerate().map(|(turn, head_dim)| (head_dim, lengths(turn))).collect()
    }

    /// `on_gpu` on a GPU, else `on_emulator`.
    pub fn pick<T>(self, on_gpu: T, on_emulator: T) -> T {
        match self {
            Self::Gpu => on_gpu,
            Self::Emulator => on_emulator,
        }
    }

    /// How many cases a property draws.
    ///
    /// # Panics
    ///
    /// If the environment variable is no number.
    pub fn property_cases(self) -> u32 {
        match std::env::var(CASES_VARIABLE) {
            Ok(cases) => cases.parse().unwrap_or_else(|_| panic!("{CASES_VARIABLE} is '{cases}', but must be a number")),
            Err(_) => self.pick(400, 12),
        }
    }

    /// Pairs of query and key for which the CPU computes references in one case; beyond that, rows are sampled.
    pub fn judged_pairs(self) -> usize {
        self.pick(1 << 22, 1 << 18)
    }

    /// After how long work on the device counts as hanging.
    pub fn patience(self) -> Duration {
        self.pick(Duration::from_secs(60), Duration::from_secs(3600))
    }
}
