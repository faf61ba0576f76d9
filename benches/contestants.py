"""Who is compared: each contestant makes, for a problem, a function that enqueues one forward pass."""
import bisect
import contextlib
import importlib.metadata
import itertools
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from cells import MAX_DISTANCE, RAGGED_LENGTHS, document_lengths, in_drawn_order

try:
    from fa3_fwd_interface import flash_attn_func as fa3_forward, flash_attn_varlen_func as fa3_varlen_forward
    FA3_MISSING = None
except Exception as error:  # not installed, or built for another PyTorch or CUDA: whatever it is, the others are measured
    FA3_MISSING = f"fa3-fwd cannot be imported: {error}"


class Unavailable(Exception):
    """The contestant does not offer this problem."""


class Problem:
    """The tensors of a cell: random normal, as views [batch, seqlen, heads, head_dim] of memory in the cell's layout. Sequences of lengths
    of their own lie one behind another, as if they were one of `rows_q` queries and `rows_k` keys in a batch of 1. Documents lie one behind
    another in each batch entry."""

    def __init__(self, cell, seed=0, device="cuda"):
        self.cell, self.device = cell, device
        self.dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[cell.dtype]
        self.scale = 1 / math.sqrt(cell.head_dim)
        self.batch, self.rows_q, self.rows_k = cell.batch, cell.seqlen_q, cell.seqlen_k
        # The first row of each sequence or document, and the end of the last.
        self.starts = self.cu_seqlens = self.document_starts = self.document_of = self.bias = self.alibi_slopes = self.sinks = None
        if cell.var or cell.docs:
            lengths = in_drawn_order(RAGGED_LENGTHS if cell.var else document_lengths(cell.seqlen_k), seed)
            self.starts = [0, *itertools.accumulate(lengths)]
            starts = torch.tensor(self.starts, dtype=torch.int32, device=device)
        if cell.var:
            self.cu_seqlens = starts
            self.batch, self.rows_q, self.rows_k = 1, self.starts[-1], self.starts[-1]
        if cell.docs:
            self.document_starts = starts
            self.document_of = torch.tensor([index for index, length in enumerate(lengths) for _ in range(length)], dtype=torch.int32, device=device)
        if cell.bias:
            # [num_heads, 2 * MAX_DISTANCE + 1]: that of each distance j - i, from -MAX_DISTANCE on.
            self.bias = torch.randn((cell.num_heads, 2 * MAX_DISTANCE + 1), device=device)
        if cell.layout == "packed":
            shape = (cell.batch, cell.seqlen_q, 3, cell.num_heads, cell.head_dim)
            self.q, self.k, self.v = torch.randn(shape, device=device, dtype=self.dtype).unbind(2)
        else:
            self.q = self.tensor(torch.randn, self.rows_q, cell.num_heads, cell.head_dim)
            self.k = self.tensor(torch.randn, self.rows_k, cell.num_heads_k, cell.head_dim)
            self.v = self.tensor(torch.randn, self.rows_k, cell.num_heads_k, cell.head_dim_v)
        if cell.alibi:
            # Those of the paper: 2^(-8/n), 2^(-16/n), ..., 2^-8.
            self.alibi_slopes = 2 ** (torch.arange(1, cell.num_heads + 1, device=device) * (-8 / cell.num_heads))
        if cell.sinks:
            # About as much as a hundred keys: to leave them out would show.
            self.sinks = torch.randn(cell.num_heads, device=device) + 5

    def tensor(self, make, seqlen, heads, head_dim):
        """A new tensor, filled by `make`, viewed as [batch, seqlen, heads, head_dim]."""
        if self.cell.layout == "bhsd":
            return make((self.batch, heads, seqlen, head_dim), device=self.device, dtype=self.dtype).transpose(1, 2)
        return make((self.batch, seqlen, heads, head_dim), device=self.device, dtype=self.dtype)

    def sequence(self, row):
        """(first row, seqlen_q, seqlen_k) of the sequence or document that row `row` of Q belongs to."""
        if self.starts is None:
            return 0, self.cell.seqlen_q, self.cell.seqlen_k
        index = bisect.bisect_right(self.starts, row)
        length = self.starts[index] - self.starts[index - 1]
        return self.starts[index - 1], length, length


def offers(name, problem, *features):
    """Unavailable where the cell asks for a feature that is not among these."""
    missing = sorted(problem.cell.features.difference(features))
    if missing:
        raise Unavailable(f"no {' with '.join(missing)} in {name}")


def open_as_minus_one(window):
    return tuple(-1 if bound is None else bound for bound in window)


class Sdpa:
    """A backend of PyTorch's scaled_dot_product_attention, which takes [batch, heads, seqlen, head_dim]."""
    kind = "peer"

    def __init__(self, name, backend):
        self.name, self.backend = name, backend

    def selected(self):
        """The context in which its calls are made."""
        return sdpa_kernel(self.backend)

    def prepare(self, problem):
        """A function without arguments that enqueues a forward pass and returns O, [batch, seqlen_q, num_heads, head_dim_v]."""
        offers("PyTorch's scaled_dot_product_attention", problem, "head_dim_v")
        cell = problem.cell
        q, k, v = (x.transpose(1, 2) for x in (problem.q, problem.k, problem.v))
        options = dict(scale=problem.scale, enable_gqa=cell.num_heads != cell.num_heads_k, is_causal=cell.causal)
        if cell.causal and cell.seqlen_q != cell.seqlen_k:
            if self.backend != SDPBackend.FLASH_ATTENTION:
                raise Unavailable("PyTorch offers this backend no causal mask aligned to the bottom right")
            options |= dict(is_causal=False, attn_mask=causal_lower_right(cell.seqlen_q, cell.seqlen_k))
        return lambda: F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)


class Fa2(Sdpa):
    """FlashAttention-2 in PyTorch. What scaled_dot_product_attention does not pass on is asked of the operator below it."""

    def prepare(self, problem):
        cell = problem.cell
        if not cell.features & {"window", "alibi", "var"}:
            return super().prepare(problem)
        offers("PyTorch's FlashAttention-2", problem, "window", "alibi", "var")
        left, right = open_as_minus_one(cell.window)
        options = dict(scale=problem.scale, window_size_left=left, window_size_right=right, alibi_slopes=problem.alibi_slopes)
        forward, q, k, v = torch.ops.aten._flash_attention_forward, problem.q, problem.k, problem.v
        # cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask; O is the first of what it returns.
        if not cell.var:
            return lambda: forward(q, k, v, None, None, cell.seqlen_q, cell.seqlen_k, 0.0, cell.causal, False, **options)[0]
        q, k, v, cu_seqlens = q[0], k[0], v[0], problem.cu_seqlens
        return lambda: forward(q, k, v, cu_seqlens, cu_seqlens, cell.seqlen_q, cell.seqlen_k, 0.0, cell.causal, False, **options)[0][None]


class Fa3:
    """FlashAttention-3 from the wheel fa3-fwd."""
    name, kind = "fa3", "peer"
    selected = staticmethod(contextlib.nullcontext)

    def versions(self):
        """What a RUN says of it."""
        try:
            return {"fa3-fwd": importlib.metadata.version("fa3-fwd")}
        except importlib.metadata.PackageNotFoundError:
            return {}

    def prepare(self, problem):
        if FA3_MISSING:
            raise Unavailable(FA3_MISSING)
        cell = problem.cell
        if cell.dtype != "bf16":
            raise Unavailable("the wheel fa3-fwd has no f16")
        if cell.var and cell.num_heads != cell.num_heads_k:
            # An illegal address in the first call, which ends the process and with it every cell behind this one.
            raise Unavailable("the wheel fa3-fwd (0.0.3) faults on packed lengths with grouped heads")
        # It takes windows, too, but was built without them and says so: a build that has them is measured.
        offers("the wheel fa3-fwd", problem, "window", "softcap", "var", "head_dim_v")
        q, k, v, options = problem.q, problem.k, problem.v, dict(softmax_scale=problem.scale, causal=cell.causal)
        if "window" in cell.features:
            options["window_size"] = open_as_minus_one(cell.window)
        if cell.softcap:
            options["softcap"] = float(cell.softcap)
        if not cell.var:
            return lambda: fa3_forward(q, k, v, **options)
        q, k, v = q[0], k[0], v[0]
        cu_seqlens = problem.cu_seqlens
        options |= dict(cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, max_seqlen_q=cell.seqlen_q, max_seqlen_k=cell.seqlen_k)
        return lambda: fa3_varlen_forward(q, k, v, **options)[None]


class Flex:
    """PyTorch's FlexAttention, compiled for each cell, which takes long; only for cells of which its functions are the point."""
    name, kind = "flex", "peer"
    selected = staticmethod(contextlib.nullcontext)

    def prepare(self, problem):
        if not problem.cell.features:
            raise Unavailable("FlexAttention is measured only with windows, soft caps, ALiBi, documents and biases")
        if problem.cell.sinks:
            raise Unavailable("FlexAttention has no sinks: it would return the log-sum-exp too, and another kernel scale O by it")
        offers("FlexAttention as it is used here", problem, "window", "softcap", "alibi", "docs", "bias")
        from torch.nn.attention.flex_attention import flex_attention
        # The functions of an earlier cell would count towards the number of compilations that is allowed.
        torch.compiler.reset()
        return self.call(torch.compile(flex_attention, dynamic=False), problem)

    @staticmethod
    def call(forward, problem):
        """`forward`, which is flex_attention, compiled or not, of this problem. The block mask is made here, and so is not timed."""
        cell = problem.cell
        q, k, v = (x.transpose(1, 2) for x in (problem.q, problem.k, problem.v))
        options = dict(score_mod=flex_score_mod(problem), block_mask=flex_block_mask(problem), scale=problem.scale,
                       enable_gqa=cell.num_heads != cell.num_heads_k)
        return lambda: forward(q, k, v, **options).transpose(1, 2)


def flex_score_mod(problem):
    """What FlexAttention does to softmax_scale * q . k, or None."""
    cap, slopes, biases, shift = problem.cell.softcap, problem.alibi_slopes, problem.bias, problem.cell.seqlen_k - problem.cell.seqlen_q

    def softcap(score, b, h, i, j):
        return cap * torch.tanh(score / cap)

    def alibi(score, b, h, i, j):
        return score - slopes[h] * (i + shift - j).abs()

    def bias(score, b, h, i, j):
        return score + biases[h, (j - i).clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE]

    return softcap if cap else alibi if slopes is not None else bias if biases is not None else None


def flex_block_mask(problem):
    """What FlexAttention looks at, or None for everything."""
    from torch.nn.attention.flex_attention import and_masks, create_block_mask
    cell = problem.cell
    (left, right), shift, document_of = cell.window, cell.seqlen_k - cell.seqlen_q, problem.document_of
    masks = []
    if left is not None:
        masks.append(lambda b, h, i, j: j >= i + shift - left)
    if right is not None:
        masks.append(lambda b, h, i, j: j <= i + shift + right)
    if document_of is not None:
        masks.append(lambda b, h, i, j: document_of[i] == document_of[j])
    return create_block_mask(and_masks(*masks), None, None, cell.seqlen_q, cell.seqlen_k, device=problem.device) if masks else None


class CudnnFrontend:
    """cuDNN by its own front end, the package nvidia-cudnn-frontend: it takes what PyTorch does not pass on. The graph is built and its plan
    chosen here, by cuDNN's heuristics, and so is not timed."""
    name, kind, handle = "cudnn-fe", "peer", None
    selected = staticmethod(contextlib.nullcontext)

    @staticmethod
    def package():
        """Imported only where it is a contestant, since it loads a cuDNN, which need not be PyTorch's."""
        try:
            import cudnn
            return cudnn
        except Exception as error:  # not installed, or without a cuDNN that it can load
            raise Unavailable(f"nvidia-cudnn-frontend cannot be imported: {error}")

    def versions(self):
        """What a RUN says of it: its own version, and that of its cuDNN."""
        try:
            cudnn = self.package()
            return {"nvidia-cudnn-frontend": cudnn.__version__, "cudnn of cudnn-fe": str(cudnn.backend_version())}
        except (Unavailable, RuntimeError):  # RuntimeError: it has found no cuDNN
            return {}

    def prepare(self, problem):
        cudnn = self.package()
        check_cudnn(problem)
        if self.handle is None:
            self.handle = cudnn.create_handle()
        cudnn.set_stream(handle=self.handle, stream=torch.cuda.current_stream().cuda_stream)
        try:
            graph, tensors, out = cudnn_graph(cudnn, problem, self.handle)
            graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        except cudnn.cudnnGraphNotSupportedError as error:
            raise Unavailable(f"cuDNN {cudnn.backend_version()}: {' '.join(str(error).split())}"[:500])
        workspace = torch.empty(max(1, graph.get_workspace_size()), dtype=torch.uint8, device=problem.device)

        def call():
            graph.execute(tensors, workspace, handle=self.handle)
            return out

        return call


def check_cudnn(problem):
    """Unavailable for what cuDNN does not offer, as far as it does not say so itself when a graph is built."""
    cell = problem.cell
    offers("cuDNN's front end", problem, "head_dim_v", "window", "softcap", "alibi", "sinks", "var")
    if cell.alibi and cell.num_heads & (cell.num_heads - 1):
        # It draws up its own, and for such numbers by another rule than `Problem`.
        raise Unavailable("cuDNN has ALiBi's slopes 2^(-8 (h + 1) / num_heads) only where num_heads is a power of two")
    is_causal = cell.window == (None, 0)
    if cell.softcap and not (cell.window == (None, None) or is_causal and cell.seqlen_q == cell.seqlen_k):
        raise Unavailable("a soft cap is a function of one's own in cuDNN, beside which it has neither windows nor an alignment")


def cudnn_graph(cudnn, problem, handle):
    """The graph of a forward pass, not yet built; the tensors that it is run on, by the numbers that they have in it; and O."""
    cell, tensors = problem.cell, {}
    types = {torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float16: cudnn.data_type.HALF, torch.float32: cudnn.data_type.FLOAT,
             torch.int32: cudnn.data_type.INT32, torch.int64: cudnn.data_type.INT64}
    graph = cudnn.pygraph(io_data_type=types[problem.dtype], intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT, handle=handle)

    def tensor(data, dim, stride, **options):
        tensors[len(tensors) + 1] = data
        return graph.tensor(dim=dim, stride=stride, data_type=types[data.dtype], uid=len(tensors), **options)

    def column(data):
        return tensor(data, [data.numel(), 1, 1, 1], [1, 1, 1, 1])

    def number(value):
        return tensor(torch.full((1, 1, 1, 1), float(value)), [1, 1, 1, 1], [1, 1, 1, 1], is_pass_by_value=True)

    def operand(view):
        ragged = dict(ragged_offset=column(cudnn_offsets(problem, view))) if cell.var else {}
        return tensor(view, *cudnn_layout(cell, view), **ragged)

    options = dict(q=operand(problem.q), k=operand(problem.k), v=operand(problem.v), attn_scale=problem.scale, generate_stats=False)
    if cell.var:
        # With them cuDNN skips what lies behind a sequence's end, and asks for them wherever there are offsets.
        options |= dict(use_padding_mask=True, **{side: column(problem.cu_seqlens.diff()) for side in ("seq_len_q", "seq_len_kv")})
    if cell.alibi:
        options["use_alibi_mask"] = True
    if cell.sinks:
        options["sink_token"] = tensor(problem.sinks, [1, cell.num_heads, 1, 1], [cell.num_heads, 1, 1, 1])
    if cell.softcap:
        options["score_mod"] = cudnn_softcap(cudnn, number(cell.softcap), number(-1e9) if cell.window[1] == 0 else None)
    else:
        alignment, bounds = cudnn_band(cell)
        options |= dict(diagonal_alignment=getattr(cudnn.diagonal_alignment, alignment), **bounds)
    o, _ = graph.sdpa(**options)
    # What it does not write stays NaN.
    out = problem.tensor(torch.empty, problem.rows_q, cell.num_heads, cell.head_dim_v).fill_(torch.nan)
    dim, stride = cudnn_layout(cell, out)
    if cell.var:
        o.set_ragged_offset(column(cudnn_offsets(problem, out)))
    tensors[len(tensors) + 1] = out
    o.set_output(True).set_uid(len(tensors)).set_dim(dim).set_stride(stride).set_data_type(types[out.dtype])
    return graph, tensors, out


def cudnn_band(cell):
    """The corner that the diagonal ends in, which is each query's own key, and its bounds: on the left cuDNN counts the query's own key too,
    on the right it does not. An open bound is left out."""
    left, right = cell.window
    bounds = dict(diagonal_band_left_bound=None if left is None else left + 1, diagonal_band_right_bound=right)
    # Where both corners lie on it, the one that cuDNN refuses less with. Packed sequences have as many queries as keys.
    alignment = "TOP_LEFT" if cell.seqlen_q == cell.seqlen_k else "BOTTOM_RIGHT"
    return alignment, {name: bound for name, bound in bounds.items() if bound is not None}


def cudnn_layout(cell, view):
    """Extents and strides of a view [batch, seqlen, heads, head_dim] in cuDNN's order, [batch, heads, seqlen, head_dim]. Sequences one behind
    another are a batch of the longest one's length; where each begins is said by `cudnn_offsets`."""
    batch, seqlen, heads, head_dim = view.shape
    of_batch, of_row, of_head, of_element = view.stride()
    if cell.var:
        batch, seqlen = cell.batch, cell.seqlen_k
        of_batch = seqlen * of_row
    return [batch, heads, seqlen, head_dim], [of_batch, of_head, of_row, of_element]


def cudnn_offsets(problem, view):
    """The element that each sequence begins with in a view [1, total, heads, head_dim], and behind the last."""
    return problem.cu_seqlens.long() * view.stride(1)


def cudnn_softcap(cudnn, cap, hidden):
    """What cuDNN does to softmax_scale * q . k: the cap, and with `hidden`, the logit of a key that is not seen, the causal mask: beside such a
    function it takes no other. (`hidden` is finite, since nothing says what cuDNN's softmax makes of a function's -inf.)"""
    def softcap(graph, score):
        score = graph.mul(a=graph.tanh(input=graph.div(a=score, b=cap)), b=cap)
        if hidden is None:
            return score
        row, column = (graph.gen_index(input=score, axis=axis) for axis in (2, 3))
        row.set_data_type(cudnn.data_type.INT32)
        column.set_data_type(cudnn.data_type.INT32)
        seen = graph.cmp_ge(input=row, comparison=column, compute_data_type=cudnn.data_type.BOOLEAN)
        seen.set_data_type(cudnn.data_type.BOOLEAN)
        return graph.binary_select(input0=score, input1=hidden, mask=seen)

    return softcap


class Matmul:
    """cuBLAS: what the tensor cores give here in a plain product."""
    name, kind = "matmul", "ceiling"
    selected = staticmethod(contextlib.nullcontext)
    size = 8192
    flops = 2 * size**3

    def prepare(self):
        a, b = (torch.randn(self.size, self.size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        return lambda: a @ b


PEERS = {
    "fa2": Fa2("fa2", SDPBackend.FLASH_ATTENTION),
    "cudnn": Sdpa("cudnn", SDPBackend.CUDNN_ATTENTION),
    "cudnn-fe": CudnnFrontend(),
    "fa3": Fa3(),
    "flex": Flex(),
}
