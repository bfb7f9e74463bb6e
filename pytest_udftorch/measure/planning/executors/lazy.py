# SPDX-License-Identifier: Apache-2.0
"""Lazy tensors on the TorchScript backend; CPU only."""

from __future__ import annotations

import functools
from typing import Any, Final

from torch import nn

from pytest_udftorch.base import compat
from pytest_udftorch.base.trees import convert, tensors_in
from pytest_udftorch.errors import ExecutorUnavailableError, PrivateNameError
from pytest_udftorch.measure.planning.executor import Executor, Run

#: Starts the backend of lazy tensors once: a second start is an error.
_start = functools.cache(compat.start_lazy_tensors)


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    try:
        _start()
    except (PrivateNameError, ImportError, RuntimeError) as error:
        raise ExecutorUnavailableError(
            f"This torch build has no lazy tensors ({type(error).__name__}: {error})."
        ) from error
    home = tensors_in(inputs)[0].device
    lazy_model = model.to("lazy")

    def run(*arguments: Any) -> Any:
        output = lazy_model(*convert(arguments, lambda t: t.to("lazy")))
        compat.mark_lazy_step()
        return convert(output, lambda t: t.to(home))

    return run


EXECUTORS: Final = (Executor("lazy", _make, frozenset({"cpu"})),)
