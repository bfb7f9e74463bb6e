# SPDX-License-Identifier: Apache-2.0
"""Launches the kernels of a session on a GPU; test_sanitizer_gpu.py runs it in compute-sanitizer.

    python sanitized_kernels.py [planted]

Prints how many operators were called. Results are compared with the stock operators loosely: what
they are to the bit, other tests show.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional as F

from pytest_udftorch import patched
from pytest_udftorch.swap.operators.table import BARE

#: Some elements less, as many, and more than a vector, a warp or a block has.
LENGTHS = (1, 31, 33, 513, 4097)

ONE: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in BARE},
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "elu": lambda x: F.elu(x, 0.7),
    "elu of ones": F.elu,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.3),
    "softplus": lambda x: F.softplus(x, 1.3, 5.0),
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "pow of a number": lambda x: torch.pow(x.abs(), 2.5),
    "pow to a tensor": lambda x: torch.pow(2.5, x),
}
TWO = {"pow": lambda x, y: torch.pow(x.abs(), y), "atan2": torch.atan2, "hypot": torch.hypot}
GRADIENTS = ("sigmoid", "silu", "elu", "elu of ones", "softplus", "mish", "logsigmoid", "gelu",
             "gelu tanh")  # fmt: skip
ROWS = {
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
    "logsumexp": torch.logsumexp,
}
SHAPES = ((1, 1), (33, 7), (5, 1025), (3, 50257), (2, 3, 41), (0, 5), (4, 0))

calls = 0


@triton.jit
def beyond(y, n, BLOCK: tl.constexpr):
    """Writes a whole block, however many elements there are."""
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(y + at, mask=at < n, other=0.0))


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.rand(shape, device="cuda").mul_(0.8).add_(0.1).to(dtype)


def layouts(n: int, dtype: torch.dtype) -> Iterator[torch.Tensor]:
    yield numbers(n, dtype=dtype)
    yield numbers(n + 1, dtype=dtype)[1:]  # no address that is a multiple of 16
    if n == 33:
        yield numbers(2 * n, dtype=dtype)[::2]
        yield numbers(n, 3, dtype=dtype).t()
        yield numbers(n, 1, dtype=dtype).expand(n, 5)
        yield numbers(0, n, dtype=dtype)
        yield numbers(1, dtype=dtype)[0]


def run(function: Callable[..., Any], *given: Any) -> Any:
    global calls
    calls += 1
    return function(*given)


def elements(dtype: torch.dtype, names: dict[str, Callable[..., Any]]) -> None:
    for function in names.values():
        for n in LENGTHS:
            for x in layouts(n, dtype):
                run(function, x)
    for name in names:
        if name in GRADIENTS:
            for n in (33, 4097):
                leaf = numbers(n, dtype=dtype).requires_grad_()
                run(lambda x, name=name: ONE[name](x).sum().backward(), leaf)


def forms_of_bare() -> None:
    x = numbers(513)
    for name in BARE:
        run(getattr(torch, name + "_"), x[1:])
        run(lambda x, name=name: getattr(torch, name)(x, out=torch.empty(0, device="cuda")), x)
    run(torch._foreach_exp, [numbers(n) for n in (0, *LENGTHS)])
    for function in TWO.values():
        for n in LENGTHS:
            for a, b in zip(layouts(n, torch.float32), layouts(n, torch.float32), strict=True):
                run(function, a, b)
        run(function, numbers(33, 1), numbers(5))


def rows(dtype: torch.dtype) -> None:
    for function in ROWS.values():
        for shape in SHAPES:
            for dim in range(-1, len(shape) - 1):
                x = numbers(*shape, dtype=dtype)
                if function is torch.logsumexp and 0 in shape:
                    continue
                run(function, x, dim)
                run(function, x.transpose(0, -1), dim)
                leaf = x.clone().requires_grad_()
                run(lambda x, f=function, d=dim: f(x, d).sum().backward(), leaf)


def main(*arguments: str) -> None:
    torch.cuda.init()
    torch.manual_seed(3)
    if arguments == ("planted",):
        beyond[(1,)](numbers(33), 33, BLOCK=1024)
        torch.cuda.synchronize()
        print("calls 1")
        return
    x = numbers(4097)
    stock = torch.exp(x), torch.softmax(x, 0)
    some = {n: ONE[n] for n in ("exp", "log", "sin", "gelu", "silu", "elu")}
    with patched("corem") as session:
        elements(torch.float32, ONE)
        for dtype in (torch.bfloat16, torch.float16):
            elements(dtype, some)
        forms_of_bare()
        rows(torch.float32)
        rows(torch.bfloat16)
        for name in ("exp", "softplus", "gelu"):  # many elements: another kernel
            run(ONE[name], numbers((1 << 18) + 3))
        ours = torch.exp(x), torch.softmax(x, 0)
        torch.cuda.synchronize()
    for depth in ("counters", "events"):
        with patched("corem", profile=depth) as session:
            for name in ("exp", "log", "gelu"):
                for n in LENGTHS:
                    run(ONE[name], numbers(n))
            run(F.softmax, numbers(33, 1025), 1)
            torch.cuda.synchronize()
        counted = [
            r for r in session.profile.rows("device", "function") if "cuda" in str(r.key).lower()
        ]
        if not counted:
            raise RuntimeError("the profile counted nothing on the GPU")
    for a, b in zip(ours, stock, strict=True):
        torch.testing.assert_close(a, b)
    if torch.equal(ours[0], stock[0]) and torch.equal(ours[1], stock[1]):
        raise RuntimeError("the session's kernels were not reached: all bits are stock")
    print(f"calls {calls}")


if __name__ == "__main__":
    main(*sys.argv[1:])
