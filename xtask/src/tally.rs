//! Counting tests from what the test programs print.

use crate::workspace::line;
use anyhow::{Context, Result};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::process::{Command, Stdio};

/// Tests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Ran, and as expected.
    pub passed: u64,
    /// Ran, and not as expected.
    pub failed: u64,
    /// Did not run.
    pub skipped: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Runs a test command with its output on the terminal, and counts. The flag is whether it exited with 0.
pub fn run_tests(command: &mut Command) -> Result<(Tally, bool)> {
    let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", line(command)))?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut tally = Tally::default();
    for text in BufReader::new(stdout).lines() {
        let text = text?;
        println!("{text}");
        if let Some(summary) = parse_summary(&text) {
            tally += summary;
        }
    }
    Ok((tally, child.wait()?.success()))
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

/// Reads the end of a run of Python's unittest: `Ran 11 tests in 0.01s`, `OK (skipped=1)` or `FAILED (failures=1, errors=2)`.
pub fn parse_unittest(output: &str) -> Option<Tally> {
    let ran: u64 = output.lines().rev().find_map(|line| line.strip_prefix("Ran ")?.split(' ').next()?.parse().ok())?;
    let result = output.lines().rev().find(|line| line.starts_with("OK") || line.starts_with("FAILED"))?;
    let number = |name: &str| -> u64 {
        let digits = result.split_once(&format!("{name}=")).map_or("", |(_, rest)| rest.split([',', ')']).next().unwrap_or_default());
        digits.parse().unwrap_or(0)
    };
    let (failed, skipped) = (number("failures") + number("errors"), number("skipped"));
    Some(Tally { passed: ran.checked_sub(failed + skipped)?, failed, skipped })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summaries() {
        let line = "test result: FAILED. 16 passed; 3 failed; 2 ignored; 0 measured; 1 filtered out; finished in 0.00s";
        assert_eq!(parse_summary(line), Some(Tally { passed: 16, failed: 3, skipped: 2 }));
        assert_eq!(parse_summary("test tally::summaries ... ok"), None);
    }

    #[test]
    fn unittest() {
        let end = "..\nRan 11 tests in 0.011s\n\n";
        assert_eq!(parse_unittest(&format!("{end}OK\n")), Some(Tally { passed: 11, failed: 0, skipped: 0 }));
        assert_eq!(
            parse_unittest(&format!("{end}FAILED (failures=1, errors=2, skipped=3)\n")),
            Some(Tally { passed: 5, failed: 3, skipped: 3 })
        );
        assert_eq!(parse_unittest("Traceback"), None);
    }

    #[test]
    fn sums_and_words() {
        let mut tally = Tally { passed: 1, failed: 0, skipped: 2 };
        tally += Tally { passed: 3, failed: 1, skipped: 0 };
        assert_eq!(tally.to_string(), "4 passed, 1 failed, 2 skipped");
    }
}
