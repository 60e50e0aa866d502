"""A test that torch.compile() cannot compile, for there is no compiler, is skipped and names what is missing; others fail."""

import pytest
from conftest import without_compiler


def test_inductor_without_a_compiler():
    torch = pytest.importorskip("torch")
    import torch._inductor.config as config
    from torch._inductor.utils import fresh_inductor_cache

    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x + 1).sin())
    with fresh_inductor_cache(), config.patch({"cpp.cxx": (None, "no-such-compiler")}), pytest.raises(Exception) as raised:
        compiled(torch.ones(8))
    assert without_compiler(raised.value) == "torch.compile's backend inductor finds no C++ compiler (CXX or g++)"


def test_triton_in_another_process():
    said = "RuntimeError: Failed to find C compiler. Please specify via CC environment variable."
    error = AssertionError("2 ranks failed")
    error.__cause__ = RuntimeError(f"rank 1:\n{said}")
    assert without_compiler(error) == "Triton, which compiles graphs for torch.compile, finds no C compiler (CC, gcc or clang)"


def test_other_errors():
    assert without_compiler(RuntimeError("input: is on cpu and the weight on cuda:0")) is None
