# SPDX-License-Identifier: Apache-2.0
"""What a stored measurement says of the place where it was made: machine, versions, flags."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pytest_udftorch.compat import torch_summary
from pytest_udftorch.native.machine import cpu_model

if TYPE_CHECKING:
    import torch


def _machine(**more: object) -> dict[str, Any]:
    """Return the CPU, what torch uses of it, and what the caller adds."""
    # CPUs of one name may differ in capability, and torch's kernels with it.
    return {"cpu": cpu_model(), **more, "torch_capability": torch_summary()[1]}


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "torch": torch_summary()[0]}


def describe() -> dict[str, Any]:
    """Return machine, versions, flags and date as one JSON object; no host name.

    Imports torch. ``flags`` are those that UDF libraries are compiled with.

    Raises:
        TorchNotFoundError, CompilerNotFoundError, CompilerTooOldError: as from a session.
    """
    from pytest_udftorch import __version__
    from pytest_udftorch.build.toolchain import FLAGS, find_compiler, resolve_cpu_level
    from pytest_udftorch.library.symbols import CPU_LEVELS

    level = resolve_cpu_level(None)
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": _machine(cores=len(os.sched_getaffinity(0)), cpu_level=level),
        "versions": {
            "pytest_udftorch": __version__,
            **_versions(),
            "clang": find_compiler().version,
            "libc": " ".join(platform.libc_ver()),
            "system": f"{platform.system()} {platform.release().split('-')[0]}",
        },
        "flags": [*FLAGS, *CPU_LEVELS[level][0]],
    }


def describe_device(device: str | torch.device) -> dict[str, Any]:
    """Return the machine, the versions and the flags that change speed, as a JSON object.

    Raises:
        DeviceMissingError, UnknownDeviceError: see ``timers.require_device``.
    """
    import torch

    from pytest_udftorch.timing.timers import require_device, untyped

    found = require_device(device)
    machine = _machine(threads=torch.get_num_threads())
    versions = _versions()
    if found.type == "cuda":
        properties = torch.cuda.get_device_properties(found)
        machine["gpu"] = properties.name
        machine["gpu_memory_bytes"] = properties.total_memory
        machine["multiprocessors"] = properties.multi_processor_count
        machine["l2_bytes"] = properties.L2_cache_size
        versions["cuda"] = str(torch.version.cuda)
        versions["cudnn"] = str(untyped(torch.backends.cudnn.version)())
    for name in ("triton", "torchvision"):
        # A torchvision that was built for another torch raises RuntimeError: operators are missing.
        with contextlib.suppress(ImportError, RuntimeError):
            versions[name] = str(import_module(name).__version__)
    return {
        "device": found.type,
        "machine": machine,
        "versions": versions,
        "flags": {
            "cudnn.benchmark": torch.backends.cudnn.benchmark,
            "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        },
    }


def caption(environment: dict[str, Any]) -> str:
    """Return one line of text to stand beside the numbers."""
    machine, versions = environment["machine"], environment["versions"]
    clang = versions["clang"].split("version ")[-1].split(" ")[0]
    return (
        f"{cpu_caption(machine)}; torch {versions['torch']}, Python {versions['python']}, "
        f"clang {clang}, {versions['libc']}; {environment['date']}."
    )


def cpu_caption(machine: Mapping[str, Any]) -> str:
    """Return what is known of a CPU: model, cores, threads, and the kernels that torch chose."""
    words = [str(machine["cpu"])]
    if "cores" in machine:
        words.append(f"{machine['cores']} {'core' if machine['cores'] == 1 else 'cores'}")
    if "threads" in machine:
        words.append(f"{machine['threads']} threads")
    if "torch_capability" in machine:
        words.append(f"torch's {machine['torch_capability']} kernels")
    return ", ".join(words)
