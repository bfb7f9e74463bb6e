# SPDX-License-Identifier: Apache-2.0
"""corem-d's functions on 2^32 arguments each, against two references.

    python -m benches.experiments.float64_check --store benches/results/float64_check.json

``native/sampled.c`` draws the arguments: random over the range and over all exponents, random
encodings, and neighbours of the ends of table steps. The C library's long double functions decide
most results; MPFR decides what they cannot, and whatever differs. Both are independent of corem-d.
Two controls: MPFR judges the first reference on a part of the arguments, and canary-d's finite
results must be found wrong.

A function takes 10 to 30 minutes of one processor. A run that is interrupted goes on from its
journal, as long as the sources of corem-d are the same. The digest is a sum over all arguments and
results; it is the same on every machine. ``--store`` keeps the figures of functions that are not
asked for.

``--digest`` takes a minute or two: it computes digests alone, and compares them with those of the
stored figures, whose results the references have judged. So a faster path need not be judged again.
``--store`` then adds what was compared.

It needs clang and gmpy2, whose wheel has MPFR and its headers.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest_udftorch
from benches import stored
from benches.experiments import native, speed
from pytest_udftorch.base.journal import Journal, Words
from pytest_udftorch.prove.verify.reference.checker import load_mpfr
from pytest_udftorch.swap.toolchain.environment import describe

#: Arguments of a line of the journal.
CHUNK: Final = 1 << 23
SEED: Final = 22
#: Arguments on which MPFR judges the first reference, and canary-d is run.
CONTROLS: Final = 1 << 20
FUNCTIONS: Final = tuple(n for n, _ in pytest_udftorch.find_library("corem-d").functions)


@cache
def harness() -> ctypes.CDLL:
    """Compile and load the checker. Headers are gmpy2's, MPFR is that of ``verify``.

    A process that loaded another MPFR for all would make the certificates name that.
    """
    inside = importlib.util.find_spec("gmpy2")
    if inside is None or inside.origin is None:
        raise SystemExit("float64_check needs gmpy2, whose wheel has MPFR: pip install gmpy2.")
    folder = Path(inside.origin).parent
    load_mpfr()
    loaded = native.load("sampled.c", "-O2", f"-I{folder}", "-lm")
    loaded.find.argtypes = (ctypes.c_char_p,)
    words = (ctypes.c_uint64,) * 3
    loaded.judge.argtypes = (ctypes.c_void_p, ctypes.c_int, *words, ctypes.c_void_p)
    loaded.digest.argtypes = (ctypes.c_void_p, ctypes.c_int, *words)
    loaded.digest.restype = ctypes.c_uint64
    loaded.examine.argtypes = (ctypes.c_int, *words, ctypes.c_void_p)
    return loaded


def judge(library: str, level: str, function: str, first: int, count: int) -> dict[str, Any]:
    """Judge the results of a library's array form on a part of a function's arguments."""
    form = pytest_udftorch.build_library(library, level).forms(function, "float64")["array"]
    found = (ctypes.c_uint64 * 4)()
    which = harness().find(function.encode())
    harness().judge(form, which, SEED, first, count, ctypes.addressof(found))
    return {
        "first": first, "count": count, "wrong": found[0], "mpfr": found[1],
        "digest": f"{found[2]:016x}", "argument": f"{found[3]:016x}",
    }  # fmt: skip


def digest(library: str, level: str, function: str, first: int, count: int) -> int:
    """Return the digest of a library's results on a part of a function's arguments."""
    form = pytest_udftorch.build_library(library, level).forms(function, "float64")["array"]
    which = harness().find(function.encode())
    return int(harness().digest(form, which, SEED, first, count))


def compare(options: argparse.Namespace, figures: dict[str, Any]) -> dict[str, Any]:
    """Compare the digests with those of stored figures; return the figures, with what was found."""
    compared = dict(figures)
    with ProcessPoolExecutor(options.jobs) as pool:
        for function in options.functions:
            count = figures[function]["arguments"]
            parts = [
                pool.submit(digest, "corem-d", options.level, function, n, min(CHUNK, count - n))
                for n in range(0, count, CHUNK)
            ]
            found = f"{sum(part.result() for part in parts) % 2**64:016x}"
            # The control: results that are one bit off have another digest.
            ours, canary = (
                digest(name, options.level, function, 0, CONTROLS)
                for name in ("corem-d", "canary-d")
            )
            if found != figures[function]["digest"] or ours == canary:
                raise SystemExit(
                    f"{function}: the digest of {count:,} results is {found}, and not "
                    f"{figures[function]['digest']}; canary-d "
                    f"{'has the same' if ours == canary else 'differs'}. Run without --digest, "
                    "which says which result is wrong."
                )
            compared[function] = figures[function] | {
                "same_digest": {
                    "sources": sources(), "arguments": count, "level": options.level,
                    "cpu": describe()["machine"]["cpu"], "date": describe()["date"],
                }
            }  # fmt: skip
            print(f"{function}: the digest of {count:,} results is {found}, as stored", flush=True)
    return compared


def sources() -> str:
    """Return a digest of what corem-d is compiled from; its functions include one another."""
    folder = pytest_udftorch.find_library("corem-d").folder
    digest = hashlib.sha256()
    for part in (folder, folder.parent / "corem" / "common"):
        for path in sorted([*part.rglob("*.c"), *part.rglob("*.h")]):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Chunks(Journal):
    """The finished chunks of a function."""

    kind = "float64"
    words = Words(parts="chunks")
    makes_folder = True

    def __init__(self, path: Path, name: dict[str, Any]) -> None:
        self.done: dict[int, dict[str, Any]] = {}
        super().__init__(path, name)

    def read(self, payload: dict[str, Any]) -> None:
        """Take in a chunk."""
        self.done[payload["first"]] = payload

    def finish(self, payload: dict[str, Any]) -> None:
        """Write a chunk."""
        self.add(payload)
        self.done[payload["first"]] = payload


def run(
    pool: ProcessPoolExecutor, journal: Chunks, function: str, level: str, count: int, jobs: int
) -> None:
    """Judge the chunks that the journal does not have."""
    rest: Iterator[int] = (n for n in range(0, count, CHUNK) if n not in journal.done)
    under_way: set[Future[dict[str, Any]]] = set()
    while True:
        for first in rest:
            size = min(CHUNK, count - first)
            under_way.add(pool.submit(judge, "corem-d", level, function, first, size))
            if len(under_way) > jobs:
                break
        if not under_way:
            return
        done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
        for each in done:
            journal.finish(each.result())
        wrong = sum(part["wrong"] for part in journal.done.values())
        print(f"{function}: {len(journal.done) * CHUNK:,}, {wrong} wrong", flush=True)


def controls(function: str, level: str) -> dict[str, int]:
    """Return what the controls find."""
    found = (ctypes.c_uint64 * 2)()
    which = harness().find(function.encode())
    harness().examine(which, SEED + 1, 0, CONTROLS, ctypes.addressof(found))
    canary = judge("canary-d", level, function, 0, CONTROLS)
    return {
        "arguments": CONTROLS, "first_reference_decided": found[0],
        "first_reference_wrong": found[1], "canary_wrong": canary["wrong"],
    }  # fmt: skip


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Check every function that is asked for."""
    figures = {}
    with ProcessPoolExecutor(options.jobs) as pool:
        for function in options.functions:
            name = {"function": function, "level": options.level, "seed": SEED,
                    "chunk": CHUNK, "sources": sources()}  # fmt: skip
            path = options.journal.with_suffix(f".{function}.journal")
            start = time.monotonic()
            journal = Chunks(path, name)
            before = len(journal.done)
            run(pool, journal, function, options.level, 1 << options.bits, options.jobs)
            fresh = (len(journal.done) - before) * CHUNK
            print(f"{function}: {fresh / (time.monotonic() - start):,.0f} arguments a second")
            parts = [journal.done[n] for n in range(0, 1 << options.bits, CHUNK)]
            figures[function] = {
                "method": "proved and sampled",
                "arguments": sum(part["count"] for part in parts),
                "wrong": sum(part["wrong"] for part in parts),
                "first_wrong": [part["argument"] for part in parts if part["wrong"]][:8],
                "mpfr": sum(part["mpfr"] for part in parts),
                "digest": f"{sum(int(part['digest'], 16) for part in parts) % 2**64:016x}",
                "level": options.level,
                "cpu": describe()["machine"]["cpu"],
                "controls": controls(function, options.level),
            }
            print(function, figures[function], flush=True)
    return figures


def widest() -> str:
    """Return the widest CPU level here."""
    return next(level if level != "scalar" else "baseline" for level in speed.levels())


def main() -> None:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", nargs="+", choices=FUNCTIONS, default=[*FUNCTIONS])
    parser.add_argument("--bits", type=int, default=32, help="2^BITS arguments a function")
    parser.add_argument("--level", default=widest(), help="CPU level of the build")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--journal", type=Path, default=Path("build/float64_check"))
    parser.add_argument("--store", type=Path, help="write the figures there")
    parser.add_argument(
        "--digest", type=Path, metavar="FILE", help="compare digests with those of stored figures"
    )
    options = parser.parse_args()
    if options.digest is not None:
        figures = compare(options, stored.load(options.digest)["functions"])
    else:
        figures = measure(options)
    if options.store is not None:
        if options.store.exists():
            before = stored.load(options.store)["functions"]
            figures = {n: (before | figures)[n] for n in FUNCTIONS if n in before | figures}
        command = (
            f"python -m benches.experiments.float64_check --bits {options.bits} "
            f"--store {os.path.relpath(options.store)}"
        )
        stored.save(options.store, command, {"functions": figures})


if __name__ == "__main__":
    main()
