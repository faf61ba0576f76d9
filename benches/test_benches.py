"""Tests of what needs neither a GPU nor PyTorch: python3 -m unittest discover benches"""
import os
import sys
import tempfile
import types
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# Only the clock and the order of turns are tested here, and they do not use it.
sys.modules.setdefault("torch", types.ModuleType("torch"))

import report  # noqa: E402
import timing  # noqa: E402
from cells import expand, expand_all  # noqa: E402


class Cells(unittest.TestCase):
    def test_groups_have_the_documented_sizes(self):
        for group, size in (("grid", 72), ("bf16", 36), ("d128,full", 12), ("sustained", 6), ("shapes", 28)):
            self.assertEqual(len(expand(group)), size, group)

    def test_a_name_means_its_cell(self):
        for cell in expand_all(["grid", "shapes", "sustained"]):
            self.assertEqual(expand(cell.name), [cell])

    def test_words_in_any_order(self):
        [cell] = expand("kv8,4k,h32,bf16,causal,d128")
        self.assertEqual(cell.name, "d128,causal,4k,bf16,h32,kv8")
        self.assertEqual((cell.batch, cell.num_heads, cell.num_heads_k), (4, 32, 8))
        # Half of 4 * 4 * 32 * 4096^2 * 128.
        self.assertEqual(cell.flops, 549_755_813_888)

    def test_contradictions_and_unknown_words_are_refused(self):
        for spec in ("dd", "d128,d64", "full,causal", "h3,kv2", "1k,q2k,causal", "packed,kv1", "d1k", "b0", "d+1"):
            with self.assertRaises(ValueError, msg=spec):
                expand(spec)

    def test_each_cell_once(self):
        self.assertEqual(len(expand_all(["d128,full", "d128,bf16"])), 18)


class Timing(unittest.TestCase):
    def test_turns_are_rotated_and_reversed(self):
        self.assertEqual(["".join(timing.turn(list("abc"), n)) for n in range(4)], ["abc", "acb", "cab", "cba"])

    def test_calls_fill_the_time(self):
        self.assertEqual(timing.calls_in(5e-3, 400), 13)
        self.assertEqual(timing.calls_in(5e-3, 4e5), 1)

    def test_the_last_second_counts(self):
        self.assertEqual(timing.counted_from([0, 500, 1000, 1500, 2000]), 2)
        # A chunk of more than a second still counts.
        self.assertEqual(timing.counted_from([0, 1500, 3000]), 1)

    def test_result(self):
        self.assertEqual(timing.result(6e11, [900.0, 1000.0, 1200.0], 6),
                         dict(tflops=600.0, us_median=1000.0, samples_us=[900.0, 1000.0, 1200.0], calls_per_sample=6))


class Report(unittest.TestCase):
    def setUp(self):
        [cell] = expand("d128,full,4k,bf16")
        results = [dict(contestant="fa2", kind="peer", tflops=300.0), dict(contestant="fa3", kind="peer", error="not offered"),
                   dict(contestant="cudnn", kind="peer", tflops=600.0), dict(contestant="ours", kind="ours", tflops=660.0, max_row_error=2e-3)]
        matmul = dict(protocol="burst", contestant="matmul", kind="ceiling", tflops=713.0)
        self.document = dict(format=report.FORMAT, runs=[dict(matmul=[matmul])], cells=[report.cell_entry(cell, "burst", 0, results)])

    def test_table(self):
        text = report.table(self.document)
        for part in ("cuBLAS 8192^3: 713", "1.100 cudnn", "ours / fa2: geometric mean 2.200 over 1 cells", "fa3: not offered (d128,full,4k,bf16)"):
            self.assertIn(part, text)

    def test_a_file_comes_back_as_it_was(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "peers.json")
            report.save(path, self.document)
            self.assertEqual(report.load(path), self.document)
            self.assertIsNotNone(report.find(self.document, "d128,full,4k,bf16", "burst"))
            self.assertIsNone(report.find(self.document, "d128,full,4k,bf16", "sustained"))
            with open(path, "w") as file:
                file.write('{"format": "other"}')
            with self.assertRaises(ValueError):
                report.load(path)


if __name__ == "__main__":
    unittest.main()
