# SPDX-License-Identifier: Apache-2.0
"""Does corem give the same bits on other machines, as far as QEMU imitates them?

    python -m benches.experiments.other_machines [--functions exp,log] [--all exp,log]
        [--minutes 15] [--store FILE]

Two machines: aarch64, for which clang cross-compiles each C source with the flags of the x86-64
build, and an Intel Nehalem, which has no AVX, AVX2 or FMA and runs the build for ``baseline``. The
emulated program reads encodings and writes results. They are compared with those of the array
forms on this CPU, encoding by encoding, with every NaN canonical. ``canary``, which is wrong by one
bit, has to differ, and the build for ``avx2`` has to fail on a Nehalem.

The inputs are mantissas of every sign and exponent, and the hard cases of the library. ``--all``
names functions of one argument that run on all 2^32 encodings on aarch64 instead, or on as many
chunks of 2^24, spread evenly, as the minutes given to each allow.

It needs ``qemu-user``, and ``libc6-dev-arm64-cross`` in /usr/aarch64-linux-gnu.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy
import numpy.typing

from benches import stored
from benches.experiments import command
from pytest_udftorch import Build, UdfError, UdfLibrary, build_library, find_library
from pytest_udftorch.prove.exact.strategies import read_hard_cases
from pytest_udftorch.swap import FUNCTIONS

HARNESS: Final = Path(__file__).parent / "native" / "other_machine.c"
CLANG: Final = os.environ.get("UDFTORCH_CLANG") or "clang-19"
SYSROOT: Final = Path("/usr/aarch64-linux-gnu")
CANONICAL_NAN: Final = 0x7FC00000
BLOCK: Final = 4096
CHUNK_BITS: Final = 24
#: Mantissas of each of the 512 pairs of sign and exponent.
MANTISSAS: Final = 8192
SEED: Final = 2026

Encodings = numpy.typing.NDArray[numpy.uint32]
#: From encodings (arity, n) to those of the results.
Run = Callable[[Encodings], Encodings]


class MachineError(UdfError):
    """A program for another machine cannot be made or does not run."""


@dataclass(frozen=True)
class Machine:
    """A machine that QEMU imitates.

    Attributes:
        emulator: the command that runs a program of it.
        flags: what clang gets besides the value flags of the build.
        link: how a program is linked.
    """

    emulator: tuple[str, ...]
    flags: tuple[str, ...]
    link: tuple[str, ...] = ()


_ARM: Final = Machine(
    ("qemu-aarch64", "-L", str(SYSROOT)),
    ("--target=aarch64-linux-gnu", "-isystem", f"{SYSROOT}/include"),
    (
        # clang's driver would ask for the files of a cross GCC.
        "-fuse-ld=lld", "-nostdlib", "-pie", "-Wl,-dynamic-linker,/lib/ld-linux-aarch64.so.1",
        *(f"{SYSROOT}/lib/{name}" for name in ("Scrt1.o", "crti.o", "libc.so.6", "crtn.o")),
    ),
)  # fmt: skip
MACHINES: Final = {
    # corem writes a multiplication and an addition where __FMA__ is not defined.
    "aarch64": _ARM,
    "aarch64, fused": Machine(_ARM.emulator, (*_ARM.flags, "-D__FMA__"), _ARM.link),
    "Nehalem": Machine(("qemu-x86_64", "-cpu", "Nehalem"), ("-march=x86-64-v2",)),
}


def value_flags(build: Build) -> list[str]:
    """Return the flags that a build states, without those that name a CPU."""
    stated = json.loads((build.path.parent / "build.json").read_text(encoding="utf-8"))
    return [f for f in stated["flags"] if not f.startswith("-m") and f != "-fPIC"]


def program(
    folder: Path, machine: Machine, library: UdfLibrary, name: str, build: Build, form: str = ""
) -> Run:
    """Compile a function for a machine; return what runs it there.

    Args:
        folder: for the program.
        machine: one of MACHINES.
        library: it has the function.
        name: torch's name of the function.
        build: gives the flags; on x86-64 the program calls its array form.
        form: the form of the build that the program calls on another processor.
    """
    function, arity = library.functions[name, "float32"], FUNCTIONS[name].arity
    path = folder / f"{library.name}-{name}{form}"
    if form:
        what = [f"-DBUILT={FUNCTIONS[name].export('float32', form)}"]
        if form == "vx":
            what.append("-DSCALABLE")
        elif form != "array":
            what.append(f"-DLANES={1 if form == 'scalar' else form[1:]}")
        link = (*machine.link, str(build.path), f"-Wl,-rpath,{build.path.parent}")
    elif machine.link:
        what = [
            f"-DSOURCE={json.dumps(str(function.source))}",
            f"-DFAST={function.fast}", f"-DACCURATE={function.accurate}",
            *(f"-I{d}" for d in (library.folder, *library.include_dirs)),
        ]  # fmt: skip
        link = machine.link
    else:
        what = [f"-DBUILT={FUNCTIONS[name].export('float32', 'array')}"]
        link = (str(build.path), f"-Wl,-rpath,{build.path.parent}")
    words = [CLANG, *machine.flags, *value_flags(build), "-fPIE", f"-DARITY={arity}", *what]
    _checked([*words, str(HARNESS), *link, "-o", str(path)])
    return lambda x: _emulated([*machine.emulator, str(path)], x)


def _checked(words: list[str], text: bytes = b"") -> bytes:
    try:
        done = subprocess.run(words, input=text, capture_output=True, check=False)
    except OSError as error:
        raise MachineError(f"{words[0]} does not run: {error}.") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise MachineError(f"{words[0]} ended with the status {done.returncode}: {said}")
    return done.stdout


def _emulated(words: list[str], x: Encodings) -> Encodings:
    """Run encodings (arity, n) through a program."""
    arity, n = x.shape
    full = numpy.zeros((arity, -(-n // BLOCK) * BLOCK), numpy.uint32)
    full[:, :n] = x
    blocks = full.reshape(arity, -1, BLOCK).swapaxes(0, 1)
    out = numpy.frombuffer(_checked(words, blocks.tobytes()), numpy.uint32)
    if out.size != full.shape[1]:
        raise MachineError(f"{words[-1]} gave {out.size} results for {full.shape[1]} inputs.")
    return out[:n]


def native(build: Build, name: str) -> Run:
    """Return what runs encodings through the array form of a build on this CPU."""
    call = build.array_function(name)

    def run(x: Encodings) -> Encodings:
        rows = [numpy.ascontiguousarray(row) for row in x]
        out = numpy.empty(x.shape[1], numpy.uint32)
        call(out.size, *(r.ctypes.data for r in rows), out.ctypes.data, 0)
        return out

    return run


def canonical(encodings: Encodings) -> Encodings:
    """Return encodings in which every NaN is the canonical one."""
    nan = (encodings & 0x7FFFFFFF) > 0x7F800000
    return numpy.where(nan, numpy.uint32(CANONICAL_NAN), encodings)


def strata(library: UdfLibrary, name: str, count: int = MANTISSAS) -> Encodings:
    """Return ``count`` encodings of every sign and exponent, and the hard cases.

    A second argument has them in another order, so that exponents meet at random.
    """
    source = numpy.random.default_rng(SEED)
    mantissas = source.integers(0, 1 << 23, (512, count), numpy.uint32)
    mantissas[:, :4] = 0, 1, (1 << 23) - 1, 1 << 22
    x = (mantissas | (numpy.arange(512, dtype=numpy.uint32) << 23)[:, None]).reshape(1, -1)
    if FUNCTIONS[name].arity == 2:
        x = numpy.concatenate([x, source.permutation(x[0])[None]])
    hard = library.functions[name, "float32"].hard_cases
    if hard is None:
        return x
    cases = read_hard_cases(hard, len(x)).reshape(-1, len(x)).T
    return numpy.concatenate([x, cases], axis=1)


def chunks() -> Iterator[Encodings]:
    """Yield all 2^32 encodings in chunks, in an order that spreads the first of them evenly."""
    each = numpy.arange(1 << CHUNK_BITS, dtype=numpy.uint32)
    for i in range(1 << 32 - CHUNK_BITS):
        # 157 is near 256 times the golden section, and odd.
        yield (each + numpy.uint32((i * 157 % 256) << CHUNK_BITS))[None]


def compare(run: Run, wanted: Run, inputs: Iterator[Encodings], seconds: float) -> dict[str, Any]:
    """Return how many inputs were compared, how many results differ, and the first of these."""
    count = different = 0
    example = None
    end = time.perf_counter() + seconds
    for x in inputs:
        got, want = canonical(run(x)), canonical(wanted(x))
        wrong = numpy.flatnonzero(got != want)
        count, different = count + got.size, different + wrong.size
        if wrong.size and example is None:
            at = int(wrong[0])
            example = [f"{int(v):08x}" for v in (*x[:, at], got[at], want[at])]
        if time.perf_counter() > end:
            break
    return {"inputs": count, "different": different, "example": example}


def dies_of_avx2(folder: Path, build: Build) -> bool:
    """Tell whether the emulated Nehalem refuses the instructions of a build for ``avx2``."""
    run = program(folder, MACHINES["Nehalem"], build.library, "exp", build)
    try:
        run(numpy.zeros((1, BLOCK), numpy.uint32))
    except MachineError as error:
        return f"status {-signal.SIGILL}:" in str(error)
    return False


def measure(names: list[str], exhaustive: list[str], minutes: float) -> dict[str, Any]:
    """Return the figures of all machines."""
    corem, canary = find_library("corem"), find_library("canary")
    best, plain = build_library(corem), build_library(corem, "baseline")
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for title, machine in MACHINES.items():
            place = figures[title] = {
                "emulator": _checked([machine.emulator[0], "--version"]).decode().split("\n")[0],
                "command": " ".join(machine.emulator),
                "flags": [*value_flags(plain), *machine.flags],
                "functions": {},
            }
            folder = Path(tempfile.mkdtemp(dir=scratch))
            for name in names:
                run = program(folder, machine, corem, name, plain)
                every = name in exhaustive and title == "aarch64"
                inputs = chunks() if every else iter([strata(corem, name)])
                found = compare(run, native(best, name), inputs, 60 * minutes)
                place["functions"][name] = found | {"of": 1 << 32 * FUNCTIONS[name].arity}
                print(title, name, found, flush=True)
            wrong = build_library(canary, "baseline")
            run = program(folder, machine, canary, "exp", wrong)
            inputs = iter([strata(corem, "exp")])
            place["canary"] = compare(run, native(best, "exp"), inputs, 60)
        refused = dies_of_avx2(Path(scratch), build_library(corem, "avx2"))
    return {
        "reference": {"cpu_level": best.cpu_level, "build_id": best.build_id},
        "seed": SEED,
        "avx2_build_refused": refused,
        "machines": figures,
    }


def main(arguments: list[str] | None = None) -> int:
    """Compare, and return 1 if a result differs or a control does not."""
    parser = command.parser("other_machines", __doc__)
    parser.add_argument("--functions", default=",".join(FUNCTIONS))
    parser.add_argument("--all", default="", dest="exhaustive")
    parser.add_argument("--minutes", type=float, default=15.0)
    options = parser.parse_args(arguments)
    try:
        found = measure(
            options.functions.split(","), options.exhaustive.split(","), options.minutes
        )
    except UdfError as error:
        print(f"other_machines: {error}", file=sys.stderr)
        return 2
    if options.store is not None:
        repeat = (
            "python -m benches.experiments.other_machines "
            f"--all {options.exhaustive} --minutes {options.minutes:g}"
        )
        stored.save(options.store, repeat, found)
    machines = found["machines"].values()
    bad = any(f["different"] for m in machines for f in m["functions"].values())
    blind = not found["avx2_build_refused"] or not all(m["canary"]["different"] for m in machines)
    return int(bad or blind)


if __name__ == "__main__":
    sys.exit(main())
