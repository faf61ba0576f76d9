//! A compiler's PTX module, taken apart: its header, its module-level items, its entries.
//!
//! Only the outline is parsed. An item ends with the line that closes its braces or ends its declaration, as both LLVM and libNVVM
//! write it.

use crate::error::{Error, bail, ensure};

/// One module-level item: its lines, without comments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Line number of the first line, from 1.
    pub line: usize,
    /// The lines, each with its number; comments removed, empty lines dropped.
    pub lines: Vec<(usize, String)>,
    /// Comments in order, each with its number.
    pub comments: Vec<(usize, String)>,
}

impl Item {
    /// The first line, for messages.
    pub fn text(&self) -> &str {
        self.lines.first().map_or("", |(_, text)| text.trim())
    }

    /// The entry's name, if this is one.
    pub fn entry_name(&self) -> Option<&str> {
        let words = self.text();
        let after = words.split_once(".entry")?.1.trim_start();
        Some(after.split(|c: char| !is_identifier(c)).next().unwrap_or(after))
    }

    /// The name that the item declares: the last identifier outside brackets, before an initialiser or body.
    pub fn declared_name(&self) -> Option<String> {
        let mut name = None;
        let mut depth = 0;
        for token in self.lines.iter().flat_map(|(_, line)| tokens(line)) {
            match token {
                "(" | "[" => depth += 1,
                ")" | "]" => depth -= 1,
                "{" | "=" | ";" if depth == 0 => break,
                word if depth == 0 && word.starts_with(|c: char| c.is_ascii_alphabetic() || "_$%".contains(c)) => name = Some(word),
                _ => {}
            }
        }
        name.map(str::to_owned)
    }
}

/// A module's parts.
#[derive(Debug, PartialEq, Eq)]
pub struct Module {
    /// `.version`, as (major, minor).
    pub version: (u32, u32),
    /// Entries, in the module's order.
    pub entries: Vec<Item>,
    /// All other module-level items.
    pub others: Vec<Item>,
}

/// Takes `text` apart.
///
/// # Errors
/// No `.version`, a target other than sm_90a, another address size, or an item without an end.
pub fn parse(text: &str) -> Result<Module, Error> {
    let mut module = Module { version: (0, 0), entries: Vec::new(), others: Vec::new() };
    let (mut target, mut address_size) = (None, None);
    for item in items(text)? {
        let words: Vec<_> = item.text().split_whitespace().collect();
        match words.as_slice() {
            [".version", version] => {
                let parts = version.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
                let Some(parts) = parts else { bail!("not a version: {}", item.text()) };
                module.version = parts;
            }
            [".target", name @ ..] => target = Some(name.join(" ")),
            [".address_size", size] => address_size = Some((*size).to_owned()),
            _ if item.entry_name().is_some() => module.entries.push(item),
            _ => module.others.push(item),
        }
    }
    ensure!(module.version != (0, 0), "the module has no .version");
    ensure!(target.as_deref() == Some("sm_90a"), "the module's .target is {target:?}, not sm_90a");
    ensure!(address_size.as_deref() == Some("64"), "the module's .address_size is {address_size:?}, not 64");
    Ok(module)
}

fn items(text: &str) -> Result<Vec<Item>, Error> {
    let mut items: Vec<Item> = Vec::new();
    let mut open: Option<Item> = None;
    let mut depth = 0i32;
    for (line, (code, comments)) in (1..).zip(uncommented(text)) {
        let code = code.trim_end();
        if code.trim().is_empty() && open.is_none() {
            continue;
        }
        let item = open.get_or_insert_with(|| Item { line, lines: Vec::new(), comments: Vec::new() });
        item.comments.extend(comments.into_iter().map(|comment| (line, comment)));
        if !code.trim().is_empty() {
            item.lines.push((line, code.to_owned()));
        }
        depth += tokens(code).map(|token| i32::from(token == "{") - i32::from(token == "}")).sum::<i32>();
        if depth < 0 {
            bail!("line {line}: a brace closes nothing: {code}");
        }
        let directive = [".version", ".target", ".address_size"].iter().any(|name| code.trim_start().starts_with(name));
        if depth == 0 && (directive || code.ends_with(';') || code.ends_with('}')) {
            items.extend(open.take());
        }
    }
    match open {
        Some(item) => bail!("line {}: an item without an end: {}", item.line, item.text()),
        None => Ok(items),
    }
}

/// Each line's code and the comments that it holds. A comment over several lines belongs to its first.
fn uncommented(text: &str) -> Vec<(String, Vec<String>)> {
    let mut lines = Vec::new();
    let mut in_block = false;
    for line in text.lines() {
        let (mut code, mut comments, mut rest) = (String::new(), Vec::new(), line);
        loop {
            if in_block {
                let Some((_, after)) = rest.split_once("*/") else { break };
                (in_block, rest) = (false, after);
            }
            let starts = [rest.find("//"), rest.find("/*"), rest.find('"')];
            let Some(start) = starts.iter().flatten().min().copied() else {
                code.push_str(rest);
                break;
            };
            code.push_str(&rest[..start]);
            rest = &rest[start..];
            if let Some(string) = rest.strip_prefix('"') {
                let end = string.find('"').map_or(rest.len(), |end| end + 2);
                code.push_str(&rest[..end]);
                rest = &rest[end..];
            } else if let Some(comment) = rest.strip_prefix("//") {
                comments.push(comment.trim().to_owned());
                break;
            } else {
                let comment = &rest[2..];
                comments.push(comment.split("*/").next().unwrap_or(comment).trim().to_owned());
                (in_block, rest) = (true, comment);
            }
        }
        lines.push((code, comments));
    }
    lines
}

fn is_identifier(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_$%.".contains(c)
}

/// Words (identifiers, directives, numbers) and single other characters.
pub fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let first = rest.chars().next()?;
        let end = if is_identifier(first) { rest.find(|c| !is_identifier(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (token, after) = rest.split_at(end);
        rest = after;
        Some(token)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = ".version 8.3\n.target sm_90a\n.address_size 64\n";

    fn names(text: &str) -> Vec<Option<String>> {
        parse(&format!("{HEADER}{text}")).unwrap().others.iter().map(Item::declared_name).collect()
    }

    #[test]
    fn outline() {
        let text = format!(
            "//\n// Generated\n//\n{HEADER}\n.extern .shared .align 1024 .b8 smem[];\n.visible .func f(\n\t.param .b64 f_param_0\n)\n.noreturn\n{{\n$L:\n\tbra.uni $L;\n}}\n\t// .globl k\n.visible .entry k(\n\t.param .u64 k_param_0\n)\n{{\n\t// launch_bounds 384\n\t{{ ret; }} /* a\n\tb */\n\tret;\n}}\n"
        );
        let module = parse(&text).unwrap();
        assert_eq!(module.version, (8, 3));
        assert_eq!(
            module.others.iter().map(|item| item.text()).collect::<Vec<_>>(),
            [".extern .shared .align 1024 .b8 smem[];", ".visible .func f("]
        );
        let [entry] = module.entries.as_slice() else { panic!("one entry") };
        assert_eq!(entry.entry_name(), Some("k"));
        assert_eq!(entry.comments.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(), ["launch_bounds 384", "a"]);
        assert_eq!(entry.lines.last().unwrap().1, "}");
        assert_eq!(entry.lines.len(), 7);
    }

    #[test]
    fn declared_names() {
        assert_eq!(names(".extern .shared .align 1024 .b8 smem[];\n"), [Some("smem".into())]);
        assert_eq!(names(".global .align 4 .b8 table[4] = {1, 2, 3, 4};\n"), [Some("table".into())]);
        assert_eq!(names(".extern .func  (.param .b32 func_retval0) vprintf\n(\n\t.param .b64 p\n)\n;\n"), [Some("vprintf".into())]);
        assert_eq!(names(".visible .func _RN4core(\n\t.param .b64 x\n)\n.noreturn\n{\n}\n"), [Some("_RN4core".into())]);
    }

    #[test]
    fn refuses_other_targets_and_broken_text() {
        assert!(parse(".version 8.3\n.target sm_90\n.address_size 64\n").unwrap_err().to_string().contains("sm_90a"));
        assert!(parse(&format!("{HEADER}.visible .entry k(\n)\n{{\n")).unwrap_err().to_string().contains("without an end"));
        assert!(parse(&format!("{HEADER}}}\n")).unwrap_err().to_string().contains("closes nothing"));
    }

    #[test]
    fn comments_inside_strings_stay() {
        let lines = uncommented(".pragma \"no // comment\"; // one\n");
        assert_eq!(lines, [(".pragma \"no // comment\"; ".to_owned(), vec!["one".to_owned()])]);
    }
}
