# SPDX-License-Identifier: Apache-2.0
"""Kernels of fusion plans, compiled with the functions of the open sessions inside.

For the CPU they are C++ written here; for GPUs TorchInductor writes each as Triton.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.errors import SourceError
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.compiler_warnings import by_inductor
from pytest_udftorch.measure.rewrite.fusion.cells import is_sum
from pytest_udftorch.measure.rewrite.fusion.chains import ChainKernel, chain_source
from pytest_udftorch.measure.rewrite.fusion.loops import source
from pytest_udftorch.measure.rewrite.fusion.outer import OuterKernel
from pytest_udftorch.measure.rewrite.fusion.plans import Kernel
from pytest_udftorch.measure.rewrite.fusion.rows import RowKernel, row_source
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.library.symbols import CPU_LEVELS
from pytest_udftorch.swap.native.runtime import load_built
from pytest_udftorch.swap.toolchain.bitcode import compiler_for
from pytest_udftorch.swap.toolchain.cache import cache_folder, fill
from pytest_udftorch.swap.toolchain.compiler import (
    LINK_FLAGS,
    VALUE_FLAGS,
    find_compiler,
    resolve_cpu_level,
    run,
)

_NAME: Final = "fused.cpp"


def compiled(text: str) -> Callable[..., None]:
    """Compile a kernel with the functions of the open sessions, or take it from the cache.

    Raises:
        CompilerNotFoundError: there is no clang.
        SourceError: the kernel does not compile.
    """
    compiler = find_compiler()
    parts = follower.active.parts
    tool = compiler_for(parts) if parts else compiler.path
    driver = () if parts else ("--driver-mode=g++",)
    level = resolve_cpu_level(None)
    arguments = (
        *driver, "-std=c++17", *VALUE_FLAGS, *CPU_LEVELS[level][0], _NAME, "-o", "fused.so",
        *LINK_FLAGS,
    )  # fmt: skip
    key = repr((compiler.identity, str(tool), arguments, text))
    folder = cache_folder() / f"fused-{hashlib.sha256(key.encode()).hexdigest()[:16]}"

    def make(scratch: Path) -> dict[str, Any]:
        (scratch / _NAME).write_text(text, encoding="utf-8")
        done = run([tool, *arguments], scratch)
        if done.returncode:
            raise SourceError(
                f"A kernel of udf_fusion does not compile with {tool}. Report this message:\n"
                f"{done.stderr}"
            )
        return {}

    fill(folder, make)
    function = load_built(folder / "fused.so").fused
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    function.restype = None
    return function


def _reference(kernel: Kernel) -> fx.GraphModule:
    """Return the nodes of a kernel as a graph: for tensors that lie otherwise, and fake ones."""
    graph = fx.Graph()
    mine = {node: graph.placeholder(f"x{number}") for number, node in enumerate(kernel.reads)}
    before, after = _around(kernel)
    sums = [root for root in kernel.roots if is_sum(root)]
    for node in dict.fromkeys((*before, *kernel.body, *sums, *after)):
        mine[node] = graph.node_copy(node, mine.__getitem__)
    graph.output(tuple(mine[root] for root in kernel.roots))
    return fx.GraphModule({}, graph)


def _around(kernel: Kernel) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the products before and behind the elements that a kernel computes."""
    if not isinstance(kernel, OuterKernel):
        return [], []
    before = [] if kernel.product is None else [kernel.product]
    return before, [n for tail in kernel.tails for n in tail.own()]


def _place(tensor: torch.Tensor) -> object:
    """Return how the elements of a tensor lie in memory."""
    return tensor.stride() if tensor.layout is torch.strided else tensor.layout


def on_gpu(kernel: Kernel) -> bool:
    """Whether a kernel's tensors lie in a GPU's memory."""
    device: torch.device = graphs.value(kernel.body[0]).device
    return device.type == "cuda"


def _by_triton(reference: fx.GraphModule, number: int) -> Callable[..., Any]:
    """Return a function of tensors that TorchInductor compiles, with the sessions' functions."""
    compiled = by_inductor(reference)

    def fused(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in tensors):
            return tuple(reference(*tensors))
        return tuple(compiled(*tensors))

    fused.__name__ = f"fused_kernel_{number}"
    fused.separate = True  # type: ignore[attr-defined]
    return fused


def _text(kernel: Kernel) -> str:
    if isinstance(kernel, ChainKernel):
        return chain_source(kernel)
    return row_source(kernel) if isinstance(kernel, RowKernel) else source(kernel)


def _taken_apart(matrix: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the elements of a CSR tensor, and its indices, as a kernel reads them."""
    parts = (matrix.values(), matrix.crow_indices().long(), matrix.col_indices().long())
    return tuple(part.contiguous() for part in parts)


def _put_together(parts: Sequence[torch.Tensor], values: Any, size: torch.Size) -> torch.Tensor:
    """Return a CSR tensor with the indices of another one."""
    _, rows, columns = parts
    return torch.sparse_csr_tensor(rows, columns, values, size, check_invariants=False)


def callable_of(kernel: Kernel, number: int) -> Callable[..., Any]:
    """Return a function that runs a kernel, of the tensors of the nodes that it reads."""
    if on_gpu(kernel):
        return _by_triton(_reference(kernel), number)
    native, reference = compiled(_text(kernel)), _reference(kernel)
    outer = kernel if isinstance(kernel, OuterKernel) else None
    csr = [n for n, node in enumerate(kernel.reads) if outer and node in outer.csr]
    driver = kernel.reads.index(outer.driver) if outer else -1
    known: list[tuple[object, ...]] = [
        (tuple(v.shape), torch.sparse_csr if number in csr else v.stride(), v.dtype)
        for number, v in enumerate(map(graphs.value, kernel.reads))
    ]
    thin = [outer is not None and root in outer.sparse_roots for root in kernel.roots]
    made = [(v.shape, v.stride(), v.dtype) for v in (graphs.value(root) for root in kernel.roots)]
    addresses = functools.partial(map, torch.Tensor.data_ptr)

    def fused(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if any(
            type(t) not in (torch.Tensor, torch.nn.Parameter)
            or (tuple(t.shape), _place(t), t.dtype) != kind
            for t, kind in zip(tensors, known, strict=True)
        ):
            return tuple(reference(*tensors))
        matrices = {n: _taken_apart(tensors[n]) for n in csr}
        given = [matrices[n][0] if n in matrices else t for n, t in enumerate(tensors)]
        given += [part for values in matrices.values() for part in values[1:]]
        results = tuple(
            torch.empty_like(given[driver])
            if sparse
            else torch.empty_strided(size, stride, dtype=kind)
            for sparse, (size, stride, kind) in zip(thin, made, strict=True)
        )
        inputs = (ctypes.c_void_p * len(given))(*addresses(given))
        outputs = (ctypes.c_void_p * len(results))(*addresses(results))
        native(inputs, outputs)
        if not any(thin):
            return results
        return tuple(
            _put_together(matrices[driver], t, size) if sparse else t
            for t, sparse, (size, _, _) in zip(results, thin, made, strict=True)
        )

    fused.__name__ = f"fused_kernel_{number}"
    # Its results share no memory: see graphs.base_of.
    fused.separate = True  # type: ignore[attr-defined]
    return fused
