//! `cargo xtask doctor`: what is installed, what is missing, and how to get it.

use crate::device::{self, Gpu};
use crate::emulator;
use crate::ptx;
use crate::toolchain;
use crate::tools::{self, RELEASE};
use crate::workspace::{output_of, shown};
use anyhow::{Result, bail};
use std::process::Command;

/// What a missing thing costs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Nothing works without it.
    Required,
    /// Only what the row names is lost.
    Optional,
}

struct Row {
    what: &'static str,
    purpose: &'static str,
    need: Need,
    /// What was found, or how to get it.
    found: Result<String, String>,
}

/// Runs the command.
pub fn run() -> Result<()> {
    let mut rows = vec![rustc_row(), core_row()];
    rows.extend(tool_rows());
    rows.extend(device_rows());
    rows.extend(rust_cuda_rows());
    rows.extend(python_rows());
    let width = |text: fn(&Row) -> &str| rows.iter().map(|row| text(row).len()).max().unwrap_or(0);
    let (what_width, purpose_width) = (width(|row| row.what), width(|row| row.purpose));
    for Row { what, purpose, need, found } in &rows {
        let (mark, text) = match (found, need) {
            (Ok(text), _) => ("ok", text),
            (Err(text), Need::Required) => ("MISSING", text),
            (Err(text), Need::Optional) => ("-", text),
        };
        println!("{mark:7}  {what:what_width$}  {purpose:purpose_width$}  {text}");
    }
    let missing: Vec<_> = rows.iter().filter(|row| row.need == Need::Required && row.found.is_err()).map(|row| row.what).collect();
    if !missing.is_empty() {
        bail!("missing: {}", missing.join(", "));
    }
    println!("\nEvery command runs that needs nothing marked `-`.");
    Ok(())
}

fn rustc_row() -> Row {
    let found = toolchain::require_pinned().map_err(|error| format!("{error:#}"));
    Row { what: "rustc", purpose: "everything", need: Need::Required, found }
}

fn core_row() -> Row {
    let found = toolchain::pinned_version().and_then(|version| {
        let archive = toolchain::archive(&version);
        Ok(match toolchain::rust_src()? {
            Some(folder) => folder.display().to_string(),
            None if archive.is_file() => format!("{} (rust-src is not installed, and not needed)", shown(&archive)),
            None => bail!("rustup component add rust-src, or restore {}", shown(&archive)),
        })
    });
    Row { what: "source of core", purpose: "ptx", need: Need::Required, found: found.map_err(|error| format!("{error:#}")) }
}

fn tool_rows() -> Vec<Row> {
    let install = || "cargo xtask setup".to_owned();
    let ptxas = match tools::assembler() {
        Ok(Some(tools)) if tools.release == RELEASE => Ok(format!("{RELEASE}  {}", tools.ptxas.display())),
        Ok(Some(tools)) => {
            Ok(format!("{} (resources are compared with {RELEASE} only: cargo xtask setup)  {}", tools.release, tools.ptxas.display()))
        }
        Ok(None) => Err(install()),
        Err(error) => Err(format!("{error:#}")),
    };
    let other = |what| {
        let found = tools::find(what).map(|path| path.display().to_string()).ok_or_else(install);
        Row { what, purpose: "ptx: instruction counts", need: Need::Optional, found }
    };
    let judge = Row { what: "ptxas", purpose: "ptx: spills, warnings, registers", need: Need::Optional, found: ptxas };
    vec![judge, other("nvdisasm"), Row { purpose: "looking at cubins by hand", ..other("cuobjdump") }]
}

fn device_rows() -> Vec<Row> {
    let gpus = device::gpus();
    let driver = gpus.first().map(|gpu| gpu.driver.clone()).ok_or_else(|| "NVIDIA's driver, from your distribution".to_owned());
    let names: Vec<_> = gpus.iter().map(|gpu| format!("{} (compute capability {})", gpu.name, gpu.compute_capability)).collect();
    let hopper = gpus.iter().any(Gpu::is_hopper);
    let needed = "an H100, H200 or GH200 (compute capability 9.0)";
    let gpu = match (hopper, names.is_empty()) {
        (true, _) => Ok(names.join(", ")),
        (false, true) => Err(format!("{needed}; `cargo xtask bundle` makes a folder to run on such a machine")),
        (false, false) => Err(format!("{needed}; found {}", names.join(", "))),
    };
    let purpose = "bench; test, demo at full speed";
    vec![
        Row { what: "NVIDIA driver", purpose, need: Need::Optional, found: driver },
        Row { what: "Hopper GPU", purpose, need: Need::Optional, found: gpu },
        Row { what: "emulator", purpose: "test, demo without a GPU; ci", need: Need::Optional, found: Ok(emulator::found()) },
    ]
}

fn rust_cuda_rows() -> impl Iterator<Item = Row> {
    ptx::rust_cuda_needs().into_iter().map(|(what, found)| {
        let found = found.map_err(|error| format!("{error:#}"));
        Row { what, purpose: "ptx --backend rust-cuda", need: Need::Optional, found }
    })
}

fn python_rows() -> Vec<Row> {
    let python = |arguments: &[&str]| {
        let output = output_of(Command::new("python3").args(arguments)).ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let module = |what, expression: &str, install: &str| {
        let found = python(&["-c", expression]).ok_or_else(|| install.to_owned());
        Row { what, purpose: "bench --peers", need: Need::Optional, found }
    };
    vec![
        Row {
            what: "python3",
            purpose: "test, ci, setup, bench --peers",
            need: Need::Optional,
            found: python(&["--version"]).ok_or_else(|| "your distribution's python3 and python3-venv".to_owned()),
        },
        module("torch", "import torch; print(torch.__version__)", "python3 -m pip install torch"),
        module(
            "FlashAttention-3",
            "import importlib.metadata as m, fa3_fwd_interface; print(m.version('fa3-fwd'))",
            "python3 -m pip install --no-deps fa3-fwd (without it the other peers are measured)",
        ),
        module(
            "cuDNN's front end",
            // With PyTorch's cuDNN, which has to be loaded first.
            "import torch, cudnn; print(cudnn.__version__, 'with cuDNN', cudnn.backend_version_string())",
            "python3 -m pip install --no-deps nvidia-cudnn-frontend (for the contestant cudnn-fe)",
        ),
    ]
}
