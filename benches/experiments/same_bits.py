# SPDX-License-Identifier: Apache-2.0
"""Do eager CPU, compiled CPU, Triton, eager CUDA and compiled CUDA give the same bits?

    python -m benches.experiments.same_bits run --context eager-cpu --library corem --out PART.json
    python -m benches.experiments.same_bits merge --store FILE PART.json ...

One pool of numbers, from a seed, goes through every function in many ways: cut into pieces of
every length from 1 to 65, at every offset from a 64-byte boundary, with strides, and repeated
in a large tensor that several threads share. Each way gives results for the whole pool, and a
digest; the number of different digests is the number of sets of bits. NaNs are canonical.

``ATEN_CPU_CAPABILITY=avx2`` in the environment gives the AVX2 kernels of torch. A part may
come from another machine or torch; its file says which.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.nn import functional as F

from benches import stored
from pytest_udftorch import patched
from pytest_udftorch.swap import FUNCTIONS
from pytest_udftorch.swap.toolchain.environment import describe

SEED = 2026
#: 16 pieces of 65, and 65 of 16.
COUNT = 1040
REPEATED = 128
CANONICAL_NAN = 0x7FC00000

CONTEXTS = ("eager-cpu", "compiled-cpu", "triton", "eager-cuda", "compiled-cuda")

Function = Callable[..., torch.Tensor]

COMPOSED: dict[str, Function] = {
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "softplus": lambda x: F.softplus(x, 1.3, 5.0),
    "mish": F.mish,
    "logsigmoid": F.logsigmoid,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
}


def functions(context: str) -> dict[str, tuple[Function, int]]:
    """Return name -> call and number of arguments."""
    found: dict[str, tuple[Function, int]] = {}
    for function in FUNCTIONS.values():
        found[function.name] = (getattr(torch, function.name), function.arity)
    if context == "triton":
        from benches.experiments.cuda_digests import by_hand

        def kernel(name: str) -> Function:
            return lambda *x: by_hand(name, *(t.contiguous() for t in x))

        return {n: (kernel(n), arity) for n, (_, arity) in found.items()}
    return found | {name: (call, 1) for name, call in COMPOSED.items()}


def pool() -> torch.Tensor:
    """Return the numbers (2, COUNT): one row for each argument."""
    source = numpy.random.default_rng(SEED)
    scale = source.choice([0.01, 0.3, 1.0, 5.0, 40.0], (2, COUNT))
    numbers = (source.standard_normal((2, COUNT)) * scale).astype(numpy.float32)
    special = [0.0, -0.0, 1.0, -1.0, numpy.inf, -numpy.inf, numpy.nan, 1e-42, -1e-40, 3e38]
    numbers[0, : len(special)] = special
    return torch.from_numpy(numbers)


Arguments = tuple[torch.Tensor, ...]
Results = list[torch.Tensor]


def ways(numbers: torch.Tensor) -> Iterator[tuple[str, Callable[[Any], Iterator[Results]]]]:
    """Yield for each way its group and a generator function.

    The latter takes a call on tensors of one shape. It yields the results of every function, in the
    pool's order, once for each copy of the pool in the outputs.
    """
    pair = tuple(numbers)

    def joined(pieces: list[Results]) -> Results:
        return [torch.cat(parts) for parts in zip(*pieces, strict=True)]

    def length(n: int) -> Callable[[Any], Iterator[Results]]:
        def way(call: Any) -> Iterator[Results]:
            pieces = [
                call(*(t[i : i + n].clone() for t in pair)) for i in range(0, COUNT, n)
            ]  # fmt: skip
            yield joined(pieces)

        return way

    def offset(n: int) -> Callable[[Any], Iterator[Results]]:
        def way(call: Any) -> Iterator[Results]:
            room = [torch.empty(COUNT + 16, device=t.device)[n : n + COUNT] for t in pair]
            yield call(*(r.copy_(t) for r, t in zip(room, pair, strict=True)))

        return way

    def stride(n: int) -> Callable[[Any], Iterator[Results]]:
        def way(call: Any) -> Iterator[Results]:
            yield call(*(t.repeat_interleave(n)[::n] for t in pair))

        return way

    def transposed(call: Any) -> Iterator[Results]:
        yield [
            y.t().reshape(-1) for y in call(*(t.view(26, 40).t() for t in pair))
        ]  # fmt: skip

    def threads(n: int) -> Callable[[Any], Iterator[Results]]:
        def way(call: Any) -> Iterator[Results]:
            before = torch.get_num_threads()
            torch.set_num_threads(n)
            try:
                whole = call(*(t.repeat(REPEATED) for t in pair))
            finally:
                torch.set_num_threads(before)
            for row in zip(*(y.view(REPEATED, COUNT) for y in whole), strict=True):
                yield list(row)

        return way

    for n in range(1, 66):
        yield "lengths", length(n)
    for n in range(16):
        yield "offsets", offset(n)
    for n in (2, 3, 5):
        yield "strides", stride(n)
    yield "strides", transposed
    for n in (1, 2):
        yield "threads", threads(n)


def digest(y: torch.Tensor) -> str:
    """Return 16 hex digits of the SHA-256 of float32 encodings."""
    y = y.detach().contiguous()
    bits = y.view(torch.int32).masked_fill(y.isnan(), CANONICAL_NAN)
    return hashlib.sha256(bits.cpu().numpy().tobytes()).hexdigest()[:16]


def run(context: str, library: str, names: Sequence[str], together: int) -> dict[str, Any]:
    """Return function -> group -> the digests that came out.

    Args:
        context: one of CONTEXTS.
        library: of functions.
        names: of functions; empty for all.
        together: how many functions go into one compiled graph.
    """
    known = functions(context)
    chosen = [n for n in known if not names or n in names]
    numbers = pool().to("cpu" if context.endswith("cpu") else "cuda")
    found: dict[str, dict[str, set[str]]] = {n: {} for n in chosen}
    for start in range(0, len(chosen), together):
        group = chosen[start : start + together]

        def several(x: torch.Tensor, y: torch.Tensor, group: list[str] = group) -> Results:
            return [known[n][0](*(x, y)[: known[n][1]]) for n in group]

        with patched(library):
            call = several
            if context.startswith("compiled"):
                torch._dynamo.reset()
                call = torch.compile(several, dynamic=True, fullgraph=True)
            for kind, way in ways(numbers):
                for results in way(call):
                    for name, y in zip(group, results, strict=True):
                        found[name].setdefault(kind, set()).add(digest(y))
    return {n: {k: sorted(d) for k, d in kinds.items()} for n, kinds in found.items()}


def label(context: str) -> str:
    """Return the context with torch's CPU capability, where that matters."""
    if not context.endswith("cpu"):
        return context
    return f"{context}-{torch.backends.cpu.get_cpu_capability().lower()}"


def merge(paths: Sequence[Path]) -> dict[str, Any]:
    """Return one document of parts and merged documents.

    The functions of one context may come from several.
    """
    contexts: dict[str, Any] = {}
    for path in paths:
        part = stored.load(path)
        if "contexts" in part:
            for context, libraries in part["contexts"].items():
                contexts.setdefault(context, {}).update(libraries)
            continue
        place = contexts.setdefault(part["context"], {}).setdefault(
            part["library"],
            {"environment": part["environment"], "device": part["device"], "functions": {}},
        )
        place["functions"] |= part["functions"]
    first = next(iter(next(iter(contexts.values())).values()))
    # Every context has its own; that of the first stands for the document.
    return {
        "command": "python -m benches.experiments.same_bits",
        "environment": first["environment"],
        "contexts": contexts,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    one = actions.add_parser("run")
    one.add_argument("--context", choices=CONTEXTS, required=True)
    one.add_argument("--library", default="corem")
    one.add_argument("--functions", default="")
    one.add_argument("--together", type=int, default=1)
    one.add_argument("--out", type=Path, required=True)
    all_parts = actions.add_parser("merge")
    all_parts.add_argument("--store", type=Path, required=True)
    all_parts.add_argument("parts", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    if options.action == "merge":
        document = merge(options.parts)
        stored.write(options.store, document)
        return 0
    from pytest_udftorch.measure.timing.device import describe_device

    names = [n for n in options.functions.split(",") if n]
    found = run(options.context, options.library, names, options.together)
    device = "cpu" if options.context.endswith("cpu") else "cuda"
    part = {
        "context": label(options.context),
        "library": options.library,
        "capability": os.environ.get("ATEN_CPU_CAPABILITY", ""),
        "environment": describe(),
        "device": describe_device(device),
        "functions": found,
    }
    options.out.write_text(json.dumps(part) + "\n", encoding="utf-8")
    sets = {n: len(set().union(*kinds.values())) for n, kinds in found.items()}
    print(part["context"], options.library, sets)
    return 0


if __name__ == "__main__":
    sys.exit(main())
