//! Whether there is something to run kernels on.

use crate::workspace::output_of;
use std::env;
use std::process::Command;

/// Another library to open instead of libcuda.so.1.
pub const DRIVER_VARIABLE: &str = "HOPPER_ATTENTION_DRIVER";

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

/// What the device tests can run on here, in words, or why they cannot.
pub fn available() -> Result<String, String> {
    if let Some(library) = env::var_os(DRIVER_VARIABLE).filter(|library| !library.is_empty()) {
        return Ok(format!("{DRIVER_VARIABLE}={}", library.display()));
    }
    let gpus = gpus();
    match gpus.iter().find(|gpu| gpu.compute_capability == "9.0") {
        Some(gpu) => Ok(format!("{}, driver {}", gpu.name, gpu.driver)),
        None if gpus.is_empty() => Err("no NVIDIA GPU found (nvidia-smi names none)".to_owned()),
        None => {
            let found: Vec<_> = gpus.iter().map(|gpu| format!("{} ({})", gpu.name, gpu.compute_capability)).collect();
            Err(format!("no Hopper GPU (compute capability 9.0) found, only {}", found.join(", ")))
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
}
