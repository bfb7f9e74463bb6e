# SPDX-License-Identifier: Apache-2.0
"""Ways to run a model: interpreted, compiled, scripted, exported, and variations of each.

Each module of this package holds the executors of one project or technique. An executor is a
name, the devices and dtypes that it serves, and a function that makes a callable from a model and
example inputs. A variation is appended to the name with ``+``:

``channels_last``
    4-d parameters and inputs are in channels_last memory format.
``fused``
    Batch norms are folded into convolutions; convolution, bias, (sum) and ReLU are one cuDNN call
    where that is faster. See ``fusion``.
``streams``
    Independent branches run on CUDA streams of their own. See ``fusion``.
``cudagraph``
    The whole is captured once and replayed. Inputs are copied in, and every replay overwrites the
    outputs of the one before.

``resolve("compile+channels_last+cudagraph")`` returns such an executor. A project adds a base
executor of its own with :func:`register_executor`.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from torch import nn

from pytest_udftorch.measure.planning.executor import Executor, Run
from pytest_udftorch.measure.planning.executors import (
    aotinductor,
    export,
    interpreted,
    iree,
    jax,
    lazy,
    onnxruntime,
    openvino,
    rewriting,
    thunder,
    torch_compile,
    torchscript,
    tvm,
)
from pytest_udftorch.measure.planning.executors.registry import Registry

#: The executors of this process.
REGISTRY: Final = Registry(
    [
        executor
        for module in (
            interpreted,
            torch_compile,
            torchscript,
            export,
            aotinductor,
            lazy,
            thunder,
            jax,
            onnxruntime,
            openvino,
            tvm,
            iree,
            rewriting,
        )
        for executor in module.EXECUTORS
    ]
)

registered = REGISTRY.registered
register_executor = REGISTRY.register
unregister_executor = REGISTRY.unregister
resolve = REGISTRY.resolve


def make(executor: Executor, model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    """Make the callable from a copy of the model, after checking device and dtype.

    Raises:
        ExecutorUnavailableError: see :meth:`Executor.check`.
        Exception: whatever the executor raises.
    """
    executor.check(inputs)
    return executor.make_callable(copy.deepcopy(model), inputs)
