//! The kernels' PTX: built in, or from a folder.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::OnceLock;

use hopper_attention_kernels::config::{
    COMBINE_THREADS, FEWER_ROWS, FORWARD, GENERAL, SCORED, ScoreFunction, TileConfig, forward_config, general_config, general_shapes,
    shape_of_fewer_rows,
};
use hopper_attention_kernels::params::CombineParams;

use crate::plan::Family;
use crate::signature::{GENERAL_PARAMETERS, Signature};
use crate::{DType, Error};

/// Environment variable that names a folder of PTX files to use instead of the built-in ones; empty counts as unset.
const PTX_DIR_VARIABLE: &str = "HOPPER_ATTENTION_PTX_DIR";

/// A kernel: its entry, what a launch of it brings, and the module that holds nothing else.
pub(crate) struct Kernel {
    pub entry: &'static str,
    /// Dynamic shared memory.
    pub smem_bytes: u32,
    /// Of a CTA.
    threads: u32,
    /// Bytes of each parameter.
    parameters: &'static [usize],
    /// What build.rs makes of the file: its text, compressed (RFC 1951).
    builtin_ptx: &'static [u8],
}

macro_rules! kernel {
    ($launch:expr, $entry:expr) => {
        Kernel {
            entry: $entry,
            smem_bytes: $launch.smem_bytes,
            threads: $launch.threads,
            parameters: $launch.parameters,
            builtin_ptx: include_bytes!(concat!(env!("OUT_DIR"), "/", $entry, ".ptx.deflate")),
        }
    };
}

/// f16 before bf16: the plain kernels in the order of [`FORWARD`], full before causal, then those of [`FEWER_ROWS`]; the general ones
/// function by function, each in the order of [`general_shapes`]; then those that combine.
macro_rules! kernels {
    (plain: $($plain:literal $plain_dims:tt)* ; fewer_rows: $($fewer:literal $fewer_dims:tt)* ; general: $($general:literal $general_dims:tt)* ; scored: $($scored:literal $scored_dims:tt)*) => {
        [
            $(
                kernel!(plain($plain_dims, false), concat!("flash_fwd_hdim", $plain, "_f16_sm90")),
                kernel!(plain($plain_dims, false), concat!("flash_fwd_hdim", $plain, "_bf16_sm90")),
                kernel!(plain($plain_dims, true), concat!("flash_fwd_hdim", $plain, "_f16_causal_sm90")),
                kernel!(plain($plain_dims, true), concat!("flash_fwd_hdim", $plain, "_bf16_causal_sm90")),
            )*
            $(
                kernel!(fewer_rows($fewer_dims), concat!("flash_fwd_hdim", $fewer, "_f16_causal_fewer_rows_sm90")),
                kernel!(fewer_rows($fewer_dims), concat!("flash_fwd_hdim", $fewer, "_bf16_causal_fewer_rows_sm90")),
            )*
            $(
                kernel!(general($general_dims), concat!("flash_fwd_hdim", $general, "_f16_general_sm90")),
                kernel!(general($general_dims), concat!("flash_fwd_hdim", $general, "_bf16_general_sm90")),
            )*
            $(
                kernel!(general($scored_dims), concat!("flash_fwd_hdim", $scored, "_f16_general_softcap_sm90")),
                kernel!(general($scored_dims), concat!("flash_fwd_hdim", $scored, "_bf16_general_softcap_sm90")),
            )*
            $(
                kernel!(general($scored_dims), concat!("flash_fwd_hdim", $scored, "_f16_general_alibi_sm90")),
                kernel!(general($scored_dims), concat!("flash_fwd_hdim", $scored, "_bf16_general_alibi_sm90")),
            )*
            kernel!(COMBINE, "flash_combine_f16_sm90"),
            kernel!(COMBINE, "flash_combine_bf16_sm90"),
        ]
    };
}

/// What a launch brings, as far as the kernel's family and shape say it.
struct Launch {
    smem_bytes: u32,
    threads: u32,
    parameters: &'static [usize],
}

impl Launch {
    const fn of(config: &TileConfig) -> Self {
        let parameters = if config.general { &GENERAL_PARAMETERS } else { PLAIN_PARAMETERS };
        Self { smem_bytes: config.smem_bytes(), threads: config.threads(), parameters }
    }
}

const fn plain((head_dim, head_dim_v): (u32, u32), causal: bool) -> Launch {
    Launch::of(&forward_config(head_dim, head_dim_v, causal).expect("every kernel has its shape in FORWARD"))
}

const fn fewer_rows((head_dim, head_dim_v): (u32, u32)) -> Launch {
    Launch::of(&shape_of_fewer_rows(head_dim, head_dim_v, true))
}

const fn general((head_dim, head_dim_v): (u32, u32)) -> Launch {
    Launch::of(&general_config(head_dim, head_dim_v, ScoreFunction::Identity).expect("every kernel has its shape in GENERAL"))
}

const COMBINE: Launch = Launch { smem_bytes: 0, threads: COMBINE_THREADS, parameters: &[size_of::<CombineParams>()] };

const PLAIN_PARAMETERS: &[usize] = GENERAL_PARAMETERS.split_at(5).0;

/// Plain kernels: each shape in each dtype.
const PLAIN_COUNT: usize = 2 * (FORWARD.len() + FEWER_ROWS.len());
/// Where the general kernels of each score function begin, in the order of [`ScoreFunction::ALL`]: each shape in each dtype.
const GENERAL_BEGIN: [usize; 3] = [PLAIN_COUNT, PLAIN_COUNT + 2 * GENERAL.len(), PLAIN_COUNT + 2 * (GENERAL.len() + SCORED.len())];
/// Forward kernels.
const FORWARD_COUNT: usize = GENERAL_BEGIN[2] + 2 * SCORED.len();
/// How many kernels there are.
pub(crate) const COUNT: usize = FORWARD_COUNT + 2;

/// Every kernel; [`forward_index`] and [`combine_index`] say where.
pub(crate) static KERNELS: [Kernel; COUNT] = kernels! {
    plain: "64" (64, 64) "96" (96, 96) "128" (128, 128) "192_128" (192, 128) "192" (192, 192) "256" (256, 256);
    fewer_rows: "128" (128, 128);
    general: "64" (64, 64) "96" (96, 96) "128" (128, 128) "192_128" (192, 128) "192" (192, 192) "256" (256, 256);
    scored: "64" (64, 64) "96" (96, 96) "128" (128, 128) "192" (192, 192) "256" (256, 256)
};

/// The place in [`KERNELS`] of the forward kernel of a family and a shape, which is one of the family's.
pub(crate) fn forward_index(family: Family, config: &TileConfig, dtype: DType) -> usize {
    let (begin, shapes, more): (_, _, &[TileConfig]) = match family {
        Family::Plain { .. } => (0, &FORWARD[..], &FEWER_ROWS),
        Family::General(scores) => (GENERAL_BEGIN[scores as usize], general_shapes(scores), &[]),
        Family::Custom { .. } => unreachable!("a kernel of the caller's own is not in the table"),
    };
    let shape = shapes.iter().chain(more).position(|shape| shape == config).expect("plans take their shape from the family's table");
    begin + 2 * shape + (dtype == DType::Bf16) as usize
}

/// The place in [`KERNELS`] of the kernel that combines.
pub(crate) fn combine_index(dtype: DType) -> usize {
    FORWARD_COUNT + (dtype == DType::Bf16) as usize
}

static PTX_DIR: OnceLock<Option<PathBuf>> = OnceLock::new();

pub(crate) fn set_ptx_dir(dir: PathBuf) -> Result<(), Error> {
    PTX_DIR.set(Some(dir)).map_err(|dir| {
        let in_use = PTX_DIR.get().and_then(Option::as_ref).map_or("the built-in PTX is".into(), |dir| format!("{} is", dir.display()));
        let requirement = format!("chosen once, and before the first kernel is loaded; {in_use} in use");
        Error::invalid("the folder of PTX files", dir.unwrap_or_default().display(), requirement)
    })
}

/// The folder that the variable's value names.
fn named_dir(value: Option<OsString>) -> Option<PathBuf> {
    value.filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// A module's text, and where it comes from.
pub(crate) struct Ptx<'a> {
    pub text: Cow<'a, str>,
    /// `None` for what is built in, or the caller's own.
    pub file: Option<PathBuf>,
}

impl Kernel {
    /// The module that is built in.
    fn builtin(&self) -> String {
        const OURS: &str = "build.rs has compressed a text";
        String::from_utf8(miniz_oxide::inflate::decompress_to_vec(self.builtin_ptx).expect(OURS)).expect(OURS)
    }

    /// The module, whose kernel takes the parameters and has the threads that the table says.
    pub fn ptx(&self) -> Result<Ptx<'static>, Error> {
        let Some(dir) = PTX_DIR.get_or_init(|| named_dir(std::env::var_os(PTX_DIR_VARIABLE))) else {
            return Ok(Ptx { text: Cow::Owned(self.builtin()), file: None });
        };
        let path = dir.join(self.entry).with_extension("ptx");
        // Of anything but a file, a pipe for instance, reading might never end.
        let is_file = std::fs::metadata(&path).map(|metadata| metadata.is_file());
        let not_a_file = || Err(std::io::Error::other("it is no regular file"));
        let text = is_file.and_then(|is_file| if is_file { std::fs::read_to_string(&path) } else { not_a_file() });
        match text.and_then(|text| self.check(&text).map(|()| text)) {
            Ok(text) => Ok(Ptx { text: Cow::Owned(text), file: Some(path) }),
            Err(source) => Err(Error::PtxFile { path, source }),
        }
    }

    /// Whether a launch brings what the kernel of this text takes. The driver would read beyond what is brought for less.
    fn check(&self, ptx: &str) -> std::io::Result<()> {
        match Signature::difference(ptx, self.entry, self.parameters, self.threads) {
            None => Ok(()),
            Some(difference) => {
                let message = format!("{difference}: it was not made with this version of the project; build it again (cargo xtask ptx)");
                Err(std::io::Error::new(std::io::ErrorKind::InvalidData, message))
            }
        }
    }
}

/// The PTX version that a module's text asks for, its directive `.version`.
pub(crate) fn ptx_version(ptx: &str) -> Option<(u32, u32)> {
    let version = ptx.lines().find_map(|line| line.trim().strip_prefix(".version"))?;
    let (major, minor) = version.trim().split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The first CUDA version whose driver reads a PTX version: PTX ISA, release notes, table "PTX Release History".
pub(crate) fn cuda_version_of_ptx((major, minor): (u32, u32)) -> (u32, u32) {
    match (major, minor) {
        (8, 6) => (12, 7),
        (8, 7) => (12, 8),
        (8, 8) => (12, 9),
        (8, minor) => (12, minor),
        (major, minor) => (major + 4, minor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HeadDims;

    fn check(kernel: &Kernel, entry: String, smem_bytes: u32) {
        assert_eq!((kernel.entry, kernel.smem_bytes), (entry.as_str(), smem_bytes));
        let ptx = kernel.builtin();
        // Launches rely on it for what is built in, too, which is checked here and no more.
        kernel.check(&ptx).unwrap();
        assert!(ptx_version(&ptx).is_some(), "{entry}");
    }

    #[test]
    fn one_module_for_every_kernel() {
        let hdim = |config: &TileConfig| HeadDims::from((config.head_dim as usize, config.head_dim_v as usize));
        let mut indices = Vec::new();
        for dtype in [DType::F16, DType::Bf16] {
            for config in FORWARD.into_iter().chain(FEWER_ROWS) {
                let mask = if config.causal { "_causal" } else { "" };
                let rows = if FEWER_ROWS.contains(&config) { "_fewer_rows" } else { "" };
                let entry = format!("flash_fwd_hdim{}_{}{mask}{rows}_sm90", hdim(&config), dtype.name());
                indices.push(forward_index(Family::Plain { causal: config.causal }, &config, dtype));
                check(&KERNELS[indices[indices.len() - 1]], entry, config.smem_bytes());
            }
            for scores in ScoreFunction::ALL {
                let suffix = match scores {
                    ScoreFunction::Identity => "",
                    ScoreFunction::SoftCap => "_softcap",
                    ScoreFunction::Alibi => "_alibi",
                };
                for config in general_shapes(scores) {
                    let entry = format!("flash_fwd_hdim{}_{}_general{suffix}_sm90", hdim(config), dtype.name());
                    indices.push(forward_index(Family::General(scores), config, dtype));
                    check(&KERNELS[indices[indices.len() - 1]], entry, config.smem_bytes());
                }
            }
            indices.push(combine_index(dtype));
            check(&KERNELS[combine_index(dtype)], format!("flash_combine_{}_sm90", dtype.name()), 0);
        }
        indices.sort();
        assert!(indices.into_iter().eq(0..COUNT));
    }

    #[test]
    fn the_text_built_in_is_the_file() {
        for kernel in &KERNELS {
            let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("ptx").join(kernel.entry).with_extension("ptx");
            assert!(kernel.builtin() == std::fs::read_to_string(&path).unwrap(), "{}", path.display());
            assert!(3 * kernel.builtin_ptx.len() < kernel.builtin().len(), "{}: {} bytes", kernel.entry, kernel.builtin_ptx.len());
        }
    }

    #[test]
    fn an_empty_variable_names_no_folder() {
        assert_eq!([None, Some("".into()), Some("ptx".into())].map(named_dir), [None, None, Some("ptx".into())]);
    }

    #[test]
    fn versions() {
        assert_eq!(ptx_version("//\n.version 8.3\n.target sm_90a\n"), Some((8, 3)));
        assert_eq!(ptx_version(".target sm_90a"), None);
        let cuda = [(8, 0), (8, 3), (8, 5), (8, 7), (8, 8), (9, 0)].map(cuda_version_of_ptx);
        assert_eq!(cuda, [(12, 0), (12, 3), (12, 5), (12, 8), (12, 9), (13, 0)]);
    }
}
