# SPDX-License-Identifier: Apache-2.0
"""Ways to run a model: interpreted, compiled, scripted, exported, and variations of each.

Each module of this package holds the executors of one project or technique. An executor is a
name, the devices and dtypes it serves, and a function that makes a callable from a model and
example inputs. Variations are appended to the name with ``+``:

``channels_last``
    4-d parameters and inputs in channels_last memory format.
``fused``
    batch norms folded into convolutions, and convolution, bias, (sum) and ReLU in one cuDNN
    call where that is faster; see ``fusion``.
``streams``
    independent branches on CUDA streams of their own; see ``fusion``.
``cudagraph``
    the whole captured once and replayed; inputs are copied in, and every replay overwrites
    the outputs of the one before.

``resolve("compile+channels_last+cudagraph")`` returns such an executor. A project adds its own
base with :func:`register`.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from torch import nn

from pytest_udftorch.planning.cuda_graph import capture
from pytest_udftorch.planning.executor import (
    CapturedShapeError,
    Executor,
    ExecutorUnavailableError,
    LostBranchError,
    Run,
    UnknownExecutorError,
)
from pytest_udftorch.planning.executors import (
    aotinductor,
    eager,
    fx,
    jax,
    lazy,
    thunder,
    torch_compile,
    torchscript,
)
from pytest_udftorch.planning.executors.registry import Registry
from pytest_udftorch.planning.executors.variations import VARIATIONS

__all__ = [
    "REGISTRY",
    "VARIATIONS",
    "CapturedShapeError",
    "Executor",
    "ExecutorUnavailableError",
    "LostBranchError",
    "UnknownExecutorError",
    "capture",
    "make",
    "register",
    "registered",
    "resolve",
    "unregister",
]

#: Owner of the executors of this process.
REGISTRY: Final = Registry(
    (
        *eager.EXECUTORS,
        *torch_compile.EXECUTORS,
        *torchscript.EXECUTORS,
        *fx.EXECUTORS,
        *aotinductor.EXECUTORS,
        *lazy.EXECUTORS,
        *thunder.EXECUTORS,
        *jax.EXECUTORS,
    )
)

registered = REGISTRY.registered
register = REGISTRY.register
unregister = REGISTRY.unregister
resolve = REGISTRY.resolve


def make(executor: Executor, model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    """Make the callable from a copy of the model, after checking device and dtype.

    Raises:
        ExecutorUnavailableError: see :meth:`Executor.check`.
        Exception: whatever the executor raises.
    """
    executor.check(inputs)
    return executor.make_callable(copy.deepcopy(model), inputs)
