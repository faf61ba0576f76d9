"""Who is compared: each contestant makes, for a problem, a function that enqueues one forward pass."""
import contextlib
import math

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

try:
    from fa3_fwd_interface import flash_attn_func as fa3_forward
    FA3_MISSING = None
except Exception as error:  # not installed, or built for another PyTorch or CUDA: whatever it is, the others are measured
    FA3_MISSING = f"fa3-fwd cannot be imported: {error}"


class Unavailable(Exception):
    """The contestant does not offer this problem."""


class Problem:
    """The tensors of a cell: random normal, as views [batch, seqlen, heads, head_dim] of memory in the cell's layout."""

    def __init__(self, cell, device="cuda"):
        self.cell, self.device = cell, device
        self.dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[cell.dtype]
        self.scale = 1 / math.sqrt(cell.head_dim)
        if cell.layout == "packed":
            shape = (cell.batch, cell.seqlen_q, 3, cell.num_heads, cell.head_dim)
            self.q, self.k, self.v = torch.randn(shape, device=device, dtype=self.dtype).unbind(2)
        else:
            self.q = self.tensor(torch.randn, cell.seqlen_q, cell.num_heads)
            self.k = self.tensor(torch.randn, cell.seqlen_k, cell.num_heads_k)
            self.v = self.tensor(torch.randn, cell.seqlen_k, cell.num_heads_k)

    def tensor(self, make, seqlen, heads):
        """A new tensor, filled by `make`, viewed as [batch, seqlen, heads, head_dim]."""
        cell = self.cell
        if cell.layout == "bhsd":
            return make((cell.batch, heads, seqlen, cell.head_dim), device=self.device, dtype=self.dtype).transpose(1, 2)
        return make((cell.batch, seqlen, heads, cell.head_dim), device=self.device, dtype=self.dtype)


class Sdpa:
    """A backend of PyTorch's scaled_dot_product_attention, which takes [batch, heads, seqlen, head_dim]."""
    kind = "peer"

    def __init__(self, name, backend):
        self.name, self.backend = name, backend

    def selected(self):
        """The context in which its calls are made."""
        return sdpa_kernel(self.backend)

    def prepare(self, problem):
        """A function without arguments that enqueues a forward pass and returns O, [batch, seqlen_q, num_heads, head_dim]."""
        cell = problem.cell
        q, k, v = (x.transpose(1, 2) for x in (problem.q, problem.k, problem.v))
        options = dict(scale=problem.scale, enable_gqa=cell.num_heads != cell.num_heads_k, is_causal=cell.causal)
        if cell.causal and cell.seqlen_q != cell.seqlen_k:
            if self.backend != SDPBackend.FLASH_ATTENTION:
                raise Unavailable("PyTorch offers this backend no causal mask aligned to the bottom right")
            options |= dict(is_causal=False, attn_mask=causal_lower_right(cell.seqlen_q, cell.seqlen_k))
        return lambda: F.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)


class Fa3:
    """FlashAttention-3 from the wheel fa3-fwd."""
    name, kind = "fa3", "peer"
    selected = staticmethod(contextlib.nullcontext)

    def prepare(self, problem):
        if FA3_MISSING:
            raise Unavailable(FA3_MISSING)
        if problem.cell.dtype != "bf16":
            raise Unavailable("the wheel fa3-fwd has no f16")
        q, k, v, options = problem.q, problem.k, problem.v, dict(softmax_scale=problem.scale, causal=problem.cell.causal)
        return lambda: fa3_forward(q, k, v, **options)


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
    "fa2": Sdpa("fa2", SDPBackend.FLASH_ATTENTION),
    "cudnn": Sdpa("cudnn", SDPBackend.CUDNN_ATTENTION),
    "fa3": Fa3(),
}
