# SPDX-License-Identifier: Apache-2.0
"""Kernels of fusion plans, compiled with the functions of the open sessions inside.

For the CPU they are C++ written here; for GPUs TorchInductor writes each as Triton.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

from pytest_udftorch.errors import SourceError
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.compiler_warnings import by_inductor
from pytest_udftorch.measure.rewrite.fusion.cells import c_type, expression, is_sum, plain, shape
from pytest_udftorch.measure.rewrite.fusion.chains import ChainKernel, chain_source
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


@dataclass(frozen=True)
class Outer:
    """A product of matrices of which only some elements are needed (SystemDS' template Outer).

    Attributes:
        product: the node of the product.
        driver: the input of the kernel that is a factor of the sum: where it is 0, the element of
            the product is not computed.
        csr: whether this input is given as a sparse CSR tensor.
    """

    product: fx.Node
    driver: fx.Node
    csr: bool = False

    def factors(self) -> tuple[fx.Node, fx.Node]:
        """Return the nodes of the two matrices."""
        left, right = self.product.all_input_nodes
        return left, right


def reads(kernel: Kernel, outer: Outer | None) -> tuple[fx.Node, ...]:
    """Return the nodes whose tensors a kernel is given."""
    if outer is None:
        return kernel.inputs
    rest = [n for n in kernel.inputs if n is not outer.product]
    return tuple(dict.fromkeys([*rest, *outer.factors()]))


def _index(strides: Sequence[int], sizes: Sequence[int], space: Sequence[int]) -> str:
    """Return where an element lies, with inputs of fewer or shorter dimensions repeated."""
    skipped = len(space) - len(sizes)
    terms = [
        f"i{skipped + d} * {stride}L"
        for d, (stride, size) in enumerate(zip(strides, sizes, strict=True))
        if size != 1 and stride
    ]
    return " + ".join(terms) or "0"


def source(kernel: Kernel, outer: Outer | None = None) -> str:
    """Return the C++ of a kernel; it is given the addresses of inputs and of outputs."""
    space = kernel.space
    given = reads(kernel, outer)
    names: dict[fx.Node, str] = {}
    head: list[str] = []
    inner: list[str] = []
    for number, node in enumerate(given):
        kind = c_type(node)
        head.append(f"  const {kind}* in{number} = (const {kind}*)in[{number}];")
    place = {node: number for number, node in enumerate(given)}

    def load(node: fx.Node) -> None:
        names[node] = f"v{len(names)}"
        tensor = graphs.value(node)
        where = _index(tensor.stride(), tensor.shape, space)
        inner.append(f"const {c_type(node)} {names[node]} = in{place[node]}[{where}];")

    if outer is not None:
        if outer.csr:
            names[outer.driver] = "value"
            inner.append("const long i1 = column[at];")
            inner.append(f"const float value = in{place[outer.driver]}[at];")
            head.append(f"  const long *start = (const long*)in[{len(given)}];")
            head.append(f"  const long *column = (const long*)in[{len(given) + 1}];")
        else:
            load(outer.driver)
        inner.append(f"if ({names[outer.driver]} == 0.0f) continue;")
        left, right = (graphs.value(n) for n in outer.factors())
        a, b = (place[n] for n in outer.factors())
        names[outer.product] = f"v{len(names)}"
        inner += [
            f"float {names[outer.product]} = 0;",
            f"for (long k = 0; k < {left.shape[1]}; ++k) {names[outer.product]} += "
            f"in{a}[i0 * {left.stride(0)}L + k * {left.stride(1)}L] * "
            f"in{b}[k * {right.stride(0)}L + i1 * {right.stride(1)}L];",
        ]
    for node in kernel.inputs:
        if node not in names:
            load(node)
    for node in kernel.body:
        names[node] = f"v{len(names)}"
        inner.append(f"const {c_type(node)} {names[node]} = {expression(node, names)};")
    contiguous = " + ".join(f"i{d} * {math.prod(space[d + 1 :])}L" for d in range(len(space)))
    tail: list[str] = []
    for number, root in enumerate(kernel.roots):
        if is_sum(root):
            # In double: the order of the terms then matters little.
            head.append(f"  double sum{number} = 0;")
            term = names[root.all_input_nodes[0]]
            inner.append(
                f"{{\n#pragma clang fp reassociate(on)\nsum{number} += double({term});\n}}"
            )
            tail.append(f"  *(float*)out[{number}] = float(sum{number});")
        else:
            kind = c_type(root)
            head.append(f"  {kind}* __restrict out{number} = ({kind}*)out[{number}];")
            inner.append(f"out{number}[{contiguous or '0'}] = {names[root]};")
    loops = [f"for (long i{d} = 0; i{d} < {size}; ++i{d})" for d, size in enumerate(space)]
    if outer is not None and outer.csr:
        loops[1] = "for (long at = start[i0]; at < start[i0 + 1]; ++at)"
    loops = loops or ["for (long one = 0; one < 1; ++one)"]
    lines = [
        "#include <cmath>",
        'extern "C" __attribute__((visibility("default")))',
        "void fused(const void* const* in, void* const* out) {",
        *head,
        *(f"  {loop}" for loop in loops),
        "  {",
        *(f"    {line}" for line in inner),
        "  }",
        *tail,
        "}",
    ]
    return "\n".join(lines) + "\n"


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


def _reference(kernel: Kernel, given: Sequence[fx.Node], outer: Outer | None) -> fx.GraphModule:
    """Return the nodes of a kernel as a graph: for tensors that lie otherwise, and fake ones."""
    graph = fx.Graph()
    mine = {node: graph.placeholder(f"x{number}") for number, node in enumerate(given)}
    sums = [root for root in kernel.roots if is_sum(root)]
    product = [] if outer is None else [outer.product]
    for node in dict.fromkeys((*product, *kernel.body, *sums)):
        mine[node] = graph.node_copy(node, mine.__getitem__)
    graph.output(tuple(mine[root] for root in kernel.roots))
    return fx.GraphModule({}, graph)


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


def callable_of(
    kernel: Kernel, number: int, outer: Outer | None = None
) -> tuple[Callable[..., Any], tuple[fx.Node, ...]]:
    """Return a function of tensors that runs a kernel, and the nodes whose tensors it takes."""
    given = reads(kernel, outer)
    if on_gpu(kernel):
        return _by_triton(_reference(kernel, given, outer), number), given
    if isinstance(kernel, ChainKernel):
        text = chain_source(kernel)
    else:
        text = row_source(kernel) if isinstance(kernel, RowKernel) else source(kernel, outer)
    native = compiled(text)
    reference = _reference(kernel, given, outer)
    csr = given.index(outer.driver) if outer is not None and outer.csr else -1
    known: list[tuple[object, ...]] = [
        (tuple(v.shape), torch.sparse_csr if number == csr else v.stride(), v.dtype)
        for number, v in enumerate(map(graphs.value, given))
    ]
    made = [(shape(root), graphs.value(root).dtype) for root in kernel.roots]
    addresses = functools.partial(map, torch.Tensor.data_ptr)

    def fused(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if any(
            type(t) not in (torch.Tensor, torch.nn.Parameter)
            or (tuple(t.shape), _place(t), t.dtype) != kind
            for t, kind in zip(tensors, known, strict=True)
        ):
            return tuple(reference(*tensors))
        if csr >= 0:
            matrix = tensors[csr]
            parts = (matrix.values(), matrix.crow_indices().long(), matrix.col_indices().long())
            values, *indices = (part.contiguous() for part in parts)
            tensors = (*tensors[:csr], values, *tensors[csr + 1 :], *indices)
        results = tuple(torch.empty(size, dtype=kind) for size, kind in made)
        inputs = (ctypes.c_void_p * len(tensors))(*addresses(tensors))
        outputs = (ctypes.c_void_p * len(results))(*addresses(results))
        native(inputs, outputs)
        return results

    fused.__name__ = f"fused_kernel_{number}"
    # Its results share no memory: see graphs.base_of.
    fused.separate = True  # type: ignore[attr-defined]
    return fused, given


def outer_of(kernel: Kernel, zeros: Callable[[fx.Node], float], most: float) -> Outer | None:
    """Return the product that a kernel may compute where its factor is not zero, or None.

    Args:
        kernel: must do nothing but add up a product with a matrix that is often zero.
        zeros: returns which part of an input's elements is not zero.
        most: the largest such part for which it is worth while.
    """
    if isinstance(kernel, RowKernel | ChainKernel) or len(kernel.space) != 2 or on_gpu(kernel):
        return None
    if len(kernel.roots) != 1 or not is_sum(kernel.roots[0]):
        return None
    end = kernel.roots[0].all_input_nodes[0]
    products = [
        n
        for n in kernel.inputs
        if graphs.packet_name(n) == "mm"
        and shape(n) == kernel.space
        and all(u in kernel.body for u in n.users)
        and len(n.all_input_nodes) == 2
        and all(plain(i, (torch.float32,)) for i in n.all_input_nodes)
    ]
    drivers = [
        n
        for n in kernel.inputs
        if graphs.packet_name(end) == "mul"
        and n in end.args
        and n.op == "placeholder"
        and shape(n) == kernel.space
    ]
    for driver in drivers:
        if products and most > 0 and zeros(driver) <= most:
            return Outer(products[0], driver)
    return None
