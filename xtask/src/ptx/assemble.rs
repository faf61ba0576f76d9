//! What ptxas says about a kernel. Spills, local memory and every warning are errors: each of them costs a factor, silently.

use super::entry::EntryFile;
use crate::tools::Tools;
use crate::workspace::output_of;
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::IsTerminal;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Processes of ptxas at a time: one takes up to a gigabyte.
const WORKERS: usize = 2;

/// What one kernel takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Registers of a thread at launch.
    pub registers: u32,
    /// Named barriers.
    pub barriers: u32,
    /// Bytes of static shared memory; the dynamic part is the launch's.
    pub static_smem: u32,
    /// Instructions of the machine code; `None` without a disassembler.
    pub instructions: Option<Instructions>,
}

/// Machine instructions by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instructions {
    /// All.
    pub total: u32,
    /// wgmma (HGMMA).
    pub wgmma: u32,
    /// Exponentials (MUFU.EX2).
    pub exp2: u32,
}

/// Assembles all kernels; the result is in their order. `sass` is a folder for the disassembly.
pub fn assemble(files: &[EntryFile], tools: &Tools, scratch: &Path, sass: Option<&Path>) -> Result<Vec<(String, Result<Resources>)>> {
    for folder in [Some(scratch), sass].into_iter().flatten() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let mut results: Vec<Option<Result<Resources>>> = files.iter().map(|_| None).collect();
    thread::scope(|scope| {
        for _ in 0..WORKERS {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some((index, file)) = { Some(next.fetch_add(1, Ordering::Relaxed)) }.and_then(|i| Some((i, files.get(i)?))) {
                    // The receiver lives until all senders are gone.
                    let _ = sender.send((index, one(file, tools, scratch, sass)));
                }
            });
        }
        drop(sender);
        for (done, (index, result)) in (1..).zip(receiver) {
            if std::io::stderr().is_terminal() {
                eprint!("\r  ptxas {done}/{}{}", files.len(), if done == files.len() { "\n" } else { "" });
            }
            results[index] = Some(result);
        }
    });
    Ok(files.iter().zip(results).map(|(file, result)| (file.name.clone(), result.expect("every file was taken once"))).collect())
}

fn one(file: &EntryFile, tools: &Tools, scratch: &Path, sass: Option<&Path>) -> Result<Resources> {
    let (source, cubin) = (scratch.join(format!("{}.ptx", file.name)), scratch.join(format!("{}.cubin", file.name)));
    fs::write(&source, &file.text).with_context(|| format!("cannot write {}", source.display()))?;
    let output = output_of(Command::new(&tools.ptxas).args(["-arch=sm_90a", "-v", "-o"]).args([&cubin, &source]))?;
    let log = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "ptxas refuses {}:\n{}", source.display(), log.trim());
    let mut resources = parse_log(&log)?;
    if let Some(nvdisasm) = &tools.nvdisasm {
        let output = output_of(Command::new(nvdisasm).arg("-c").arg(&cubin))?;
        ensure!(output.status.success(), "nvdisasm refuses {}", cubin.display());
        let code = String::from_utf8_lossy(&output.stdout);
        if let Some(folder) = sass {
            fs::write(folder.join(format!("{}.sass", file.name)), code.as_bytes())?;
        }
        resources.instructions = Some(count(&code)?);
    }
    Ok(resources)
}

/// Reads what `ptxas -v` wrote for one kernel. A line that is not known to be harmless is an error.
fn parse_log(log: &str) -> Result<Resources> {
    let mut resources = Resources::default();
    let mut used = false;
    for line in log.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let text = line.strip_prefix("ptxas info").map_or(line, |rest| rest.trim_start_matches([' ', ':']));
        if let Some(list) = text.strip_prefix("Used ") {
            used = true;
            for item in list.split(',') {
                match item.replace("used", "").split_whitespace().collect::<Vec<_>>().as_slice() {
                    [count, "registers"] => resources.registers = count.parse()?,
                    [count, "barriers"] => resources.barriers = count.parse()?,
                    [count, "bytes", "smem"] => resources.static_smem = count.parse()?,
                    // Parameters.
                    [_, "bytes", memory] if memory.starts_with("cmem[") => {}
                    _ => bail!("ptxas: not understood: {line}"),
                }
            }
        } else if text.contains("bytes stack frame") {
            let clean = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads";
            ensure!(text == clean, "registers do not suffice: {text}");
        } else {
            let harmless = ["0 bytes gmem", "Compiling entry function", "Function properties for", "Compile time"];
            ensure!(harmless.iter().any(|start| text.starts_with(start)), "ptxas warns: {line}");
        }
    }
    ensure!(used, "ptxas named no registers: {}", log.trim());
    Ok(resources)
}

/// Counts the instructions that nvdisasm lists, as `/*01a0*/  @P0 HGMMA.64x128x16.F32 R24, ... ;`.
fn count(code: &str) -> Result<Instructions> {
    let mut counts = Instructions::default();
    for line in code.lines() {
        let Some((_, instruction)) = line.trim_start().strip_prefix("/*").and_then(|rest| rest.split_once("*/")) else { continue };
        let operation = instruction.split_whitespace().find(|word| !word.starts_with('@')).unwrap_or_default();
        counts.total += 1;
        counts.wgmma += u32::from(operation.starts_with("HGMMA"));
        counts.exp2 += u32::from(operation == "MUFU.EX2");
        let local = operation.starts_with("LDL") || operation.starts_with("STL");
        ensure!(!local, "the machine code uses local memory: {}", instruction.trim());
    }
    ensure!(counts.total > 0, "nvdisasm listed no instruction");
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: &str = "ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 13 barriers, 16 bytes smem, 576 bytes cmem[0]
ptxas info    : Compile time = 249.750 ms
";

    #[test]
    fn clean_log() {
        let expected = Resources { registers: 168, barriers: 13, static_smem: 16, instructions: None };
        assert_eq!(parse_log(CLEAN).unwrap(), expected);
    }

    #[test]
    fn spills_and_warnings_are_errors() {
        let spilled = CLEAN.replace("0 bytes spill stores", "8 bytes spill stores");
        assert!(parse_log(&spilled).unwrap_err().to_string().contains("8 bytes spill stores"));
        let serialised =
            format!("ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n{CLEAN}");
        assert!(parse_log(&serialised).unwrap_err().to_string().contains("C7510"));
        let ignored = format!("ptxas warning : (C7508) 'setmaxnreg' ignored\n{CLEAN}");
        assert!(parse_log(&ignored).unwrap_err().to_string().contains("C7508"));
        assert!(parse_log("").is_err());
    }

    #[test]
    fn counts_instructions() {
        let code = "        /*0000*/                   LDC R1, c[0x0][0x28] ;\n.L_x_1:\n        /*0010*/               @P0 MUFU.EX2 R1, R1 ;\n        /*0020*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4] ;\n";
        assert_eq!(count(code).unwrap(), Instructions { total: 3, wgmma: 1, exp2: 1 });
        assert!(count("   /*0000*/   STL [R1], R2 ;\n").unwrap_err().to_string().contains("STL"));
        assert!(count("").is_err());
    }
}
