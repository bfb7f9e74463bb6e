# SPDX-License-Identifier: Apache-2.0
"""AOTInductor: the model exported, compiled ahead of time, and loaded as a package."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch import compat
from pytest_udftorch.planning.executor import (
    CapturedShapeError,
    Executor,
    ExecutorUnavailableError,
    Run,
    convert,
    quiet,
    tensors_in,
)


def _check_package(path: str) -> None:
    """Load a package in a process of its own first, if loading it could end this one.

    Its libraries parse with ``std::regex``, which looks up facets of the locale by numbers that
    two copies of libstdc++ do not share. With a compiler that links one in, torch 2.11 was seen
    to end in SIGSEGV there.

    Raises:
        ExecutorUnavailableError: the other process was ended by a signal.
    """
    with zipfile.ZipFile(path) as package:
        libraries = [package.read(n) for n in package.namelist() if n.endswith(".so")]
    if all(b"libstdc++.so" in library for library in libraries):
        return
    load = "import sys; from pytest_udftorch import compat; compat.aot_load(sys.argv[1])"
    trial = subprocess.run([sys.executable, "-c", load, path], capture_output=True)
    if trial.returncode < 0:
        raise ExecutorUnavailableError(
            "The package would end this process when it is loaded, by "
            f"{signal.Signals(-trial.returncode).name}. The C++ compiler links its own copy of "
            "libstdc++ into it, where torch has another. Set CXX to a compiler that links "
            "libstdc++.so, or leave aotinductor out."
        )


def _laid_out(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return a copy of the tensor with these strides, in elements."""
    copied = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
    return copied.copy_(value)


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:

    with quiet(), torch.no_grad():
        program = torch.export.export(model, inputs)
        # The loader unpacks the package, so the folder may go once it is loaded.
        with tempfile.TemporaryDirectory(prefix="udftorch-aoti-") as folder:
            package = str(Path(folder) / "model.pt2")
            path = compat.aot_package(program, package)
            _check_package(path)
            loaded: Run = compat.aot_load(path)
    # The package checks none of these, and would compute something wrong.
    made_for = [(t.shape, t.dtype, t.stride()) for t in tensors_in(inputs)]

    def run(*arguments: Any) -> Any:
        expected = iter(made_for)

        def fit(given: torch.Tensor) -> torch.Tensor:
            shape, dtype, stride = next(expected)
            if given.shape != shape or given.dtype != dtype:
                raise CapturedShapeError(
                    f"The package was compiled for {dtype}{list(shape)} and is given "
                    f"{given.dtype}{list(given.shape)}. Compile one for these inputs too, or use "
                    "another executor."
                )
            return given if given.stride() == stride else _laid_out(given, stride)

        return loaded(*convert(arguments, fit))

    return run


EXECUTORS: Final = (Executor("aotinductor", _make),)
