//! From a compiler's module to one self-contained, tidy PTX file per entry.
//!
//! What neither compiler can express is added here: 64-byte alignment of by-value tensor maps, and launch bounds. What costs bytes and
//! says nothing is dropped. What a kernel must not contain is refused, with line and text.

use crate::error::{Error, Refused, bail, ensure, file as of_file};
use crate::module::{Item, Module, parse, tokens};
use std::collections::HashSet;
use std::fs;
use std::path::Path;

/// The highest PTX version that the files may ask for: 8.3 has all that the kernels use, and every driver that knows it can load them.
pub(crate) const MAX_VERSION: (u32, u32) = (8, 3);

/// The dynamic shared memory of the crate hopper-attention-kernels. Its declaration is module-level assembly, which stays in the module of that
/// crate: a kernel of another crate names the memory all the same.
const DYNAMIC_SMEM: (&str, &str) = ("hopper_attention_smem", ".extern .shared .align 1024 .b8 hopper_attention_smem[];");

/// How the comment begins in which a kernel of `forward_kernel!` says what its launch has to know. It becomes the text's second line.
const FACTS: &str = "attention_kernel ";

/// One kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The entry's name.
    pub name: String,
    /// The text of a PTX module that holds this entry, what it needs, and nothing else.
    pub ptx: String,
}

impl Kernel {
    /// Writes `<name>.ptx` to an existing folder, unless the file holds this very text: cargo would rebuild what includes it for a new date.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, folder: &Path) -> Result<(), Error> {
        let path = folder.join(format!("{}.ptx", self.name));
        if fs::read_to_string(&path).ok().as_deref() == Some(&self.ptx) {
            Ok(())
        } else {
            fs::write(&path, &self.ptx).map_err(of_file("write", &path))
        }
    }
}

/// Makes kernels of a compiler's module, in the order of their names, of the entries whose name contains `only`. `made_by` goes into the first
/// line of each: `// Made by <made_by>: do not edit.`
///
/// # Errors
/// [`Error::Ptx`] if the text is no PTX module for sm_90a; [`Error::Kernels`] if an entry uses a function, a global, static shared memory or
/// a local array, or has no launch bounds.
pub fn finish(module: &str, only: &str, made_by: &str) -> Result<Vec<Kernel>, Error> {
    let module = parse(module)?;
    let (mut kernels, mut refused) = (Vec::new(), Vec::new());
    for entry in &module.entries {
        let name = entry.entry_name().expect("an entry has a name");
        if name.contains(only) {
            match text(&module, entry, name, made_by) {
                Ok(ptx) => kernels.push(Kernel { name: name.to_owned(), ptx }),
                Err(error) => refused.push(Refused { kernel: name.to_owned(), problem: error.to_string() }),
            }
        }
    }
    if !refused.is_empty() {
        return Err(Error::Kernels { refused, total: module.entries.len() });
    }
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = kernels.windows(2).find(|pair| pair[0].name == pair[1].name) {
        bail!("two kernels are called {}", pair[0].name);
    }
    Ok(kernels)
}

fn text(module: &Module, entry: &Item, name: &str, made_by: &str) -> Result<String, Error> {
    ensure!(entry.text().starts_with(".visible .entry"), "line {}: not visible: {}", entry.line, entry.text());
    refuse_local_memory(entry)?;
    let mut declarations: Vec<&str> =
        referenced(module, entry)?.into_iter().flat_map(|item| &item.lines).map(|(_, line)| line.as_str()).collect();
    let (smem, declaration) = DYNAMIC_SMEM;
    let names_smem = || entry.lines.iter().any(|(_, line)| tokens(line).any(|word| word == smem));
    if !declarations.iter().any(|line| tokens(line).any(|word| word == smem)) && names_smem() {
        declarations.push(declaration);
    }
    let threads = launch_bounds(entry)?;
    let (major, minor) = module.version.min(MAX_VERSION);
    let facts = entry.comments.iter().find(|(_, comment)| comment.starts_with(FACTS));
    let facts = facts.map_or_else(String::new, |(_, facts)| format!("// {facts}\n"));
    let mut text = format!("// Made by {made_by}: do not edit.\n{facts}.version {major}.{minor}\n.target sm_90a\n.address_size 64\n\n");
    for line in declarations {
        text.push_str(line);
        text.push('\n');
    }
    let mut before_body = true;
    for (number, line) in &entry.lines {
        if before_body && line.trim() == "{" {
            text.push_str(&format!(".maxntid {threads}, 1, 1\n.minnctapersm 1\n"));
            before_body = false;
        }
        if before_body {
            ensure!(!line.contains(".maxntid") && !line.contains(".minnctapersm"), "line {number}: launch bounds already: {line}");
            text.push_str(&raise_alignment(line));
        } else {
            text.push_str(&tidy(line));
        }
        text.push('\n');
    }
    ensure!(!before_body, "the entry {name} has no body on lines of its own");
    Ok(text)
}

/// The module-level items that the entry names.
pub(crate) fn referenced<'a>(module: &'a Module, entry: &Item) -> Result<Vec<&'a Item>, Error> {
    let words: HashSet<&str> = entry.lines.iter().flat_map(|(_, line)| tokens(line)).collect();
    let mut used: Vec<&Item> = Vec::new();
    for item in &module.others {
        let Some(name) = item.declared_name() else { bail!("line {}: not understood: {}", item.line, item.text()) };
        // The same declaration may come from several places of the source.
        if !words.contains(name.as_str())
            || used.iter().any(|other| other.declared_name().as_deref() == Some(&name) && other.text() == item.text())
        {
            continue;
        }
        ensure!(
            item.text().starts_with(".extern .shared"),
            "a kernel may use dynamic shared memory only, and this one uses {name} (line {}): {}",
            item.line,
            item.text()
        );
        used.push(item);
    }
    Ok(used)
}

/// What most such calls and arrays come from: where a panic is, its message is made.
const PANICS: &str = "most likely of code that can panic, which no kernel may (indexing, clamp, division and remainder, unwrap, overflow checks): \
    use min and max, or get_unchecked; an array is local, too, where its index is no constant";

pub(crate) fn refuse_local_memory(entry: &Item) -> Result<(), Error> {
    for (number, line) in &entry.lines {
        for word in tokens(line) {
            ensure!(word != ".local", "line {number}: an array in local memory instead of registers: {}; {PANICS}", line.trim());
            ensure!(word != "call" && !word.starts_with("call."), "line {number}: a call that was not inlined: {}; {PANICS}", line.trim());
        }
    }
    Ok(())
}

/// The threads of a CTA, from the comment `launch_bounds <threads>` that the kernel's source writes by inline asm.
fn launch_bounds(entry: &Item) -> Result<u32, Error> {
    let mut found: Option<u32> = None;
    for (number, comment) in &entry.comments {
        let Some(value) = comment.strip_prefix("launch_bounds ") else { continue };
        let Ok(threads) = value.trim().parse::<u32>() else { bail!("line {number}: not a number of threads: {comment}") };
        ensure!((1..=1024).contains(&threads), "line {number}: a CTA has 1 to 1024 threads: {comment}");
        ensure!(found.is_none_or(|other| other == threads), "line {number}: a second launch bound: {comment}");
        found = Some(threads);
    }
    let Some(threads) = found else {
        bail!("no launch bounds: the entry's source must hold asm!(\"// launch_bounds {{}}\", const THREADS)")
    };
    Ok(threads)
}

/// By-value tensor maps, which come first, must be 64-byte aligned, and rustc cannot say so.
fn raise_alignment(line: &str) -> String {
    let is_one_of_four = || ["_param_0[", "_param_1[", "_param_2[", "_param_3["].iter().any(|name| line.contains(name));
    let is_tensor_map = line.contains(".param .align 16 .b8 ") && line.trim_end_matches(',').ends_with("[128]") && is_one_of_four();
    if is_tensor_map { line.replace(".align 16", ".align 64") } else { line.to_owned() }
}

/// One space instead of a tab between operation and operands, and labels without the function's number in the compiler's module.
fn tidy(line: &str) -> String {
    let indented = line.starts_with(char::is_whitespace);
    let code = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = String::from(if indented { "\t" } else { "" });
    let mut rest = code.as_str();
    while let Some((before, after)) = rest.split_once("$L__BB") {
        text.push_str(before);
        text.push_str("$L_");
        rest = after.split_once('_').map_or(after, |(_function, block)| block);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: &str = "\t// begin inline asm\n\t// launch_bounds 384\n\t// end inline asm\n";

    fn module(version: &str, outside: &str, body: &str) -> String {
        format!(
            ".version {version}\n.target sm_90a\n.address_size 64\n\n{outside}\n\t// .globl k\n.visible .entry k(\n\t.param .align 16 .b8 k_param_0[128],\n\t.param .align 16 .b8 k_param_1[96],\n\t.param .align 16 .b8 k_param_2[128]\n)\n{{\n{body}}}\n"
        )
    }

    fn one(version: &str, outside: &str, body: &str) -> Result<String, Error> {
        Ok(finish(&module(version, outside, body), "", "a test")?.remove(0).ptx)
    }

    #[test]
    fn finished_file() {
        let outside = ".extern .shared .align 1024 .b8 smem[];\n.extern .shared .align 16 .b8 other[];\n.visible .func f(\n)\n{\n}\n";
        let body = format!(
            "\t.reg .b32 \t%r<2>;\n\n{BOUNDS}\t// begin inline asm\n\tmov.u32 %r1, smem;\n\t// end inline asm\n\t@%p1 bra \t$L__BB17_2;\n$L__BB17_2:\n\tret; // done\n"
        );
        let expected = "// Made by a test: do not edit.\n.version 8.3\n.target sm_90a\n.address_size 64\n\n.extern .shared .align 1024 .b8 smem[];\n.visible .entry k(\n\t.param .align 64 .b8 k_param_0[128],\n\t.param .align 16 .b8 k_param_1[96],\n\t.param .align 64 .b8 k_param_2[128]\n)\n.maxntid 384, 1, 1\n.minnctapersm 1\n{\n\t.reg .b32 %r<2>;\n\tmov.u32 %r1, smem;\n\t@%p1 bra $L_2;\n$L_2:\n\tret;\n}\n";
        assert_eq!(one("9.5", outside, &body).unwrap(), expected);
    }

    #[test]
    fn shared_memory_of_the_kernels_crate_is_declared_once() {
        let (_, declaration) = DYNAMIC_SMEM;
        let body = format!("{BOUNDS}\tmov.u32 %r1, hopper_attention_smem;\n");
        for outside in ["", declaration, &format!("{declaration}\n{declaration}")] {
            assert_eq!(one("8.3", outside, &body).unwrap().matches(declaration).count(), 1, "{outside}");
        }
        assert!(!one("8.3", declaration, BOUNDS).unwrap().contains("smem"));
    }

    #[test]
    fn facts_come_second() {
        let text = one("8.3", "", &format!("{BOUNDS}\t// attention_kernel 1.2.3 head_dim 64\n")).unwrap();
        assert_eq!(text.lines().nth(1), Some("// attention_kernel 1.2.3 head_dim 64"));
    }

    #[test]
    fn lower_versions_stay() {
        assert!(one("8.0", "", BOUNDS).unwrap().contains("\n.version 8.0\n"));
    }

    #[test]
    fn refuses_what_a_kernel_must_not_contain() {
        let refused = |outside: &str, body: &str, words: &[&str]| {
            let error = one("8.3", outside, &format!("{BOUNDS}{body}")).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        };
        refused("", "\t.local .align 16 .b8 __local_depot1[64];\n", &["  k: line", "local memory", "__local_depot1"]);
        refused(".extern .func panic\n(\n)\n;\n", "\tcall.uni panic;\n", &["not inlined", "panic"]);
        // The array that a panic's message is made in, and its call.
        for body in ["\t.local .align 8 .b8 __local_depot0[24];\n", "\tcall.uni _ZN4core9panicking5panic17h0E, (p);\n"] {
            refused("", body, &["most likely of code that can panic", "indexing, clamp, division", "unwrap", "overflow checks"]);
        }
        refused(".global .align 4 .b8 table[4] = {1, 2, 3, 4};\n", "\tmov.b64 %rd1, table;\n", &["line 5", "table[4]"]);
        refused(".shared .align 4 .b8 fixed[4];\n", "\tmov.b32 %r1, fixed;\n", &["fixed"]);
    }

    #[test]
    fn launch_bounds_are_required_and_unique() {
        let error = |body: &str| one("8.3", "", body).unwrap_err().to_string();
        assert!(error("\tret;\n").contains("no launch bounds"));
        assert!(error("\t// launch_bounds 384\n\t// launch_bounds 512\n").contains("second"));
        assert!(error("\t// launch_bounds 2048\n").contains("1024"));
        assert!(error("\t// launch_bounds many\n").contains("many"));
        assert!(one("8.3", "", &format!("{BOUNDS}{BOUNDS}")).is_ok());
    }

    #[test]
    fn only_some_entries() {
        assert_eq!(finish(&module("8.3", "", BOUNDS), "nothing", "a test").unwrap(), []);
    }
}
