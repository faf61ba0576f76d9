//! How much is tested: everything on a GPU; where an emulator stands in for it, every kernel and every test that fits, with fewer and
//! smaller cases. Decided here and nowhere else.

use crate::Failure;
use std::ffi::{OsStr, OsString};
use std::sync::OnceLock;
use std::time::Duration;

/// Environment variable: `gpu` or `emulator`; what the driver is by default.
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
    /// If the environment variable has another value than those it may have; programs ask [`Profile::of_environment`] first.
    pub fn get() -> Self {
        static PROFILE: OnceLock<Profile> = OnceLock::new();
        *PROFILE.get_or_init(|| Self::of_environment().unwrap_or_else(|failure| panic!("{failure}")))
    }

    /// The profile that the environment variable names, or what is wrong with it.
    pub fn of_environment() -> Result<Self, Failure> {
        Self::named(std::env::var_os(DEVICE_VARIABLE), driver_is_the_emulator)
    }

    /// A GPU's tests take hours on the emulator, so without a name it is looked at what the driver is.
    fn named(name: Option<OsString>, is_emulator: impl FnOnce() -> bool) -> Result<Self, Failure> {
        match name.as_deref().map(OsStr::to_string_lossy).as_deref() {
            None if is_emulator() => Ok(Self::Emulator),
            None | Some("gpu") => Ok(Self::Gpu),
            Some("emulator") => Ok(Self::Emulator),
            Some(other) => Err(Failure(format!("{DEVICE_VARIABLE} is '{other}', but must be 'gpu' or 'emulator'"))),
        }
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

    /// How many cases a property draws, or what is wrong with the environment variable.
    pub fn property_cases(self) -> Result<u32, Failure> {
        self.cases(std::env::var_os(CASES_VARIABLE))
    }

    fn cases(self, cases: Option<OsString>) -> Result<u32, Failure> {
        let Some(cases) = cases else { return Ok(self.pick(400, 12)) };
        let cases = cases.to_string_lossy();
        let number = cases.parse().ok().filter(|&number| number > 0);
        number.ok_or_else(|| Failure(format!("{CASES_VARIABLE} is '{cases}', but must be a number of at least 1")))
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

/// Whether the driver that the library under test opens has a function that only the emulator has.
fn driver_is_the_emulator() -> bool {
    let named = std::env::var_os(hopper_attention_driver::DRIVER_VARIABLE).filter(|name| !name.is_empty());
    // SAFETY: loading runs the library's initialisers: those of a driver, which the tests are about to open anyway.
    let driver = unsafe { libloading::Library::new(named.unwrap_or_else(|| "libcuda.so.1".into())) };
    // SAFETY: the function is looked for, and not called.
    driver.is_ok_and(|driver| unsafe { driver.get::<*const ()>(b"hopperEmulatorLastReport\0") }.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_profiles() {
        assert_eq!(Profile::named(None, || false), Ok(Profile::Gpu));
        assert_eq!(Profile::named(None, || true), Ok(Profile::Emulator));
        for profile in [Profile::Gpu, Profile::Emulator] {
            assert_eq!(Profile::named(Some(profile.name().into()), || profile == Profile::Gpu), Ok(profile));
        }
        for wrong in ["", "GPU", "emulator ", "cpu"] {
            let failure = Profile::named(Some(wrong.into()), || true).unwrap_err();
            assert_eq!(failure.0, format!("HOPPER_ATTENTION_DEVICE is '{wrong}', but must be 'gpu' or 'emulator'"));
        }
    }

    #[test]
    fn a_property_draws_at_least_one_case() {
        assert_eq!(Profile::Emulator.cases(None), Ok(12));
        assert_eq!(Profile::Emulator.cases(Some("1".into())), Ok(1));
        for wrong in ["", "0", "-1", "many", "4294967296"] {
            let failure = Profile::Gpu.cases(Some(wrong.into())).unwrap_err();
            assert_eq!(failure.0, format!("HOPPER_ATTENTION_PROPERTY_CASES is '{wrong}', but must be a number of at least 1"));
        }
    }
}
