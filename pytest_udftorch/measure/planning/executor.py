# SPDX-License-Identifier: Apache-2.0
"""What an executor is, and what executors share: errors, and tensors in nested structures."""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import nn

from pytest_udftorch.base.trees import tensors_in
from pytest_udftorch.errors import ExecutorUnavailableError

Run: TypeAlias = Callable[..., Any]
MakeCallable: TypeAlias = Callable[[nn.Module, tuple[Any, ...]], Run]

#: The variable that says what the profiler's library writes on standard error.
_PROFILER_LEVEL: Final = "KINETO_LOG_LEVEL"

FLOATS: Final = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})


@dataclass(frozen=True)
class Executor:
    """One way to run a model.

    Attributes:
        name: the name that ``executors.resolve`` takes.
        make_callable: takes a model that it may keep and change, and a tuple of inputs; returns
            a callable of the same arguments. It may be slow and may raise.
        devices: the device types that it serves.
        dtypes: the dtypes of floating-point inputs that it serves.
    """

    name: str
    make_callable: MakeCallable
    devices: frozenset[str] = frozenset({"cpu", "cuda"})
    dtypes: frozenset[torch.dtype] = FLOATS

    def check(self, inputs: Sequence[Any]) -> None:
        """Check that the executor serves these inputs.

        Raises:
            ExecutorUnavailableError: wrong device or dtype.
        """
        for tensor in tensors_in(inputs):
            if tensor.device.type not in self.devices:
                raise ExecutorUnavailableError(
                    f"{self.name} runs on {' and '.join(sorted(self.devices))}, but the inputs "
                    f"are on {tensor.device.type}. Move model and inputs, or leave it out."
                )
            if tensor.dtype.is_floating_point and tensor.dtype not in self.dtypes:
                names = ", ".join(sorted(str(d).removeprefix("torch.") for d in self.dtypes))
                raise ExecutorUnavailableError(
                    f"{self.name} serves {names}, not {str(tensor.dtype).removeprefix('torch.')}."
                )


def quiet() -> AbstractContextManager[Any]:
    """Silence warnings against a way of running the model, which is only compared here."""
    return warnings.catch_warnings(action="ignore")


@contextlib.contextmanager
def without_noise() -> Iterator[None]:
    """Keep warnings and logged lines of torch and triton off the screen; the model's own stay.

    What somebody asked for by ``TORCH_LOGS`` or ``KINETO_LOG_LEVEL`` is written all the same.
    """
    handlers = [] if os.environ.get("TORCH_LOGS") else logging.getLogger("torch").handlers
    with warnings.catch_warnings(), contextlib.ExitStack() as stack:
        warnings.filterwarnings("ignore", module=r"(torch|triton)(\.|$)")
        for handler in list(handlers):
            handler.addFilter(_is_error)
            stack.callback(handler.removeFilter, _is_error)
        if _PROFILER_LEVEL not in os.environ:
            # It is read when a process profiles for the first time.
            os.environ[_PROFILER_LEVEL] = "99"
            stack.callback(os.environ.pop, _PROFILER_LEVEL, None)
        yield


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


@contextlib.contextmanager
def without_effect(owner: Any, name: str) -> Iterator[None]:
    """Make calls of a function in a module do nothing."""
    function = getattr(owner, name)
    setattr(owner, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(owner, name, function)


@contextlib.contextmanager
def importing(distribution: str) -> Iterator[None]:
    """Import from a package that need not be installed, in the block.

    Raises:
        ExecutorUnavailableError: the package is absent, or does not load beside this torch.
    """
    try:
        yield
    except Exception as error:
        why = f"{distribution} is not installed. Try: pip install {distribution}."
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            why = (
                f"{distribution} {importlib.metadata.version(distribution)} does not load beside "
                f"torch {torch.__version__} ({type(error).__name__}: {str(error)[:200]}). Install "
                "versions that fit together, or leave the executor out."
            )
        raise ExecutorUnavailableError(why) from error
