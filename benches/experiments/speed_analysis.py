# SPDX-License-Identifier: Apache-2.0
"""What the code of the forms spends its time on: executed instructions, by kind.

    python -m benches.experiments.speed_analysis [--store] [function ...]

The command follows a call instruction by instruction in a child process, so that it counts what
was executed: fix-ups of hard inputs count as often as they happened. ``llvm-mca`` then gives the
fewest cycles that the same instructions take on two processors that it has models of, without
any waiting for memory or branches.

It counts corem and the open peers, SLEEF inside libtorch and GNU libm. Intel's functions and MKL
are proprietary; ``benches.experiments.speed`` times them, and nothing here looks into them.
"""

from __future__ import annotations

import argparse
import ctypes
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benches import stored
from benches.experiments import native
from benches.experiments.speed import Contender, contenders, levels, sample, stem
from pytest_udftorch import UdfError, find_library
from pytest_udftorch.swap.toolchain.compiler import find_compiler
from pytest_udftorch.swap.toolchain.environment import describe

#: Elements of a followed run; the array form runs this many and twice as many.
ELEMENTS: Final = 256
MOST_STEPS: Final = 1 << 20
LOOPS: Final = "steps.so"
#: Bytes of the longest instruction.
LONGEST: Final = 15
#: llvm-mca's models. LLVM 19 has none of Zen 5, whose registers are twice as wide inside.
MODELS: Final = ("znver4", "icelake-server")
#: The share of the fullest port's time from which on others are named beside it.
FULL: Final = 0.8
PEERS: Final = ("corem", "corem vector", "sleef u10", "sleef u15", "glibc")

#: Kinds of instructions, the first that matches; names without v or with it.
KINDS: Final = {
    kind: re.compile(rf"v?({pattern})")
    for kind, pattern in {
        "multiply, add": r"(fn?m(add|sub)\w+|mul|add|sub)[ps][sd]$",
        "divide, root": r"(div|sqrt|rcp\w*|rsqrt\w*)[ps][sd]$",
        "convert": r"cvt|round|rndscale|getexp|getmant|pmov[sz]x",
        "compare, select": r"p?cmp|u?comi|p?test|k[a-z]+[bwdq]$|p?movmsk|p?blend|[ps]?(min|max)",
        "permute": r"p?perm|p?shuf|p?unpck|p?insert|p?extr|gather|p?alignr|pack|expand|compress",
        "integer, bits": r"p?(add|sub|and|or|xor|tern)|pmul|imul|p?s(ll|rl|ra|hl|hr|al|ar)|bt|neg",
        "load, move": r"p?mov|p?broadcast|lea|push|pop|set|cmov",
        "branch": r"j|call|ret",
    }.items()
}
OTHER: Final = "other"


class TracingError(UdfError):
    """The system does not let a process trace its child."""


class Tracer:
    """The compiled functions that follow calls."""

    def __init__(self) -> None:
        self._lib = native.load("steps.c", "-O2")
        self._where = np.empty(MOST_STEPS, dtype=np.uint64)

    def follow(self, contender: Contender, *inputs: np.ndarray) -> np.ndarray:
        """Return the addresses of the executed instructions, those of the loop included.

        Args:
            contender: the form.
            inputs: one array of float32 for each argument.

        Raises:
            TracingError: the child cannot be followed, or it does not come to an end.
        """
        run = getattr(self._lib, f"steps_{contender.form}")
        run.restype = ctypes.c_int64
        output = np.empty_like(inputs[0])
        given = [x.ctypes.data for x in inputs]
        count = run(
            ctypes.c_void_p(contender.address),
            ctypes.c_int64(output.size),
            *(ctypes.c_void_p(x) for x in (*given, None)[:2]),
            ctypes.c_void_p(output.ctypes.data),
            ctypes.c_void_p(self._where.ctypes.data),
            ctypes.c_int64(MOST_STEPS),
        )
        if count < 0:
            why = "ptrace is not allowed here" if count == -1 else f"over {MOST_STEPS} steps"
            raise TracingError(f"{contender.name} cannot be followed: {why}.")
        return self._where[:count].copy()


def mappings() -> list[tuple[int, int, int, str]]:
    """Return start, end, the file's own start in memory, and path of every mapped file."""
    bases: dict[str, int] = {}
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        if path and path[0].startswith("/"):
            start, end = (int(v, 16) for v in span.split("-"))
            if int(offset, 16) == 0:
                bases.setdefault(path[0], start)
            if path[0] in bases:
                found.append((start, end, bases[path[0]], path[0]))
    return found


def disassemble(path: str, addresses: Sequence[int]) -> dict[int, str]:
    """Return the instruction at each address of a file, in AT&T syntax."""
    texts: dict[int, str] = {}
    wanted = sorted(set(addresses))
    start = 0
    for i in range(1, len(wanted) + 1):
        # One run of the disassembler for each stretch of code.
        if i == len(wanted) or wanted[i] - wanted[i - 1] > 4096:
            texts.update(_disassemble(path, wanted[start], wanted[i - 1] + LONGEST))
            start = i
    return texts


def _disassemble(path: str, start: int, stop: int) -> Iterator[tuple[int, str]]:
    # LLVM's own disassembler shows nothing between the symbols of a stripped library.
    command = [
        _tool("objdump"), "--disassemble", "--no-show-raw-insn",
        f"--start-address={start}", f"--stop-address={stop}", path,
    ]  # fmt: skip
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        match = re.match(r"\s*([0-9a-f]+):\s+(\S.*)", line)
        if match:
            yield int(match[1], 16), match[2].partition("#")[0].strip()


def _tool(name: str) -> str:
    """Return the path of a tool, LLVM's in the version of its clang."""
    version = re.search(r"version (\d+)", find_compiler().version)
    found = shutil.which(f"{name}-{version[1]}" if version else name) or shutil.which(name)
    if found is None:
        raise UdfError(f"{name} was not found. Install the packages llvm and binutils.")
    return found


def kind(instruction: str) -> str:
    """Return the kind of an instruction."""
    mnemonic = instruction.split()[0]
    return next((k for k, pattern in KINDS.items() if pattern.match(mnemonic)), OTHER)


def _predicted(instructions: Sequence[str], model: str) -> str:
    """Return what llvm-mca says of these instructions, again and again."""
    straight = [i for i in instructions if kind(i) != "branch"]
    run = subprocess.run(
        [_tool("llvm-mca"), f"-mcpu={model}", "-mtriple=x86_64", "-iterations=100"],
        input="\n".join(straight), capture_output=True, text=True, check=True,
    )  # fmt: skip
    return run.stdout


def cycles(instructions: Sequence[str], model: str) -> float:
    """Return the least cycles that a processor takes for these, again and again."""
    report = _predicted(instructions, model)
    match = re.search(r"Block RThroughput:\s+([\d.]+)", report)
    if match is None:
        raise UdfError(f"llvm-mca said no throughput of {model}: {report[:200]!r}")
    return float(match[1])


def ports(instructions: Sequence[str], model: str) -> dict[str, float]:
    """Return the cycles that these keep the fullest ports of a processor busy, by port.

    The fullest ports are those that are busy for at least ``FULL`` of the time of the first.
    """
    report = _predicted(instructions, model)
    names = re.findall(r"^\[([\d.]+)\]\s+- (\S+)$", report, re.MULTILINE)
    table = re.search(r"^Resource pressure per iteration:\n.*\n(.*)$", report, re.MULTILINE)
    if table is None or len(names) != len(table[1].split()):
        raise UdfError(f"llvm-mca said no pressure of {model}: {report[:200]!r}")
    busy = {
        name: float(value)
        for (_, name), value in zip(names, table[1].split(), strict=True)
        if value != "-"
    }
    most = max(busy.values())
    return {n: v for n, v in sorted(busy.items(), key=lambda p: -p[1]) if v >= FULL * most}


def _calls(where: np.ndarray) -> list[list[str]]:
    """Return the instructions of each call; our own loop, in between, is left out."""
    known = mappings()
    by_file: dict[str, set[int]] = {}
    places: list[tuple[str, int] | None] = []
    for address in where.tolist():
        path, base = next((m[3], m[2]) for m in known if m[0] <= address < m[1])
        if Path(path).name.startswith(LOOPS):  # the file itself is deleted
            places.append(None)
        else:
            places.append((path, address - base))
            by_file.setdefault(path, set()).add(address - base)
    texts = {path: disassemble(path, sorted(found)) for path, found in by_file.items()}
    calls: list[list[str]] = [[]]
    for place in places:
        if place is not None:
            calls[-1].append(texts[place[0]][place[1]])
        elif calls[-1]:
            calls.append([])
    return [call for call in calls if call]


def _block(where: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the median turn of the loop that takes most of the time, and how many there are.

    A turn with a fix-up of hard inputs is longer than most.
    """
    addresses, counts = np.unique(where, return_counts=True)
    marks = np.flatnonzero(where == addresses[counts.argmax()])
    lengths = np.diff(marks)
    typical = np.argsort(lengths, kind="stable")[lengths.size // 2]
    return where[marks[typical] : marks[typical + 1]], int(counts.max())


def analyse(tracer: Tracer, contender: Contender, *inputs: np.ndarray) -> dict[str, Any]:
    """Follow one form.

    Args:
        tracer: follows.
        contender: the form.
        inputs: for each argument twice ``ELEMENTS`` of them.

    Returns:
        ``instructions`` per element, ``mix`` (kind -> instructions per element), ``cycles``
        (model -> least cycles per element), and ``ports`` (model -> fullest ports -> cycles per
        element).
    """
    where = tracer.follow(contender, *inputs)
    calls = _calls(where)
    counts = Counter(kind(i) for call in calls for i in call)
    size = elements = inputs[0].size
    if contender.form == "array":
        # What a call does once is not counted.
        (once,) = _calls(tracer.follow(contender, *(x[:ELEMENTS] for x in inputs)))
        counts.subtract(map(kind, once))
        elements -= ELEMENTS
        block, turns = _block(where)
        (typical,) = _calls(block)
        lanes = size / turns
    else:
        typical = sorted(calls, key=len)[len(calls) // 2]
        lanes = size / len(calls)
    return {
        "instructions": sum(counts.values()) / elements,
        "mix": {k: counts[k] / elements for k in (*KINDS, OTHER) if counts[k]},
        "cycles": {m: cycles(typical, m) / lanes for m in MODELS},
        "ports": {m: {p: v / lanes for p, v in ports(typical, m).items()} for m in MODELS},
    }


def run(functions: Sequence[str]) -> dict[str, Any]:
    """Analyse everything and return function -> level -> contender -> figures."""
    tracer = Tracer()
    result: dict[str, Any] = {}
    for function in functions:
        inputs = sample(function, 2 * ELEMENTS)
        result[function] = {
            level: {
                c.name: analyse(tracer, c, *inputs)
                for c in contenders(function, level)
                if c.name in PEERS
            }
            for level in levels()
        }
        print(function, {k: {n: round(f["instructions"], 2) for n, f in v.items()}
                         for k, v in result[function].items()})  # fmt: skip
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line; ``--store`` writes the file of this CPU's maker and level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("functions", nargs="*", help="default: all of corem")
    parser.add_argument("--store", action="store_true", help="write the result")
    options = parser.parse_args(arguments)
    functions = run(options.functions or find_library("corem").function_names)
    if options.store:
        stored.save(
            stored.RESULTS / f"{stem('speed_analysis', describe()['machine'])}.json",
            " ".join(
                ("python -m benches.experiments.speed_analysis", *options.functions, "--store")
            ),
            {"models": MODELS, "functions": functions},
        )


if __name__ == "__main__":
    main()
