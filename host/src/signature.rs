//! What a kernel's PTX text says that a launch has to bring: the bytes of each parameter, and the threads of a CTA.
//!
//! The driver reads as many bytes behind each pointer of a launch as the kernel it has compiled declares. So the declarations of a text that is
//! not built in are read before it is launched, and whatever is not written as the compilers write it counts as not understood.

use hopper_attention_kernels::params::{FeatureParams, ForwardParams, TensorMap};

/// Bytes of what a general kernel takes: four tensor maps and two structs. A plain one takes all but the last.
pub(crate) const GENERAL_PARAMETERS: [usize; 6] = {
    let map = size_of::<TensorMap>();
    [map, map, map, map, size_of::<ForwardParams>(), size_of::<FeatureParams>()]
};

/// The declaration of a text's only kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    pub entry: String,
    /// Bytes of each parameter.
    pub parameters: Vec<usize>,
    /// Threads of a CTA, by its launch bounds.
    pub threads: u32,
}

impl Signature {
    /// `None` unless the text declares one kernel, with launch bounds, and in a way that is understood.
    pub fn read(ptx: &str) -> Option<Self> {
        // The driver reads up to a NUL, and what a preprocessor would make of a text cannot be told from it.
        if ptx.contains(['#', '\\', '\0']) {
            return None;
        }
        let text = without_comments_and_strings(ptx)?;
        let (_, kernel) = text.split_once(".entry")?;
        if kernel.contains(".entry") {
            return None;
        }
        let (head, _) = kernel.split_once('{')?;
        let (entry, head) = head.split_once('(')?;
        let (parameters, directives) = head.split_once(')')?;
        let parameters = match parameters.trim() {
            "" => Vec::new(),
            declared => declared.split(',').map(bytes).collect::<Option<_>>()?,
        };
        Some(Self { entry: entry.trim().to_owned(), parameters, threads: threads(directives)? })
    }

    /// What tells the text from that of the kernel `entry` with these parameters and threads, if anything does.
    pub fn difference(ptx: &str, entry: &str, parameters: &[usize], threads: u32) -> Option<String> {
        if ptx.contains('\0') {
            return Some("it holds a NUL character".to_owned());
        }
        let Some(found) = Self::read(ptx) else {
            return Some(format!("it does not declare the one kernel {entry} in a way that is understood"));
        };
        if found.entry != entry {
            return Some(format!("its kernel is {}, not {entry}", found.entry));
        }
        if found.parameters != parameters {
            return Some(format!("{entry} takes parameters of {:?} bytes, not {parameters:?}", found.parameters));
        }
        (found.threads != threads).then(|| format!("{entry} has CTAs of {} threads, not {threads}", found.threads))
    }
}

/// Bytes of a parameter: of `.param .align 8 .b8 name[96]`, `.param .b64 name` or `.param .u64 .ptr .align 1 name`.
fn bytes(declaration: &str) -> Option<usize> {
    match declaration.split_whitespace().collect::<Vec<_>>()[..] {
        [".param", ".align", _, ".b8", array] => array.split_once('[')?.1.strip_suffix(']')?.parse().ok(),
        [".param", scalar, name] if !name.contains('[') => scalar_bytes(scalar),
        [".param", scalar, ".ptr", .., name] if !name.contains('[') => scalar_bytes(scalar),
        _ => None,
    }
}

fn scalar_bytes(scalar: &str) -> Option<usize> {
    let bits: usize = scalar.strip_prefix('.')?.strip_prefix(['b', 'u', 's', 'f'])?.parse().ok()?;
    [8, 16, 32, 64].contains(&bits).then_some(bits / 8)
}

/// The product of `.maxntid` or `.reqntid`, whose dimensions that are left out are 1.
fn threads(directives: &str) -> Option<u32> {
    let mut words = directives.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    words.find(|&word| word == ".maxntid" || word == ".reqntid")?;
    let dims: Vec<u32> = words.map_while(|word| word.parse().ok()).collect();
    if dims.is_empty() { None } else { dims.into_iter().try_fold(1, u32::checked_mul) }
}

/// A space in the place of each comment and string; `None` if one does not end.
fn without_comments_and_strings(ptx: &str) -> Option<String> {
    let mut text = String::with_capacity(ptx.len());
    let mut rest = ptx;
    while let Some(at) = rest.find(['/', '"']) {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = match &rest.as_bytes()[..rest.len().min(2)] {
            b"//" => rest.find('\n').unwrap_or(rest.len()),
            b"/*" => 2 + rest[2..].find("*/")? + 2,
            [b'"', ..] => 1 + rest[1..].find('"')? + 1,
            _ => 1,
        };
        text.push(' ');
        rest = &rest[end..];
    }
    text.push_str(rest);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = ".version 8.3\n.target sm_90a\n.visible .entry mine(\n\t.param .align 64 .b8 mine_param_0[128],\n\t.param .b64 mine_param_1\n)\n\
                        .maxntid 384, 1, 1\n.minnctapersm 1\n{\n\tret;\n}\n";

    fn read(text: &str) -> Option<(Vec<usize>, u32)> {
        Signature::read(text).map(|Signature { entry, parameters, threads }| {
            assert_eq!(entry, "mine");
            (parameters, threads)
        })
    }

    #[test]
    fn a_declaration_in_all_its_forms() {
        assert_eq!(read(HEAD), Some((vec![128, 8], 384)));
        for (old, new, parameters, threads) in [
            ("\n\t.param", " .param", vec![128, 8], 384),
            (".b64 mine", ".u64 .ptr .global .align 1 mine", vec![128, 8], 384),
            (".b64", ".f32", vec![128, 4], 384),
            (",\n\t.param .b64 mine_param_1", "", vec![128], 384),
            (".maxntid 384, 1, 1", ".reqntid 128,3", vec![128, 8], 384),
            (".maxntid 384, 1, 1", ".maxntid 512", vec![128, 8], 512),
            // What looks like a declaration, and is none.
            ("\n)\n", "/* , .param .b64 more */ // , .param .b64 more\n)\n", vec![128, 8], 384),
            ("\tret;", "\t.pragma \"{ .entry // /* \"; ret; // .entry", vec![128, 8], 384),
            ("\tret;", "\t.param .b64 of_a_call; ret;", vec![128, 8], 384),
        ] {
            assert_eq!(read(&HEAD.replace(old, new)), Some((parameters, threads)), "{new}");
        }
        assert_eq!(read(".entry mine()\n.maxntid 32\n{}"), Some((vec![], 32)));
    }

    #[test]
    fn what_is_not_understood_is_not_guessed() {
        assert_eq!(read(""), None);
        for (old, new) in [
            (".entry", ".func"),
            ("\tret;\n}", "\tret;\n}\n.entry other() .maxntid 1 { ret; }"),
            ("[128]", "[4][32]"),
            ("[128]", "[N]"),
            ("[128]", " [128]"),
            (".b8", ".b16"),
            (".b64", ".v2 .b64"),
            (".b64", ".b128"),
            (".b64 mine_param_1", ".b64 mine_param_1[2]"),
            ("1\n)", "1,\n)"),
            (".maxntid 384, 1, 1\n", ""),
            (".maxntid 384, 1, 1", ".maxntid"),
            (".maxntid 384, 1, 1", ".maxntid 65536, 65536"),
            ("\n{", "\n"),
            ("\tret;", "\t/* ret;"),
            ("\tret;", "\t.pragma \"nounroll; ret;"),
            (".version", "#define b8 b64\n.version"),
            ("\tret;", "\tret; // \\"),
            ("\tret;", "\tret;\0"),
        ] {
            assert_ne!(HEAD.replace(old, new), HEAD, "{new}");
            assert_eq!(read(&HEAD.replace(old, new)), None, "{new}");
        }
    }

    #[test]
    fn differences_are_named() {
        let difference = |entry, parameters: &[usize], threads| Signature::difference(HEAD, entry, parameters, threads);
        assert_eq!(difference("mine", &[128, 8], 384), None);
        assert_eq!(difference("yours", &[128, 8], 384).unwrap(), "its kernel is mine, not yours");
        assert_eq!(difference("mine", &[128], 384).unwrap(), "mine takes parameters of [128, 8] bytes, not [128]");
        assert_eq!(difference("mine", &[128, 8], 512).unwrap(), "mine has CTAs of 384 threads, not 512");
        assert!(Signature::difference("", "mine", &[], 1).unwrap().contains("understood"));
        assert!(Signature::difference(&format!("{HEAD}\0"), "mine", &[128, 8], 384).unwrap().contains("NUL"));
    }
}
