# SPDX-License-Identifier: Apache-2.0
"""Time the two forms of functions on the current GPU; see ``cuda_form``.

This module needs triton and a GPU; only the command ``udftorch setup cuda-form`` imports it.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from pytest_udftorch.errors import CudaFormError
from pytest_udftorch.measure.timing.timers import cuda_event
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.library.symbols import GOLDEN
from pytest_udftorch.swap.session.session import patched
from pytest_udftorch.swap.toolchain.cuda_form import DOUBLE, FLOAT_FLOAT

#: The timed functions, which models compute most, and the range of the arguments.
DOMAINS: Final = {"exp": (-10.0, 10.0), "log": (1e-3, 1e3), "sin": (-10.0, 10.0),
                  "tanh": (-4.0, 4.0), "erf": (-4.0, 4.0)}  # fmt: skip
#: Input and output fit into the L2 of a large GPU, so that arithmetic and not memory is timed.
ELEMENTS: Final = 1 << 22
#: Launches in one CUDA graph; launched one by one, they would wait for Python.
LAUNCHES: Final = 20
BLOCK: Final = 1024


@triton.jit  # type: ignore[untyped-decorator]
def apply_function(x, out, n, WHICH: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Write f(x) of ``n`` floats; ``WHICH`` names f."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, inside, other=1.0)
    if WHICH == "exp":
        value = libdevice.exp(value)
    elif WHICH == "log":
        value = libdevice.log(value)
    elif WHICH == "sin":
        value = libdevice.sin(value)
    elif WHICH == "tanh":
        value = libdevice.tanh(value)
    else:
        value = libdevice.erf(value)
    tl.store(out + at, value, inside)


@dataclass(frozen=True)
class FormTiming:
    """Times of one function on a GPU.

    Attributes:
        function: torch's name.
        ns: form -> median time of an element in nanoseconds.
    """

    function: str
    ns: dict[str, float]

    @property
    def ratio(self) -> float:
        """Time of double over that of float-float: above 1, float-float is faster."""
        return self.ns[DOUBLE] / self.ns[FLOAT_FLOAT]


def measure(library: str | Path = "corem", rounds: int = 7) -> list[FormTiming]:
    """Time both forms of a library's functions in turns on the current GPU.

    Args:
        library: name or path of a library that has ``float_float``.
        rounds: how often each form is timed; the median counts.

    Raises:
        CudaFormError: torch sees no GPU, the library has no float-float form, or the forms
            differ in a bit.
    """
    if not torch.cuda.is_available():
        raise CudaFormError(
            "udftorch setup cuda-form times both forms on a GPU, but torch sees none. Run it on "
            "the machine that needs the choice; elsewhere the compute capability decides."
        )
    found = find_library(library)
    pairs = None if found.float_float is None else find_library(found.float_float)
    names = tuple(n for n in DOMAINS if pairs is not None and n in pairs.function_names)
    if not names:
        raise CudaFormError(
            f"UDF library {found.name!r} has no float-float form of {', '.join(DOMAINS)}, so there "
            "is nothing to compare."
        )
    inputs = {n: _inputs(*DOMAINS[n]) for n in names}
    out = torch.empty(ELEMENTS, device="cuda")
    graphs: dict[tuple[str, str], torch.cuda.CUDAGraph] = {}
    results: dict[tuple[str, str], torch.Tensor] = {}
    for form in (DOUBLE, FLOAT_FLOAT):
        chosen: Any = form
        with patched(found, names, cuda_form=chosen):
            for name in names:
                _launch(name, inputs[name], out)  # compiles
                results[name, form] = out.clone()
                graphs[name, form] = _graph(name, inputs[name], out)
    samples: dict[tuple[str, str], list[float]] = {key: [] for key in graphs}
    for _ in range(rounds):
        for key, graph in graphs.items():
            samples[key].append(_time_ns(graph) / (LAUNCHES * ELEMENTS))
    for name in names:
        one, other = (results[name, form].view(torch.int32) for form in (DOUBLE, FLOAT_FLOAT))
        if not torch.equal(one, other):
            raise CudaFormError(
                f"The two forms of {name} differ on {torch.cuda.get_device_name()}, which must not "
                "be. Report it with the versions of triton and the driver, and use "
                "cuda_form='double'."
            )
    return [
        FormTiming(n, {form: statistics.median(samples[n, form]) for form in (DOUBLE, FLOAT_FLOAT)})
        for n in names
    ]


def mean_ns(timings: list[FormTiming]) -> dict[str, float]:
    """Return form -> geometric mean of the functions' times."""
    return {
        form: math.exp(statistics.fmean(math.log(t.ns[form]) for t in timings))
        for form in (DOUBLE, FLOAT_FLOAT)
    }


def _inputs(low: float, high: float) -> torch.Tensor:
    steps = torch.arange(ELEMENTS, dtype=torch.float64, device="cuda") * GOLDEN
    return (low + (high - low) * (steps % 1.0)).float()


def _launch(name: str, x: torch.Tensor, out: torch.Tensor) -> None:
    apply_function[(ELEMENTS // BLOCK,)](x, out, ELEMENTS, WHICH=name, BLOCK=BLOCK)


def _graph(name: str, x: torch.Tensor, out: torch.Tensor) -> torch.cuda.CUDAGraph:
    """Capture launches; the graph keeps its form after the session."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            _launch(name, x, out)
    return graph


def _time_ns(graph: torch.cuda.CUDAGraph) -> float:
    start, end = cuda_event(), cuda_event()
    graph.replay()  # brings clocks and L2 into the state that is timed
    torch.cuda.synchronize()
    start.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) * 1e6
