# SPDX-License-Identifier: Apache-2.0
"""Which form of a function a GPU gets: in double precision, or in float-float.

Most GPUs compute float64 at 1/32 or 1/64 of their float32 speed. A library may name another one
that has its functions in pairs of floats (``float_float`` in ``udf.toml``). Both forms give the
same bits, so only speed is at stake. The user chooses; otherwise a stored measurement of both
forms on the GPUs of this machine decides, or else their compute capability.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.interrupts import undisturbed
from pytest_udftorch.errors import CudaFormError, nearest
from pytest_udftorch.swap.toolchain.cache import cache_folder, opened, store

DOUBLE: Final = "double"
FLOAT_FLOAT: Final = "float-float"
AUTO: Final = "auto"
CUDA_FORMS: Final = (DOUBLE, FLOAT_FLOAT, AUTO)
VARIABLE: Final = "UDFTORCH_CUDA_FORM"

#: Compute capabilities with one float64 unit for two of float32; all others have one for 32 or
#: 64. Source: CUDA C++ Programming Guide, section "Arithmetic Instructions", table "Throughput of
#: Native Arithmetic Instructions", rows of 64-bit and 32-bit floating-point add, multiply and
#: multiply-add, results per clock and multiprocessor: 6.0, 7.x (except 7.5, by a footnote) and
#: 8.0 have 32 and 64, 9.0 and 10.0 have 64 and 128; 6.1 and 6.2 have 4 and 128, 8.6, 8.9 and 12.0
#: have 2 and 128.
STRONG: Final = frozenset({(6, 0), (7, 0), (7, 2), (8, 0), (9, 0), (10, 0)})

_MEASURED: Final = shapes.mapping(
    shapes.of(str), shapes.record(dict.fromkeys(CUDA_FORMS[:2], shapes.number()), closed=False)
)


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine.

    Attributes:
        name: the driver's name for it.
        capability: compute capability, major and minor.
    """

    name: str
    capability: tuple[int, int]


def asked_form(form: str | None) -> str:
    """Return the form asked for: the one given, ``UDFTORCH_CUDA_FORM``, or ``auto``.

    Raises:
        CudaFormError: there is no such form.
    """
    asked = form or os.environ.get(VARIABLE) or AUTO
    if asked not in CUDA_FORMS:
        source = f"cuda_form={asked!r}" if form else f"{VARIABLE}={asked!r}"
        raise CudaFormError(
            f"{source} is not a form of functions on a GPU. {nearest(str(asked), CUDA_FORMS)} Both "
            "forms give the same bits; auto chooses the faster one on the GPUs of this machine."
        )
    return asked


def resolved_form(asked: str) -> str:
    """Return ``double`` or ``float-float``; ``auto`` is decided once in a process."""
    return _for_this_machine() if asked == AUTO else asked


@functools.cache
def _for_this_machine() -> str:
    return choose(gpus(), measurements())


def choose(found: tuple[Gpu, ...], measured: Mapping[str, Mapping[str, float]]) -> str:
    """Return the form for some GPUs: float-float if it is the faster one on each of them.

    Args:
        found: the GPUs; if there are none, the form is ``double``.
        measured: name of a GPU -> form -> time of an element in ns; overrides the capability.
    """

    def faster(gpu: Gpu) -> bool:
        times = measured.get(gpu.name)
        return times[FLOAT_FLOAT] < times[DOUBLE] if times else gpu.capability not in STRONG

    return FLOAT_FLOAT if found and all(map(faster, found)) else DOUBLE


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs: torch's if it has initialised CUDA, else all that the driver lists.

    Reading the list takes nvidia-ml-py, and does not initialise CUDA: a process that has opened
    CUDA cannot fork. The driver is asked once in a process.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return tuple(
            Gpu(torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i))
            for i in range(torch.cuda.device_count())
        )
    return _listed()


@functools.cache
def _listed() -> tuple[Gpu, ...]:
    # pynvml takes a lock, and would keep it if an interrupt came at once afterwards.
    return undisturbed(_from_driver)


def _from_driver() -> tuple[Gpu, ...]:
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return tuple(
            Gpu(pynvml.nvmlDeviceGetName(h), tuple(pynvml.nvmlDeviceGetCudaComputeCapability(h)))
            for h in handles
        )
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def measurement_file() -> Path:
    """Return the file that holds what ``udftorch setup cuda-form`` measured."""
    return cache_folder() / "cuda-form.json"


def measurements() -> dict[str, dict[str, float]]:
    """Return name of a GPU -> form -> time of an element in ns; empty if none was stored."""
    try:
        data: dict[str, dict[str, float]] = shapes.parse_json(shapes.read_file(measurement_file()))
        _MEASURED(data, "the file")
    except (OSError, shapes.Malformed):
        # If the file is missing or of another version, the compute capability decides.
        return {}
    return {name: {form: float(ns[form]) for form in CUDA_FORMS[:2]} for name, ns in data.items()}


def store_measurement(name: str, times_ns: Mapping[str, float]) -> Path:
    """Store the times of both forms on a GPU, and return the file.

    Raises:
        CacheError: the cache folder cannot be written.
    """
    path = measurement_file()
    with opened(path):
        text = json.dumps({**measurements(), name: dict(times_ns)}, indent=1, sort_keys=True)
        store(path, text + "\n")
    _for_this_machine.cache_clear()
    return path
