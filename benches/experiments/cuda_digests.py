# SPDX-License-Identifier: Apache-2.0
"""All 2^32 inputs of every function of one argument on a GPU, against the CPU's certificates.

    python -m benches.experiments.cuda_digests [--functions exp,log] [--store FILE]

Each function is called in three ways: by torch's operator (eager CUDA, overridden inside the
session), by a Triton kernel of this module that calls ``libdevice``, and through torch.compile. The
host hashes the outputs of the first as ``certificate.DIGEST_METHOD`` says. The GPU compares the
outputs of the other two with them, encoding by encoding, with every NaN canonical. A one-bit-wrong
library has to fail on the same inputs.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pynvml
import torch
import triton

from benches.experiments import command
from pytest_udftorch import find_library, patched
from pytest_udftorch.measure.timing.device import describe_device
from pytest_udftorch.prove import Certificate, load_certificate
from pytest_udftorch.prove.verify.certificate import Run
from pytest_udftorch.swap import FUNCTIONS
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.operators.table import BARE

CANONICAL_NAN = 0x7FC00000
SLAB_BITS = 28
CHUNK_BITS = 24


# A kernel for each function, as a user would write it. Triton reads its source from a file.
_KERNEL = """
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def {name}({pointers}, result, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(result + at, libdevice.{name}({values}), inside)
"""


@functools.cache
def kernel(name: str) -> Any:
    """Return a kernel that calls a function of libdevice."""
    pointers = ("x", "y")[: FUNCTIONS[name].arity]
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(
            _KERNEL.format(
                name=name,
                pointers=", ".join(pointers),
                values=", ".join(f"tl.load({p} + at, inside)" for p in pointers),
            )
        )
    spec = importlib.util.spec_from_file_location(f"by_hand_{name}", file.name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def by_hand(name: str, *arguments: torch.Tensor) -> torch.Tensor:
    """Return a function of libdevice of every element of contiguous tensors of one shape."""
    result = torch.empty_like(arguments[0])
    n = result.numel()
    kernel(name)[(triton.cdiv(n, 1024),)](*arguments, result, n, BLOCK=1024)
    return result


def canonical(y: torch.Tensor) -> torch.Tensor:
    """Return encodings (int32, in place) with one NaN."""
    return y.view(torch.int32).masked_fill_(y.isnan(), CANONICAL_NAN)


class Hasher:
    """Hashes slabs on the host while the GPU continues."""

    def __init__(self, threads: int, slab: int, buffers: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads)
        self._buffers = [torch.empty(slab, dtype=torch.int32, pin_memory=True)
                         for _ in range(buffers)]  # fmt: skip
        self._busy: list[list[Future[bytes]]] = [[] for _ in range(buffers)]
        self._next = 0

    def add(self, encodings: torch.Tensor) -> list[Future[bytes]]:
        """Return the pending digests of the chunks of one slab."""
        at = self._next
        self._next = (at + 1) % len(self._buffers)
        for job in self._busy[at]:
            job.result()
        buffer = self._buffers[at]
        buffer.copy_(encodings, non_blocking=True)
        done = torch.cuda.Event()
        done.record()
        done.synchronize()
        size = 1 << CHUNK_BITS
        array = buffer.numpy()
        self._busy[at] = [
            self._pool.submit(_digest, array[i : i + size]) for i in range(0, len(array), size)
        ]
        return self._busy[at]


def _digest(array: Any) -> bytes:
    return hashlib.sha256(array.data).digest()


def digest_of(jobs: list[Future[bytes]]) -> str:
    """Return the digest over all chunks in order."""
    whole = hashlib.sha256()
    for job in jobs:
        whole.update(job.result())
    return whole.hexdigest()


def encodings() -> Iterator[tuple[torch.Tensor]]:
    """Yield all 2^32 inputs on the GPU, in order, a slab at a time."""
    slab = 1 << SLAB_BITS
    for number in range(1 << (32 - SLAB_BITS)):
        low = number * slab
        x = torch.arange(low, low + slab, dtype=torch.int64, device="cuda")
        # Encodings from 2^31 on are the negative numbers of int32.
        x -= (low >> 31) << 32
        yield (x.to(torch.int32).view(torch.float32),)


def examine(
    name: str, hasher: Hasher, inputs: Iterable[tuple[torch.Tensor, ...]]
) -> dict[str, Any]:
    """Run one function on slabs of inputs in the open session."""
    start = time.perf_counter()
    eager = getattr(torch, name)
    # All functions share one code object. Without a reset, torch reaches its limit of
    # recompilations and then runs eagerly.
    torch._dynamo.reset()
    compiled = torch.compile(lambda *x: eager(*x), dynamic=False, fullgraph=True)
    jobs: list[Future[bytes]] = []
    different = {"triton": 0, "compiled": 0}
    prepared = 0.0
    for x in inputs:
        first = canonical(eager(*x))
        for way, call in (("triton", functools.partial(by_hand, name)), ("compiled", compiled)):
            different[way] += int((canonical(call(*x)) != first).sum())
        prepared = prepared or time.perf_counter() - start
        jobs += hasher.add(first)
    return {
        "jobs": jobs,
        "different": different,
        "first_slab_seconds": round(prepared, 2),
        "seconds": round(time.perf_counter() - start, 2),
    }


def certified(name: str) -> tuple[Certificate, Run]:
    """Return the CPU's certificate of a function, and its first complete run."""
    folder = find_library("corem").folder
    (path,) = sorted((folder / name).glob("*.float32.certificate.json"))
    certificate = load_certificate(path)
    assert certificate.domain["chunk_bits"] == CHUNK_BITS
    runs = [r for r in certificate.runs if r.complete and not r.identity["flush"]]
    assert len({run.digest() for run in runs}) == 1
    return certificate, runs[0]


def control(hasher: Hasher, name: str, x: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    """Run the library whose results are one bit off; return how many chunks still agree."""
    found = []
    for library in ("corem", "canary"):
        with patched(library, functions=(name,)):
            found.append([j.result() for j in hasher.add(canonical(getattr(torch, name)(*x)))])
    return {
        "library": "canary",
        "function": name,
        "chunks": len(found[0]),
        "chunks_equal": sum(a == b for a, b in zip(*found, strict=True)),
    }


def gpu() -> dict[str, Any]:
    """Return the GPU and its driver, as documents have them."""
    pynvml.nvmlInit()
    try:
        return {**describe_device("cuda"), "driver": pynvml.nvmlSystemGetDriverVersion()}
    finally:
        pynvml.nvmlShutdown()


def measure(functions: tuple[str, ...], threads: int) -> dict[str, Any]:
    hasher = Hasher(threads, 1 << SLAB_BITS)
    results: dict[str, Any] = {}
    with patched("corem") as session:
        assert session.build is not None
        build_id, active = session.build.build_id, follower.active.id
        for name in functions:
            results[name] = examine(name, hasher, encodings())
        for name, entry in results.items():
            certificate, run = certified(name)
            entry["digest"] = digest_of(entry.pop("jobs"))
            entry["certificate"] = digest = run.digest()
            entry["source_sha256"] = certificate.subject["source_sha256"]
            entry["equal"] = entry["digest"] == digest and not any(entry["different"].values())
            print(name, entry["equal"], entry["different"], entry["seconds"], flush=True)
    checked = control(hasher, "exp", next(encodings()))
    print("control", checked)
    return {
        "device": gpu(),
        "build_id": build_id,
        "active_id": active,
        "inputs": 1 << 32,
        "control": checked,
        "functions": results,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("cuda_digests", __doc__)
    parser.add_argument("--functions", default=",".join(BARE))
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args(arguments)
    found = measure(tuple(options.functions.split(",")), options.threads)
    command.store("cuda_digests", options, found)
    bad = [name for name, entry in found["functions"].items() if not entry["equal"]]
    if bad or found["control"]["chunks_equal"]:
        print("different:", bad, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
