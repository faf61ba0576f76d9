//! `cargo xtask mutate`: one synchronising instruction of each kernel removed or weakened at a time, and whether the emulator notices
//! (emulator/MUTATIONS.md). The command itself is the emulator's; here are the problems.

use crate::device::{Device, Wanted, shield};
use crate::test::PACKAGE;
use crate::workspace::{artifacts, cargo, line, root, stdout_of};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Options of `cargo xtask mutate`.
#[derive(clap::Args)]
pub struct Options {
    /// Orders of execution to try for each mutant
    #[arg(long, allow_negative_numbers = true, default_value_t = 3)]
    pub schedules: u32,
    /// Only kernels whose name contains this
    #[arg(value_name = "FILTER")]
    pub filter: Option<String>,
}

/// Queries, keys, query heads, key heads: cheap ones first, since a mutant is dropped as soon as it is caught.
const PROBLEMS: [[u32; 4]; 8] = [
    // One key tile, row tiles that are not full.
    [100, 50, 5, 1],
    // Several key tiles, an even number of them and an odd one (of 64 keys seven and five; the 200 keys below make four).
    [300, 400, 4, 2],
    [260, 300, 3, 1],
    // No keys at all.
    [300, 0, 4, 2],
    // Under the causal mask, several row tiles that see no key, and some that see few.
    [900, 200, 2, 2],
    [500, 650, 2, 1],
    // Short row tiles in a row, of which the first warpgroup sees fewer key tiles than the others.
    [120, 130, 8, 2],
    // So many heads that the causal order has two sections: full row tiles before one that only the first warpgroup has rows in.
    [200, 140, 66, 1],
];

/// Runs the command.
pub fn run(options: &Options) -> Result<()> {
    // A name that no kernel has is said before anything is built.
    let files = kernels(options.filter.as_deref())?;
    let environment = Device::find(Wanted::Emulator)?.environment()?;
    let mutator = built(cargo().args(["build", "--release", "--package", "hopper-attention-emulator", "--bin", "emulator"]), "emulator")?;
    let program = built(cargo().args(["test", "--no-run", "--release", "--package", PACKAGE, "--test", "forward"]), "forward")?;
    let mut summaries = Vec::new();
    for file in files {
        let entry = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let mut command = Command::new(&mutator);
        command.args(["mutate", "--schedules", &options.schedules.to_string()]).arg(&file);
        for problem in PROBLEMS {
            command.args(["--problem", &case(&entry, problem)?]);
        }
        command.args(["--", "HOPPER_ATTENTION_CASE={}"]).arg(&program);
        shield(&mut command)
            .envs(environment.iter().cloned())
            .env("HOPPER_ATTENTION_REQUIRE_DEVICE", "1")
            .env("HOPPER_EMULATOR_SMS", multiprocessors(&entry));
        summaries.push(run_and_keep_last_line(&mut command)?);
    }
    println!();
    summaries.iter().for_each(|summary| println!("{summary}"));
    Ok(())
}

/// Two, so that each CTA walks several tiles; for kernels of fewer rows, as many as there are tiles, or another kernel would run.
fn multiprocessors(entry: &str) -> &'static str {
    if entry.contains("fewer_rows") { "132" } else { "2" }
}

fn built(command: &mut Command, wanted: &str) -> Result<PathBuf> {
    let messages = stdout_of(command.args(["--message-format", "json-render-diagnostics"]))?;
    let program = artifacts(&messages).into_iter().find_map(|(_, name, path)| (name == wanted).then_some(path));
    program.with_context(|| format!("cargo built no {wanted}"))
}

/// The forward kernels; those that combine have no synchronising instruction.
fn kernels(filter: Option<&str>) -> Result<Vec<PathBuf>> {
    let folder = root().join("host/ptx");
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("flash_fwd_") && name.ends_with(".ptx") && filter.is_none_or(|filter| name.contains(filter)) {
            files.push(path);
        }
    }
    ensure!(!files.is_empty(), "no kernel of {} has such a name", folder.display());
    files.sort();
    Ok(files)
}

/// The problem as the device tests take it, for the kernel of this name.
fn case(entry: &str, [seqlen_q, seqlen_k, num_heads, num_heads_k]: [u32; 4]) -> Result<String> {
    let words: Vec<&str> = entry.split('_').collect();
    let hdim = words.iter().position(|word| word.starts_with("hdim"));
    let head_dim = hdim.and_then(|hdim| words[hdim].strip_prefix("hdim")?.parse::<u32>().ok());
    // Of V, where it is another one.
    let head_dim_v = hdim.and_then(|hdim| words.get(hdim + 1)?.parse::<u32>().ok());
    let dtype = words.iter().find(|word| ["f16", "bf16"].contains(word));
    let (Some(head_dim), Some(dtype)) = (head_dim, dtype) else { bail!("{entry} is no kernel's name") };
    let placement = serde_json::json!({
        "order": [0, 1, 2], "gaps": [0, 0, 0], "broadcast_batch": false, "broadcast_heads": false, "offset": 0, "wild_strides": false,
    });
    let mut case = serde_json::json!({
        "dtype": dtype, "batch": 1, "seqlen_q": seqlen_q, "seqlen_k": seqlen_k, "num_heads": num_heads, "num_heads_k": num_heads_k,
        "head_dim": head_dim, "causal": words.contains(&"causal"), "softmax_scale": null, "values": { "normal": { "factor": 1.0 } },
        "edits": [], "q": placement, "k": placement, "v": placement, "o": placement, "packed": false, "lse": true, "judged_rows": null,
        "seed": 1,
    });
    if let Some(head_dim_v) = head_dim_v {
        case["features"] = serde_json::json!({ "head_dim_v": head_dim_v });
    }
    Ok(case.to_string())
}

/// Shows the output as it comes, and returns its last line.
fn run_and_keep_last_line(command: &mut Command) -> Result<String> {
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", line(command)))?;
    let mut last = String::new();
    for text in BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        last = text?;
        println!("{last}");
    }
    let status = child.wait()?;
    ensure!(status.success(), "{status}: {}", line(command));
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_names_say_the_case() {
        let case = |entry| case(entry, [3, 4, 2, 1]).map(|text| serde_json::from_str::<serde_json::Value>(&text).unwrap());
        let equal = case("flash_fwd_hdim96_bf16_causal_sm90").unwrap();
        assert_eq!((&equal["head_dim"], &equal["dtype"], &equal["causal"]), (&96.into(), &"bf16".into(), &true.into()));
        assert!(equal.get("features").is_none());
        let unequal = case("flash_fwd_hdim192_128_f16_sm90").unwrap();
        assert_eq!((&unequal["head_dim"], &unequal["features"]["head_dim_v"]), (&192.into(), &128.into()));
        assert!(case("something").is_err());
    }
}
