# SPDX-License-Identifier: Apache-2.0
"""What ``sanitizers`` runs in a Python of its own: one part, with the sanitized runtime or without.

    python -m benches.experiments.sanitized PART OVERLAY [LIBRARY]

``OVERLAY`` is a folder that stands before the package, or ``-``. Prints how many calls were made.
Wrong results end it with an exception, so with a status that is not 0.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

import pytest_udftorch

_SPECIALS: Final = (0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00001)

#: Lengths of arrays: all short ones, and some about the widths of blocks.
_LENGTHS: Final = (*range(70), 127, 129, 1023, 1025)


class Threads:
    """Threads that call a function until the block ends; ``calls`` says how often."""

    def __init__(self, step: Callable[[int], None], count: int = 3) -> None:
        self.calls = 0
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(step, i)) for i in range(count)]

    def _run(self, step: Callable[[int], None], number: int) -> None:
        try:
            while not self._stop.is_set():
                step(number)
                self.calls += 1
        except BaseException as error:  # to be raised by the thread that started this one
            self._errors.append(error)

    def wait(self, calls: int) -> None:
        """Wait until the threads have called so often again, however busy the machine is."""
        wanted = self.calls + calls
        while self.calls < wanted and not self._errors:
            time.sleep(0)

    def __enter__(self) -> Threads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        for found in self._errors:
            raise found


def _load(libraries: Sequence[str], **options: Any) -> None:
    """Open each session once, before there are threads.

    ThreadSanitizer takes the loader's lock to write a report, and locks of its own in code that it
    sanitizes: one thread may wait for the other for ever while a library is loaded or searched.
    """
    from pytest_udftorch import patched

    for library in libraries:
        with patched(library, **options):
            pass


def sessions(*libraries: str) -> int:
    """Open and close sessions, one in another too, under threads that run operators."""
    import torch

    from pytest_udftorch import patched

    # libgomp's workers wait for each other in a way that ThreadSanitizer does not see.
    torch.set_num_threads(1)
    x = torch.linspace(-5, 5, 1001)

    def work(number: int) -> None:
        torch.exp(x[: 13 * number + 5])
        torch.softmax(x, 0)
        torch.nn.functional.elu(x.double())

    before = {f: getattr(torch, f)(x) for f in ("exp", "sin", "tanh")}
    libraries = libraries or ("corem", "canary")
    _load(libraries)
    with Threads(work) as threads:
        for _ in range(30):
            for library in libraries:
                with patched(library) as outer:
                    torch.exp(x)
                    threads.wait(6)
                    with patched("std", functions=("exp",)):
                        torch.exp(x)
                assert outer.reached["exp"], outer.reached
        time.sleep(0.2)
    for function, result in before.items():
        assert torch.equal(getattr(torch, function)(x), result), function
    return threads.calls


def profiles(*libraries: str) -> int:
    """Profile sessions at each depth, and take parts, under threads that train a model."""
    import torch

    from pytest_udftorch import patched

    torch.set_num_threads(1)
    x = torch.linspace(-5, 5, 1001)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.ELU(), torch.nn.Linear(16, 5), torch.nn.LogSoftmax(1)
    )

    def work(number: int) -> None:
        torch.softmax(x[: 40 * number + 5], 0)
        model(torch.randn(7, 8)).sum().backward()

    libraries = libraries or ("corem", "std")
    _load(libraries, profile="counters")
    with Threads(work) as threads:
        for library in libraries:
            for depth in ("counters", "timed", "events"):
                with patched(library, profile=depth) as session:
                    for _ in range(5):
                        torch.exp(x)
                        model(torch.randn(7, 8)).sum().backward()
                        for row in session.collector.take("part").rows("function"):
                            assert 0 <= row.elements < 1 << 40, row
                assert session.profile is not None
    return threads.calls


# Patches and operators ---------------------------------------------------------------------

_IDENTITY: Final = """
[library]
name = "identity"
version = "1"
[functions.exp.float32]
source = "u.c"
scalar = "udf_expf"
"""

_USER: Final = """
import torch
x = torch.linspace(-5, 5, 1001)
for n in range(500):
    assert torch.equal(torch.exp(x[:n]), x[:n]), n
    torch.softmax(x[: n + 1], 0)
print("calls 1000")
"""

_LOGS: Final = """
[library]
name = "logs"
version = "1"
[operators."aten::log"]
source = "log_out.cpp"
function = "log_udf_out"
"""

_LOG_OUT: Final = """
#include <ATen/TensorIterator.h>
#include <ATen/native/cpu/Loops.h>
#include <cmath>

at::Tensor &log_udf_out(const at::Tensor &self, at::Tensor &out) {
  if (self.scalar_type() != at::kFloat)
    return udf::stock<log_udf_out>(self, out);
  auto iter = at::TensorIterator::unary_float_op(out, self);
  at::native::cpu_kernel(iter, [](float x) -> float {
    return static_cast<float>(std::log(static_cast<double>(x)));
  });
  return out;
}
"""


def patches() -> int:
    """Make a patch, and use it in a process that does not load this package; return its calls."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "udf.toml").write_text(_IDENTITY, encoding="utf-8")
        (folder / "u.c").write_text("float udf_expf(float x) { return x; }\n", encoding="utf-8")
        made = str(folder / "made")
        make = ("-m", "pytest_udftorch", "patch", "--udf-lib", name, "--out", made)
        subprocess.run([sys.executable, *make], check=True)
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", _USER], check=True, text=True,
            env={**os.environ, "PYTHONPATH": made}, stdout=subprocess.PIPE,
        )  # fmt: skip
    return int(done.stdout.split()[-1])


def operators() -> int:
    """Open sessions with an operator in C++; return how often it was called."""
    import torch

    from pytest_udftorch import patched

    x = torch.linspace(0.1, 5, 1001)
    calls = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "udf.toml").write_text(_LOGS, encoding="utf-8")
        (folder / "log_out.cpp").write_text(_LOG_OUT, encoding="utf-8")
        for profile in (False, "events"):
            with patched(folder, profile=profile):
                for n in range(300):
                    torch.log(x[:n])
                    torch.log(x[:n:3].clone(), out=torch.empty(0))
                    x[: n + 1].double().log_()
                    calls += 3
                assert torch.equal(torch.log(x), x.double().log().float())
    return calls


# Array forms -------------------------------------------------------------------------------


class Memory:
    """Where arrays begin and end: at guard pages, or in blocks of just their size."""

    _PAGE: Final = 4096

    def __init__(self, *, guarded: bool) -> None:
        self._guarded = guarded
        self._c = ctypes.CDLL(None)
        for name in ("malloc", "mmap"):
            getattr(self._c, name).restype = ctypes.c_void_p

    def places(self, size: int) -> Iterator[int]:
        """Yield addresses for so many bytes, with nothing usable behind, or before, them."""
        if self._guarded:
            room = -(-(size + 1) // self._PAGE) * self._PAGE
            total = room + 2 * self._PAGE
            base = self._c.mmap(None, ctypes.c_size_t(total), 3, 0x22, -1, ctypes.c_long(0))
            first, last = base + self._PAGE, base + self._PAGE + room
            for guard in (base, last):
                assert self._c.mprotect(ctypes.c_void_p(guard), self._PAGE, 0) == 0
            try:
                yield from (first, last - size, last - size - 1)
            finally:
                self._c.munmap(ctypes.c_void_p(base), ctypes.c_size_t(total))
            return
        for shift in (0, 4, 12, 1):
            block = self._c.malloc(ctypes.c_size_t(size + shift))
            try:
                yield block + shift
            finally:
                self._c.free(ctypes.c_void_p(block))


def _inputs(hard: Path | None, arity: int) -> list[np.ndarray[Any, Any]]:
    from pytest_udftorch.prove.exact.strategies import read_hard_cases

    random = np.random.default_rng(5)
    signed = [s | sign for s in _SPECIALS for sign in (0, 1 << 31)]
    bits = np.concatenate(
        [np.array(signed, np.uint32), random.integers(0, 1 << 32, 4000, np.uint32)]
    )
    parts = [bits, random.permutation(bits)][:arity]
    if hard is not None:
        cases = read_hard_cases(hard, arity).reshape(-1, arity)
        parts = [np.concatenate([cases[:2000, i], p]) for i, p in enumerate(parts)]
    return [p.view(np.float32) for p in parts]


def _same(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    nan = np.isnan(a) & np.isnan(b)
    return bool(np.all(nan | (a.view(np.uint32) == b.view(np.uint32))))


def _one(array: Any, given: list[np.ndarray[Any, Any]], memory: Memory) -> int:
    """Run an array form on every length, at every place; return how often."""
    calls = 0
    whole = np.empty_like(given[0])
    array(len(whole), *(g.ctypes.data for g in given), whole.ctypes.data, 0)
    calls += 1
    for n in _LENGTHS:
        size = 4 * n
        blocks = [memory.places(size) for _ in range(len(given) + 1)]
        for *places, target in zip(*blocks, strict=True):
            for out in (target, places[0]):  # also in the place of the first argument
                for at, values in zip(places, given, strict=True):
                    ctypes.memmove(at, values.ctypes.data, size)
                array(n, *places, out, 0)
                got = np.frombuffer(ctypes.string_at(out, size), np.float32)
                assert _same(got, whole[:n]), (n, got, whole[:n])
                calls += 1
    return calls


def forms(overlay: str, *libraries: str) -> int:
    """Call every array form on odd lengths and misaligned arrays, and on many encodings.

    Without an overlay these are the forms as they are shipped, between guard pages.
    """
    from pytest_udftorch import build_library
    from pytest_udftorch.swap import FUNCTIONS
    from pytest_udftorch.swap.library.symbols import CPU_LEVELS
    from pytest_udftorch.swap.native.runtime import runtime

    guarded, calls = overlay == "-", 0
    levels = [n for n, (_, level, _) in CPU_LEVELS.items() if level <= runtime().cpu_level()]
    for library in libraries or ("corem", "corem-ff", "canary"):
        for level in levels if guarded else levels[-1:]:
            build = build_library(library, level)
            for name, dtype in build.library.functions:
                arity = FUNCTIONS[name].arity
                given = _inputs(build.library.functions[name, dtype].hard_cases, arity)
                array = build.array_function(name, dtype)
                print(f"{library} {level} {name}", file=sys.stderr, flush=True)
                calls += _one(array, given, Memory(guarded=guarded))
                # Every 4,093rd encoding: all exponents, the slow paths too.
                every = np.arange(0, 1 << 32, 4093 if arity == 1 else 40961, np.uint32)
                many = [every.view(np.float32), every[::-1].copy().view(np.float32)][:arity]
                out = np.empty_like(many[0])
                array(len(out), *(m.ctypes.data for m in many), out.ctypes.data, 0)
                calls += 1
    return calls


def main(part: str, overlay: str, *arguments: str) -> None:
    """Run a part and print how many calls it made."""
    if overlay != "-":
        pytest_udftorch.__path__.insert(0, overlay)
    from pytest_udftorch.swap.native.runtime import native_file

    assert overlay == "-" or native_file("libudfrt.so").is_relative_to(overlay)
    if part == "forms":
        calls = forms(overlay, *arguments)
    else:
        parts: dict[str, Callable[..., int]] = {
            "sessions": sessions, "profiles": profiles, "patches": patches, "operators": operators,
        }  # fmt: skip
        calls = parts[part](*arguments)
    print(f"calls {calls}")


if __name__ == "__main__":
    main(*sys.argv[1:])
