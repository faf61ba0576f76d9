#!/usr/bin/env python3
"""Times the attention forward of this library beside its peers: one process, the same tensors, in turns. README.md has the rule, the
protocols, the words that name a cell, and the file format.

    python3 benches/peers.py --ours target/release/libhopper_attention_capi.so --cells bf16 --out peers.json
    python3 benches/peers.py --ours base=a.so --ours new=a.so@other-ptx --peers none --cells d128,full,bf16

Needs PyTorch with CUDA and a Hopper GPU; FA3 (PyPI fa3-fwd) is optional. The exit status is 1 where this library failed or was wrong.
"""
import argparse
import datetime
import faulthandler
import math
import os
import random
import re
import subprocess
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("peers.py needs PyTorch with CUDA: python3 -m pip install torch")

import report
from cells import MAX_DISTANCE, expand_all
from contestants import PEERS, Matmul, Problem, Unavailable
from ours import KERNELS, Ours
from timing import PROTOCOLS, Timer, measure

# What a row of O may be off by, as a share of its norm. Rounding P and O gives 2e-3 in bf16, 3e-4 in f16.
ROW_TOLERANCE = {"bf16": 6e-3, "f16": 1e-3}
LSE_TOLERANCE = 1e-3
SAMPLED_ROWS = 64
# No cell takes this long unless a kernel hangs: the process ends then, and the file holds the cells before it.
HANG_S = 240


class Wrong(Exception):
    """The output is not attention's."""


class Reference:
    """O and the log-sum-exp of some rows of a problem, in float64."""

    def __init__(self, problem):
        extents = (problem.batch, problem.cell.num_heads, problem.rows_q)
        self.rows = [(0, 0, 0), tuple(n - 1 for n in extents)]
        while len(self.rows) < SAMPLED_ROWS:
            self.rows.append(tuple(random.randrange(n) for n in extents))
        outs, lses = zip(*(self.row(problem, *row) for row in self.rows))
        self.out, self.lse = torch.stack(outs), torch.stack(lses)

    @staticmethod
    def row(problem, b, h, i):
        cell = problem.cell
        start, seqlen_q, seqlen_k = problem.sequence(i)
        position = i - start + seqlen_k - seqlen_q
        first, end = cell.visible(position, seqlen_k)
        head_k = h // (cell.num_heads // cell.num_heads_k)
        k, v = (x[b, start + first:start + end, head_k].double() for x in (problem.k, problem.v))
        logits = k @ problem.q[b, i, h].double() * problem.scale
        if cell.softcap:
            logits = cell.softcap * torch.tanh(logits / cell.softcap)
        distance = torch.arange(first, end, device=logits.device) - position
        if cell.alibi:
            logits = logits - problem.alibi_slopes[h].double() * distance.abs()
        if cell.bias:
            logits = logits + problem.bias[h, distance.clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE].double()
        lse = torch.logsumexp(logits, 0)
        if cell.sinks:
            lse = torch.logaddexp(lse, problem.sinks[h].double())
        return torch.exp(logits - lse) @ v, lse

    def errors(self, out):
        """Of O, [batch, seqlen_q, num_heads, head_dim_v], or [1, total_q, num_heads, head_dim_v]."""
        return row_errors(torch.stack([out[b, i, h] for b, h, i in self.rows]).double(), self.out)

    def lse_error(self, lse):
        """Of the log-sum-exp, [batch, num_heads, seqlen_q], or [1, num_heads, total_q]."""
        return (torch.stack([lse[b, h, i] for b, h, i in self.rows]).double() - self.lse).abs().max().item()


def row_errors(out, expected):
    """(largest absolute error of an element, largest error of a row as a share of its norm)."""
    difference = out - expected
    return difference.abs().max().item(), (difference.norm(dim=-1) / expected.norm(dim=-1)).max().item()


def within(what, errors, tolerance):
    # A NaN compares false, so it never passes.
    if not errors[1] <= tolerance:
        raise Wrong(f"wrong result: a row is off by {errors[1]:.1e} of its norm {what}")
    return errors


class Entry:
    """A contestant in one cell: its RESULT, and a timer unless it failed."""

    def __init__(self, contestant):
        self.contestant, self.timer = contestant, None
        self.result = dict(contestant=contestant.name, kind=contestant.kind)

    def fail(self, error):
        self.timer = None
        self.result["error"] = str(error) if isinstance(error, (Wrong, Unavailable)) else f"{type(error).__name__}: {error}"[:500]

    def first_call(self, problem, reference):
        """Runs once and compares with the reference; returns O, or None where it failed."""
        try:
            call = self.contestant.prepare(problem)
            with self.contestant.selected():
                out = call()
            torch.cuda.synchronize()
            if not out.isfinite().all():
                raise Wrong("wrong result: elements of O are missing or not finite")
            errors = within("(float64 reference)", reference.errors(out), ROW_TOLERANCE[problem.cell.dtype])
            self.result |= dict(max_abs_error=errors[0], max_row_error=errors[1])
            if self.contestant.kind == "ours":
                lse_error = reference.lse_error(call.lse)
                if not lse_error <= LSE_TOLERANCE:
                    raise Wrong(f"wrong result: the log-sum-exp is off by {lse_error:.1e}")
                self.result["max_lse_error"] = lse_error
            self.timer = Timer(call, self.contestant.selected)
            return out
        except Exception as error:
            self.fail(error)
            return None


def compare_whole(entries, outs, tolerance):
    """Compares each whole output with the first of ours. Where they differ, ours is to blame unless somebody agrees with it."""
    right = [(entry, out.float()) for entry, out in zip(entries, outs) if out is not None]
    ours = next((pair for pair in right if pair[0].contestant.kind == "ours"), None)
    if ours is None:
        return
    differing, agreed = [], False
    for entry, out in right:
        if entry is ours[0]:
            continue
        errors = row_errors(out, ours[1])
        # A row of zeros has no norm to be compared with, and JSON no infinity.
        entry.result |= {name: x for name, x in zip(("max_abs_diff", "max_row_diff"), errors) if math.isfinite(x)}
        try:
            within(f"({ours[0].contestant.name} against {entry.contestant.name}, whole output)", errors, 2 * tolerance)
            agreed = True
        except Wrong as wrong:
            differing.append((entry, wrong))
    for entry, wrong in differing:
        (entry if agreed else ours[0]).fail(wrong)


def measure_cell(cell, contestants, seed, protocol, options):
    """The `results` of one CELL."""
    problem = Problem(cell, seed)
    reference = Reference(problem)
    entries = [Entry(contestant) for contestant in contestants]
    outs = [entry.first_call(problem, reference) for entry in entries]
    compare_whole(entries, outs, ROW_TOLERANCE[cell.dtype])
    del outs
    time_entries(entries, cell.flops, protocol, options)
    return [entry.result for entry in entries]


def time_entries(entries, flops, protocol, options):
    ready = []
    for entry in entries:
        try:
            if entry.timer:
                entry.timer.estimate()
                ready.append(entry)
        except Exception as error:
            entry.fail(error)
    for entry, figures in zip(ready, measure([entry.timer for entry in ready], flops, protocol, **options)):
        entry.result |= figures


def measure_matmul(protocol, options):
    """The RESULT of the ceiling."""
    entry = Entry(Matmul())
    try:
        entry.timer = Timer(Matmul().prepare(), Matmul.selected)
        time_entries([entry], Matmul.flops, protocol, options)
    except Exception as error:
        entry.fail(error)
    return dict(protocol=protocol) | entry.result


def driver_version():
    try:
        with open("/proc/driver/nvidia/version") as file:
            return re.search(r"\d+\.\d+(\.\d+)?", file.read())[0]
    except (OSError, TypeError):
        return "unknown"


def commit():
    """What was built: the bundle's file COMMIT, or what git says of this checkout."""
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        with open(os.path.join(here, "..", "COMMIT")) as file:
            return file.readline().strip() + (" with changes" if file.readline() else "")
    except OSError:
        pass
    try:
        git = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty", "--abbrev=40"], capture_output=True, text=True, check=True)
        return git.stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def describe_run(seed, contestants, protocol, options):
    """A RUN."""
    versions = dict(torch=torch.__version__, cuda=torch.version.cuda, cudnn=str(torch.backends.cudnn.version()))
    for contestant in contestants:
        versions |= getattr(contestant, "versions", dict)()
    properties = torch.cuda.get_device_properties(0)
    return dict(
        program="peers.py", started=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        command=" ".join(["peers.py", *sys.argv[1:]]), commit=commit(), seed=seed, device=properties.name, sm_count=properties.multi_processor_count,
        driver=driver_version(), versions=versions, matmul=[measure_matmul(protocol, options)])


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog="README.md beside this file explains cells and protocols.")
    p.add_argument("--ours", action="append", required=True, metavar="[LABEL=]FILE[@PTX_DIR]",
                   help="a build of the C library; may be given several times, with different labels; PTX_DIR holds kernels to use instead of "
                        "those inside")
    p.add_argument("--kernels", default=KERNELS, metavar="DIR",
                   help="PTX of the kernels of examples/document-mask, for cells with docs or bias (default: %(default)s, where `cargo xtask "
                        "bundle` puts it)")
    p.add_argument("--peers", default="cudnn,fa2,fa3",
                   help="which of cudnn, cudnn-fe, fa2, fa3, flex, separated by commas, or none (default: %(default)s)")
    p.add_argument("--cells", nargs="+", default=["grid"], help="cells in words, or grid, shapes, features, functions, sustained (default: grid)")
    p.add_argument("--protocol", choices=list(PROTOCOLS), default="burst")
    p.add_argument("--idle-ms", type=float, help="rest before each sample of a burst, to fit a grid into less time; the file's command shows it")
    p.add_argument("--rounds", type=int, help="samples of each contestant, for a quick look; what is recorded takes the protocol's own number")
    p.add_argument("--out", default="peers.json", help="written after every cell; the table goes beside it as .txt (default: %(default)s)")
    p.add_argument("--resume", metavar="FILE", help="start from this file and skip the cells that it holds")
    p.add_argument("--seconds", type=float, default=math.inf, help="begin no cell after so many seconds")
    p.add_argument("--seed", type=int, default=None, help="of the inputs (default: from the clock)")
    a = p.parse_args()
    try:
        a.cells = expand_all(a.cells)
        a.peers = [] if a.peers == "none" else [PEERS[name] for name in a.peers.split(",")]
    except (ValueError, KeyError) as error:
        p.error(str(error))
    return a


def main():
    began = time.monotonic()
    a = arguments()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device")
    seed = time.time_ns() % 2**32 if a.seed is None else a.seed
    torch.manual_seed(seed)
    random.seed(seed)
    contestants = [Ours(spec, a.kernels) for spec in a.ours] + a.peers
    options = dict(rounds=a.rounds) if a.rounds else {}
    if a.idle_ms is not None and a.protocol == "burst":
        options["idle_s"] = a.idle_ms / 1e3
    document = report.load(a.resume) if a.resume else dict(runs=[], cells=[])
    todo = [cell for cell in a.cells if not report.find(document, cell.name, a.protocol)]
    # One stream for everything, and not the default one, which waits for others.
    with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
        if todo:
            document["runs"].append(describe_run(seed, contestants, a.protocol, options))
        for number, cell in enumerate(todo):
            if time.monotonic() - began > a.seconds:
                print(f"time is up: {len(todo) - number} cells left; go on with --resume {a.out}")
                break
            print(f"[{number + 1}/{len(todo)}] {cell.name}", flush=True)
            faulthandler.dump_traceback_later(HANG_S, exit=True)
            results = measure_cell(cell, contestants, seed, a.protocol, options)
            faulthandler.cancel_dump_traceback_later()
            document["cells"].append(report.cell_entry(cell, a.protocol, len(document["runs"]) - 1, results))
            report.save(a.out, document)
    text = report.table(document)
    with open(os.path.splitext(a.out)[0] + ".txt", "w") as file:
        file.write(text + "\n")
    print(text)
    failed = any(r["kind"] == "ours" and "error" in r for entry in document["cells"] for r in entry["results"])
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
