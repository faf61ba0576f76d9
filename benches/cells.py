"""The problems that are measured, and the words that name them (README.md, "Cells")."""
import dataclasses
import json
import os
import random
import re
from typing import Optional

TOKENS, HIDDEN = 16384, 2048
HEAD_DIMS, SEQLENS, DTYPES = (64, 128, 256), (512, 1024, 2048, 4096, 8192, 16384), ("bf16", "f16")
LAYOUTS = ("bshd", "bhsd", "packed")
# Features that are there or not; in a cell's name in this order, but for `var`, which stands for the length.
FLAGS = ("alibi", "sinks", "var", "docs", "bias")
# The letters before a number: the field that it is, whether it may be 0, and whether it may be counted in units of 1024.
NUMBERS = {
    "": ("seqlen_k", False, True), "q": ("seqlen_q", False, True), "d": ("head_dim", False, False), "dv": ("head_dim_v", False, False),
    "b": ("batch", False, False), "h": ("num_heads", False, False), "kv": ("num_heads_k", False, False),
    "wl": ("window_left", True, True), "wr": ("window_right", True, True), "cap": ("softcap", False, False)}
# From which on the bias of `bias` stays the same.
MAX_DISTANCE = 128


def heavy_tailed(count):
    """So many lengths: the quantiles (i + 1/2) / count of a Pareto distribution of exponent 1/2 cut off at 128 and 8192, which has the mean
    sqrt(128 * 8192) = 1024. All runs have the same lengths, and so the same FLOPs; only the order is drawn."""
    return tuple(int(128 / (1 - 0.875 * (i + 0.5) / count) ** 2) for i in range(count))


# The 64 sequences of `var`.
RAGGED_LENGTHS = heavy_tailed(64)

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "groups.json")) as file:
    GROUPS = json.load(file)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One problem. Q is [batch, seqlen_q, num_heads, head_dim], K [batch, seqlen_k, num_heads_k, head_dim], V [batch, seqlen_k,
    num_heads_k, head_dim_v]. With `var` the `batch` sequences lie one behind another instead, and seqlen_q and seqlen_k are those of the
    longest."""
    head_dim: int
    causal: bool
    seqlen_q: int
    seqlen_k: int
    dtype: str
    batch: int
    num_heads: int
    num_heads_k: int
    layout: str
    head_dim_v: int
    window_left: Optional[int] = None
    window_right: Optional[int] = None
    softcap: Optional[int] = None
    alibi: bool = False
    sinks: bool = False
    var: bool = False
    docs: bool = False
    bias: bool = False

    @property
    def name(self):
        """The shortest words that mean this cell."""
        words = [f"d{self.head_dim}", "causal" if self.causal else "full", "var" if self.var else length_name(self.seqlen_k), self.dtype]
        if self.seqlen_q != self.seqlen_k:
            words.append(f"q{length_name(self.seqlen_q)}")
        if not self.var and self.batch != default_batch(self.seqlen_k):
            words.append(f"b{self.batch}")
        if self.num_heads != HIDDEN // self.head_dim:
            words.append(f"h{self.num_heads}")
        if self.num_heads_k != self.num_heads:
            words.append(f"kv{self.num_heads_k}")
        if self.layout != "bshd":
            words.append(self.layout)
        if self.head_dim_v != self.head_dim:
            words.append(f"dv{self.head_dim_v}")
        if self.window_left is not None:
            words.append(f"wl{length_name(self.window_left)}")
        if self.window_right is not None:
            words.append(f"wr{length_name(self.window_right)}")
        if self.softcap:
            words.append(f"cap{self.softcap}")
        return ",".join(words + [word for word in FLAGS if word != "var" and getattr(self, word)])

    @property
    def features(self):
        """What it asks for besides a causal mask, as a set of fields, with "window" for both bounds."""
        asked = dict(
            head_dim_v=self.head_dim_v != self.head_dim, window=self.window_left is not None or self.window_right is not None,
            softcap=self.softcap, **{flag: getattr(self, flag) for flag in FLAGS})
        return {feature for feature, wanted in asked.items() if wanted}

    @property
    def window(self):
        """(left, right), None where open; causal is a right bound of 0."""
        return self.window_left, 0 if self.causal else self.window_right

    def visible(self, position, seqlen_k):
        """The keys that the query at `position`, which is i + seqlen_k - seqlen_q, sees: (first, behind the last)."""
        left, right = self.window
        return (0 if left is None else max(0, position - left)), (seqlen_k if right is None else min(seqlen_k, position + right + 1))

    @property
    def kernel(self):
        """The kernel of examples/document-mask that has the cell's functions; None for a cell without."""
        functions = [name for name, wanted in (("documents", self.docs), ("bias", self.bias)) if wanted]
        head_dim = 64 if max(self.head_dim, self.head_dim_v) <= 64 else 128
        return "_".join([*functions, f"hdim{head_dim}", self.dtype]) if functions else None

    @property
    def flops(self):
        """Operations of one call. Plain cells are counted as FlashAttention does: half of the square under a causal mask."""
        if self.features & {"window", "var", "docs"}:
            parts = RAGGED_LENGTHS if self.var else document_lengths(self.seqlen_k) if self.docs else None
            lengths = [(n, n) for n in parts] if parts else [(self.seqlen_q, self.seqlen_k)]
            twice_pairs = 2 * sum(self.visible_pairs(*pair) for pair in lengths) * (1 if self.var else self.batch)
        else:
            twice_pairs = self.batch * (2 * self.seqlen_q * self.seqlen_k - (self.seqlen_q**2 if self.causal else 0))
        return self.num_heads * (self.head_dim + self.head_dim_v) * twice_pairs

    def visible_pairs(self, seqlen_q, seqlen_k):
        """The exact number of pairs of a query and a key that it sees, in one sequence."""
        spans = (self.visible(i + seqlen_k - seqlen_q, seqlen_k) for i in range(seqlen_q))
        return sum(end - first for first, end in spans)

    def as_json(self):
        """Its fields, without those of features that it does not ask for."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if getattr(self, field.name) != field.default}

    def check(self):
        """ValueError where the words contradict each other."""
        right = self.window[1]
        if self.num_heads < 1 or self.num_heads % self.num_heads_k:
            raise ValueError(f"cell {self.name!r}: num_heads must be a positive multiple of num_heads_k")
        if self.causal and self.window_right is not None:
            raise ValueError(f"cell {self.name!r}: causal is a right bound already")
        if right is not None and self.seqlen_q > self.seqlen_k + right:
            raise ValueError(f"cell {self.name!r}: some queries would see no key")
        if self.layout == "packed" and (self.seqlen_q, self.num_heads, self.head_dim) != (self.seqlen_k, self.num_heads_k, self.head_dim_v):
            raise ValueError(f"cell {self.name!r}: packed needs equal lengths, equal heads and equal head dims")
        if self.softcap and self.alibi:
            raise ValueError(f"cell {self.name!r}: nothing says which of soft cap and ALiBi comes first")
        if self.kernel and (self.softcap or self.alibi or self.var or self.seqlen_q != self.seqlen_k):
            raise ValueError(f"cell {self.name!r}: docs and bias need equal lengths, and take no soft cap, ALiBi or var")
        if self.kernel and (self.dtype != "bf16" or max(self.head_dim, self.head_dim_v) > 128):
            raise ValueError(f"cell {self.name!r}: the kernels with docs and bias are for bf16 and head dims up to 128")


def length_name(length):
    return f"{length // 1024}k" if length and length % 1024 == 0 else str(length)


def default_batch(seqlen_k):
    return max(1, TOKENS // seqlen_k)


def document_lengths(seqlen):
    """The lengths of the 16 documents of `docs`, which share a sequence: heavy-tailed, too; the longest takes what rounding leaves. In a short
    sequence some are empty."""
    shares = heavy_tailed(16)
    lengths = [seqlen * share // sum(shares) for share in shares]
    lengths[-1] += seqlen - sum(lengths)
    return lengths


def in_drawn_order(lengths, seed):
    """Lengths of sequences or documents, in an order drawn from the run's seed."""
    draw = random.Random(seed)
    # Of what `random` draws only this is promised to stay the same in other versions of Python.
    return sorted(lengths, key=lambda _: draw.random())


def parse_word(word):
    """One word of a cell, as (field, value)."""
    if word in DTYPES:
        return "dtype", word
    if word in LAYOUTS:
        return "layout", word
    if word in ("full", "causal"):
        return "causal", word == "causal"
    if word in FLAGS:
        return word, True
    match = re.fullmatch(r"([a-z]*)(0|[1-9][0-9]*)(k?)", word)
    field, may_be_zero, may_be_k = NUMBERS.get(match[1], (None, False, False)) if match else (None, False, False)
    if field is None or (match[3] and not may_be_k) or (match[2] == "0" and not may_be_zero):
        raise ValueError(f"unknown word {word!r}: benches/README.md lists the words that name a cell")
    return field, int(match[2]) * (1024 if match[3] else 1)


def parse_words(spec):
    """The fields that the words of `spec` give."""
    given = {}
    for word in filter(None, spec.split(",")):
        field, value = parse_word(word)
        if field in given:
            raise ValueError(f"cell {spec!r} gives {field} twice")
        given[field] = value
    if "var" in given and given.keys() & {"seqlen_q", "seqlen_k", "batch", "layout"}:
        raise ValueError(f"cell {spec!r}: var brings its own lengths, batch and layout")
    return given


def expand(spec):
    """The cells of one argument of --cells: those of a group's name, or of words, where what is left out takes the grid's values."""
    if spec in GROUPS:
        return [cell for words in GROUPS[spec] for cell in expand(words)]
    given = parse_words(spec)

    def choices(field, grid):
        return (given[field],) if field in given else grid

    features = {name: given[name] for name in ("window_left", "window_right", "softcap", *FLAGS) if name in given}
    cells = []
    for dtype in choices("dtype", DTYPES):
        for head_dim in choices("head_dim", HEAD_DIMS):
            for causal in choices("causal", (False,) if "window_right" in given else (False, True)):
                for seqlen_k in choices("seqlen_k", (max(RAGGED_LENGTHS),) if "var" in given else SEQLENS):
                    num_heads = given.get("num_heads", HIDDEN // head_dim)
                    batch = len(RAGGED_LENGTHS) if "var" in given else default_batch(seqlen_k)
                    cells.append(Cell(
                        head_dim=head_dim, causal=causal, dtype=dtype, seqlen_k=seqlen_k,
                        seqlen_q=given.get("seqlen_q", seqlen_k), batch=given.get("batch", batch),
                        num_heads=num_heads, num_heads_k=given.get("num_heads_k", num_heads), layout=given.get("layout", "bshd"),
                        head_dim_v=given.get("head_dim_v", head_dim), **features))
    for cell in cells:
        cell.check()
    return cells


def expand_all(specs):
    """The cells of several arguments, each once, in their order."""
    return list(dict.fromkeys(cell for spec in specs for cell in expand(spec)))
