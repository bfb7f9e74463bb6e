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

from pytest_udftorch.base import compat
from pytest_udftorch.base.trees import convert, tensors_in
from pytest_udftorch.errors import ExecutorError, ExecutorUnavailableError
from pytest_udftorch.measure.planning.executor import Executor, Run, quiet


def _check_package(path: str) -> None:
    """Load a package in another process first, if loading it could end this one.

    Its libraries parse with ``std::regex``, which looks up facets of the locale by numbers that
    two copies of libstdc++ do not share. With a compiler that links in a copy of its own, torch
    2.11 ended in SIGSEGV there.

    Raises:
        ExecutorUnavailableError: a signal ended the other process.
    """
    with zipfile.ZipFile(path) as package:
        libraries = [package.read(n) for n in package.namelist() if n.endswith(".so")]
    if all(b"libstdc++.so" in library for library in libraries):
        return
    load = "import sys; from pytest_udftorch.base import compat; compat.aot_load(sys.argv[1])"
    trial = subprocess.run([sys.executable, "-c", load, path], capture_output=True)
    if trial.returncode < 0:
        raise ExecutorUnavailableError(
            "Loading the package would end this process by "
            f"{signal.Signals(-trial.returncode).name}. The C++ compiler links its own copy of "
            "libstdc++ into it, but torch uses another. Set CXX to a compiler that links "
            "libstdc++.so, or leave aotinductor out."
        )


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    with quiet(), torch.no_grad():
        program = torch.export.export(model, inputs)
        # The loader unpacks the package, which may then be removed.
        with tempfile.TemporaryDirectory(prefix="udftorch-aoti-") as folder:
            path = compat.aot_package(program, str(Path(folder) / "model.pt2"))
            _check_package(path)
            loaded: Run = compat.aot_load(path)
    # The package checks none of these, and would return wrong results.
    made_for = [(t.shape, t.dtype, t.stride()) for t in tensors_in(inputs)]

    def run(*arguments: Any) -> Any:
        expected = iter(made_for)

        def fit(given: torch.Tensor) -> torch.Tensor:
            shape, dtype, stride = next(expected)
            if given.shape != shape or given.dtype != dtype:
                raise ExecutorError(
                    f"The package was compiled for {dtype}{list(shape)}, but the input is "
                    f"{given.dtype}{list(given.shape)}. Compile a package for these inputs too, or "
                    "use another executor."
                )
            if given.stride() == stride:
                return given
            copied = torch.empty_strided(shape, stride, dtype=dtype, device=given.device)
            return copied.copy_(given)

        return loaded(*convert(arguments, fit))

    return run


EXECUTORS: Final = (Executor("aotinductor", _make),)
