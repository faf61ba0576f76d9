"""Tests of what needs neither a GPU nor PyTorch: python3 -m unittest discover benches"""
import ctypes
import os
import sys
import tempfile
import types
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import torch  # noqa: F401
except ImportError:
    # What is tested here does not use it; test_contestants.py does, and is skipped without it.
    sys.modules["torch"] = types.ModuleType("torch")

import report  # noqa: E402
import timing  # noqa: E402
from cells import RAGGED_LENGTHS, document_lengths, expand, expand_all, in_drawn_order  # noqa: E402
from ours import CFeatures, DocumentArgs  # noqa: E402


class Cells(unittest.TestCase):
    def test_groups_have_the_documented_sizes(self):
        for group, size in (("grid", 72), ("bf16", 36), ("d128,full", 12), ("sustained", 6), ("shapes", 28), ("features", 13), ("functions", 6)):
            self.assertEqual(len(expand(group)), size, group)

    def test_a_name_means_its_cell(self):
        for cell in expand_all(["grid", "shapes", "features", "functions", "sustained", "d96,full,1k,bf16,wl9,sinks,docs,bias", "d64,full,bf16,wl0,wr0", "d64,causal,bf16,sinks,dv128"]):
            self.assertEqual(expand(cell.name), [cell])

    def test_words_in_any_order(self):
        [cell] = expand("kv8,4k,h32,bf16,causal,d128")
        self.assertEqual(cell.name, "d128,causal,4k,bf16,h32,kv8")
        self.assertEqual((cell.batch, cell.num_heads, cell.num_heads_k), (4, 32, 8))
        # Half of 4 * 4 * 32 * 4096^2 * 128.
        self.assertEqual(cell.flops, 549_755_813_888)

    def test_contradictions_and_unknown_words_are_refused(self):
        for spec in ("dd", "d128,d64", "full,causal", "h3,kv2", "1k,q2k,causal", "packed,kv1", "d1k", "b0", "d+1", "causal,wr0", "cap30,alibi", "cap0", "cap1k", "var,4k",
                     "var,b1", "var,q1", "var,bhsd", "packed,dv32", "wl", "var1", "dv0", "full,1k,q2k,wr1000", "d64,bf16,docs,cap30", "d64,bf16,bias,alibi", "d64,bf16,var,docs",
                     "d64,bf16,4k,q1k,bias", "d64,f16,docs", "d192,bf16,bias", "d64,dv136,bf16,docs"):
            with self.assertRaises(ValueError, msg=spec):
                expand(spec)

    def test_each_cell_once(self):
        self.assertEqual(len(expand_all(["d128,full", "d128,bf16"])), 18)

    def test_features_in_any_order(self):
        [cell] = expand("sinks,wl1k,alibi,dv128,causal,d192,4k,bf16,kv2")
        self.assertEqual(cell.name, "d192,causal,4k,bf16,kv2,dv128,wl1k,alibi,sinks")
        self.assertEqual(cell.features, {"sinks", "window", "alibi", "head_dim_v"})
        # A bound on the right is another mask than causal.
        self.assertEqual([cell.name for cell in expand("d64,1k,bf16,wr7")], ["d64,full,1k,bf16,wr7"])

    def test_flops_count_visible_pairs(self):
        for words in ("full,70,wl9", "full,70,wr0", "full,70,wl0,wr3", "causal,100,q70,wl9", "full,60,q70,wl8,wr20", "full,70,wl999,wr999"):
            [cell] = expand(f"d64,bf16,b3,h2,dv32,{words}")
            left, right = (10**6 if bound is None else bound for bound in cell.window)
            own = [i + cell.seqlen_k - cell.seqlen_q for i in range(cell.seqlen_q)]
            pairs = sum(at - left <= j <= at + right for at in own for j in range(cell.seqlen_k))
            self.assertEqual(cell.flops, 2 * 3 * 2 * (64 + 32) * pairs, words)
        # What hides nothing costs as much as before, and the soft cap's own work does not count.
        self.assertEqual(expand("d64,causal,4k,bf16,cap30,sinks")[0].flops, expand("d64,causal,4k,bf16")[0].flops)
        self.assertEqual(expand("d192,full,4k,bf16,dv128")[0].flops, 2 * 4 * 10 * (192 + 128) * 4096**2)
        [full, causal] = expand("d64,var,bf16")
        self.assertEqual(full.flops, 4 * 32 * 64 * sum(n * n for n in RAGGED_LENGTHS))
        self.assertEqual(causal.flops, 4 * 32 * 64 * sum(n * (n + 1) // 2 for n in RAGGED_LENGTHS))

    def test_documents_see_themselves(self):
        for words in ("full,300,docs", "causal,300,docs,bias", "full,300,docs,wl5,wr0", "causal,7,docs,wl1"):
            [cell] = expand(f"d64,bf16,b3,h2,{words}")
            left, right = (10**6 if bound is None else bound for bound in cell.window)
            document_of = [index for index, length in enumerate(document_lengths(cell.seqlen_k)) for _ in range(length)]
            n = len(document_of)
            pairs = sum(i - left <= j <= i + right and document_of[i] == document_of[j] for i in range(n) for j in range(n))
            self.assertEqual((n, cell.flops), (cell.seqlen_q, 3 * 2 * 4 * 64 * pairs), words)
        # A bias costs nothing.
        self.assertEqual(expand("d64,causal,4k,bf16,bias")[0].flops, expand("d64,causal,4k,bf16")[0].flops)

    def test_kernels_of_functions(self):
        for words, kernel in (("d64,docs", "documents_hdim64_bf16"), ("d64,dv72,docs,bias", "documents_bias_hdim128_bf16"), ("d96,bias", "bias_hdim128_bf16"),
                              ("d64,alibi", None), ("d256", None)):
            self.assertEqual(expand(f"causal,4k,bf16,{words}")[0].kernel, kernel)

    def test_ragged_lengths_are_pinned(self):
        self.assertEqual((len(RAGGED_LENGTHS), min(RAGGED_LENGTHS), max(RAGGED_LENGTHS), sum(RAGGED_LENGTHS)), (64, 129, 7364, 65431))
        self.assertEqual(in_drawn_order(RAGGED_LENGTHS, 5)[:8], [314, 1127, 213, 6045, 3679, 154, 2798, 896])
        self.assertEqual(sorted(in_drawn_order(RAGGED_LENGTHS, 6)), sorted(RAGGED_LENGTHS))
        self.assertEqual(document_lengths(16384), [137, 153, 174, 198, 229, 265, 313, 373, 454, 563, 718, 945, 1300, 1901, 3039, 5622])

    def test_json_shows_features_only_where_there_are(self):
        plain = dict(head_dim=128, causal=False, seqlen_q=4096, seqlen_k=4096, dtype="bf16", batch=4, num_heads=16, num_heads_k=16, layout="bshd",
                     head_dim_v=128)
        self.assertEqual(expand("d128,full,4k,bf16")[0].as_json(), plain)
        self.assertEqual(expand("d128,full,4k,bf16,wl0,sinks")[0].as_json(), plain | dict(window_left=0, sinks=True))


class Features(unittest.TestCase):
    class Tensor:
        def data_ptr(self):
            return 64

    def features(self, words):
        [cell] = expand(words)
        tensor = self.Tensor()
        return CFeatures.of(types.SimpleNamespace(
            cell=cell, sinks=tensor if cell.sinks else None, alibi_slopes=tensor if cell.alibi else None, cu_seqlens=tensor if cell.var else None))

    def test_layout_is_that_of_c(self):
        self.assertEqual(ctypes.sizeof(CFeatures), 80)
        self.assertEqual((CFeatures.batch.offset, CFeatures.window_left.offset, CFeatures.softcap.offset), (48, 56, 72))
        # Three addresses and an i32, as Rust lays them out.
        self.assertEqual((ctypes.sizeof(DocumentArgs), DocumentArgs.bias.offset, DocumentArgs.max_distance.offset), (32, 16, 24))

    def test_what_is_not_asked_for_is_absent(self):
        none = dict(sinks=0, alibi_slopes=0, cu_seqlens_q=0, cu_seqlens_k=0, seqused_q=0, seqused_k=0, window_left=-1, window_right=-1, softcap=0)
        for words, wanted in (
                # The causal mask is an argument of its own.
                ("d64,causal,4k,bf16,cap30", dict(softcap=30)),
                ("d64,full,4k,bf16,wl0,wr7,sinks", dict(window_left=0, window_right=7, sinks=64)),
                ("d64,causal,var,bf16,alibi", dict(cu_seqlens_q=64, cu_seqlens_k=64, alibi_slopes=64, batch=64))):
            features = self.features(words)
            for name, value in (none | wanted).items():
                self.assertEqual(getattr(features, name), value, f"{words}: {name}")


class Timing(unittest.TestCase):
    def test_turns_are_rotated_and_reversed(self):
        self.assertEqual(["".join(timing.turn(list("ab"), n)) for n in range(4)], ["ab", "ba", "ba", "ab"])
        self.assertEqual(["".join(timing.turn(list("abc"), n)) for n in range(4)], ["abc", "cba", "bca", "acb"])

    def test_everybody_begins_as_often(self):
        for names in ("ab", "abc", "abcd", "abcde"):
            orders = [timing.turn(list(names), n) for n in range(2 * len(names))]
            self.assertEqual([sum(order[0] == name for order in orders) for name in names], [2] * len(names))
            self.assertEqual([sum(order[-1] == name for order in orders) for name in names], [2] * len(names))

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


class SlowHost:
    """A contestant whose enqueueing takes these seconds for each call, sample by sample; a sample that the host is late for is 100 us, else 20."""

    def __init__(self, *seconds_a_call):
        self.seconds_a_call, self.holds, self.enqueue_us = list(seconds_a_call), [], 0.0

    def sample(self, calls, head_start_s):
        self.holds.append(head_start_s)
        enqueued_s = calls * self.seconds_a_call[min(len(self.holds), len(self.seconds_a_call)) - 1]
        self.enqueue_us = enqueued_s / calls * 1e6
        return 20.0 if enqueued_s <= head_start_s else 100.0


class Holds(unittest.TestCase):
    def test_a_host_in_time_is_asked_once(self):
        host = SlowHost(1e-5)
        self.assertEqual(timing.held_sample(host, 100, 0.002), (20.0, 0.002))
        self.assertEqual(host.holds, [0.002])

    def test_a_host_that_was_late_gets_a_longer_hold(self):
        host = SlowHost(1e-4, 1e-4, 5e-5)
        us, head_start_s = timing.held_sample(host, 100, 0.002)
        self.assertEqual((us, len(host.holds)), (20.0, 2))
        self.assertAlmostEqual(head_start_s, 0.013)

    def test_a_host_that_gets_slower_each_time_ends_it(self):
        host = SlowHost(*(10.0 ** i for i in range(9)))
        self.assertEqual(timing.held_sample(host, 1, 0.002)[0], 100.0)
        self.assertEqual(len(host.holds), 5)


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
