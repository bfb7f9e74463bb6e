# SPDX-License-Identifier: Apache-2.0
"""What a measurement on a device says of the place where it was made."""

from __future__ import annotations

import contextlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from pytest_udftorch.measure.timing.timers import require_device, untyped
from pytest_udftorch.swap.toolchain.environment import machine as machine_of
from pytest_udftorch.swap.toolchain.environment import versions as versions_of

if TYPE_CHECKING:
    import torch


def describe_device(device: str | torch.device) -> dict[str, Any]:
    """Return the machine, the versions and the flags that change speed, as a JSON object.

    Raises:
        DeviceMissingError, MeasureError: see ``timers.require_device``.
    """
    import torch

    found = require_device(device)
    machine = machine_of(threads=torch.get_num_threads())
    versions = versions_of()
    if found.type == "cuda":
        properties = torch.cuda.get_device_properties(found)
        machine["gpu"] = properties.name
        machine["gpu_memory_bytes"] = properties.total_memory
        machine["multiprocessors"] = properties.multi_processor_count
        machine["l2_bytes"] = properties.L2_cache_size
        versions["cuda"] = str(torch.version.cuda)
        versions["cudnn"] = str(untyped(torch.backends.cudnn.version)())
    for name in ("triton", "torchvision"):
        # To import torchvision takes seconds, and fails if it was built for another torch.
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
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
