# SPDX-License-Identifier: Apache-2.0
"""All 2^32 inputs of every activation that is one function, on a GPU: digests of the results.

    python -m benches.experiments.composite_digests [--functions silu,mish] [--store FILE]

A run on the CPU (``udftorch verify corem-composites silu``) hashes its outputs in the same way
(``certificate.DIGEST_METHOD``), so that its certificate must have the same digest. Where there is
a certificate, the two are compared. The numbers of 16 bits are compared with the CPU's results
of the same session, all 65,536 of each dtype. A library whose results are one bit off has to fail
on the same inputs.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from benches.certified import composite_digest
from benches.experiments import command
from benches.experiments.cuda_digests import SLAB_BITS, Hasher, canonical, digest_of, encodings, gpu
from pytest_udftorch import patched

CALLS = {
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "softplus": torch.nn.functional.softplus,
    "logsigmoid": torch.nn.functional.logsigmoid,
    "gelu_erf": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "mish": torch.nn.functional.mish,
    "elu": torch.nn.functional.elu,
    "selu": torch.selu,
    "rsqrt": torch.rsqrt,
}


def narrow(name: str) -> dict[str, int]:
    """Return dtype -> how many of its 65,536 results differ from the CPU's."""
    different = {}
    for dtype in (torch.bfloat16, torch.float16):
        x = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
        pair = [CALLS[name](x.to(device)).cpu() for device in ("cuda", "cpu")]
        words = [y.view(torch.int16).masked_fill(y.isnan(), -1) for y in pair]
        different[str(dtype).removeprefix("torch.")] = int((words[0] != words[1]).sum())
    return different


def control(hasher: Hasher, name: str) -> int:
    """Return how many of the first chunks have the same digest under the library of wrong bits."""
    (x,) = next(encodings())
    found = []
    for library in ("corem-composites", "canary-composites"):
        with patched(library, functions=(name,)):
            found.append([job.result() for job in hasher.add(canonical(CALLS[name](x)))])
    return sum(a == b for a, b in zip(*found, strict=True))


def measure(functions: tuple[str, ...], threads: int) -> dict[str, Any]:
    hasher = Hasher(threads, 1 << SLAB_BITS)
    results: dict[str, Any] = {}
    torch.cuda.init()
    with patched("corem", composites=True) as session:
        assert session.composite_build is not None
        build_id = session.composite_build.build_id
        for name in functions:
            start = time.perf_counter()
            jobs = []
            for (x,) in encodings():
                jobs += hasher.add(canonical(CALLS[name](x)))
            digest, known = digest_of(jobs), composite_digest(name)
            results[name] = {
                "digest": digest, "certificate": known, "different": narrow(name),
                "seconds": round(time.perf_counter() - start, 2),
            }  # fmt: skip
            print(name, digest[:16], known and known == digest, results[name], flush=True)
    return {
        "device": gpu(),
        "build_id": build_id,
        "inputs": 1 << 32,
        "control": {"function": functions[0], "chunks_equal": control(hasher, functions[0])},
        "functions": results,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("composite_digests", __doc__)
    parser.add_argument("--functions", default=",".join(CALLS))
    parser.add_argument("--threads", type=int, default=16)
    options = parser.parse_args(arguments)
    found = measure(tuple(options.functions.split(",")), options.threads)
    command.store("composite_digests", options, found)
    bad = [
        name
        for name, entry in found["functions"].items()
        if entry["certificate"] not in (None, entry["digest"]) or any(entry["different"].values())
    ]
    if bad or found["control"]["chunks_equal"]:
        print("different:", bad, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
