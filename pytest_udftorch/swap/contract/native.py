# SPDX-License-Identifier: Apache-2.0
"""The compiled sums and products of ``native/operator/contract.h``, on torch's tensors."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base.compat import torch_summary
from pytest_udftorch.errors import SourceError
from pytest_udftorch.swap.contract.gpu import GPU
from pytest_udftorch.swap.cpu.direct import Threads
from pytest_udftorch.swap.cpu.loops import torch_threads
from pytest_udftorch.swap.cpu.operators import cpu_operators
from pytest_udftorch.swap.library.symbols import CPU_LEVELS
from pytest_udftorch.swap.native.runtime import load_built, native_file
from pytest_udftorch.swap.toolchain.cache import cache_folder, turn
from pytest_udftorch.swap.toolchain.compiler import (
    LINK_FLAGS,
    VALUE_FLAGS,
    Compiler,
    find_compiler,
    resolve_cpu_level,
)
from pytest_udftorch.swap.toolchain.job import Job, Step, obtain

_SOURCE: Final = "contract.c"
_HEADERS: Final = (
    "contract.h", "contract_attention.h", "contract_convolutions.h", "contract_depthwise.h",
    "contract_elements.h", "contract_exact.h", "contract_folds.h", "contract_pools.h",
    "contract_reference.h", "contract_rows.h", "contract_sixteen.h", "contract_upsampling.h",
)  # fmt: skip
_LEVEL_OF: Final = {"AVX512": "avx512", "AVX2": "avx2", "DEFAULT": "baseline"}

#: What decides on the CPU level and the folder of builds.
_PLACES: Final = ("UDFTORCH_CPU_LEVEL", "UDFTORCH_CACHE_DIR", "XDG_CACHE_HOME", "HOME")

_SIZES: Final = (ctypes.c_int64,) * 3
_MATRICES: Final = (
    ctypes.c_void_p, *(ctypes.c_int64,) * 2, ctypes.c_void_p, *(ctypes.c_int64,) * 2,
    ctypes.c_void_p,
)  # fmt: skip
_BATCH: Final = (ctypes.c_void_p, *(ctypes.c_int64,) * 3)


def _failed(step: Step, said: str) -> SourceError:
    return SourceError(
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
    headers = [native_file(name) for name in (*_HEADERS, "cpu_loops.h")]
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
        texts={_SOURCE: "".join(f'#include "{name}"\n' for name in _HEADERS)},
        root=headers[0].parent,
        inputs=headers,
        facts={"compiler": compiler.version, "cpu_level": level},
        what="the sums and products of the contract",
    )


def _clause(x: Any) -> str:
    """Return what stands in the names of functions that multiply tensors of a dtype."""
    return "exact_" if str(x.dtype) == "torch.bfloat16" else ""


class Contract:
    """Sums and products of dense float32 tensors on the CPU; those on a GPU go to ``GPU``.

    Attributes:
        library: the compiled functions.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self._threads: dict[tuple[bytes, int], Threads] = {}
        for name in ("", "exact_"):
            getattr(library, f"fast_{name}mm").argtypes = (*_SIZES, *_MATRICES, ctypes.c_void_p)
            getattr(library, f"ref_{name}mm").argtypes = (*_SIZES, *_MATRICES)
            getattr(library, f"ref_{name}mm").restype = None
            getattr(library, f"fast_{name}bmm").argtypes = (
                ctypes.c_int64, *_SIZES, *_BATCH, *_BATCH, *(ctypes.c_void_p,) * 2,
            )  # fmt: skip
        library.ref_exact_weighted.argtypes = (*_SIZES, *_MATRICES)
        library.ref_exact_weighted.restype = None
        library.fast_exact_weighted.argtypes = library.fast_exact_bmm.argtypes
        library.ref_mm.restype = library.ref_sums.restype = library.fast_sums.restype = None
        library.ref_sums.argtypes = (*_SIZES, *(ctypes.c_void_p,) * 2)
        library.fast_sums.argtypes = (*_SIZES, *(ctypes.c_void_p,) * 3)
        library.ref_prefixes.argtypes = library.ref_sums.argtypes
        library.fast_prefixes.argtypes = library.fast_sums.argtypes
        library.ref_scatter.argtypes = (*_SIZES, *(ctypes.c_void_p,) * 3)
        library.fast_scatter.argtypes = (
            *_SIZES[:2], *(ctypes.c_void_p,) * 3, ctypes.c_int64, *(ctypes.c_void_p,) * 3,
        )  # fmt: skip
        library.random_words.argtypes = (
            ctypes.c_int64, ctypes.c_uint64, *(ctypes.c_void_p,) * 2,
        )  # fmt: skip
        library.ref_narrows.argtypes = (ctypes.c_int64, ctypes.c_int, *(ctypes.c_void_p,) * 2)
        library.ref_narrows.restype = None
        library.fast_roots.argtypes = (ctypes.c_int64, *(ctypes.c_void_p,) * 3)
        library.fast_roots.restype = None
        for name in ("ref_prefixes", "fast_prefixes", "ref_scatter", "fast_scatter"):
            getattr(library, name).restype = None
        library.random_words.restype = None

    def threads(self, name: bytes) -> Any:
        """Return ``struct threads`` of ``cpu_loops.h``; profiles hold on to the name."""
        import torch

        parallel = torch_threads()
        key = name, torch.get_num_threads() if parallel else 1
        found = self._threads.get(key)
        if found is None:
            # Kernels only read it.
            found = self._threads[key] = Threads(parallel, key[1], name, None)
        return found

    def mm(self, a: Any, b: Any, *, reference: bool = False) -> Any:
        """Return the product in float32 of two matrices in float32 or bfloat16, in any strides."""
        import torch

        if a.is_cuda:
            return GPU.mm(a, b)
        (m, k), n = a.shape, b.shape[1]
        c = torch.empty(m, n, dtype=torch.float32)
        given = (m, n, k, a.data_ptr(), *a.stride(), b.data_ptr(), *b.stride(), c.data_ptr())
        clause = _clause(a)
        if reference:
            getattr(self.library, f"ref_{clause}mm")(*given)
        elif getattr(self.library, f"fast_{clause}mm")(
            *given, ctypes.byref(self.threads(b"aten::mm"))
        ):
            raise MemoryError(f"There is no memory to pack matrices of {m}×{k} and {k}×{n}.")
        return c

    def products(self, a: Any, b: Any) -> Any:
        """Return the products of each two matrices of two batches, as ``mm`` does."""
        import torch

        if a.is_cuda:
            return GPU.products(a, b)
        (count, m, k), n = a.shape, b.shape[2]
        c = torch.empty(count, m, n, dtype=torch.float32)
        given = (a.data_ptr(), *a.stride(), b.data_ptr(), *b.stride(), c.data_ptr())
        threads = ctypes.byref(self.threads(b"aten::bmm"))
        if getattr(self.library, f"fast_{_clause(a)}bmm")(count, m, n, k, *given, threads):
            raise MemoryError(f"There is no memory to pack matrices of {m}×{k} and {k}×{n}.")
        return c

    def weighted(self, w: Any, v: Any, *, reference: bool = False) -> Any:
        """Return sums of rows of values with weights, exact in each chunk of 512 rows.

        Args:
            w: the weights: float32 (batch, results, rows), in any strides.
            v: the values: bfloat16 (batch, rows, size), in any strides.
            reference: take the scalar loop, which is the contract.

        Returns:
            what docs/reproduce/contract_exact.md says: float32 (batch, results, size), dense.

        Raises:
            MemoryError: there is no room for the digits of a matrix of the batch.
        """
        import torch

        if w.is_cuda:
            return GPU.weighted(w, v)
        (count, m, k), n = w.shape, v.shape[2]
        y = torch.empty(count, m, n, dtype=torch.float32)
        if reference:
            for one, of, sums in zip(w, v, y, strict=True):
                matrices = one.data_ptr(), *one.stride(), of.data_ptr(), *of.stride()
                self.library.ref_exact_weighted(m, n, k, *matrices, sums.data_ptr())
            return y
        given = (w.data_ptr(), *w.stride(), v.data_ptr(), *v.stride(), y.data_ptr())
        threads = ctypes.byref(self.threads(b"aten::bmm"))
        if self.library.fast_exact_weighted(count, m, n, k, *given, threads):
            raise MemoryError(f"There is no memory to pack matrices of {m}×{k} and {k}×{n}.")
        return y

    def windows(self, described: Any, *, gradient: bool = False, reference: bool = False) -> None:
        """Convolve tensors on the CPU, or compute the gradient of a weight.

        Args:
            described: ``struct convolution`` of ``contract_convolutions.h``.
            gradient: compute the gradient of the weight.
            reference: take the scalar loop, which is the contract.
        """
        name = "weight_gradient" if gradient else "convolution"
        if reference:
            failed = getattr(self.library, f"ref_{name}")(described)
        else:
            threads = ctypes.byref(self.threads(b"aten::convolution"))
            failed = getattr(self.library, f"fast_{name}")(described, threads)
        if failed:
            raise MemoryError("There is no memory for the padded input of a convolution.")

    def sums(self, x: Any, dim: int, *, reference: bool = False) -> Any:
        """Return the sums over one dimension, which the result lacks."""
        import torch

        if x.is_cuda:
            return GPU.sums(x, dim)
        shape = x.shape
        sizes = shape[:dim].numel(), shape[dim], shape[dim + 1 :].numel()
        left = (*shape[:dim], *shape[dim + 1 :])
        if reference:
            x, y = x.contiguous(), torch.empty(left, dtype=torch.float32)
            self.library.ref_sums(*sizes, x.data_ptr(), y.data_ptr())
            return y
        return self.spans(x, sizes, left)

    def spans(self, x: Any, sizes: tuple[int, int, int], shape: Sequence[int]) -> Any:
        """Return the sums over the middle one of three sizes of a tensor, in a shape."""
        import torch

        if x.is_cuda:
            return GPU.sums(x.reshape(sizes), 1).view(shape)
        x, y = x.contiguous(), torch.empty(shape, dtype=torch.float32)
        threads = ctypes.byref(self.threads(b"aten::sum"))
        self.library.fast_sums(*sizes, x.data_ptr(), y.data_ptr(), threads)
        return y

    def prefixes(self, x: Any, dim: int, *, reference: bool = False) -> Any:
        """Return for each place along a dimension the sum of what stands up to there."""
        import torch

        if x.is_cuda:
            return GPU.prefixes(x, dim)
        shape, x = x.shape, x.contiguous()
        y = torch.empty(shape, dtype=torch.float32)
        given = (
            shape[:dim].numel(), shape[dim], shape[dim + 1 :].numel(), x.data_ptr(), y.data_ptr(),
        )  # fmt: skip
        if reference:
            self.library.ref_prefixes(*given)
        else:
            self.library.fast_prefixes(*given, ctypes.byref(self.threads(b"aten::cumsum")))
        return y

    def scatter(self, y: Any, rows: Any, x: Any, *, each: int = 1, reference: bool = False) -> Any:
        """Add to each row of ``y`` the sum of the rows of ``x`` that belong to it.

        Args:
            y: a dense matrix, which is changed.
            rows: for each row of ``x`` the row of ``y`` that it is added to.
            x: a matrix.
            each: so many rows of ``x`` in succession belong to different rows of ``y``, and
                stand at one place in the order. The reference knows 1 alone.
            reference: take the scalar loop, which is the contract.

        Returns:
            ``y``.
        """
        import torch

        if x.is_cuda:
            return GPU.scatter(y, rows, x, each=each)
        x, rows = x.contiguous(), rows.contiguous()
        if reference:
            self.library.ref_scatter(len(x), *y.shape, rows.data_ptr(), x.data_ptr(), y.data_ptr())
            return y
        if not x.numel():
            return y
        named, terms = torch.sort(rows, stable=True)
        groups, counts = torch.unique_consecutive(named, return_counts=True)
        start = torch.zeros(len(groups) + 1, dtype=torch.int64)
        torch.cumsum(counts, 0, out=start[1:])
        self.library.fast_scatter(
            len(groups), y.shape[1], start.data_ptr(), terms.data_ptr(), groups.data_ptr(), each,
            x.data_ptr(), y.data_ptr(), ctypes.byref(self.threads(b"aten::index_add")),
        )  # fmt: skip
        return y

    def roots(self, x: Any, *, out: Any = None) -> Any:
        """Return the correctly rounded square roots of a tensor, dense and in its layout."""
        import torch

        if x.is_cuda:
            return GPU.roots(x, out=out)
        y = torch.empty_like(x)
        if y.stride() != x.stride():  # then x is not dense
            x = y.copy_(x)
        there = out is not None and out.stride() == x.stride() and out.dtype == x.dtype
        if there:
            y = out
        threads = self.threads(b"aten::sqrt")
        self.library.fast_roots(x.numel(), x.data_ptr(), y.data_ptr(), ctypes.byref(threads))
        return y if out is None or there else out.copy_(y)

    def narrows(self, x: Any, *, half: bool) -> Any:
        """Return float32 numbers rounded to those of half or bfloat16, by the scalar loop."""
        import torch

        x = x.contiguous()
        y = torch.empty_like(x)
        self.library.ref_narrows(x.numel(), half, x.data_ptr(), y.data_ptr())
        return y

    def words(self, count: int, key: int, device: Any = None) -> Any:
        """Return words of Philox as int32; word e is a function of ``key`` and e alone."""
        import torch

        if device is not None and device.type == "cuda":
            return GPU.words(count, key, device)
        y = torch.empty(count, dtype=torch.int32)
        threads = self.threads(b"aten::random_")
        self.library.random_words(count, key, y.data_ptr(), ctypes.byref(threads))
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
    # Finding the level and the folder takes longer than a small sum, as the environment does.
    plain = level is None and not defines
    found = _last.get("contract")
    if plain and found is not None:
        return found
    where = tuple(map(os.environ.get, _PLACES))
    found = _chosen(level, where, defines)
    if plain:
        take(found)
    return found


def take(made: Contract) -> None:
    """Let calls take a compiled contract until sessions open or close."""
    _last["contract"] = made
    for use in users:
        use(made)


#: What is told which contract calls take from now on; None if it is chosen anew.
users: Final[list[Callable[[Contract | None], None]]] = []

#: The contract that the open sessions take.
_last: Final[dict[str, Contract]] = {}


def _forget(_: Any) -> None:
    """Choose a contract anew, since sessions opened or closed."""
    _last.clear()
    for use in users:
        use(None)


cpu_operators.users.append(_forget)


@functools.lru_cache(maxsize=16)
def _chosen(level: str | None, where: tuple[str | None, ...], defines: tuple[str, ...]) -> Contract:
    of_torch = _LEVEL_OF.get(torch_summary()[1])
    # On aarch64 torch's DEFAULT is the best that there is.
    chosen = level or resolve_cpu_level(of_torch if of_torch in CPU_LEVELS else None)
    return _compiled(chosen, cache_folder(), defines)
