//! What kernels run on: a Hopper GPU, or the emulator in its place.

use crate::emulator;
use crate::workspace::output_of;
use anyhow::{Result, bail};
use std::env;
use std::ffi::OsString;
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
    Named(PathBuf),
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
            return Ok(Self::Named(library));
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

    /// The environment of programs that run on it. The emulator is built first.
    pub fn environment(&self) -> Result<Vec<(&'static str, OsString)>> {
        match self {
            Self::Gpu(_) => Ok(vec![(DEVICE_VARIABLE, "gpu".into())]),
            Self::Named(_) => Ok(Vec::new()),
            Self::Emulator(_) => emulator::environment(),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(gpu) => write!(f, "{}, driver {}", gpu.name, gpu.driver),
            Self::Named(library) => write!(f, "the driver of {DRIVER_VARIABLE}={}", library.display()),
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
        assert_eq!(Device::choose(Wanted::Auto, library.clone(), &gpus).unwrap(), Device::Named("/x/libcuda.so.1".into()));
        assert_eq!(Device::choose(Wanted::Emulator, library, &gpus).unwrap(), Device::Emulator("as asked for".to_owned()));
    }
}
