# SPDX-License-Identifier: Apache-2.0
"""corem-d's float64 functions: what was compared with MPFR, and their speed beside stock.

    python -m benches.experiments.float64 --store benches/results/float64.json

The claim is proved by the bounds in the headers of ``udfs/corem-d/*/*.c`` and sampled here;
2^64 arguments cannot be tried. Every form runs at every CPU level of this machine on hard cases,
on structured arguments and on random ones. The accurate path runs on all of them alone, too.
canary-d, one bit off, must fail. Then whole operators, stock against corem-d, on one thread.
``--store`` keeps the figures of functions that are not asked for, each with its CPU.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

import pytest_udftorch
from benches import stored
from benches.experiments import native, speed
from pytest_udftorch.prove import correctly_rounded
from pytest_udftorch.swap.toolchain.environment import describe

Doubles = npt.NDArray[np.float64]

#: Arguments of one comparison.
BLOCK: Final = 1 << 17
#: Elements of an operator's tensor: in the first cache, in the second, in memory.
ELEMENTS: Final = (1 << 11, 1 << 15, 1 << 22)
#: Time of one turn of an operator, at least.
TURN_NS: Final = 3_000_000
#: The intervals of the timing.
INTERVALS: Final = {
    "exp": ((-20.0, 20.0), (-1.0, 0.0)),
    "log": ((0.0, 100.0), (0.97, 1.03)),
    "sin": ((-4.0, 4.0), (-1e5, 1e5)),
    "cos": ((-4.0, 4.0), (-1e5, 1e5)),
    "exp2": ((-20.0, 20.0), (-1.0, 0.0)),
    "log2": ((0.0, 100.0), (0.97, 1.03)),
    "tanh": ((-4.0, 4.0), (-0.05, 0.05)),
    "pow": ((0.0, 10.0), (0.97, 1.03)),
    "log1p": ((0.0, 10.0), (-0.03, 0.03)),
}
#: The second argument of pow in the timing.
EXPONENTS: Final = (-5.0, 5.0)
#: Where a result is neither zero nor infinite, nor 1 but for its sign.
RANGES: Final = {"exp": (-745.2, 709.8), "exp2": (-1075.0, 1024.0), "tanh": (-20.0, 20.0)}
#: exp: the last arguments with a finite, a normal and a nonzero result.
ENDS: Final = (709.782712893384, -708.3964185322641, -745.1332191019411)


#: The arguments of a function: one array, or for pow two.
Arguments = tuple[Doubles, ...]


def listed(function: str) -> Arguments:
    """Return hard.txt of a function."""
    path = pytest_udftorch.find_library("corem-d").folder / function / "hard.txt"
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [[int(n, 16) for n in line.split()] for line in lines if line[0] != "#"]
    return tuple(np.array(rows, dtype=np.uint64).T.copy().view(np.float64))


def beside_powers(low: int, high: int) -> Doubles:
    """Return the neighbours of powers of two."""
    powers = np.ldexp(1.0, np.arange(low, high))
    return np.ravel(powers[:, None] * (1 + np.ldexp(np.arange(-64.0, 64.0), -52)))


def structured(function: str) -> Doubles:
    """Return neighbours of powers of two and of ends, and multiples of what is subtracted."""
    near = np.arange(-500.0, 500.0)
    if function == "exp":
        beside = beside_powers(-70, 10)
        multiples = np.arange(-24_000, 23_000) * (np.log(2) / 32)
        found = [
            *(end + np.spacing(end) * near for end in ENDS), beside, -beside,
            multiples, np.nextafter(multiples, np.inf), np.ldexp(np.arange(-4096.0, 4096.0), -54),
            np.arange(-746.0, 711.0), np.arange(-746.0, 711.0, 1 / 64),
        ]  # fmt: skip
    elif function == "exp2":
        whole = np.arange(-1076.0, 1025.0, 1 / 16)
        beside = beside_powers(-70, 10)
        found = [
            whole, whole + 1 / 32, np.nextafter(whole + 1 / 32, np.inf), beside, -beside,
            np.nextafter(whole, np.inf), np.nextafter(whole, -np.inf),
        ]  # fmt: skip
    elif function == "tanh":
        beside = beside_powers(-70, 6)
        multiples = np.arange(-1000, 1000) * (np.log(2) / 64)
        found = [
            beside, -beside, multiples, np.nextafter(multiples, np.inf),
            np.arange(-20, 20, 1 / 512),
            19.061547465398498 + np.spacing(16.0) * near, np.ldexp(np.arange(-4096.0, 4096.0), -38),
        ]  # fmt: skip
    elif function == "log1p":
        beside = beside_powers(-70, 1024)
        edges = np.ldexp(np.arange(45.0, 90.0) / 64, np.arange(-10, 70, 5)[:, None]).ravel()
        found = [
            beside, -beside_powers(-70, 0),
            ((edges[:, None] - 1) * (1 + np.spacing(1.0) * near)).ravel(),
            -1 + np.ldexp(np.arange(1.0, 16384.0), -53), np.arange(1.0, 65536.0),
            np.arange(-8192.0, 8192.0) / 2**17, np.expm1(np.arange(-30.0, 700.0, 1 / 16)),
        ]  # fmt: skip
    elif function in ("log", "log2"):
        edges = np.ldexp(np.arange(45.0, 90.0) / 64, np.arange(-1000, 1000, 125)[:, None]).ravel()
        found = [
            beside_powers(-1022, 1024), (edges[:, None] * (1 + np.spacing(1.0) * near)).ravel(),
            1 + np.ldexp(np.arange(-16384.0, 16384.0), -52), np.arange(1.0, 65536.0),
            np.exp(np.arange(-700.0, 700.0, 1 / 16)), 1 + np.arange(-8192.0, 8192.0) / 2**17,
        ]  # fmt: skip
    else:
        beside = beside_powers(-70, 1024)
        steps = np.arange(-60_000.0, 60_000.0) * (np.pi / 32)
        large = np.rint(np.ldexp(1.0, np.arange(1, 60)))[:, None] * (np.pi / 2)
        found = [
            beside, -beside, steps, np.nextafter(steps, np.inf), np.nextafter(steps, -np.inf),
            (large * (1 + np.spacing(1.0) * near)).ravel(), np.arange(0.0, 65536.0),
            np.ldexp(np.arange(-4096.0, 4096.0), -38), 2.0**23 + near,
        ]  # fmt: skip
    return np.concatenate(found)


def structured_pairs() -> Arguments:
    """Return arguments of pow: whole numbers, roots, neighbours of 1, and ends of the range."""
    whole = np.arange(-100.0, 101.0)
    near = 1 + np.ldexp(np.arange(-2048.0, 2048.0), -52)
    edges = np.ldexp(np.arange(45.0, 90.0) / 64, np.arange(-1000, 1000, 125)[:, None]).ravel()
    edges = (edges[:, None] * (1 + np.spacing(1.0) * np.arange(-50.0, 50.0))).ravel()
    ends = np.concatenate([end + np.arange(-64.0, 64.0) / 2**20 for end in ENDS])
    blocks = [
        np.meshgrid(whole, whole),
        np.meshgrid(whole**2, whole / 2), np.meshgrid(whole**4, whole / 4),
        np.meshgrid(near, np.arange(-8.0, 8.0) / 16), np.meshgrid(edges, (-0.5, 1 / 3, 1.0, 2.5)),
    ]  # fmt: skip
    bases = np.concatenate([np.arange(2.0, 200.0), 1 - 1 / np.arange(2.0, 200.0)])
    first, second = np.meshgrid(bases, ends)
    blocks.append([first, second / np.log(first)])
    return tuple(np.concatenate([block[i].ravel() for block in blocks]) for i in (0, 1))


def drawn_pairs(draw: np.random.Generator, kind: int, size: int) -> Arguments:
    """Return random arguments of pow: small ones, results of all sizes, neighbours of 1, any."""
    if kind == 0:
        return draw.uniform(0, 10, size), draw.uniform(-30, 30, size)
    if kind == 3:
        x, y = draw.integers(0, 2**64, (2, size), dtype=np.uint64).view(np.float64)
        return x, y
    x = np.exp(draw.uniform(-708, 709, size))
    if kind == 2:
        x = 1 + np.ldexp(draw.uniform(0.5, 1, size), draw.integers(-51, 0, size))
    return x, draw.uniform(-746, 710, size) / np.log(x)


def drawn_angles(draw: np.random.Generator, kind: int, size: int) -> Doubles:
    """Return random arguments of sin and cos: small ones, those of the fast path, any exponent."""
    if kind == 0:
        return draw.uniform(-7, 7, size)
    if kind == 1:
        return draw.uniform(-1, 1, size) * 2.0 ** draw.integers(0, 24, size)
    return np.ldexp(draw.uniform(-1, 1, size), draw.integers(-40, 1024, size))


def drawn(function: str, count: int, seed: int) -> Iterator[Arguments]:
    """Yield random arguments in blocks: over the range, over all exponents, over all encodings."""
    draw = np.random.default_rng(seed)
    for block in range(-(-count // BLOCK)):
        size = min(BLOCK, count - block * BLOCK)
        if function == "pow":
            yield drawn_pairs(draw, block % 4, size)
        else:
            yield (drawn_numbers(function, draw, block % 4, size),)


def drawn_numbers(function: str, draw: np.random.Generator, kind: int, size: int) -> Doubles:
    """Return a block of random arguments of a function of one."""
    if kind == 3:
        return draw.integers(0, 2**64, size, dtype=np.uint64).view(np.float64)
    if function in ("sin", "cos"):
        return drawn_angles(draw, kind, size)
    if kind == 2 and function == "tanh":
        return np.ldexp(draw.uniform(-1, 1, size), draw.integers(-30, 6, size))
    if kind == 2 and function == "log1p":
        return np.ldexp(draw.uniform(-1, 1, size), draw.integers(-56, 1, size))
    if kind == 1 and function == "log1p":
        return np.expm1(draw.uniform(-36, 709, size))
    if kind == 2 and function in RANGES:
        return np.ldexp(draw.uniform(-1, 1, size), draw.integers(-64, 10, size))
    if function in RANGES:
        return draw.uniform(*RANGES[function], size)
    if kind == 2:
        return 1 + np.ldexp(draw.uniform(-1, 1, size), draw.integers(-53, 0, size))
    return draw.integers(0, 2047 << 52, size, dtype=np.uint64).view(np.float64)


def wrong(got: Doubles, wanted: npt.NDArray[np.uint64]) -> int:
    """Return how many results have other bits than those of MPFR; any NaN is a NaN."""
    nan = np.isnan(got) & np.isnan(wanted.view(np.float64))
    return int(np.sum((got.view(np.uint64) != wanted) & ~nan))


@contextmanager
def accurate_alone(*, longest: bool = False) -> Iterator[Path]:
    """Yield a copy of corem-d whose functions are their accurate paths.

    Those of sin, cos and pow have a longer one for what 128 bits leave undecided; with ``longest``
    all goes there.
    """
    folder = pytest_udftorch.find_library("corem-d").folder
    with tempfile.TemporaryDirectory() as temporary:
        copies = Path(temporary)
        for name in ("corem", "corem-d", "corem-ff", "corem-composites"):
            shutil.copytree(folder.parent / name, copies / name)
        description = copies / "corem-d" / "udf.toml"
        text = description.read_text(encoding="utf-8")
        text = re.sub(r"^(quick|fast) = .*\n", "", text, flags=re.M)
        description.write_text(text.replace("accurate =", "scalar ="), encoding="utf-8")
        if longest:
            for name, pattern, forced in (
                ("common/trig.h", "define TRIG_SHORT_ERROR ", "(~(udf_u128)0)"),
                ("pow/pow.c", "define POW_SHORT_ERROR ", "127"),
            ):
                source = copies / "corem-d" / name
                text = source.read_text(encoding="utf-8")
                text, count = re.subn(f"({pattern}).*", lambda m, new=forced: m[1] + new, text)
                assert count == 1, "the threshold has another name"
                source.write_text(text, encoding="utf-8")
        yield copies / "corem-d"


class Forms:
    """The forms of a library at one CPU level, called on arrays of arguments."""

    def __init__(
        self, library: str | Path, level: str, harness: ctypes.CDLL, function: str
    ) -> None:
        self.forms = pytest_udftorch.build_library(library, level).forms(function, "float64")
        self.harness = harness

    def run(self, form: str, *x: Doubles) -> Doubles:
        """Return the results of a form. Vector forms need a multiple of their lanes."""
        lanes = int(form[1:]) if form[0] == "v" else 1
        size = x[0].size
        padded = [np.ascontiguousarray(np.append(part, np.zeros(-size % lanes))) for part in x]
        out = np.empty_like(padded[0])
        call = getattr(self.harness, f"{'run' if len(x) == 1 else 'two'}_{form}")
        call.restype = None
        places = [ctypes.c_void_p(part.ctypes.data) for part in (*padded, out)]
        call(ctypes.c_void_p(self.forms[form]), ctypes.c_int64(out.size), *places)
        return out[:size]


def compare(function: str, count: int) -> dict[str, Any]:
    """Compare every form at every level with MPFR; count arguments and wrong results."""
    harness = native.load("doubles.c", "-O2")
    levels = ("baseline", *(n for n in speed.levels() if n != "scalar"))
    with accurate_alone() as alone, accurate_alone(longest=True) as longest:
        every = {
            f"{name} {level} {form}": (forms, form)
            for name, library in (("corem-d", "corem-d"), ("accurate path", alone),
                                  ("longest path", longest),
                                  ("canary-d", "canary-d"))
            for level in (levels if name == "corem-d" else levels[:1])
            for forms in (Forms(library, level, harness, function),)
            for form in (forms.forms if name == "corem-d" else ("array",))
        }  # fmt: skip
        found = {name: 0 for name in every}
        counts = {}
        for kind, blocks in (
            ("hard", iter([listed(function)])),
            (
                "structured",
                iter([structured_pairs() if function == "pow" else (structured(function),)]),
            ),
            ("random", drawn(function, count, 22)),
        ):
            counts[kind] = 0
            for x in blocks:
                wanted = correctly_rounded(x if len(x) > 1 else x[0], function=function)
                counts[kind] += x[0].size
                for name, (forms, form) in every.items():
                    found[name] += wrong(forms.run(form, *x), wanted)
    return {"method": "proved and sampled", "arguments": counts, "wrong": found}


def turn(call: Any, x: tuple[Any, ...], y: Any, library: str) -> float:
    """Return the time of an operator under a library, in ns an element."""
    with pytest_udftorch.patched(library):
        call(*x, out=y)
        calls, start = 0, time.perf_counter_ns()
        while (spent := time.perf_counter_ns() - start) < TURN_NS or not calls:
            call(*x, out=y)
            calls += 1
    return spent / (calls * int(y.numel()))


def operators(function: str, rounds: int) -> list[dict[str, Any]]:
    """Time an operator on float64 tensors, stock and corem-d interleaved; strided: SLEEF."""
    import torch

    torch.set_num_threads(1)
    found = []
    for low, high in INTERVALS[function]:
        interval = f"{low:g} to {high:g}"
        for elements in ELEMENTS:
            for stride in (1, 2):
                ends = ((low, high), EXPONENTS)[: 2 if function == "pow" else 1]
                x = tuple(
                    torch.empty(stride * elements, dtype=torch.float64).uniform_(*end)[::stride]
                    for end in ends
                )
                y = torch.empty(elements, dtype=torch.float64)
                times: dict[str, list[float]] = {"std": [], "corem-d": []}
                for index in range(rounds):
                    for library in sorted(times, reverse=bool(index % 2)):
                        times[library].append(turn(getattr(torch, function), x, y, library))
                ratios = [a / b for a, b in zip(times["corem-d"], times["std"], strict=True)]
                found.append({
                    "interval": interval, "elements": elements, "stride": stride,
                    "std_ns": statistics.median(times["std"]),
                    "corem_d_ns": statistics.median(times["corem-d"]),
                    "ratio": stored.summary(ratios),
                })  # fmt: skip
                print(
                    function,
                    interval,
                    elements,
                    stride,
                    f"{found[-1]['ratio']['median']:.2f}",
                    flush=True,
                )
    return found


def main() -> None:
    """Run the comparison and the timing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", nargs="+", choices=[*INTERVALS], default=[*INTERVALS])
    parser.add_argument("--samples", type=int, default=1 << 22, help="random arguments")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--store", type=Path, help="write the figures there")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for function in options.functions:
        compared = compare(function, options.samples)
        print(function, compared, flush=True)
        cpu = describe()["machine"]["cpu"]
        timed = operators(function, options.rounds)
        figures[function] = {**compared, "cpu": cpu, "operators": timed}
    if options.store is not None:
        if options.store.exists():
            before = stored.load(options.store)["functions"]
            figures = {n: (before | figures)[n] for n in INTERVALS if n in before | figures}
        command = (
            f"python -m benches.experiments.float64 --samples {options.samples} "
            f"--rounds {options.rounds} --store {os.path.relpath(options.store)}"
        )
        stored.save(options.store, command, {"functions": figures})


if __name__ == "__main__":
    main()
