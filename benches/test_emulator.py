"""Tests of this library's calls on the emulator, for which PyTorch without a GPU does. They run where the environment names the C library and
the emulator, in a bundle or with another folder of PTX:

    HOPPER_ATTENTION_DRIVER=libhopper_attention_emulator.so HOPPER_ATTENTION_CAPI=libhopper_attention_capi.so [HOPPER_ATTENTION_KERNELS=DIR] \\
        python3 -m unittest discover benches
"""
import ctypes
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
from ours import KERNELS, Ours  # noqa: E402

DRIVER, LIBRARY = os.environ.get("HOPPER_ATTENTION_DRIVER"), os.environ.get("HOPPER_ATTENTION_CAPI")
MISSING = MISSING or (None if DRIVER and LIBRARY else "HOPPER_ATTENTION_DRIVER and HOPPER_ATTENTION_CAPI name no libraries")


@unittest.skipIf(MISSING, MISSING)
class OnEmulator(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.driver = ctypes.CDLL(os.path.abspath(DRIVER))
        context = ctypes.c_void_p()
        cls.call("cuInit", 0)
        cls.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        cls.call("cuCtxSetCurrent", context)
        cls.ours = Ours(LIBRARY, os.environ.get("HOPPER_ATTENTION_KERNELS", KERNELS))

    @classmethod
    def call(cls, function, *arguments):
        code = getattr(cls.driver, function)(*arguments)
        if code:
            raise RuntimeError(f"{function}: {code}")

    @classmethod
    def pinned(cls, x):
        """A copy, contiguous, in page-locked memory, which the device reaches by the same address."""
        address, size = ctypes.c_void_p(), x.numel() * x.element_size()
        cls.call("cuMemAllocHost_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return torch.frombuffer((ctypes.c_uint8 * size).from_address(address.value), dtype=x.dtype).view(x.shape).copy_(x)

    def problem(self, words):
        [cell] = expand(words)
        problem = contestants.Problem(cell, seed=5, device="cpu")
        for name, value in vars(problem).items():
            if isinstance(value, torch.Tensor):
                setattr(problem, name, self.pinned(value))
        return problem

    def prepared(self, problem):
        full, tensor = torch.full, problem.tensor
        problem.tensor = lambda *arguments: self.pinned(tensor(*arguments))
        stream = types.SimpleNamespace(cuda_stream=0)
        with mock.patch.object(torch.cuda, "current_stream", lambda: stream), \
                mock.patch.object(torch, "full", lambda *a, **k: self.pinned(full(*a, **k))):
            call = self.ours.prepare(problem)
        self.call("cuCtxSynchronize")
        return call

    def test_ours_follows_the_reference(self):
        torch.manual_seed(1)
        random.seed(1)
        for words in ("d64,causal,300,docs", "d64,causal,300,docs,bias", "d64,full,300,bias,kv1", "d128,causal,300,docs,sinks",
                      "d128,full,300,docs,bias,wl70", "d96,causal,300,bias", "d64,causal,300,alibi", "d64,causal,300"):
            with self.subTest(words):
                problem = self.problem(f"{words},bf16,h2,b2")
                call, reference = self.prepared(problem), peers.Reference(problem)
                peers.within(words, reference.errors(call.o), peers.ROW_TOLERANCE["bf16"])
                self.assertLessEqual(reference.lse_error(call.lse), peers.LSE_TOLERANCE)

    def test_refusals_say_why(self):
        problem = self.problem("d128,causal,30,bf16,h2,b1,bias")
        with mock.patch.dict(self.ours.handles, {"bias_hdim128_bf16": self.ours.kernel("bias_hdim64_bf16")}):
            with self.assertRaisesRegex(RuntimeError, r"^unsupported: q.head_dim is 128, .* bias_hdim64_bf16 \(code 2\)$"):
                self.prepared(problem)


if __name__ == "__main__":
    unittest.main()
