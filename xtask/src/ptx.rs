//! `cargo xtask ptx`: the kernels' PTX, from source to committed files.
//!
//! ```text
//! rustc (nvptx64-nvidia-cuda, core from source)  -> one module        the crate builder; compile: of which crate
//! or rust-cuda                                   -> one module        rust_cuda
//! module -> one self-contained file an entry                          the crate builder
//! file   -> registers, instructions; any warning is an error          the crate builder
//! folder -> what it declares, beside another compiler's               compare
//! ```

mod compare;
mod compile;
mod rust_cuda;

use crate::toolchain::CoreSource;
use crate::tools::{self, RELEASE};
use crate::workspace::{shown, target};
use anyhow::{Context, Result, bail, ensure};
pub use compile::{benchmark_kernels, builder, test_kernels};
use hopper_attention_builder::{Kernel, Resources, finish, table};
pub use rust_cuda::needs as rust_cuda_needs;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Who compiles the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Backend {
    /// rustc's own nvptx64 target; the committed PTX is made by it
    #[default]
    Rustc,
    /// rust-cuda, into target/ptx-rust-cuda (kernels/rust-cuda/README.md)
    RustCuda,
    /// rustc on what rust-cuda compiles, with a stand-in for its cuda_std: fails unless host/ptx comes out, but for names and a line in a hundred; writes nothing
    StandIn,
}

/// Options of `cargo xtask ptx`.
#[derive(clap::Args, Default)]
pub struct Options {
    /// Write nothing; fail where the committed files differ from what the source gives
    #[arg(long, conflicts_with_all = ["backend", "compare", "out", "only", "from", "rustflags", "features"])]
    pub check: bool,
    /// Who compiles
    #[arg(long, value_enum, default_value_t, conflicts_with_all = ["from", "rustflags", "features"])]
    pub backend: Backend,
    /// Compile nothing: check the PTX of a folder, and show what ptxas makes of it beside that of OTHER [default: host/ptx]
    #[arg(long, value_names = ["DIR", "OTHER"], num_args = 1..=2, conflicts_with_all = ["backend", "out", "from", "rustflags", "features"])]
    pub compare: Vec<PathBuf>,
    /// Fail where ptxas or nvdisasm is missing or of another release, instead of skipping their part
    #[arg(long)]
    pub require_ptxas: bool,
    /// Where the source of `core` comes from
    #[arg(long, value_enum, default_value_t = CoreSource::Auto)]
    pub core: CoreSource,
    /// Write to this folder instead of host/ptx
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Only kernels whose name contains this; others are left as they are
    #[arg(long, value_name = "SUBSTRING", default_value = "", hide_default_value = true)]
    pub only: String,
    /// More flags for rustc, separated by blanks (needs --out)
    #[arg(long, value_name = "FLAGS", value_delimiter = ' ', allow_hyphen_values = true, requires = "out")]
    pub rustflags: Vec<String>,
    /// Features of the kernel crate, separated by commas (needs --out)
    #[arg(long, value_name = "FEATURES", requires = "out")]
    pub features: Option<String>,
    /// Post-process this module instead of compiling: PTX that rust-cuda wrote, for instance (needs --out)
    #[arg(long, value_name = "RAW.ptx", requires = "out")]
    pub from: Option<PathBuf>,
    /// Write the disassembly of each kernel to this folder
    #[arg(long, value_name = "DIR")]
    pub sass: Option<PathBuf>,
}

/// The file beside the kernels that says what each takes.
const RESOURCES: &str = "resources.txt";
/// The file beside another compiler's kernels that says what each takes, and what the committed ones do.
const COMPARISON: &str = "comparison.txt";

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    if let [folder, other @ ..] = options.compare.as_slice() {
        let other = other.first().cloned().unwrap_or_else(compile::committed);
        return compare::compare(folder, &other, options)?.conclude();
    }
    let folder = options.out.clone().unwrap_or_else(|| match options.backend {
        Backend::RustCuda => target().join("ptx-rust-cuda"),
        Backend::Rustc | Backend::StandIn => compile::committed(),
    });
    let raw = match (&options.from, options.backend) {
        (Some(path), _) => compile::read(path)?,
        (None, Backend::Rustc) => builder(options.core)?.rustflags(&options.rustflags).features(&options.features).module()?,
        (None, Backend::RustCuda) => rust_cuda::compile(&folder)?,
        (None, Backend::StandIn) => compile::stand_in(options.core)?.module()?,
    };
    let kernels = finish(&raw, &options.only, compile::MADE_BY)?;
    if kernels.is_empty() {
        bail!("the module holds no kernel{}", if options.only.is_empty() { String::new() } else { format!(" called *{}*", options.only) });
    }
    match options.backend {
        Backend::Rustc => {}
        Backend::StandIn => {
            ensure!(options.only.is_empty(), "--backend stand-in is for all kernels: leave out --only");
            let wrong = unlike_kernels(&folder, &kernels)?;
            ensure!(wrong.is_empty(), "the feature nvvm makes other PTX than {} holds:\n  {}", shown(&folder), wrong.join("\n  "));
            println!("the feature nvvm compiles, and makes the same {} kernels, but for names and a line in a hundred", kernels.len());
            return Ok(());
        }
        Backend::RustCuda => {
            write(&folder, &kernels, options.only.is_empty())?;
            println!("wrote {} kernels to {}", kernels.len(), shown(&folder));
            let comparison = compare::compare(&folder, &compile::committed(), options)?;
            fs::write(folder.join(COMPARISON), comparison.text())?;
            return comparison.conclude();
        }
    }
    if options.check {
        let mut wrong = stale_kernels(&folder, &kernels)?;
        let judged = judge(&kernels, options);
        let report = judged.as_ref().ok().and_then(Option::as_deref).map(resources_text);
        wrong.extend(report.as_deref().and_then(|report| stale(&folder.join(RESOURCES), report)));
        return conclude(&folder, kernels.len(), &wrong, judged);
    }
    // Written before ptxas judges them, so that a kernel that it refuses can be looked at.
    write(&folder, &kernels, options.only.is_empty())?;
    let resources = judge(&kernels, options)?;
    if let Some(report) = resources.as_deref().filter(|_| options.only.is_empty()).map(resources_text) {
        fs::write(folder.join(RESOURCES), report)?;
    }
    println!("wrote {} kernels to {}", kernels.len(), shown(&folder));
    Ok(())
}

fn write(folder: &Path, kernels: &[Kernel], remove_others: bool) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    if remove_others {
        for name in ptx_names(folder)?.difference(&kernels.iter().map(|kernel| kernel.name.clone()).collect()) {
            fs::remove_file(folder.join(format!("{name}.ptx")))?;
        }
    }
    kernels.iter().try_for_each(|kernel| kernel.write(folder))?;
    Ok(())
}

fn ptx_names(folder: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for file in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let name = file?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".ptx").map(str::to_owned));
    }
    Ok(names)
}

/// What ptxas says, or `None` where it is not installed. Fails if it objects to any kernel.
fn judge(kernels: &[Kernel], options: &Options) -> Result<Option<Vec<(String, Resources)>>> {
    let missing = |why: &str| {
        print!("{}", table(kernels, &[]));
        ensure!(!options.require_ptxas, "{why}: run `cargo xtask setup`");
        println!("{} kernels NOT assembled: {why} (`cargo xtask setup` installs it)", kernels.len());
        Ok(None)
    };
    let Some(assembler) = tools::assembler()? else { return missing("no ptxas found") };
    let judgement = assembler.judge(kernels, &compile::scratch().join("assembled"), options.sass.as_deref())?;
    print!("{}", table(kernels, &judgement.taken));
    let resources = judgement.resources()?;
    if assembler.release != RELEASE || assembler.nvdisasm.is_none() {
        let found = format!("ptxas {}{}", assembler.release, if assembler.nvdisasm.is_none() { " without nvdisasm" } else { "" });
        ensure!(!options.require_ptxas, "{RESOURCES} is recorded with {RELEASE}, and this is {found}: run `cargo xtask setup`");
        println!("{} kernels assembled, {RESOURCES} left alone: it is recorded with {RELEASE}, and this is {found}", kernels.len());
        return Ok(None);
    }
    Ok(Some(resources))
}

fn resources_text(all: &[(String, Resources)]) -> String {
    let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text =
        format!("# Made by `cargo xtask ptx` with ptxas and nvdisasm {RELEASE} for sm_90a: no spills, no local memory, no warnings.\n");
    text += &format!(
        "{:width$}  {:>9}  {:>8}  {:>11}  {:>12}  {:>5}  {:>4}\n",
        "kernel", "registers", "barriers", "static_smem", "instructions", "wgmma", "exp2"
    );
    for (name, resources) in all {
        let counts = resources.instructions.unwrap_or_default();
        text += &format!(
            "{name:width$}  {:>9}  {:>8}  {:>11}  {:>12}  {:>5}  {:>4}\n",
            resources.registers, resources.barriers, resources.static_smem, counts.total, counts.wgmma, counts.exp2
        );
    }
    text
}

/// The committed kernels that differ from those made, and how.
fn stale_kernels(folder: &Path, kernels: &[Kernel]) -> Result<Vec<String>> {
    let made: BTreeSet<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    let mut wrong: Vec<String> =
        ptx_names(folder)?.difference(&made).map(|name| format!("{name}.ptx: no kernel of this name in the source")).collect();
    wrong.extend(kernels.iter().filter_map(|kernel| stale(&folder.join(format!("{}.ptx", kernel.name)), &kernel.ptx)));
    Ok(wrong)
}

/// The committed kernels that differ from those made in more than the names of registers and labels, and one line in a hundred: in which order the
/// compiler meets the functions of a crate moves that much.
fn unlike_kernels(folder: &Path, kernels: &[Kernel]) -> Result<Vec<String>> {
    let made: BTreeSet<String> = kernels.iter().map(|kernel| kernel.name.clone()).collect();
    let names = ptx_names(folder)?;
    let mut wrong: Vec<String> = names.symmetric_difference(&made).map(|name| format!("{name}.ptx: in one of the two only")).collect();
    for kernel in kernels.iter().filter(|kernel| names.contains(&kernel.name)) {
        let committed = fs::read_to_string(folder.join(format!("{}.ptx", kernel.name)))?;
        let (unlike, lines) = (unlike_lines(&committed, &kernel.ptx), committed.lines().count());
        if 100 * unlike > lines {
            wrong.push(format!("{}.ptx: {unlike} of {lines} lines differ in more than names", kernel.name));
        }
    }
    Ok(wrong)
}

/// Lines of one text that the other has not, in either direction, whatever their order and the numbers of their registers and labels.
fn unlike_lines(a: &str, b: &str) -> usize {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for (text, step) in [(a, 1), (b, -1)] {
        for line in text.lines() {
            *counts.entry(without_numbers(line)).or_default() += step;
        }
    }
    counts.into_values().map(i64::unsigned_abs).sum::<u64>() as usize
}

/// The line without the numbers of registers (`%r12`, `%p<109>`) and labels (`$L_3`).
fn without_numbers(line: &str) -> String {
    let (mut text, mut in_name) = (String::new(), false);
    for c in line.chars() {
        in_name = matches!(c, '%' | '$') || (in_name && (c.is_ascii_alphanumeric() || matches!(c, '_' | '<')));
        if !(in_name && c.is_ascii_digit()) {
            text.push(c);
        }
    }
    text
}

/// How a committed file differs from the text that it should hold, if it does.
fn stale(path: &Path, made: &str) -> Option<String> {
    let difference = match fs::read_to_string(path) {
        Ok(text) if text == made => return None,
        Ok(text) => first_difference(&text, made),
        Err(error) => error.to_string(),
    };
    Some(format!("{}: {difference}", path.file_name().unwrap_or_default().display()))
}

/// The outcome of a check: what is stale, and what ptxas objects to.
fn conclude(folder: &Path, count: usize, wrong: &[String], judged: Result<Option<Vec<(String, Resources)>>>) -> Result<()> {
    let folder = shown(folder);
    let stale = format!("{folder} is stale; run `cargo xtask ptx` and commit what changes:\n  {}", wrong.join("\n  "));
    match judged {
        Err(error) if wrong.is_empty() => Err(error),
        Err(error) => bail!("{stale}\n{error:#}"),
        Ok(_) if !wrong.is_empty() => bail!(stale),
        Ok(resources) => {
            println!("{folder} is fresh: {count} kernels{}", if resources.is_some() { ", resources" } else { "" });
            Ok(())
        }
    }
}

fn first_difference(committed: &str, made: &str) -> String {
    let mut lines = (1..).zip(committed.lines().zip(made.lines()));
    match lines.find(|(_, (old, new))| old != new) {
        Some((line, (old, new))) => format!("line {line} is `{}`, the source gives `{}`", old.trim(), new.trim()),
        None => format!("{} lines, the source gives {}", committed.lines().count(), made.lines().count()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hopper_attention_builder::Instructions;

    #[test]
    fn names_make_no_difference() {
        let (a, b) = ("\t.reg .pred %p<109>;\n$L_1:\n\tadd.s32 %r1, %r2, 4;\n", "\t.reg .pred %p<108>;\n$L_12:\n\tadd.s32 %r7, %r10, 4;\n");
        assert_eq!(unlike_lines(a, b), 0);
        assert_eq!(unlike_lines(a, &b.replace(", 4;", ", 5;")), 2);
        assert_eq!(unlike_lines(a, &format!("{b}\tret;\n")), 1);
        assert_eq!(unlike_lines(a, &b.replace("add.s32", "sub.s32")), 2);
    }

    #[test]
    fn differences_name_the_line() {
        assert_eq!(first_difference("a\nb\n", "a\nc\n"), "line 2 is `b`, the source gives `c`");
        assert_eq!(first_difference("a\n", "a\nc\n"), "1 lines, the source gives 2");
    }

    #[test]
    fn resources_are_a_table() {
        let counts = Instructions { total: 2000, wgmma: 32, exp2: 64 };
        let kernel = Resources { registers: 168, barriers: 9, static_smem: 0, instructions: Some(counts) };
        let text = resources_text(&[("k".to_owned(), kernel)]);
        assert_eq!(text.lines().last().unwrap().split_whitespace().collect::<Vec<_>>(), ["k", "168", "9", "0", "2000", "32", "64"]);
    }
}
