//! The problems that are measured, and the words that name them: benches/README.md, section "Cells". `benches/cells.py` reads the same.

use std::collections::BTreeMap;
use std::fmt;

use hopper_attention_tests::ElementType;
use serde::Serialize;

use crate::Result;

const TOKENS: u64 = 16384;
const HIDDEN: u64 = 2048;
const HEAD_DIMS: [u64; 3] = [64, 128, 256];
const SEQLENS: [u64; 6] = [512, 1024, 2048, 4096, 8192, 16384];

/// One problem. Q is `[batch, seqlen_q, num_heads, head_dim]`, K and V are `[batch, seqlen_k, num_heads_k, head_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cell {
    pub batch: u64,
    pub num_heads: u64,
    pub num_heads_k: u64,
    pub seqlen_q: u64,
    pub seqlen_k: u64,
    pub head_dim: u64,
    pub causal: bool,
    pub dtype: ElementType,
    pub layout: MemoryOrder,
}

/// How Q, K and V lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryOrder {
    /// `[batch, seqlen, heads, head_dim]` each.
    Bshd,
    /// `[batch, heads, seqlen, head_dim]` each.
    Bhsd,
    /// Slices of one `[batch, seqlen, 3, heads, head_dim]`.
    Packed,
}

impl Cell {
    /// Operations of one call, counted as FlashAttention does: half of the square under a causal mask.
    pub fn flops(&self) -> u64 {
        let twice_pairs = 2 * self.seqlen_q * self.seqlen_k - if self.causal { self.seqlen_q * self.seqlen_q } else { 0 };
        2 * self.batch * self.num_heads * self.head_dim * twice_pairs
    }

    fn check(&self) -> Result<()> {
        let elements =
            [self.batch, self.num_heads, self.seqlen_q.max(self.seqlen_k), self.head_dim].map(u128::from).iter().product::<u128>();
        let fault = if elements > 1 << 36 {
            "the tensors are larger than a GPU's memory"
        } else if self.num_heads == 0 || !self.num_heads.is_multiple_of(self.num_heads_k) {
            "num_heads must be a positive multiple of num_heads_k"
        } else if self.causal && self.seqlen_q > self.seqlen_k {
            "some queries would see no key"
        } else if self.layout == MemoryOrder::Packed && (self.seqlen_q, self.num_heads) != (self.seqlen_k, self.num_heads_k) {
            "packed needs equal lengths and equal heads"
        } else {
            return Ok(());
        };
        Err(format!("cell '{self}': {fault}").into())
    }
}

/// The shortest words that mean this cell.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mask = if self.causal { "causal" } else { "full" };
        write!(f, "d{},{mask},{},{}", self.head_dim, Length(self.seqlen_k), self.dtype.name())?;
        if self.seqlen_q != self.seqlen_k {
            write!(f, ",q{}", Length(self.seqlen_q))?;
        }
        if self.batch != default_batch(self.seqlen_k) {
            write!(f, ",b{}", self.batch)?;
        }
        if self.num_heads != HIDDEN / self.head_dim {
            write!(f, ",h{}", self.num_heads)?;
        }
        if self.num_heads_k != self.num_heads {
            write!(f, ",kv{}", self.num_heads_k)?;
        }
        match self.layout {
            MemoryOrder::Bshd => Ok(()),
            MemoryOrder::Bhsd => write!(f, ",bhsd"),
            MemoryOrder::Packed => write!(f, ",packed"),
        }
    }
}

struct Length(u64);

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1024) { write!(f, "{}k", self.0 / 1024) } else { write!(f, "{}", self.0) }
    }
}

fn default_batch(seqlen_k: u64) -> u64 {
    (TOKENS / seqlen_k).max(1)
}

/// What the words of one argument give; the rest is left to the grid.
#[derive(Default)]
struct Words {
    numbers: BTreeMap<&'static str, u64>,
    causal: Option<bool>,
    dtype: Option<ElementType>,
    layout: Option<MemoryOrder>,
}

impl Words {
    fn parse(spec: &str) -> Result<Self> {
        let mut words = Self::default();
        for word in spec.split(',').filter(|word| !word.is_empty()) {
            let repeated = match word {
                "full" | "causal" => words.causal.replace(word == "causal").is_some(),
                "bf16" => words.dtype.replace(ElementType::Bf16).is_some(),
                "f16" => words.dtype.replace(ElementType::F16).is_some(),
                "bshd" => words.layout.replace(MemoryOrder::Bshd).is_some(),
                "bhsd" => words.layout.replace(MemoryOrder::Bhsd).is_some(),
                "packed" => words.layout.replace(MemoryOrder::Packed).is_some(),
                _ => {
                    let (prefix, value) =
                        number(word).ok_or_else(|| format!("unknown word '{word}': benches/README.md lists the words that name a cell"))?;
                    words.numbers.insert(prefix, value).is_some()
                }
            };
            if repeated {
                return Err(format!("cell '{spec}': '{word}' says again what another word says").into());
            }
        }
        Ok(words)
    }

    fn number(&self, prefix: &str) -> Option<u64> {
        self.numbers.get(prefix).copied()
    }

    /// The number given under `prefix`, or else the grid's.
    fn choices(&self, prefix: &str, grid: &[u64]) -> Vec<u64> {
        self.number(prefix).map_or(grid.to_vec(), |given| vec![given])
    }
}

/// `d128`, `q1k`, `b1`, `h32`, `kv8`, or a bare length: the letters and the number.
fn number(word: &str) -> Option<(&'static str, u64)> {
    let letters = word.find(|c: char| c.is_ascii_digit())?;
    let (prefix, digits) = word.split_at(letters);
    let prefix = ["d", "q", "b", "h", "kv", ""].into_iter().find(|&known| known == prefix)?;
    let (digits, unit) = match digits.strip_suffix('k') {
        Some(digits) if matches!(prefix, "q" | "") => (digits, 1024),
        _ => (digits, 1),
    };
    // `parse` would take a sign.
    let value: u64 = digits.chars().all(|c| c.is_ascii_digit()).then(|| digits.parse().ok()).flatten()?;
    let value = value.checked_mul(unit)?;
    (1..=1 << 24).contains(&value).then_some((prefix, value))
}

/// The cells of one argument of `--cells`: those of a group's name, or of words, where what is left out takes the grid's values.
pub fn expand(spec: &str) -> Result<Vec<Cell>> {
    let groups: BTreeMap<String, Vec<String>> = serde_json::from_str(include_str!("../../../../benches/groups.json"))?;
    let members = groups.get(spec).cloned().unwrap_or_else(|| vec![spec.to_string()]);
    let mut cells = vec![];
    for member in members {
        expand_words(&Words::parse(&member)?, &mut cells);
    }
    cells.iter().try_for_each(Cell::check)?;
    Ok(cells)
}

fn expand_words(words: &Words, cells: &mut Vec<Cell>) {
    for dtype in words.dtype.map_or(vec![ElementType::Bf16, ElementType::F16], |given| vec![given]) {
        for head_dim in words.choices("d", &HEAD_DIMS) {
            for causal in words.causal.map_or(vec![false, true], |given| vec![given]) {
                for seqlen_k in words.choices("", &SEQLENS) {
                    let num_heads = words.number("h").unwrap_or(HIDDEN / head_dim);
                    cells.push(Cell {
                        batch: words.number("b").unwrap_or(default_batch(seqlen_k)),
                        num_heads,
                        num_heads_k: words.number("kv").unwrap_or(num_heads),
                        seqlen_q: words.number("q").unwrap_or(seqlen_k),
                        seqlen_k,
                        head_dim,
                        causal,
                        dtype,
                        layout: words.layout.unwrap_or(MemoryOrder::Bshd),
                    });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_have_the_documented_sizes() {
        for (group, cells) in [("grid", 72), ("bf16", 36), ("d128,full", 12), ("sustained", 6), ("shapes", 28)] {
            assert_eq!(expand(group).unwrap().len(), cells, "{group}");
        }
    }

    #[test]
    fn a_name_means_its_cell() {
        for cell in ["grid", "shapes", "sustained"].into_iter().flat_map(|group| expand(group).unwrap()) {
            assert_eq!(expand(&cell.to_string()).unwrap(), [cell]);
        }
    }

    #[test]
    fn words_in_any_order() {
        let [cell] = expand("kv8,4k,h32,bf16,causal,d128").unwrap()[..] else { panic!("one cell") };
        assert_eq!(cell.to_string(), "d128,causal,4k,bf16,h32,kv8");
        assert_eq!((cell.batch, cell.num_heads, cell.num_heads_k), (4, 32, 8));
        // Half of 4 * 4 * 32 * 4096^2 * 128.
        assert_eq!(cell.flops(), 549_755_813_888);
    }

    #[test]
    fn contradictions_and_unknown_words_are_refused() {
        for spec in [
            "dd",
            "d128,d64",
            "full,causal",
            "h3,kv2",
            "1k,q2k,causal",
            "packed,kv1",
            "d1k",
            "b0",
            "d+1",
            "99999999999",
            "16m",
            "b9999999,h9999999,9999999",
        ] {
            assert!(expand(spec).is_err(), "{spec}");
        }
    }
}
