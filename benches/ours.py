"""This library as a contestant, through the C entry points of capi/ (capi/src/lib.rs declares them)."""
import contextlib
import ctypes
import os
import shutil
import tempfile

import torch

from cells import MAX_DISTANCE

# Where a bundle has the PTX of the kernels of examples/document-mask.
KERNELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ptx")
PTX_DIR_VARIABLE = "HOPPER_ATTENTION_PTX_DIR"


class CTensor(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("shape", ctypes.c_uint64 * 4), ("strides", ctypes.c_uint64 * 3), ("dtype", ctypes.c_int32)]

    @classmethod
    def of(cls, x):
        """A view [batch, seqlen, heads, head_dim]. The tensor must outlive it."""
        assert x.stride(3) == 1
        return cls(x.data_ptr(), tuple(x.shape), tuple(x.stride()[:3]), {torch.float16: 0, torch.bfloat16: 1}[x.dtype])


class CFeatures(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_uint64) for name in ("sinks", "alibi_slopes", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k", "batch")],
        ("window_left", ctypes.c_int64), ("window_right", ctypes.c_int64), ("softcap", ctypes.c_float)]

    @classmethod
    def of(cls, problem):
        """What a cell asks for. The problem must outlive it."""
        cell = problem.cell
        sinks, slopes, cu_seqlens = (0 if x is None else x.data_ptr() for x in (problem.sinks, problem.alibi_slopes, problem.cu_seqlens))
        left, right = (-1 if bound is None else bound for bound in (cell.window_left, cell.window_right))
        return cls(sinks=sinks, alibi_slopes=slopes, cu_seqlens_q=cu_seqlens, cu_seqlens_k=cu_seqlens, batch=cell.batch, window_left=left,
                   window_right=right, softcap=cell.softcap or 0)


class DocumentArgs(ctypes.Structure):
    """The parameter of the kernels of examples/document-mask (kernels/src/lib.rs there declares it)."""
    _fields_ = [*[(name, ctypes.c_uint64) for name in ("document_of", "starts", "bias")], ("max_distance", ctypes.c_int32)]

    @classmethod
    def of(cls, problem):
        """The problem must outlive it. A kernel reads nothing of functions that it does not have."""
        arrays = (problem.document_of, problem.document_starts, problem.bias)
        return cls(*(0 if x is None else x.data_ptr() for x in arrays), MAX_DISTANCE)


class Ours:
    """One build of the library, `[label=]file[@ptx_dir]`. Each is loaded from a copy of its own, so that builds, and the same build with
    other kernels, do not share state. `kernels` is a folder of PTX of kernels with functions of their own."""
    kind = "ours"
    selected = staticmethod(contextlib.nullcontext)

    def __init__(self, spec, kernels=KERNELS):
        self.kernels, self.handles = kernels, {}
        label, _, rest = spec.rpartition("=")
        file, _, ptx_dir = rest.partition("@")
        self.name = label or "ours"
        self.ptx_dir = os.path.abspath(ptx_dir) if ptx_dir else None
        self.folder = tempfile.TemporaryDirectory()
        # A path without a slash would be looked for where the system keeps its libraries.
        self.library = ctypes.CDLL(shutil.copy(os.path.abspath(file), os.path.join(self.folder.name, "library.so")))
        self.library.hopper_attention_last_error.restype = ctypes.c_char_p
        self.library.hopper_attention_forward.argtypes = [
            *[ctypes.POINTER(CTensor)] * 4, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int32, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p]
        # Builds from before there were features lack this one, and can still be compared without them.
        if hasattr(self.library, "hopper_attention_forward_with"):
            *most, stream = self.library.hopper_attention_forward.argtypes
            self.library.hopper_attention_forward_with.argtypes = [*most, ctypes.POINTER(CFeatures), stream]
        # And so do builds from before there were kernels of the caller's own.
        if hasattr(self.library, "hopper_attention_forward_custom"):
            self.library.hopper_attention_kernel_from_ptx.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)]
            self.library.hopper_attention_forward_custom.argtypes = [
                ctypes.c_void_p, ctypes.POINTER(DocumentArgs), ctypes.c_uint64, *self.library.hopper_attention_forward_with.argtypes]

    def prepare(self, problem):
        """Enqueues a forward pass when called and returns O; its attribute `lse` is [batch, num_heads, seqlen_q]."""
        with ptx_dir(self.ptx_dir):
            call = Call(self.library, problem, self.kernel(problem.cell.kernel))
            # The library reads the variable when it loads its first kernel.
            call()
        return call


    def kernel(self, name):
        """The library's handle of a kernel of the folder, made once and kept; None for None."""
        if name and name not in self.handles:
            with open(os.path.join(self.kernels, f"{name}.ptx"), "rb") as file:
                ptx = file.read()
            handle = ctypes.c_void_p()
            check(self.library, self.library.hopper_attention_kernel_from_ptx(ptx, len(ptx), ctypes.byref(handle)))
            self.handles[name] = handle
        return self.handles.get(name)


def check(library, code):
    if code:
        raise RuntimeError(f"{library.hopper_attention_last_error().decode()} (code {code})")


class Call:
    def __init__(self, library, problem, kernel=None):
        cell = problem.cell
        self.library = library
        self.o = problem.tensor(torch.empty, problem.rows_q, cell.num_heads, cell.head_dim_v).fill_(torch.nan)
        self.lse = torch.full((problem.batch, cell.num_heads, problem.rows_q), torch.nan, device=problem.device)
        # The arguments point into these.
        self.problem, self.scale = problem, ctypes.c_float(problem.scale)
        self.tensors = [CTensor.of(x) for x in (problem.q, problem.k, problem.v, self.o)]
        self.features, self.args = CFeatures.of(problem), DocumentArgs.of(problem)
        # Unequal head dims show in the tensors.
        plain = cell.features <= {"head_dim_v"}
        self.forward = (library.hopper_attention_forward_custom if kernel else
                        library.hopper_attention_forward if plain else library.hopper_attention_forward_with)
        self.arguments = (
            *([kernel, ctypes.byref(self.args), ctypes.sizeof(self.args)] if kernel else []), *map(ctypes.byref, self.tensors), self.lse.data_ptr(), self.lse.numel(), int(cell.causal), ctypes.byref(self.scale),
            *([] if plain else [ctypes.byref(self.features)]), torch.cuda.current_stream().cuda_stream)

    def __call__(self):
        check(self.library, self.forward(*self.arguments))
        return self.o


@contextlib.contextmanager
def ptx_dir(folder):
    """The environment names `folder` inside; None leaves it alone."""
    before = os.environ.get(PTX_DIR_VARIABLE)
    if folder:
        os.environ[PTX_DIR_VARIABLE] = folder
    try:
        yield
    finally:
        if folder:
            os.environ.pop(PTX_DIR_VARIABLE)
            if before is not None:
                os.environ[PTX_DIR_VARIABLE] = before
