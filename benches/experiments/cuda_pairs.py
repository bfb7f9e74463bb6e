# SPDX-License-Identifier: Apache-2.0
"""The pairs of the CPU's certificates of pow, atan2 and hypot, on a GPU.

    python -m benches.experiments.cuda_pairs [--functions pow,hypot] [--seconds 90] [--store FILE]

The host makes the pairs again, from the certificates' seed and with the generator that they name
(reference/pairs.c). Each function is called in the three ways of ``cuda_digests``. The digest of
every chunk is compared with that of the certificate. A function gets as many slabs of chunks as it
can begin within its share of the seconds; the result says how many. The one-bit-wrong library has
to fail on the first slab.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from benches.experiments import command
from benches.experiments.cuda_digests import (
    CHUNK_BITS,
    SLAB_BITS,
    Hasher,
    certified,
    control,
    examine,
    gpu,
)
from pytest_udftorch import patched
from pytest_udftorch.prove.verify.reference.checker import Inputs, generator
from pytest_udftorch.swap import FUNCTIONS
from pytest_udftorch.swap.compiled.follower import follower

PAIRS = tuple(name for name, function in FUNCTIONS.items() if function.arity == 2)


def slab(source: Inputs, threads: ThreadPoolExecutor, seed: int, number: int, device: str,
         bits: int = SLAB_BITS) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return a slab of 2^bits pairs, generated chunk by chunk on the host."""
    size = 1 << min(CHUNK_BITS, bits)
    x, y = (torch.empty(1 << bits, device=device) for _ in range(2))
    starts = range(0, 1 << bits, size)

    def chunk(start: int) -> Any:
        return source.inputs(2, seed, (number << bits) + start, size)

    for start, pair in zip(starts, threads.map(chunk, starts), strict=True):
        for tensor, column in zip((x, y), pair, strict=True):
            tensor[start : start + size] = torch.from_numpy(column)
    return x, y


def within(seconds: float, slabs: Iterator[Any]) -> Iterator[Any]:
    """Yield the first slab, and those that can begin before the time is over."""
    end = time.perf_counter() + seconds
    for item in slabs:
        yield item
        if time.perf_counter() >= end:
            return


def over_chunks(digests: list[str]) -> str:
    """Return the digest over some chunks in order."""
    return hashlib.sha256(b"".join(map(bytes.fromhex, digests))).hexdigest()


def measure(functions: tuple[str, ...], threads: int, seconds: float) -> dict[str, Any]:
    hasher = Hasher(threads, 1 << SLAB_BITS)
    source = generator()
    results: dict[str, Any] = {}
    with ThreadPoolExecutor(threads) as pool:
        with patched("corem") as session:
            assert session.build is not None
            build_id, active = session.build.build_id, follower.active.id
            for name in functions:
                certificate, run = certified(name)
                domain = certificate.domain
                slabs = (
                    slab(source, pool, domain["seed"], i, "cuda")
                    for i in range(domain["count"] >> SLAB_BITS)
                )
                entry = examine(name, hasher, within(seconds / len(functions), slabs))
                digests = [job.result().hex() for job in entry.pop("jobs")]
                wanted = [run.chunks[i][0] for i in range(len(digests))]
                results[name] = entry | {
                    "inputs": len(digests) << CHUNK_BITS,
                    "of": domain["count"],
                    "seed": domain["seed"],
                    "chunks": len(digests),
                    "chunks_equal": sum(a == b for a, b in zip(digests, wanted, strict=True)),
                    "digest": over_chunks(digests),
                    "certificate": over_chunks(wanted),
                    "source_sha256": certificate.subject["source_sha256"],
                    "equal": digests == wanted and not any(entry["different"].values()),
                }
                print(name, {k: v for k, v in results[name].items() if k != "different"},
                      entry["different"], flush=True)  # fmt: skip
        checked = [
            control(hasher, name, slab(source, pool, results[name]["seed"], 0, "cuda"))
            for name in functions
        ]
    print("controls", checked)
    return {
        "device": gpu(),
        "build_id": build_id,
        "active_id": active,
        "controls": checked,
        "functions": results,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("cuda_pairs", __doc__)
    parser.add_argument("--functions", default=",".join(PAIRS))
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=90.0)
    options = parser.parse_args(arguments)
    found = measure(tuple(options.functions.split(",")), options.threads, options.seconds)
    command.store("cuda_pairs", options, found)
    bad = [name for name, entry in found["functions"].items() if not entry["equal"]]
    if bad or any(c["chunks_equal"] for c in found["controls"]):
        print("different:", bad, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
