"""What the package needs of torch itself, whatever its version."""

from __future__ import annotations

from typing import Any

from pytest_udftorch.errors import TorchNotFoundError


def torch_summary() -> tuple[str, str]:
    """Return torch's version and the CPU capability its kernels dispatch on."""
    torch = import_torch()
    return str(torch.__version__), str(torch.backends.cpu.get_cpu_capability())


def import_torch() -> Any:
    """Return torch.

    Raises:
        TorchNotFoundError: it cannot be imported.
    """
    try:
        import torch
    except ImportError as error:
        raise TorchNotFoundError(
            f"torch cannot be imported: {error}. Install it (pip install torch); "
            "pytest_udftorch rebinds the ordinary registry wheels."
        ) from error
    return torch
