# SPDX-License-Identifier: Apache-2.0
"""The compiled sums and products of ``llvm/operator/contract.h``, on torch's tensors."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.build.cache import cache_folder, turn
from pytest_udftorch.build.job import Job, Step, obtain
from pytest_udftorch.build.toolchain import (
    LINK_FLAGS,
    VALUE_FLAGS,
    Compiler,
    find_compiler,
    resolve_cpu_level,
)
from pytest_udftorch.compat import torch_summary
from pytest_udftorch.cpu.direct import Threads
from pytest_udftorch.cpu.loops import torch_threads
from pytest_udftorch.errors import SourceCompileError
from pytest_udftorch.library.symbols import CPU_LEVELS
from pytest_udftorch.native.runtime import load_built, native_file

_SOURCE: Final = "contract.c"
_LEVEL_OF: Final = {"AVX512": "avx512", "AVX2": "avx2", "DEFAULT": "baseline"}

_SIZES: Final = (ctypes.c_int64,) * 3
_MATRICES: Final = (
    ctypes.c_void_p, *(ctypes.c_int64,) * 2, ctypes.c_void_p, *(ctypes.c_int64,) * 2,
    ctypes.c_void_p,
)  # fmt: skip


def _failed(step: Step, said: str) -> SourceCompileError:
    return SourceCompileError(
        f"The sums and products of the contract do not compile with {step.tool}. Install the "
        f"clang that pytest_udftorch was built with, or report this message:\n{said}"
    )


def contract_job(level: str, compiler: Compiler, defines: Sequence[str] = ()) -> Job:
    """Return how to compile the contract for a CPU level.

    Args:
        level: the CPU level.
        compiler: the compiler.
        defines: macros; a negative control changes the length of chunks with one.
    """
    headers = [native_file(name) for name in ("contract.h", "cpu_loops.h")]
    arguments = (
        "-std=c17", *VALUE_FLAGS, "-Wall", "-Wno-unused-function", *CPU_LEVELS[level][0], *defines,
        f"-I{headers[0].parent}", _SOURCE, "-o", "contract.so", *LINK_FLAGS,
    )  # fmt: skip
    return Job(
        kind="contract-",
        compiler=compiler,
        stages=((Step(compiler.path, arguments, Path(_SOURCE)),),),
        output="contract.so",
        failed=_failed,
        texts={_SOURCE: '#include "contract.h"\n'},
        root=headers[0].parent,
        inputs=headers,
        facts={"compiler": compiler.version, "cpu_level": level},
        what="the sums and products of the contract",
    )


class Contract:
    """Sums and products of dense float32 tensors on the CPU.

    Attributes:
        library: the compiled functions.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.fast_mm.argtypes = (*_SIZES, *_MATRICES, ctypes.c_void_p)
        library.ref_mm.argtypes = (*_SIZES, *_MATRICES)
        library.ref_mm.restype = library.ref_sums.restype = library.fast_sums.restype = None
        library.ref_sums.argtypes = (*_SIZES, *(ctypes.c_void_p,) * 2)
        library.fast_sums.argtypes = (*_SIZES, *(ctypes.c_void_p,) * 3)

    def _threads(self, name: bytes) -> Any:
        import torch

        parallel = torch_threads()
        count = torch.get_num_threads() if parallel else 1
        return Threads(parallel, count, name, None)

    def mm(self, a: Any, b: Any, *, reference: bool = False) -> Any:
        """Return the product of two matrices with any strides."""
        import torch

        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n)
        given = (m, n, k, a.data_ptr(), *a.stride(), b.data_ptr(), *b.stride(), c.data_ptr())
        if reference:
            self.library.ref_mm(*given)
        elif self.library.fast_mm(*given, ctypes.byref(self._threads(b"aten::mm"))):
            raise MemoryError(f"There is no memory to pack matrices of {m}×{k} and {k}×{n}.")
        return c

    def sums(self, x: Any, dim: int, *, reference: bool = False) -> Any:
        """Return the sums over one dimension, which the result lacks."""
        import torch

        shape = x.shape
        x = x.contiguous()
        y = torch.empty((*shape[:dim], *shape[dim + 1 :]))
        given = (
            shape[:dim].numel(), shape[dim], shape[dim + 1 :].numel(), x.data_ptr(), y.data_ptr(),
        )  # fmt: skip
        if reference:
            self.library.ref_sums(*given)
        else:
            self.library.fast_sums(*given, ctypes.byref(self._threads(b"aten::sum")))
        return y


@functools.lru_cache(maxsize=8)
def _compiled(level: str, cache: Path, defines: tuple[str, ...]) -> Contract:
    with turn():
        job = functools.partial(contract_job, level, defines=defines)
        return Contract(load_built(obtain(job, find_compiler).path))


def contract(level: str | None = None, defines: tuple[str, ...] = ()) -> Contract:
    """Return the compiled contract; ``level`` is that of torch's kernels by default.

    Raises:
        UdfError: it cannot be compiled.
    """
    chosen = level or resolve_cpu_level(_LEVEL_OF.get(torch_summary()[1]))
    return _compiled(chosen, cache_folder(), defines)
