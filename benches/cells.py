"""The problems that are measured, and the words that name them (README.md, "Cells")."""
import dataclasses
import json
import os
import re

TOKENS, HIDDEN = 16384, 2048
HEAD_DIMS, SEQLENS, DTYPES = (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384), ("bf16", "f16")
LAYOUTS = ("bshd", "bhsd", "packed")

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "groups.json")) as file:
    GROUPS = json.load(file)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One problem. Q is [batch, seqlen_q, num_heads, head_dim], K and V are [batch, seqlen_k, num_heads_k, head_dim]."""
    head_dim: int
    causal: bool
    seqlen_q: int
    seqlen_k: int
    dtype: str
    batch: int
    num_heads: int
    num_heads_k: int
    layout: str

    @property
    def name(self):
        """The shortest words that mean this cell."""
        words = [f"d{self.head_dim}", "causal" if self.causal else "full", length_name(self.seqlen_k), self.dtype]
        if self.seqlen_q != self.seqlen_k:
            words.append(f"q{length_name(self.seqlen_q)}")
        if self.batch != default_batch(self.seqlen_k):
            words.append(f"b{self.batch}")
        if self.num_heads != HIDDEN // self.head_dim:
            words.append(f"h{self.num_heads}")
        if self.num_heads_k != self.num_heads:
            words.append(f"kv{self.num_heads_k}")
        if self.layout != "bshd":
            words.append(self.layout)
        return ",".join(words)

    @property
    def flops(self):
        """Operations of one call, counted as FlashAttention does: half of the square under a causal mask."""
        twice_pairs = 2 * self.seqlen_q * self.seqlen_k - (self.seqlen_q**2 if self.causal else 0)
        return 2 * self.batch * self.num_heads * self.head_dim * twice_pairs

    def check(self):
        """ValueError where the words contradict each other."""
        if self.num_heads < 1 or self.num_heads % self.num_heads_k:
            raise ValueError(f"cell {self.name!r}: num_heads must be a positive multiple of num_heads_k")
        if self.causal and self.seqlen_q > self.seqlen_k:
            raise ValueError(f"cell {self.name!r}: some queries would see no key")
        if self.layout == "packed" and (self.seqlen_q, self.num_heads) != (self.seqlen_k, self.num_heads_k):
            raise ValueError(f"cell {self.name!r}: packed needs equal lengths and equal heads")


def length_name(length):
    return f"{length // 1024}k" if length % 1024 == 0 else str(length)


def default_batch(seqlen_k):
    return max(1, TOKENS // seqlen_k)


def parse_word(word):
    """One word of a cell, as (field, value)."""
    if word in DTYPES:
        return "dtype", word
    if word in LAYOUTS:
        return "layout", word
    if word in ("full", "causal"):
        return "causal", word == "causal"
    match = re.fullmatch(r"(d|q|b|h|kv|)([1-9][0-9]*)(k?)", word)
    if match is None or (match[3] and match[1] not in ("q", "")):
        raise ValueError(f"unknown word {word!r}: benches/README.md lists the words that name a cell")
    field = {"d": "head_dim", "q": "seqlen_q", "b": "batch", "h": "num_heads", "kv": "num_heads_k", "": "seqlen_k"}[match[1]]
    return field, int(match[2]) * (1024 if match[3] else 1)


def parse_words(spec):
    """The fields that the words of `spec` give."""
    given = {}
    for word in filter(None, spec.split(",")):
        field, value = parse_word(word)
        if field in given:
            raise ValueError(f"cell {spec!r} gives {field} twice")
        given[field] = value
    return given


def expand(spec):
    """The cells of one argument of --cells: those of a group's name, or of words, where what is left out takes the grid's values."""
    if spec in GROUPS:
        return [cell for words in GROUPS[spec] for cell in expand(words)]
    given = parse_words(spec)

    def choices(field, grid):
        return (given[field],) if field in given else grid

    cells = []
    for dtype in choices("dtype", DTYPES):
        for head_dim in choices("head_dim", HEAD_DIMS):
            for causal in choices("causal", (False, True)):
                for seqlen_k in choices("seqlen_k", SEQLENS):
                    num_heads = given.get("num_heads", HIDDEN // head_dim)
                    cells.append(Cell(
                        head_dim=head_dim, causal=causal, dtype=dtype, seqlen_k=seqlen_k,
                        seqlen_q=given.get("seqlen_q", seqlen_k), batch=given.get("batch", default_batch(seqlen_k)),
                        num_heads=num_heads, num_heads_k=given.get("num_heads_k", num_heads), layout=given.get("layout", "bshd")))
    for cell in cells:
        cell.check()
    return cells


def expand_all(specs):
    """The cells of several arguments, each once, in their order."""
    return list(dict.fromkeys(cell for spec in specs for cell in expand(spec)))
