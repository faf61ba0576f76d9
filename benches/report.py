"""The file and the table (README.md, "The file")."""
import json
import math
import os

FORMAT = "hopper-attention-bench/1"


def load(path):
    with open(path) as file:
        document = json.load(file)
    if document.get("format") != FORMAT:
        raise ValueError(f"{path}: format is {document.get('format')!r}, wanted {FORMAT!r}")
    return document


def save(path, document):
    """Writes the file, one line a run and one line a cell, and replaces an older one only when it is whole."""
    def lines(items):
        return ",\n".join("  " + json.dumps(item, allow_nan=False) for item in items)

    text = "\n".join([
        "{", f' "format": {json.dumps(FORMAT)},',
        ' "runs": [', lines(document["runs"]), " ],",
        ' "cells": [', lines(document["cells"]), " ]", "}", ""])
    with open(path + ".part", "w") as file:
        file.write(text)
    os.replace(path + ".part", path)


def cell_entry(cell, protocol, run, results):
    """A CELL."""
    return dict(cell=cell.name, protocol=protocol, run=run, **cell.as_json(), flops=cell.flops, results=results)


def find(document, cell, protocol):
    return next((entry for entry in document["cells"] if (entry["cell"], entry["protocol"]) == (cell, protocol)), None)


def tflops(entry, contestant):
    return next((r.get("tflops") for r in entry["results"] if r["contestant"] == contestant), None)


def best(entry, kind):
    """(tflops, contestant) of the fastest of a kind, or None."""
    return max(((r["tflops"], r["contestant"]) for r in entry["results"] if r["kind"] == kind and "tflops" in r), default=None)


def names(entries):
    """The contestants of these entries: ours first, then peers, each in the order of appearance."""
    seen = {(r["kind"], r["contestant"]): None for entry in entries for r in entry["results"]}
    return [name for kind in ("ours", "peer") for k, name in seen if k == kind]


def table(document):
    """The whole file as text: a table for each protocol, geometric means, and what failed."""
    return "\n".join(line for protocol in ("burst", "sustained") for line in protocol_lines(document, protocol))


def protocol_lines(document, protocol):
    entries = [entry for entry in document["cells"] if entry["protocol"] == protocol]
    if not entries:
        return []
    contestants = names(entries)
    first = contestants[0]
    width = max(len(entry["cell"]) for entry in entries)
    ceilings = [f"{r['tflops']:.0f}" for run in document["runs"] for r in run["matmul"] if r["protocol"] == protocol and "tflops" in r]
    lines = [f"{protocol}: TFLOP/s; cuBLAS 8192^3: {', '.join(ceilings) or 'not measured'}",
             f"{'cell':{width}}" + "".join(f" {name[:9]:>9}" for name in contestants) + f"  {first}/best peer  row error"]
    for entry in entries:
        values = [tflops(entry, name) for name in contestants]
        line = f"{entry['cell']:{width}}" + "".join(f" {value:9.0f}" if value else f" {'-':>9}" for value in values)
        peer = best(entry, "peer")
        line += f"  {values[0] / peer[0]:5.3f} {peer[1]:8}" if values[0] and peer else " " * 16
        error = next((r.get("max_row_error") for r in entry["results"] if r["contestant"] == first), None)
        lines.append((line + (f" {error:.1e}" if error is not None else "")).rstrip())
    return lines + ratios(entries, first, contestants[1:]) + failures(entries)


def ratios(entries, first, others):
    """Geometric mean and least of the first contestant's ratio to every other, and to the best peer."""
    lines = []
    for label, value in [("best peer", lambda e: (best(e, "peer") or (None,))[0])] + [(o, lambda e, o=o: tflops(e, o)) for o in others]:
        pairs = [(tflops(e, first) / value(e), e["cell"]) for e in entries if tflops(e, first) and value(e)]
        if pairs:
            mean = math.exp(sum(math.log(ratio) for ratio, _ in pairs) / len(pairs))
            lines.append(f"{first} / {label}: geometric mean {mean:.3f} over {len(pairs)} cells, least {min(pairs)[0]:.3f} in {min(pairs)[1]}")
    return lines


def failures(entries):
    """One line for each kind of thing that went wrong, with the cells it went wrong in."""
    cells = {}
    for entry in entries:
        for r in entry["results"]:
            if "error" in r:
                # The same fault has other figures in every cell.
                cells.setdefault((r["contestant"], r["error"][:24]), []).append((entry["cell"], r["error"]))
    return [f"{name}: {where[0][1][:160]} ({where[0][0]}{f' and {len(where) - 1} more' if len(where) > 1 else ''})"
            for (name, _), where in cells.items()]
