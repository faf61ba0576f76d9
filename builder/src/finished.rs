//! What a finished PTX file declares, whoever compiled it.

use crate::entry::{MAX_VERSION, referenced, refuse_local_memory};
use crate::error::{Error, bail, ensure};
use crate::module::{Item, parse, tokens};

/// A file's kernel, as its launch sees it.
#[derive(Debug, PartialEq, Eq)]
pub struct Finished {
    /// The entry's name.
    pub name: String,
    /// The parameters in order, without their names: `.align 64 .b8 [128]`.
    pub parameters: Vec<String>,
    /// Threads of a CTA, from the launch bounds.
    pub threads: u32,
    /// Sums and products of f32 without a rounding mode: ptxas may fuse two of them, and then rounds once.
    pub fusible: usize,
}

/// Reads a kernel's finished text.
///
/// # Errors
/// [`Error::Ptx`]: not exactly one visible entry, a newer PTX version than drivers of CUDA 12.3 know, no launch bounds, local memory, a call, or a reference
/// to anything but dynamic shared memory.
pub fn inspect(text: &str) -> Result<Finished, Error> {
    let module = parse(text)?;
    let [entry] = module.entries.as_slice() else { bail!("{} entries instead of one", module.entries.len()) };
    let name = entry.entry_name().expect("an entry has a name");
    ensure!(entry.text().starts_with(".visible .entry"), "line {}: not visible: {}", entry.line, entry.text());
    let (major, minor) = MAX_VERSION;
    ensure!(module.version <= MAX_VERSION, ".version {}.{} is newer than {major}.{minor}", module.version.0, module.version.1);
    refuse_local_memory(entry)?;
    referenced(&module, entry)?;
    let words = || entry.lines.iter().flat_map(|(_, line)| tokens(line));
    Ok(Finished {
        name: name.to_owned(),
        parameters: parameters(entry, name)?,
        threads: threads(entry)?,
        fusible: words()
            .filter(|word| ["add.f32", "sub.f32", "mul.f32", "add.ftz.f32", "sub.ftz.f32", "mul.ftz.f32"].contains(word))
            .count(),
    })
}

fn parameters(entry: &Item, name: &str) -> Result<Vec<String>, Error> {
    let declarations = entry.lines.iter().map(|(number, line)| (number, line.trim())).filter(|(_, line)| line.starts_with(".param "));
    let mut parameters = Vec::new();
    for (index, (number, line)) in declarations.enumerate() {
        let own_name = format!("{name}_param_{index}");
        ensure!(tokens(line).any(|word| word == own_name), "line {number}: not the declaration of {own_name}: {line}");
        let form = line.trim_start_matches(".param ").trim_end_matches(',').replace(&own_name, "");
        // What a pointer points to, and whether a number has a sign, is the compiler's affair.
        let form = form.split(" .ptr").next().unwrap_or(&form).trim_end();
        parameters.push(form.replace(".u64", ".b64").replace(".u32", ".b32"));
    }
    Ok(parameters)
}

fn threads(entry: &Item) -> Result<u32, Error> {
    let header = || entry.lines.iter().map(|(_, line)| line.trim()).take_while(|line| *line != "{");
    let bounds = header().find_map(|line| line.strip_prefix(".maxntid "));
    let Some(bounds) = bounds else { bail!("no launch bounds: setmaxnreg would be ignored") };
    ensure!(header().any(|line| line == ".minnctapersm 1"), "no .minnctapersm 1: setmaxnreg would be ignored");
    let threads = bounds.strip_suffix(", 1, 1").and_then(|threads| threads.parse().ok());
    let Some(threads) = threads else { bail!("launch bounds of one dimension are expected: .maxntid {bounds}") };
    Ok(threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = ".version 8.3\n.target sm_90a\n.address_size 64\n\n.extern .shared .align 1024 .b8 smem[];\n.visible .entry k(\n\t.param .align 64 .b8 k_param_0[128],\n\t.param .align 8 .b8 k_param_1[96],\n\t.param .u64 .ptr .align 1 k_param_2\n)\n.maxntid 384, 1, 1\n.minnctapersm 1\n{\n\t.reg .b32 %r<2>;\n\tmov.u32 %r1, smem;\n\tmul.f32 %f1, %f2, %f3;\n\tadd.rn.f32 %f1, %f2, %f3;\n\tret;\n}\n";

    #[test]
    fn a_kernel() {
        let expected = Finished {
            name: "k".to_owned(),
            parameters: [".align 64 .b8 [128]", ".align 8 .b8 [96]", ".b64"].map(str::to_owned).to_vec(),
            threads: 384,
            fusible: 1,
        };
        assert_eq!(inspect(TEXT).unwrap(), expected);
    }

    #[test]
    fn what_does_not_conform_is_named() {
        let refused = |old: &str, new: &str, words: &str| {
            let error = inspect(&TEXT.replace(old, new)).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refused(".version 8.3", ".version 9.5", "9.5 is newer than 8.3");
        refused(".visible .entry", ".entry", "not visible");
        refused(".maxntid 384, 1, 1\n", "", "no launch bounds");
        refused(".minnctapersm 1\n", "", "no .minnctapersm");
        refused("384, 1, 1", "32, 4, 1", "one dimension");
        refused("k_param_1[96]", "k_param_2[96]", "k_param_1");
        refused("\tret;", "\tcall.uni f;", "not inlined");
        refused("\tret;", "\t.local .align 8 .b8 depot[8];", "local memory");
        refused(".extern .shared .align 1024 .b8 smem[];", ".global .align 4 .b8 smem[4];", "dynamic shared memory only");
        refused(".visible .entry k(", ".visible .entry j(\n)\n{\n}\n.visible .entry k(", "2 entries");
    }
}
