//! Counting tests from what the test programs print.

use crate::workspace::line;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::process::{Command, Stdio};

/// Tests by outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Ran, and as expected.
    pub passed: u64,
    /// Ran, and not as expected; at least 1 where a test program or its build failed otherwise.
    pub failed: u64,
    /// Did not run.
    pub skipped: u64,
    /// How many of those did not run for which reason, where the test program says it.
    reasons: BTreeMap<String, u64>,
}

impl Tally {
    /// How many were skipped for each known reason.
    pub fn reasons(&self) -> Vec<String> {
        self.reasons.iter().map(|(reason, count)| format!("{count}: {reason}")).collect()
    }

    /// The same, run once more: what is skipped is skipped once.
    pub fn add_run(&mut self, again: &Self) {
        self.passed += again.passed;
        self.failed += again.failed;
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += count;
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Runs a test command with its output on the terminal, and counts.
pub fn run_tests(command: &mut Command) -> Result<Tally> {
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", line(command)))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut tally = Tally::default();
    for text in BufReader::new(stdout).lines() {
        let text = text?;
        println!("{text}");
        if let Some(summary) = parse_summary(&text) {
            tally += &summary;
        }
        if let Some((count, reason)) = parse_reason(&text) {
            *tally.reasons.entry(reason.to_owned()).or_default() += count;
        }
    }
    if !child.wait()?.success() {
        tally.failed = tally.failed.max(1);
    }
    Ok(tally)
}

/// Reads `test result: ok. 16 passed; 0 failed; 2 ignored; 0 measured; 1 filtered out; ...`, as libtest and its imitations write it.
fn parse_summary(line: &str) -> Option<Tally> {
    let (_, counts) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
    let mut tally = Tally::default();
    for item in counts.split(';') {
        match item.split_whitespace().collect::<Vec<_>>().as_slice() {
            [count, "passed"] => tally.passed = count.parse().ok()?,
            [count, "failed"] => tally.failed = count.parse().ok()?,
            [count, "ignored"] => tally.skipped = count.parse().ok()?,
            _ => {}
        }
    }
    Some(tally)
}

/// Reads `forward: not run, 13 tests: too much for an emulator`, as the device tests write it.
fn parse_reason(line: &str) -> Option<(u64, &str)> {
    let (count, reason) = line.split_once(": not run, ")?.1.split_once(" tests: ")?;
    Some((count.parse().ok()?, reason))
}

/// Reads the end of a run of Python's unittest: `Ran 11 tests in 0.01s`, `OK (skipped=1)` or `FAILED (failures=1, errors=2)`.
pub fn parse_unittest(output: &str) -> Option<Tally> {
    let ran: u64 = output.lines().rev().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok())?;
    let result = output.lines().rev().find(|line| line.starts_with("OK") || line.starts_with("FAILED"))?;
    let number = |name: &str| -> u64 {
        let digits = result.split_once(&format!("{name}=")).map_or("", |(_, rest)| rest.split([',', ')']).next().unwrap_or_default());
        digits.parse().unwrap_or(0)
    };
    let (failed, skipped) = (number("failures") + number("errors"), number("skipped"));
    Some(Tally { passed: ran.checked_sub(failed + skipped)?, failed, skipped, ..Tally::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: u64, failed: u64, skipped: u64) -> Tally {
        Tally { passed, failed, skipped, ..Tally::default() }
    }

    #[test]
    fn summaries() {
        let line = "test result: FAILED. 16 passed; 3 failed; 2 ignored; 0 measured; 1 filtered out; finished in 0.00s";
        assert_eq!(parse_summary(line), Some(tally(16, 3, 2)));
        assert_eq!(parse_summary("test tally::summaries ... ok"), None);
    }

    #[test]
    fn reasons() {
        assert_eq!(parse_reason("forward: not run, 13 tests: too much: for an emulator"), Some((13, "too much: for an emulator")));
        assert_eq!(parse_reason("test many_tests::not run ... ok"), None);
    }

    #[test]
    fn unittest() {
        let end = "..\nRan 11 tests in 0.011s\n\n";
        assert_eq!(parse_unittest(&format!("{end}OK\n")), Some(tally(11, 0, 0)));
        assert_eq!(parse_unittest(&format!("{end}FAILED (failures=1, errors=2, skipped=3)\n")), Some(tally(5, 3, 3)));
        assert_eq!(parse_unittest("Traceback"), None);
    }

    #[test]
    fn sums_and_words() {
        let skipped = |count, reason: &str| Tally { reasons: [(reason.to_owned(), count)].into(), ..tally(0, 0, count) };
        let mut sum = tally(1, 0, 0);
        for part in [tally(3, 1, 0), skipped(2, "b"), skipped(4, "a"), skipped(1, "b")] {
            sum += &part;
        }
        sum.add_run(&Tally { passed: 3, ..skipped(2, "b") });
        assert_eq!(sum.to_string(), "7 passed, 1 failed, 7 skipped");
        assert_eq!(sum.reasons(), ["4: a", "3: b"]);
    }

    #[test]
    fn a_command_that_fails_without_a_summary() {
        assert_eq!(run_tests(&mut Command::new("false")).unwrap(), tally(0, 1, 0));
    }
}
