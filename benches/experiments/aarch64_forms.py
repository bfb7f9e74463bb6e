# SPDX-License-Identifier: Apache-2.0
"""Do the forms that the passes make for AdvSIMD (NEON) and for SVE give the certified bits?

    python -m benches.experiments.aarch64_forms [--level sve256] [--libraries corem,corem-ff]
        [--all exp,log] [--minutes 30] [--workers 2] [--journal FILE] [--store FILE]

clang and the passes cross-compile the UDF libraries for aarch64 as they compile them for this CPU:
the scalar form, the form of four lanes, for ``sve256`` that of one SVE register of 256 bits, and
the array form. QEMU runs each. The results are compared
encoding by encoding, with every NaN canonical, with those of the same library's array form on this
CPU, which its certificate covers. The inputs are mantissas of every sign and exponent, and the hard
cases of the library. ``canary``, which is wrong by one bit, has to differ in every form.

``--all`` names functions of corem whose vector form then runs on all 2^32 encodings. The
digest of each chunk of 2^24 results has to be that of the certificate for x86-64. Such a function
runs from a library of its own: sources are compiled one by one, so its code is that of the whole
library, and work on another function leaves its results valid. The journal holds what is known, so
that a run goes on where another stopped. An earlier run in the stored file stays if it is of the
same build and has more chunks.

It needs ``qemu-user``, and ``libc6-dev-arm64-cross`` in /usr/aarch64-linux-gnu.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy

from benches import stored
from benches.experiments import command
from benches.experiments.other_machines import (
    CHUNK_BITS,
    MACHINES,
    Machine,
    MachineError,
    Run,
    canonical,
    compare,
    native,
    program,
    strata,
)
from pytest_udftorch import Build, UdfError, UdfLibrary, build_library, find_library
from pytest_udftorch.prove import load_certificate
from pytest_udftorch.swap import FUNCTIONS
from pytest_udftorch.swap.toolchain.cross import cross_library

#: Mantissas of each of the 512 pairs of sign and exponent; fewer for what has to differ.
MANTISSAS: Final = {"canary": 64}
MOST_MANTISSAS: Final = 1024
_ARM: Final = MACHINES["aarch64"]


@dataclass(frozen=True)
class Level:
    """How a CPU level of aarch64 is tried.

    Attributes:
        machine: it runs the programs.
        forms: of the level's builds.
        vector: the form that runs on all encodings; libtorch calls it.
    """

    machine: Machine
    forms: tuple[str, ...]
    vector: str


LEVELS: Final = {
    "neon": Level(_ARM, ("scalar", "v4", "array"), "v4"),
    "sve256": Level(
        # sve-max-vq counts 128 bits.
        Machine(
            ("qemu-aarch64", "-cpu", "max,sve-max-vq=2", *_ARM.emulator[1:]),
            (*_ARM.flags, "-march=armv8-a+sve"),
            _ARM.link,
        ),
        ("scalar", "v4", "vx", "array"),
        "vx",
    ),
}
#: The run of the certificates whose digests are compared: they are the same in all runs.
CERTIFIED: Final = ("baseline", "scalar")
CHUNKS: Final = 1 << 32 - CHUNK_BITS


def order() -> Iterator[int]:
    """Yield the numbers of all chunks, the first of them spread evenly."""
    # 157 is near 256 times the golden section, and odd.
    return (i * 157 % CHUNKS for i in range(CHUNKS))


def certified(library: UdfLibrary, name: str) -> dict[int, str]:
    """Return chunk -> SHA-256 of its certified results, in hex."""
    source = library.functions[name, "float32"].source
    path = source.with_name(f"{name}.float32.certificate.json")
    certificate = load_certificate(path)
    run = certificate.run(cpu_level=CERTIFIED[0], form=CERTIFIED[1], flush=False)
    if run is None or not run.complete or certificate.failures():
        raise MachineError(f"{path} has no complete run of {CERTIFIED}. Certify the function.")
    return {chunk: digest for chunk, (digest, _) in run.chunks.items()}


def digest(run: Run, chunk: int) -> str:
    """Return the SHA-256 of the results of a chunk, as certificates state it."""
    first = numpy.uint32(chunk << CHUNK_BITS)
    x = numpy.arange(1 << CHUNK_BITS, dtype=numpy.uint32) + first
    return hashlib.sha256(canonical(run(x[None])).astype("<u4").tobytes()).hexdigest()


class Journal:
    """What is known of functions and forms of a library, one line of JSON each.

    A key is the SHA-256 of the library, the function, and a form or the number of a chunk. For a
    chunk the library is that of the function alone.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
        self._known = {tuple(key): found for *key, found in map(json.loads, lines)}

    def get(self, key: tuple[str, str, str | int]) -> Any:
        """Return the counts of a form or the digest of a chunk; None while it is not known."""
        return self._known.get(key)

    def add(self, key: tuple[str, str, str | int], found: Any) -> None:
        """Note what was found."""
        self._known[key] = found
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([*key, found]) + "\n")


def _sha256(build: Build) -> str:
    return hashlib.sha256(build.path.read_bytes()).hexdigest()


def alone(library: UdfLibrary, name: str, level: str) -> Build:
    """Cross-compile a float32 function as a library without the others."""
    key = (name, "float32")
    return cross_library(replace(library, functions={key: library.functions[key]}), level)


def exhaust(
    run: Run, build: Build, name: str, seconds: float, workers: int, journal: Journal
) -> dict[str, Any]:
    """Compare the digests of as many chunks as the seconds allow with the certified ones."""
    wanted = certified(build.library, name)
    what = _sha256(build)
    todo = iter([c for c in order() if journal.get((what, name, c)) is None])
    end = time.perf_counter() + seconds

    def work() -> None:
        while time.perf_counter() < end and (chunk := next(todo, None)) is not None:
            journal.add((what, name, chunk), digest(run, chunk))

    with ThreadPoolExecutor(workers) as pool:
        for worker in [pool.submit(work) for _ in range(workers)]:
            worker.result()
    found = {c: d for c in range(CHUNKS) if (d := journal.get((what, name, c))) is not None}
    wrong = sorted(c for c, d in found.items() if d != wanted[c])
    return {"chunks": len(found), "of": CHUNKS, "different_chunks": wrong, "library_sha256": what}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all libraries and forms."""
    figures: dict[str, Any] = {}
    complete = {}
    journal = Journal(options.journal)
    level = LEVELS[options.level]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for title in [*_names(options.libraries), "canary"]:
            library = find_library(title)
            cross = cross_library(library, options.level)
            # The wrong twins are judged by the right functions.
            best = build_library("corem" if title == "canary" else library)
            what = _sha256(cross)
            count = MANTISSAS.get(title, MOST_MANTISSAS)
            place = figures[title] = {"sha256": what, "forms": {}}
            names = [n for n, dtype in library.functions if dtype == "float32" and n in FUNCTIONS]
            for form in level.forms:
                each = place["forms"][form] = {}
                for name in names:
                    key = (what, name, form)
                    if journal.get(key) is None:
                        run = program(folder, level.machine, library, name, cross, form)
                        inputs = iter([strata(best.library, name, count)])
                        journal.add(key, compare(run, native(best, name), inputs, 60))
                    each[name] = journal.get(key)
                    print(title, form, name, each[name], flush=True)
        for name in _names(options.exhaustive):
            cross = alone(find_library("corem"), name, options.level)
            run = program(folder, level.machine, cross.library, name, cross, level.vector)
            complete[name] = exhaust(
                run, cross, name, 60 * options.minutes, options.workers, journal
            )
            print(name, complete[name], flush=True)
        control = control_digest(folder, options.level)
    return {
        "level": options.level,
        "emulator": " ".join(level.machine.emulator),
        "libraries": figures,
        "exhaustive": {"form": level.vector, "chunk_bits": CHUNK_BITS, "functions": complete},
        "canary_digest_differs": control,
    }


def more_known(
    new: dict[str, Any], old: dict[str, Any], build_of: Callable[[str], str]
) -> dict[str, Any]:
    """Return the exhaustive runs of both, for each function the one of more chunks.

    Args:
        new: function -> its run.
        old: the same, of the stored file.
        build_of: gives the SHA-256 of a function's present build. A run of another is dropped.
    """
    found = dict(new)
    for name, entry in old.items():
        fewer = name not in found or found[name]["chunks"] < entry["chunks"]
        if fewer and entry["library_sha256"] == build_of(name):
            found[name] = entry
    return found


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def control_digest(folder: Path, name: str) -> bool:
    """Tell whether canary's exp fails the comparison of digests, which corem's passes."""
    right, canary = find_library("corem"), find_library("canary")
    wanted = certified(right, "exp")
    chunk = 0x3F  # 0.5 to 2
    level, build = LEVELS[name], cross_library(canary, name)
    run = program(folder, level.machine, canary, "exp", build, level.vector)
    return digest(run, chunk) != wanted[chunk]


def main(arguments: list[str] | None = None) -> int:
    """Compare, and return 1 if a result differs or a control does not."""
    parser = command.parser("aarch64_forms", __doc__)
    parser.add_argument("--level", choices=LEVELS, default="neon")
    parser.add_argument("--libraries", default="corem,corem-ff")
    parser.add_argument("--all", default="", dest="exhaustive")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--journal", type=Path)
    options = parser.parse_args(arguments)
    try:
        found = measure(options)
    except UdfError as error:
        print(f"aarch64_forms: {error}", file=sys.stderr)
        return 2
    if options.store is not None:
        functions = found["exhaustive"]["functions"]
        if options.store.exists():
            before = stored.load(options.store)["exhaustive"]["functions"]
            functions = found["exhaustive"]["functions"] = more_known(
                functions,
                before,
                lambda name: _sha256(alone(find_library("corem"), name, options.level)),
            )
        given = "" if options.level == "neon" else f" --level {options.level}"
        if functions:
            given += f" --all {','.join(functions)} --journal FILE"
        repeat = f"python -m benches.experiments.aarch64_forms{given}"
        stored.save(options.store, repeat, found)
    wrong = [
        (title, form, name)
        for title, library in found["libraries"].items()
        for form, functions in library["forms"].items()
        for name, entry in functions.items()
        if bool(entry["different"]) != (title == "canary")
    ]
    missed = [n for n, e in found["exhaustive"]["functions"].items() if e["different_chunks"]]
    for where in [*wrong, *missed]:
        print(f"aarch64_forms: {where} is not as it should be", file=sys.stderr)
    return int(bool(wrong or missed) or not found["canary_digest_differs"])


if __name__ == "__main__":
    sys.exit(main())
