//! What ptxas says about a kernel. Spills, local memory and every warning are errors: each of them costs a factor, silently.

use crate::entry::Kernel;
use crate::error::{Error, Refused, bail, ensure, file};
use crate::process::output_of;
use crate::tools::Assembler;
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

/// What ptxas makes of some kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Judgement {
    /// The release of ptxas.
    pub release: String,
    /// The kernels that it takes, each with its name, in their order.
    pub taken: Vec<(String, Resources)>,
    /// The others.
    pub refused: Vec<Refused>,
}

impl Judgement {
    /// What the kernels take, if ptxas objects to none.
    ///
    /// # Errors
    /// [`Error::Assembler`].
    pub fn resources(self) -> Result<Vec<(String, Resources)>, Error> {
        let total = self.taken.len() + self.refused.len();
        if self.refused.is_empty() { Ok(self.taken) } else { Err(Error::Assembler { release: self.release, refused: self.refused, total }) }
    }
}

/// A table of kernels: lines and bytes of the text, and registers and instructions of those that `resources` knows.
#[must_use]
pub fn table(kernels: &[Kernel], resources: &[(String, Resources)]) -> String {
    let width = kernels.iter().map(|kernel| kernel.name.len()).max().unwrap_or(0);
    let mut text = format!("{:width$}  {:>6}  {:>7}  {:>9}  {:>12}\n", "kernel", "lines", "bytes", "registers", "instructions");
    for Kernel { name, ptx } in kernels {
        let found = resources.iter().find(|(of, _)| of == name).map(|(_, resources)| resources);
        let registers = found.map_or("-".to_owned(), |resources| resources.registers.to_string());
        let instructions = found.and_then(|resources| resources.instructions).map_or("-".to_owned(), |counts| counts.total.to_string());
        text += &format!("{name:width$}  {:>6}  {:>7}  {registers:>9}  {instructions:>12}\n", ptx.lines().count(), ptx.len());
    }
    text + &format!("{} kernels, {} KiB\n", kernels.len(), kernels.iter().map(|kernel| kernel.ptx.len()).sum::<usize>().div_ceil(1024))
}

impl Assembler {
    /// Assembles kernels, in the folder `scratch`, where their texts remain. What spills, uses local memory or makes ptxas warn is refused. `sass`
    /// is a folder for the disassembly.
    ///
    /// # Errors
    /// [`Error::File`] where the folders cannot be made. What is wrong with a kernel is part of the judgement.
    pub fn judge(&self, kernels: &[Kernel], scratch: &Path, sass: Option<&Path>) -> Result<Judgement, Error> {
        for folder in [Some(scratch), sass].into_iter().flatten() {
            fs::create_dir_all(folder).map_err(file("make", folder))?;
        }
        let next = AtomicUsize::new(0);
        let (sender, receiver) = mpsc::channel();
        let mut results: Vec<Option<Result<Resources, Error>>> = kernels.iter().map(|_| None).collect();
        thread::scope(|scope| {
            for _ in 0..WORKERS {
                let (sender, next) = (sender.clone(), &next);
                scope.spawn(move || {
                    while let Some((index, kernel)) =
                        { Some(next.fetch_add(1, Ordering::Relaxed)) }.and_then(|i| Some((i, kernels.get(i)?)))
                    {
                        // The receiver lives until all senders are gone.
                        let _ = sender.send((index, self.one(kernel, scratch, sass)));
                    }
                });
            }
            drop(sender);
            for (done, (index, result)) in (1..).zip(receiver) {
                if std::io::stderr().is_terminal() {
                    eprint!("\r  ptxas {done}/{}{}", kernels.len(), if done == kernels.len() { "\n" } else { "" });
                }
                results[index] = Some(result);
            }
        });
        let mut judgement = Judgement { release: self.release.clone(), taken: Vec::new(), refused: Vec::new() };
        for (Kernel { name, .. }, result) in kernels.iter().zip(results) {
            match result.expect("every kernel was taken once") {
                Ok(resources) => judgement.taken.push((name.clone(), resources)),
                Err(error) => judgement.refused.push(Refused { kernel: name.clone(), problem: error.to_string() }),
            }
        }
        Ok(judgement)
    }

    fn one(&self, kernel: &Kernel, scratch: &Path, sass: Option<&Path>) -> Result<Resources, Error> {
        kernel.write(scratch)?;
        let source = scratch.join(format!("{}.ptx", kernel.name));
        let cubin = source.with_extension("cubin");
        let output = output_of(Command::new(&self.ptxas).args(["-arch=sm_90a", "-v", "-o"]).args([&cubin, &source]))?;
        let log = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "ptxas refuses {}:\n{}", source.display(), log.trim());
        let mut resources = parse_log(&log)?;
        if let Some(nvdisasm) = &self.nvdisasm {
            let output = output_of(Command::new(nvdisasm).arg("-c").arg(&cubin))?;
            ensure!(output.status.success(), "nvdisasm refuses {}", cubin.display());
            let code = String::from_utf8_lossy(&output.stdout);
            if let Some(folder) = sass {
                let path = folder.join(format!("{}.sass", kernel.name));
                fs::write(&path, code.as_bytes()).map_err(file("write", &path))?;
            }
            resources.instructions = Some(count(&code)?);
        }
        Ok(resources)
    }
}

/// Reads what `ptxas -v` wrote for one kernel. A line that is not known to be harmless is an error.
fn parse_log(log: &str) -> Result<Resources, Error> {
    let mut resources = Resources::default();
    let mut used = false;
    for line in log.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let text = line.strip_prefix("ptxas info").map_or(line, |rest| rest.trim_start_matches([' ', ':']));
        if let Some(list) = text.strip_prefix("Used ") {
            used = true;
            for item in list.split(',') {
                match item.replace("used", "").split_whitespace().collect::<Vec<_>>().as_slice() {
                    [count, "registers"] => resources.registers = number(count, line)?,
                    [count, "barriers"] => resources.barriers = number(count, line)?,
                    [count, "bytes", "smem"] => resources.static_smem = number(count, line)?,
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

fn number(text: &str, line: &str) -> Result<u32, Error> {
    let Ok(number) = text.parse() else { bail!("ptxas: not understood: {line}") };
    Ok(number)
}

/// Counts the instructions that nvdisasm lists, as `/*01a0*/  @P0 HGMMA.64x128x16.F32 R24, ... ;`.
fn count(code: &str) -> Result<Instructions, Error> {
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
    fn a_refused_kernel_is_an_error() {
        let taken = vec![("j".to_owned(), Resources::default())];
        let mut judgement = Judgement { release: "13.5.37".to_owned(), taken: taken.clone(), refused: Vec::new() };
        assert_eq!(judgement.clone().resources().unwrap(), taken);
        judgement.refused.push(Refused { kernel: "k".to_owned(), problem: "it spills".to_owned() });
        assert_eq!(judgement.resources().unwrap_err().to_string(), "ptxas 13.5.37 objects to 1 of 2 kernels:\n  k: it spills");
    }

    #[test]
    fn a_row_for_each_kernel() {
        let kernels = ["j", "k"].map(|name| Kernel { name: name.to_owned(), ptx: "a\nb\n".to_owned() });
        let counts = Instructions { total: 2000, wgmma: 32, exp2: 64 };
        let known = [("k".to_owned(), Resources { registers: 168, instructions: Some(counts), ..Default::default() })];
        let text = table(&kernels, &known);
        let rows: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1..3], [["j", "2", "4", "-", "-"], ["k", "2", "4", "168", "2000"]]);
        assert_eq!(text.lines().last(), Some("2 kernels, 1 KiB"));
    }

    #[test]
    fn counts_instructions() {
        let code = "        /*0000*/                   LDC R1, c[0x0][0x28] ;\n.L_x_1:\n        /*0010*/               @P0 MUFU.EX2 R1, R1 ;\n        /*0020*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4] ;\n";
        assert_eq!(count(code).unwrap(), Instructions { total: 3, wgmma: 1, exp2: 1 });
        assert!(count("   /*0000*/   STL [R1], R2 ;\n").unwrap_err().to_string().contains("STL"));
        assert!(count("").is_err());
    }
}
