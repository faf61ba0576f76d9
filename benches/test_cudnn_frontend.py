"""Tests of what is asked of cuDNN's front end, of which a stand-in does what its documentation says: python3 -m unittest discover benches"""
import os
import random
import sys
import types
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

from cells import expand  # noqa: E402

LENGTHS = (5, 70, 1, 33)


class NotSupported(Exception):
    """cudnn.cudnnGraphNotSupportedError"""


class Node:
    """A tensor of a graph. Its setters return it, and keep what they are given."""

    def __init__(self, **fields):
        self.ragged_offset, self.is_pass_by_value = None, False
        vars(self).update(fields)

    def __getattr__(self, name):
        if not name.startswith("set_"):
            raise AttributeError(name)

        def setter(value):
            setattr(self, name[4:], value)
            return self

        return setter


class Graph:
    """A graph with an sdpa node; `execute` computes it in f32."""
    workspace_bytes = 48

    def __init__(self, **options):
        self.options, self.nodes, self.built = options, {}, None

    def tensor(self, dim, stride, data_type, uid, ragged_offset=None, is_pass_by_value=False):
        assert uid not in self.nodes and len(dim) == len(stride) == 4
        self.nodes[uid] = Node(dim=dim, stride=stride, data_type=data_type, uid=uid, ragged_offset=ragged_offset, is_pass_by_value=is_pass_by_value)
        return self.nodes[uid]

    def sdpa(self, q, k, v, attn_scale, generate_stats, use_padding_mask=False, seq_len_q=None, seq_len_kv=None, use_alibi_mask=False,
             sink_token=None, score_mod=None, diagonal_alignment="TOP_LEFT", diagonal_band_left_bound=None, diagonal_band_right_bound=None):
        self.node = types.SimpleNamespace(**{name: value for name, value in locals().items() if name != "self"}, o=Node())
        return [self.node.o, None]

    def build(self, modes):
        # What the front end refuses by itself, in its words.
        node = self.node
        right, left = node.diagonal_band_right_bound, node.diagonal_band_left_bound
        if node.score_mod and (node.use_padding_mask or node.use_alibi_mask or right is not None or left is not None):
            raise NotSupported("Attention score mod enabled and\n  hence other subgraphs are disabled.")
        if node.use_alibi_mask and right != 0:
            raise NotSupported("When alibi mask is used, diagonal_band_right_bound needs to be set to 0.")
        if node.use_alibi_mask and node.diagonal_alignment == "BOTTOM_RIGHT":
            raise NotSupported("Bottom right causal mask is only supported with is_alibi=False")
        if left is not None and not node.use_padding_mask and node.q.dim[2] > node.k.dim[2]:
            raise NotSupported("Sliding window attention is only supported with max_s_q <= max_s_kv.")
        self.built = modes

    def get_workspace_size(self):
        return self.workspace_bytes

    def execute(self, tensors, workspace, handle):
        assert self.built == ["A", "FALLBACK"] and workspace.numel() >= self.workspace_bytes and handle == self.options["handle"] == "handle"
        node, self.nodes[node.o.uid] = self.node, self.node.o
        assert node.o.output and tensors.keys() == self.nodes.keys()
        self.tensors = tensors
        for b in range(node.q.dim[0]):
            length_q, length_k = ((int(self.whole(x)[b]) if x else end.dim[2]) for x, end in ((node.seq_len_q, node.q), (node.seq_len_kv, node.k)))
            q, k, v = self.rows(node.q, b, length_q), self.rows(node.k, b, length_k), self.rows(node.v, b, length_k)
            self.rows(node.o, b, length_q).copy_(self.attention(q.float(), k.float(), v.float()))

    def attention(self, q, k, v):
        """[heads, seqlen_q, head_dim_v]"""
        node, share = self.node, len(q) // len(k)
        score = q @ k.repeat_interleave(share, 0).transpose(1, 2) * node.attn_scale
        row, column = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None]
        if node.score_mod:
            score = node.score_mod(self, Node(value=score)).value
        if node.use_alibi_mask:
            score = score + (2 ** (-8 * (torch.arange(len(q)) + 1) / len(q)))[:, None, None] * (column - row)
        # The diagonal begins in the top left corner or ends in the bottom right one.
        diagonal = row + {"TOP_LEFT": 0, "BOTTOM_RIGHT": k.shape[1] - q.shape[1]}[node.diagonal_alignment]
        if node.diagonal_band_right_bound is not None:
            score = score.masked_fill(~(diagonal + node.diagonal_band_right_bound >= column), -torch.inf)
        if node.diagonal_band_left_bound is not None:
            score = score.masked_fill(~(column + node.diagonal_band_left_bound > diagonal), -torch.inf)
        sink = self.whole(node.sink_token)[0].reshape(-1, 1, 1) if node.sink_token else torch.full((len(q), 1, 1), -torch.inf)
        weights = torch.softmax(torch.cat([score, sink.expand(-1, q.shape[1], 1)], 2), 2)[..., :-1]
        return weights @ v.repeat_interleave(share, 0)

    def whole(self, node):
        data = self.tensors[node.uid]
        return data.as_strided(node.dim, node.stride, data.storage_offset())

    def rows(self, node, b, length):
        """[heads, length, head_dim]: the rows of batch entry `b`, whose first element is said by the offsets, if there are any."""
        data, (_, heads, _, head_dim) = self.tensors[node.uid], node.dim
        first = int(self.whole(node.ragged_offset)[b]) if node.ragged_offset else b * node.stride[0]
        return data.as_strided((heads, length, head_dim), node.stride[1:], data.storage_offset() + first)

    # What a function of one's own is made of.
    def div(self, a, b):
        return Node(value=a.value / self.whole(b)[0])

    def mul(self, a, b):
        return Node(value=a.value * self.whole(b)[0])

    def tanh(self, input):
        return Node(value=torch.tanh(input.value))

    def gen_index(self, input, axis):
        extents = [1, 1]
        extents[axis - 2] = -1
        return Node(value=torch.arange(input.value.shape[axis - 1]).reshape(extents))

    def cmp_ge(self, input, comparison, compute_data_type):
        return Node(value=input.value >= comparison.value)

    def binary_select(self, input0, input1, mask):
        return Node(value=torch.where(mask.value, input0.value, self.whole(input1)[0]))


def stand_in():
    """A module `cudnn`."""
    named = {name: types.SimpleNamespace(**{word: word for word in words.split()}) for name, words in dict(
        data_type="BFLOAT16 HALF FLOAT INT32 INT64 BOOLEAN", heur_mode="A FALLBACK", diagonal_alignment="TOP_LEFT BOTTOM_RIGHT").items()}
    return types.SimpleNamespace(pygraph=Graph, cudnnGraphNotSupportedError=NotSupported, backend_version=lambda: 91900, __version__="1.32.0",
                                 create_handle=lambda: "handle", set_stream=mock.Mock(), **named)


@unittest.skipIf(MISSING, MISSING)
class CudnnFrontend(unittest.TestCase):
    def setUp(self):
        self.cudnn = stand_in()
        stream = types.SimpleNamespace(cuda_stream=7)
        for patch in (mock.patch.dict(sys.modules, cudnn=self.cudnn), mock.patch("torch.cuda.current_stream", lambda: stream),
                      mock.patch("cells.RAGGED_LENGTHS", LENGTHS), mock.patch("contestants.RAGGED_LENGTHS", LENGTHS)):
            patch.start()
            self.addCleanup(patch.stop)
        self.peer = contestants.CudnnFrontend()

    def problem(self, words):
        [cell] = expand(words)
        return contestants.Problem(cell, seed=5, device="cpu")

    def test_it_computes_the_cell(self):
        torch.manual_seed(1)
        random.seed(1)
        dense = ("full,90", "causal,90,kv2", "causal,90,q70", "causal,90,wl9", "causal,90,wl0", "full,90,wl5", "full,90,wl20,wr5,q70",
                 "full,90,wr7,q70", "full,90,cap3,kv1", "full,90,cap3,q70", "causal,90,cap3", "full,90,wr0,cap3", "causal,90,alibi,wl30", "causal,90,sinks,wl3",
                 "full,90,sinks,cap3", "full,90,dv32,bhsd", "causal,90,packed")
        var = ("full", "causal,kv1", "causal,wl9,sinks", "full,wl5,wr3,dv8", "causal,alibi")
        for words in [f"d64,b2,h4,{words}" for words in dense] + [f"d16,var,h2,{words}" for words in var]:
            problem = self.problem(f"{words},f16")
            out = self.peer.prepare(problem)()
            self.assertTrue(out.isfinite().all(), words)
            peers.within(words, peers.Reference(problem).errors(out), peers.ROW_TOLERANCE["f16"])

    def test_a_graph_is_built_once_and_runs_on_the_current_stream(self):
        with mock.patch.object(Graph, "build", autospec=True, side_effect=Graph.build) as build:
            call = self.peer.prepare(self.problem("d64,causal,90,bf16,b2,h4"))
            first, second = call(), call()
        self.assertIs(first, second)
        build.assert_called_once()
        self.cudnn.set_stream.assert_called_once_with(handle="handle", stream=7)

    def test_types_are_told(self):
        for words, operand in (("f16", "HALF"), ("bf16", "BFLOAT16")):
            graph, tensors, out = contestants.cudnn_graph(self.cudnn, self.problem(f"d16,causal,var,h2,sinks,{words}"), "handle")
            self.assertEqual(graph.options, dict(io_data_type=operand, intermediate_data_type="FLOAT", compute_data_type="FLOAT", handle="handle"))
            node = graph.node
            self.assertEqual([x.data_type for x in (node.q, node.k, node.v, node.o)], [operand] * 4)
            self.assertEqual([x.data_type for x in (node.sink_token, node.seq_len_q, node.seq_len_kv, node.q.ragged_offset)],
                             ["FLOAT", "INT32", "INT32", "INT64"])
            self.assertIs(tensors[node.o.uid], out)
            # Nothing but O is to be written.
            self.assertFalse(node.generate_stats)

    def test_the_cap_is_a_number_on_the_host(self):
        graph, _, _ = contestants.cudnn_graph(self.cudnn, self.problem("d64,causal,90,bf16,b2,h4,cap30"), "handle")
        self.assertEqual([node.is_pass_by_value for node in graph.nodes.values()], [False] * 3 + [True] * 2)

    def test_what_it_does_not_offer(self):
        for words, reason in (("causal,90,alibi,h10", "power of two"), ("causal,90,cap3,wl9", "neither windows"),
                              ("full,90,cap3,wr5", "neither windows"), ("causal,90,cap3,q70", "alignment"), ("causal,90,docs", "no docs"),
                              ("causal,90,bias", "no bias"),
                              # Said by cuDNN itself.
                              ("full,90,alibi", "right_bound needs"), ("causal,90,alibi,q70", "Bottom right"), ("full,70,wl9,q90", "Sliding window"),
                              ("causal,var,cap3", "^cuDNN 91900: Attention score mod enabled and hence other")):
            with self.assertRaisesRegex(contestants.Unavailable, reason, msg=words):
                self.peer.prepare(self.problem(f"d64,bf16,{words}"))

    def test_without_the_package(self):
        with mock.patch.dict(sys.modules, cudnn=None):
            self.assertEqual(self.peer.versions(), {})
            with self.assertRaisesRegex(contestants.Unavailable, "cannot be imported"):
                self.peer.prepare(self.problem("d64,causal,90,bf16"))

    def test_a_run_says_which_cudnn_it_was(self):
        self.assertEqual(self.peer.versions(), {"nvidia-cudnn-frontend": "1.32.0", "cudnn of cudnn-fe": "91900"})


if __name__ == "__main__":
    unittest.main()
