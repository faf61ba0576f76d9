"""Tests of the reference and of the calls of peers, for which PyTorch without a GPU does: python3 -m unittest discover benches"""
import importlib.metadata
import inspect
import os
import random
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
try:
    import torch
    import contestants
    import peers
    MISSING = None
except (ImportError, SystemExit) as error:  # peers.py ends the program without PyTorch
    MISSING = f"PyTorch is missing: {error}"

from cells import document_lengths, expand  # noqa: E402


def problem_of(words, device="cpu"):
    [cell] = expand(words)
    return contestants.Problem(cell, seed=5, device=device)


def row_by_definition(problem, b, h, i):
    """O and the log-sum-exp of a row over all keys of the tensor, those hidden at -inf: nothing is skipped."""
    cell, keys = problem.cell, torch.arange(problem.rows_k)
    if cell.var:
        ends = problem.cu_seqlens[1:]
        of_key, of_row = torch.searchsorted(ends, keys, right=True), torch.searchsorted(ends, i, right=True)
        distance, hidden = i - keys, of_key != of_row
    else:
        distance, hidden = i + cell.seqlen_k - cell.seqlen_q - keys, torch.zeros(problem.rows_k, dtype=torch.bool)
    if cell.docs:
        hidden = problem.document_of != problem.document_of[i]
    if cell.causal:
        hidden = hidden | (distance < 0)
    if cell.window_left is not None:
        hidden = hidden | (distance > cell.window_left)
    if cell.window_right is not None:
        hidden = hidden | (-distance > cell.window_right)
    k, v = (x[b, :, h * cell.num_heads_k // cell.num_heads].double() for x in (problem.k, problem.v))
    logits = (k * problem.q[b, i, h].double()).sum(1) / cell.head_dim**0.5
    if cell.softcap:
        logits = cell.softcap * torch.tanh(logits / cell.softcap)
    if cell.alibi:
        logits = logits - 2 ** (-8 * (h + 1) / cell.num_heads) * distance.abs()
    if cell.bias:
        # Those of the table's 257 distances, from 128 keys before the query's own to 128 behind it.
        logits = logits + torch.stack([problem.bias[h, 128 + min(max(-d, -128), 128)] for d in distance.tolist()])
    logits = logits.masked_fill(hidden, -torch.inf)
    if cell.sinks:
        # A key with the sink for a logit and 0 for a value.
        logits, v = torch.cat([logits, problem.sinks[h].double()[None]]), torch.cat([v, v.new_zeros(1, v.shape[1])])
    return torch.softmax(logits, 0) @ v, torch.logsumexp(logits, 0)


@unittest.skipIf(MISSING, MISSING)
class Reference(unittest.TestCase):
    def test_rows_follow_the_definition(self):
        torch.manual_seed(1)
        random.seed(1)
        for words in ("full,90", "causal,90,q70,kv2", "causal,90,wl9", "full,90,q70,wl20,wr5", "full,70,q90,wr30", "causal,90,cap3", "full,90,alibi,q70",
                      "causal,90,sinks,wl3", "full,90,dv32,bhsd", "causal,90,packed", "causal,900,docs", "full,400,bias",
                      "full,300,docs,bias,wl9,wr70,sinks,kv2"):
            self.check(f"d64,bf16,b2,h4,{words}")
        for words in ("full", "causal,wl100,sinks", "causal,alibi,dv8,kv1", "full,wl5,wr900,cap2"):
            self.check(f"d16,bf16,var,h2,{words}")

    def check(self, words):
        problem = problem_of(words)
        reference = peers.Reference(problem)
        for index, row in enumerate(reference.rows[:24]):
            out, lse = row_by_definition(problem, *row)
            # The slopes of the problem are f32.
            torch.testing.assert_close(reference.out[index], out, rtol=1e-5, atol=1e-6, msg=f"{words}: O of row {row}")
            torch.testing.assert_close(reference.lse[index], lse, rtol=1e-5, atol=1e-6, msg=f"{words}: log-sum-exp of row {row}")

    def test_documents_lie_one_behind_another(self):
        problem = problem_of("d16,causal,1000,bf16,h1,docs")
        lengths = problem.document_of.bincount().tolist()
        self.assertEqual(problem.document_of.tolist(), [document for document, length in enumerate(lengths) for _ in range(length)])
        self.assertEqual(problem.document_starts.tolist(), [sum(lengths[:document]) for document in range(17)])
        self.assertEqual(sorted(lengths), sorted(document_lengths(1000)))
        last = lengths[-1]
        self.assertEqual(problem.sequence(999), (1000 - last, last, last))

    def test_packed_rows_belong_to_their_sequence(self):
        problem = problem_of("d16,causal,var,bf16,h1")
        self.assertEqual(tuple(problem.q.shape), (1, 65431, 1, 16))
        # The lengths begin with 314, 1127.
        for row, sequence in ((0, (0, 314, 314)), (313, (0, 314, 314)), (314, (314, 1127, 1127)), (1440, (314, 1127, 1127))):
            self.assertEqual(problem.sequence(row), sequence)
        self.assertEqual(sum(problem.sequence(65430)[:2]), 65431)


@unittest.skipIf(MISSING, MISSING)
class Peers(unittest.TestCase):
    def test_flex_functions_are_those_of_the_reference(self):
        try:
            from torch.nn.attention.flex_attention import flex_attention
        except ImportError as error:
            self.skipTest(str(error))
        for words in ("causal,256,wl30", "full,256,wl30,wr5", "causal,256,cap3", "causal,256,alibi,kv2", "full,256,q128,alibi,wl100",
                      "causal,512,docs", "causal,512,docs,bias", "full,512,bias,kv2", "full,512,docs,bias,wl90"):
            problem = problem_of(f"d64,bf16,b2,h4,{words}")
            out = contestants.Flex.call(flex_attention, problem)()
            peers.within(words, peers.Reference(problem).errors(out), peers.ROW_TOLERANCE["bf16"])

    def test_fa2_operator_takes_these_arguments(self):
        # On the meta device the operator checks its arguments and shapes, and computes nothing.
        for words in ("d128,causal,4k,bf16,wl1k", "d128,full,4k,bf16,q1k,wl9,wr0,kv4", "d128,causal,4k,bf16,alibi", "d64,causal,var,bf16"):
            problem = problem_of(words, "meta")
            self.assertEqual(contestants.PEERS["fa2"].prepare(problem)().shape, problem.q.shape, words)

    def test_fa3_arguments(self):
        def dense(q, k, v, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
            return dict(inspect.currentframe().f_locals)

        def packed(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0):
            self.assertEqual((q.shape, v.shape, cu_seqlens_q.shape), ((65431, 16, 128), (65431, 16, 64), (65,)))
            self.assertEqual((max_seqlen_q, max_seqlen_k, causal, window_size), (7364, 7364, True, (9, 0)))
            return q

        with mock.patch.multiple(contestants, create=True, FA3_MISSING=None, fa3_forward=dense, fa3_varlen_forward=packed):
            prepare = contestants.PEERS["fa3"].prepare
            for words, wanted in (("causal", dict(causal=True, window_size=(-1, -1), softcap=0.0)),
                                  ("full,wl9", dict(causal=False, window_size=(9, -1))), ("causal,cap30", dict(softcap=30.0))):
                found = prepare(problem_of(f"d128,4k,bf16,{words}", "meta"))()
                self.assertEqual({name: found[name] for name in wanted}, wanted, words)
            self.assertEqual(prepare(problem_of("d128,causal,var,bf16,wl9,dv64", "meta"))().shape, (1, 65431, 16, 128))

    def test_fa3_is_not_asked_for_what_it_faults_on(self):
        with mock.patch.multiple(contestants, create=True, FA3_MISSING=None, fa3_varlen_forward=lambda *_, **__: None):
            with self.assertRaisesRegex(contestants.Unavailable, "grouped heads"):
                contestants.PEERS["fa3"].prepare(problem_of("d128,causal,var,bf16,h32,kv8", "meta"))

    def test_a_run_says_which_fa3_it_was(self):
        with mock.patch("importlib.metadata.version", {"fa3-fwd": "0.0.3"}.__getitem__):
            self.assertEqual(contestants.PEERS["fa3"].versions(), {"fa3-fwd": "0.0.3"})
        with mock.patch("importlib.metadata.version", side_effect=importlib.metadata.PackageNotFoundError):
            self.assertEqual(contestants.PEERS["fa3"].versions(), {})

    def test_sinks_would_take_flex_a_second_kernel(self):
        with self.assertRaisesRegex(contestants.Unavailable, "another kernel"):
            contestants.PEERS["flex"].prepare(problem_of("d128,causal,1k,bf16,wl9,sinks", "meta"))

    def test_features_that_are_not_offered(self):
        for peer, words in (("cudnn", "wl9"), ("cudnn", "cap30"), ("cudnn", "sinks,dv64"), ("fa2", "cap30"), ("fa2", "wl9,sinks"), ("fa2", "wl9,dv64"),
                            ("fa3", "alibi"), ("fa3", "sinks"), ("cudnn", "docs"), ("fa2", "bias"), ("fa2", "docs,wl9"), ("fa3", "docs"), ("flex", "sinks"), ("flex", "")):
            with mock.patch.object(contestants, "FA3_MISSING", None), self.assertRaises(contestants.Unavailable, msg=f"{peer} {words}"):
                contestants.PEERS[peer].prepare(problem_of(f"d128,causal,1k,bf16,{words}", "meta"))


if __name__ == "__main__":
    unittest.main()
