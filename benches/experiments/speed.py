# SPDX-License-Identifier: Apache-2.0
"""How fast corem's forms are, against what PyTorch calls and against other libraries.

Contenders of one function run interleaved in one process: each runs once a round, in a rotating
order, so that a disturbance affects them equally. The result holds the median of the rounds, the
quartiles, and ratios formed within a round.

The peers are what libtorch calls (MKL VML, SLEEF, GNU libm), LLVM-libc's correctly rounded
scalar functions, and Intel's correctly rounded vector functions from the registry package
``intel-cmplr-lib-rt``, which is timed when it is installed and used for nothing else. VML
picks its instructions by the CPU, so on an AVX-512 machine its AVX2 column is AVX-512 code:
``benches.experiments.asked`` judges no figure by it. ``--level avx2`` measures as on a CPU that
has AVX2 alone: MKL, torch and corem are all told so.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import pytest_udftorch
from benches import stored
from benches.experiments import native
from pytest_udftorch.errors import PackageMissingError
from pytest_udftorch.prove.verify.reference.checker import llvmlibc
from pytest_udftorch.swap import FUNCTIONS
from pytest_udftorch.swap.toolchain.environment import caption, describe

#: Elements of an L1-resident run (16 KiB in, 16 KiB out) and of a memory-resident one.
L1_ELEMENTS: Final = 4096
MEMORY_ELEMENTS: Final = 1 << 24
#: Elements of an operator's run: 256 KiB in, 256 KiB out.
OPERATOR_ELEMENTS: Final = 1 << 16
#: float32 elements that are written to and freed before operators are timed: 256 MiB.
HEAP_ELEMENTS: Final = 1 << 26
ROUNDS: Final = 31
#: One timed call lasts about this long, in nanoseconds.
SLICE_NS: Final = 200_000

#: What tells MKL, torch and corem that the CPU has AVX2 alone. MKL heeds it on Intel's CPUs only;
#: on others it has no AVX-512 code to leave out.
AS_AVX2: Final = {
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "UDFTORCH_CPU_LEVEL": "avx2",
}

# ATen/cpu/vml.h: VML_HA | VML_FTZDAZ_OFF | VML_ERRMODE_IGNORE.
_VML_MODE = 0x2 | 0x140000 | 0x100

# malloc.h: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: After a switch of libraries, operators run this long untimed, in nanoseconds. The switch is
#: Python's work, and an Intel core took some 0.4 ms to run 512-bit code at full speed after it.
SWITCH_NS: Final = 1_000_000


@dataclass(frozen=True)
class Contender:
    """One form of one function of one library.

    Attributes:
        name: ``corem``, ``vml``, ``sleef``, ``glibc``, ``llvm-libc``, ``intel-cr``, ...
        form: the harness's loop: ``array``, ``v8``, ``v16``, ``scalar`` or ``reference``.
        address: of the function.
        mode: last argument of the array form.
    """

    name: str
    form: str
    address: int
    mode: int = 0


class Harness:
    """The compiled timing loops; making one sets torch, and so MKL, to one thread."""

    def __init__(self) -> None:
        import torch

        # MKL would spread an array over threads, which no other contender does.
        torch.set_num_threads(1)
        self._lib = native.load("harness.c", "-O2")

    def time_ns(
        self,
        contender: Contender,
        inputs: tuple[np.ndarray, ...],
        output: np.ndarray,
        repeats: int,
    ) -> float:
        """Return nanoseconds per element of one timed call; one array per argument."""
        second = inputs[1].ctypes.data if len(inputs) == 2 else None
        loop = getattr(self._lib, f"bench_{contender.form}")
        loop.restype = ctypes.c_double
        return float(
            loop(
                ctypes.c_void_p(contender.address),
                ctypes.c_int64(output.size),
                ctypes.c_void_p(inputs[0].ctypes.data),
                ctypes.c_void_p(second),
                ctypes.c_void_p(output.ctypes.data),
                ctypes.c_int64(contender.mode),
                ctypes.c_int64(repeats),
            )
        )


def _address(library: ctypes.CDLL, symbol: str) -> int:
    try:
        return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
    except AttributeError:
        return 0


def _intel() -> ctypes.CDLL | None:
    try:
        files = importlib.metadata.files("intel-cmplr-lib-rt") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = {f.name: f.locate() for f in files if f.name in ("libintlc.so.5", "libsvml.so")}
    if len(found) < 2:
        return None
    ctypes.CDLL(str(found["libintlc.so.5"]), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(found["libsvml.so"]))


def contenders(function: str, level: str) -> list[Contender]:
    """Return what competes for one function at one CPU level; corem's forms come first.

    Args:
        function: torch's name.
        level: ``avx512``, ``avx2``, or ``scalar`` for the scalar forms.
    """
    import torch

    torch_lib = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    libm = ctypes.CDLL("libm.so.6")
    intel = _intel()
    symbols = FUNCTIONS[function].symbols("float32")
    found: list[Contender] = []
    if level == "scalar":
        ours = pytest_udftorch.build_library("corem").forms(function, "float32")
        found.append(Contender("corem", "scalar", ours["scalar"]))
        found.append(Contender("glibc", "scalar", _address(libm, symbols["scalar"][0])))
    else:
        lanes = {"avx512": 16, "avx2": 8}[level]
        ours = pytest_udftorch.build_library("corem", level).forms(function, "float32")
        found.append(Contender("corem", "array", ours["array"]))
        found.append(Contender("corem vector", f"v{lanes}", ours[f"v{lanes}"]))
        for symbol in symbols.get("array", ())[:1]:  # vmsExp; vsExp is the same code
            found.append(Contender("vml", "array", _address(torch_lib, symbol), _VML_MODE))
        for symbol in symbols[f"v{lanes}"]:
            bound = symbol.rsplit("_", 1)[1]
            found.append(Contender(f"sleef {bound}", f"v{lanes}", _address(torch_lib, symbol)))
        if intel is not None:
            name = FUNCTIONS[function].c_name("float32")
            # The plain names dispatch on the CPU; _l9 are the AVX2 ones.
            isa = "_l9" if level == "avx2" else ""
            for suffix, label in (("_cr", "intel-cr"), ("", "intel 1-ulp")):
                symbol = f"__svml_{name}{lanes}{suffix}{isa}"
                found.append(Contender(label, f"v{lanes}", _address(intel, symbol)))
    try:
        reference = llvmlibc()
        if function in reference.functions:
            lib = ctypes.CDLL(str(reference.path))
            address = _address(lib, f"udfref_llvmlibc_{function}")
            found.append(Contender("llvm-libc", "reference", address))
    except PackageMissingError:
        pass
    return [c for c in found if c.address]


def sample(function: str, elements: int) -> tuple[np.ndarray, ...]:
    """Return float32 inputs, uniform over the function's canary domain, from a fixed seed."""
    low, high = FUNCTIONS[function].domain
    rng = np.random.default_rng(1)
    arity = FUNCTIONS[function].arity
    return tuple(rng.uniform(low, high, elements).astype(np.float32) for _ in range(arity))


def measure(
    harness: Harness, field: Sequence[Contender], inputs: tuple[np.ndarray, ...], rounds: int
) -> dict[str, dict[str, float]]:
    """Time the contenders interleaved.

    Returns:
        What :func:`summary` does of :func:`times`.
    """
    return summary(times(harness, field, inputs, rounds))


def times(
    harness: Harness, field: Sequence[Contender], inputs: tuple[np.ndarray, ...], rounds: int
) -> dict[str, list[float]]:
    """Return name -> nanoseconds per element in each round, contenders interleaved."""
    output = np.empty_like(inputs[0])
    repeats = {}
    for contender in field:
        estimate = min(harness.time_ns(contender, inputs, output, 1) for _ in range(3))
        repeats[contender.name] = max(1, round(SLICE_NS / (estimate * output.size)))
    found: dict[str, list[float]] = {c.name: [] for c in field}
    for turn in range(rounds):
        shift = turn % len(field)
        for contender in (*field[shift:], *field[:shift]):
            found[contender.name].append(
                harness.time_ns(contender, inputs, output, repeats[contender.name])
            )
    return found


def summary(times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Return what the rounds of interleaved contenders say, one of which is corem.

    Returns:
        name -> ``ns`` (median per element), ``ns_low`` and ``ns_high`` (quartiles), and
        ``corem_over`` (median over the rounds of corem's time over this one's).
    """
    ours = times["corem"]
    result = {}
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        ratio = statistics.median(a / b for a, b in zip(ours, values, strict=True))
        result[name] = {"ns": middle, "ns_low": low, "ns_high": high, "corem_over": ratio}
    return result


def operators() -> dict[str, tuple[Any, Any]]:
    """Return name -> operator and arguments: of each function, and of what is made of them."""
    import torch
    from torch.nn import functional

    x = torch.randn(256, OPERATOR_ELEMENTS // 256, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(256) % x.shape[1]
    found: dict[str, tuple[Any, Any]] = {}
    for name in pytest_udftorch.find_library("corem").function_names:
        arguments = sample(name, OPERATOR_ELEMENTS)
        arrays = arguments if isinstance(arguments, tuple) else (arguments,)
        if hasattr(torch, name):
            found[f"torch.{name}"] = getattr(torch, name), [torch.from_numpy(a) for a in arrays]
    return found | {
        "softmax": (lambda t: torch.softmax(t, -1), [x]),
        "log_softmax": (lambda t: torch.log_softmax(t, -1), [x]),
        "cross entropy": (functional.cross_entropy, [x, labels]),
        "sigmoid": (torch.sigmoid, [x]),
        "silu": (functional.silu, [x]),
        "elu": (functional.elu, [x]),
        "gelu": (functional.gelu, [x]),
        "gelu tanh": (lambda t: functional.gelu(t, approximate="tanh"), [x]),
    }


def measure_operators(
    rounds: int, names: Sequence[str] | None = None
) -> dict[str, dict[str, float]]:
    """Time whole operators as :func:`operator_times` does, and return medians and ratios."""
    result = {}
    for name, times in operator_times(rounds, names):
        ratios = [a / b for a, b in zip(times["corem"], times["std"], strict=True)]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        result[name] = {
            "std_ns": statistics.median(times["std"]),
            "corem_ns": statistics.median(times["corem"]),
            "corem_over": float(middle),
            "corem_over_low": float(low),
            "corem_over_high": float(high),
        }
        print(name, {k: round(v, 3) for k, v in result[name].items()})
    return result


def operator_times(
    rounds: int, names: Sequence[str] | None = None
) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Time whole operators on 2^16 elements, one thread, std and corem interleaved.

    Args:
        rounds: so many slices of each library.
        names: which of ``operators``; by default all.

    Yields:
        An operator, and library -> nanoseconds per element in each round.

    GNU libc is told to keep freed memory, and is given some that has been written to. Otherwise
    a result may lie in pages that the system has yet to map, as the allocations before it happen
    to lie, and the page faults take longer than any of the functions.
    """
    import time

    import torch

    torch.set_num_threads(1)
    libc = ctypes.CDLL("libc.so.6")
    for parameter in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        libc.mallopt(parameter, 1 << 30)
    torch.ones(HEAP_ELEMENTS)
    for name, (operator, arguments) in operators().items():
        if names is not None and name not in names:
            continue
        times: dict[str, list[float]] = {"std": [], "corem": []}
        calls = 1
        for turn in range(rounds + 1):  # the first says how many calls a slice has
            for library in sorted(times, reverse=bool(turn % 2)):
                with pytest_udftorch.patched(library):
                    end = time.perf_counter_ns() + SWITCH_NS
                    while time.perf_counter_ns() < end:
                        operator(*arguments)
                    start = time.perf_counter_ns()
                    for _ in range(calls):
                        operator(*arguments)
                    taken = (time.perf_counter_ns() - start) / calls
                times[library].append(taken / OPERATOR_ELEMENTS)
            if turn == 0:
                calls = max(1, round(SLICE_NS / taken))
                times = {"std": [], "corem": []}
        yield name, times


def levels() -> Iterator[str]:
    """Yield the levels of this CPU, the widest first, and ``scalar``."""
    widths = ("avx512", "avx2")
    have = describe()["machine"]["cpu_level"]
    yield from widths[widths.index(have) :] if have in widths else ()
    yield "scalar"


def stem(name: str, machine: Mapping[str, Any]) -> str:
    """Return the name of the stored file of a machine.

    What one CPU does says little of another maker's, or of one with narrower registers.
    """
    intel, narrow = "Intel" in machine["cpu"], machine["cpu_level"] == "avx2"
    if narrow:
        return f"{name}_{'intel' if intel else 'amd'}_avx2"
    return f"{name}_intel" if intel else name


def _stem() -> str:
    return stem("speed", describe()["machine"])


def run(functions: Sequence[str], rounds: int) -> dict[str, Any]:
    """Measure everything and return the figures, ready for JSON."""
    harness = Harness()
    document: dict[str, Any] = {
        "elements": {
            "l1": L1_ELEMENTS,
            "memory": MEMORY_ELEMENTS,
            "operators": OPERATOR_ELEMENTS,
        },
        "rounds": rounds,
        "functions": {},
    }
    for function in functions:
        entry = document["functions"][function] = {}
        for level in levels():
            field = contenders(function, level)
            entry[level] = measure(harness, field, sample(function, L1_ELEMENTS), rounds)
            print(function, level, {k: round(v["ns"], 3) for k, v in entry[level].items()})
        widest = next(levels())
        field = [c for c in contenders(function, widest) if c.form in ("array", "v16", "v8")]
        large = sample(function, MEMORY_ELEMENTS)
        entry["memory"] = measure(harness, field, large, max(3, rounds // 6))
    document["operators"] = measure_operators(rounds)
    return document


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line; ``--store`` writes the file of this CPU's maker and level."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("functions", nargs="*", help="default: all of corem's")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--level", choices=["avx2"], help="measure as on a CPU with AVX2 alone")
    parser.add_argument("--store", action="store_true", help="write the file of this kind of CPU")
    options = parser.parse_args(arguments)
    if options.level and any(os.environ.get(key) != value for key, value in AS_AVX2.items()):
        # They are read when a process loads torch, as this one has.
        given = sys.argv[1:] if arguments is None else arguments
        again = [sys.executable, "-m", "benches.experiments.speed", *given]
        os.execve(sys.executable, again, {**os.environ, **AS_AVX2})
    every = pytest_udftorch.find_library("corem").function_names
    document = run(options.functions or every, options.rounds)
    print(caption(describe()))
    if options.store:
        level = f" --level {options.level}" if options.level else ""
        command = f"python -m benches.experiments.speed{level} --store"
        stored.save(stored.RESULTS / f"{_stem()}.json", command, document)


if __name__ == "__main__":
    main()
