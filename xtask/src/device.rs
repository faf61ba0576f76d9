//! What kernels run on: a Hopper GPU, or the emulator in its place.

use crate::emulator;
use crate::workspace::output_of;
use anyhow::{Result, bail};
use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::process::Command;

/// Another library to open instead of libcuda.so.1.
pub const DRIVER_VARIABLE: &str = "HOPPER_ATTENTION_DRIVER";
/// How much the device tests do: `gpu` or `emulator`.
pub const DEVICE_VARIABLE: &str = "HOPPER_ATTENTION_DEVICE";

/// One GPU, as nvidia-smi describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Such as `NVIDIA H200`.
    pub name: String,
    /// Such as `9.0`.
    pub compute_capability: String,
    /// Such as `580.159.04`.
    pub driver: String,
}

impl Gpu {
    /// The name as a folder: `h200`.
    pub fn slug(&self) -> String {
        let name = self.name.strip_prefix("NVIDIA ").unwrap_or(&self.name);
        name.to_lowercase().split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
    }

    /// Whether the kernels run on it.
    pub fn is_hopper(&self) -> bool {
        self.compute_capability == "9.0"
    }
}

/// The GPUs that nvidia-smi names; none where it is missing or fails.
pub fn gpus() -> Vec<Gpu> {
    let mut command = Command::new("nvidia-smi");
    command.args(["--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader"]);
    match output_of(&mut command) {
        Ok(output) if output.status.success() => parse(&String::from_utf8_lossy(&output.stdout)),
        _ => Vec::new(),
    }
}

fn parse(csv: &str) -> Vec<Gpu> {
    let rows = csv.lines().map(|line| line.split(',').map(|field| field.trim().to_owned()).collect::<Vec<_>>());
    rows.filter_map(|row| match <[String; 3]>::try_from(row) {
        Ok([name, compute_capability, driver]) => Some(Gpu { name, compute_capability, driver }),
        Err(_) => None,
    })
    .collect()
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Wanted {
    /// A Hopper GPU where one is found, else the emulator
    Auto,
    /// A Hopper GPU; it is an error if none is found
    Gpu,
    /// The emulator, which executes the same PTX on the CPU
    Emulator,
}

/// What kernels run on.
#[derive(Debug, PartialEq, Eq)]
pub enum Device {
    /// A Hopper GPU.
    Gpu(Gpu),
    /// Whatever the driver has that the environment names.
    Named {
        /// The variable's value.
        library: PathBuf,
        /// Whether the library is a build of the emulator.
        is_emulator: bool,
    },
    /// The emulator, and why.
    Emulator(String),
}

impl Device {
    /// Finds what is wanted on this machine.
    pub fn find(wanted: Wanted) -> Result<Self> {
        let named = env::var_os(DRIVER_VARIABLE).filter(|library| !library.is_empty());
        Self::choose(wanted, named.map(PathBuf::from), &gpus())
    }

    fn choose(wanted: Wanted, named: Option<PathBuf>, gpus: &[Gpu]) -> Result<Self> {
        if wanted == Wanted::Emulator {
            return Ok(Self::Emulator("as asked for".to_owned()));
        }
        if let Some(library) = named {
            let is_emulator = emulator::is_one(&library);
            if is_emulator && wanted == Wanted::Gpu {
                bail!("{DRIVER_VARIABLE} names the emulator, {}: unset it, or leave --device gpu out", library.display());
            }
            return Ok(Self::Named { library, is_emulator });
        }
        if let Some(gpu) = gpus.iter().find(|gpu| gpu.is_hopper()) {
            return Ok(Self::Gpu(gpu.clone()));
        }
        let found: Vec<_> = gpus.iter().map(|gpu| format!("{} ({})", gpu.name, gpu.compute_capability)).collect();
        let why = match found.as_slice() {
            [] => "no NVIDIA GPU found: nvidia-smi names none".to_owned(),
            found => format!("no Hopper GPU (compute capability 9.0) found, only {}", found.join(", ")),
        };
        if wanted == Wanted::Gpu {
            bail!("{why}; `--device emulator` computes on the CPU");
        }
        Ok(Self::Emulator(why))
    }

    /// Whether programs get the emulator, whoever names it.
    pub fn is_emulator(&self) -> bool {
        matches!(self, Self::Emulator(_) | Self::Named { is_emulator: true, .. })
    }

    /// The environment of programs that run on it. The emulator is built first.
    pub fn environment(&self) -> Result<Vec<(&'static str, OsString)>> {
        match self {
            Self::Gpu(_) => Ok(vec![(DEVICE_VARIABLE, "gpu".into())]),
            Self::Named { library, is_emulator: true } => Ok(emulator::environment_of(library.clone())),
            Self::Named { library, is_emulator: false } => Ok(vec![(DRIVER_VARIABLE, library.into())]),
            Self::Emulator(_) => Ok(emulator::environment_of(emulator::build()?)),
        }
    }
}

/// Of this project's variables those that a program may inherit from the shell: they choose neither its kernels nor its tests, and turn no check
/// off. What else a command needs, it sets.
const INHERITED: [&str; 8] = [
    DRIVER_VARIABLE,
    DEVICE_VARIABLE,
    "HOPPER_ATTENTION_PROPERTY_SEED",
    "HOPPER_ATTENTION_REPORT_DIR",
    "HOPPER_EMULATOR_MEMORY",
    "HOPPER_EMULATOR_SEED",
    "HOPPER_EMULATOR_THREADS",
    "HOPPER_EMULATOR_TRACE",
];

/// Has a program inherit none of this project's other variables, which were meant for another one: with a folder of kernels or a case left in the
/// shell, tests would pass without having run. Comes before what sets variables.
pub fn shield(command: &mut Command) -> &mut Command {
    env::vars_os().filter(|(name, _)| misleads(name)).for_each(|(name, _)| {
        command.env_remove(name);
    });
    command
}

/// The variables that [`shield`] keeps from programs, of those that are set.
pub fn shielded() -> Vec<String> {
    env::vars_os().map(|(name, _)| name).filter(|name| misleads(name)).map(|name| name.to_string_lossy().into_owned()).collect()
}

fn misleads(variable: &OsStr) -> bool {
    variable.to_str().is_some_and(|name| name.starts_with("HOPPER_") && !INHERITED.contains(&name))
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(gpu) => write!(f, "{}, driver {}", gpu.name, gpu.driver),
            Self::Named { library, is_emulator: false } => write!(f, "the driver of {DRIVER_VARIABLE}={}", library.display()),
            Self::Named { library, is_emulator: true } => write!(f, "the emulator, on the CPU ({DRIVER_VARIABLE}={})", library.display()),
            Self::Emulator(why) => write!(f, "the emulator, on the CPU ({why})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nvidia_smi() {
        let gpus = parse("NVIDIA H200, 9.0, 580.159.04\nNVIDIA H100 80GB HBM3, 9.0, 580.159.04\n");
        assert_eq!(gpus.len(), 2);
        assert_eq!((gpus[0].slug(), gpus[1].slug()), ("h200".to_owned(), "h100-80gb-hbm3".to_owned()));
        assert_eq!(parse("No devices were found\n"), []);
    }

    #[test]
    fn a_hopper_gpu_before_the_emulator() {
        let gpus = parse("NVIDIA A100, 8.0, 580.1\nNVIDIA H200, 9.0, 580.1\n");
        for wanted in [Wanted::Auto, Wanted::Gpu] {
            assert_eq!(Device::choose(wanted, None, &gpus).unwrap(), Device::Gpu(gpus[1].clone()));
        }
        assert_eq!(Device::choose(Wanted::Emulator, None, &gpus).unwrap(), Device::Emulator("as asked for".to_owned()));
    }

    #[test]
    fn without_a_hopper_gpu() {
        let others = parse("NVIDIA A100, 8.0, 580.1\n");
        for (gpus, why) in [(&others[..], "only NVIDIA A100 (8.0)"), (&[], "nvidia-smi names none")] {
            let Ok(Device::Emulator(reason)) = Device::choose(Wanted::Auto, None, gpus) else { panic!("not the emulator") };
            assert!(reason.contains(why), "{reason}");
            let refusal = Device::choose(Wanted::Gpu, None, gpus).unwrap_err().to_string();
            assert!(refusal.contains(why) && refusal.contains("--device emulator"), "{refusal}");
        }
    }

    #[test]
    fn the_environments_driver_before_what_is_found() {
        let (gpus, library) = (parse("NVIDIA H200, 9.0, 580.1\n"), Some(PathBuf::from("/x/libcuda.so.1")));
        let named = Device::choose(Wanted::Auto, library.clone(), &gpus).unwrap();
        assert_eq!(named, Device::Named { library: "/x/libcuda.so.1".into(), is_emulator: false });
        assert_eq!(named.environment().unwrap(), [(DRIVER_VARIABLE, "/x/libcuda.so.1".into())]);
        assert_eq!(Device::choose(Wanted::Emulator, library, &gpus).unwrap(), Device::Emulator("as asked for".to_owned()));
    }

    /// As the README has readers set the variable for the command line. A GPU's tests would take hours there.
    #[test]
    fn the_emulator_is_known_by_whatever_name() {
        let library = env::temp_dir().join(format!("hopper-attention-named-{}.so", std::process::id()));
        let (gpus, symbol) = (parse("NVIDIA H200, 9.0, 580.1\n"), emulator::ITS_OWN_FUNCTION);
        std::fs::write(&library, format!("\x7fELF\0\u{fe}\0cuInit\0{symbol}\0end")).unwrap();
        let found = Device::choose(Wanted::Auto, Some(library.clone()), &gpus);
        let refused = Device::choose(Wanted::Gpu, Some(library.clone()), &gpus);
        std::fs::remove_file(&library).unwrap();
        let found = found.unwrap();
        assert!(found.is_emulator() && found.to_string().starts_with("the emulator"), "{found}");
        let environment = found.environment().unwrap();
        assert!(environment.contains(&(DEVICE_VARIABLE, "emulator".into())), "{environment:?}");
        assert!(environment.contains(&(DRIVER_VARIABLE, library.into())), "{environment:?}");
        assert!(environment.iter().any(|(name, _)| *name == "HOPPER_EMULATOR_DEVICES"), "{environment:?}");
        assert!(refused.unwrap_err().to_string().contains("names the emulator"));
        let source = std::fs::read_to_string(crate::workspace::root().join("emulator/src/driver/settings.rs")).unwrap();
        assert!(source.contains(&format!("fn {symbol}(")), "the emulator's function has another name");
    }

    #[test]
    fn what_chooses_other_kernels_tests_or_checks_is_not_inherited() {
        for name in [
            "HOPPER_ATTENTION_PTX_DIR",
            "HOPPER_ATTENTION_CASE",
            "HOPPER_ATTENTION_PROPERTY_CASES",
            "HOPPER_ATTENTION_TEST_CHILD",
            "HOPPER_CONFORMANCE_FILES",
            "HOPPER_EMULATOR_CHECKS",
            "HOPPER_EMULATOR_REPLACE",
        ] {
            assert!(misleads(OsStr::new(name)), "{name}");
        }
        for name in INHERITED.into_iter().chain(["PATH", "CUDA_VISIBLE_DEVICES"]) {
            assert!(!misleads(OsStr::new(name)), "{name}");
        }
    }
}
