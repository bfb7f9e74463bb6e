# SPDX-License-Identifier: Apache-2.0
"""A function jitted by XLA, from torchax's translation of torch's operators to JAX."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.base import compat
from pytest_udftorch.base.trees import convert, tensors_in
from pytest_udftorch.errors import ExecutorUnavailableError
from pytest_udftorch.measure.planning.executor import (
    Executor,
    Run,
    importing,
    quiet,
    without_effect,
)
from pytest_udftorch.measure.timing.timers import untyped

pytree: Any = compat.pytree()


@contextlib.contextmanager
def torch_as_before() -> Iterator[None]:
    """Prevent or undo what importing torchax 0.0.13 does to torch in the whole process.

    The import names the backend PrivateUse1 "jax", for good: torch 2.11 then takes jax for the
    machine's accelerator, and CUDA streams can no longer be entered. It also switches off the fast
    path of attention, which changes the interpreted members.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    with (
        without_effect(torch.utils, "rename_privateuse1_backend"),
        without_effect(torch, "_register_device_module"),
    ):
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def sharing_memory() -> Iterator[None]:
    """Let JAX take GPU memory as it needs it; by default it takes three quarters at once.

    JAX reads the variable when it first uses its devices. A value that the user has set is kept.
    """
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    if name in os.environ:
        yield
        return
    os.environ[name] = "false"
    try:
        yield
    finally:
        del os.environ[name]


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    with quiet(), torch_as_before(), sharing_memory():
        with importing("jax"):
            import jax
        with importing("torchax"):
            import torchax
        home = tensors_in(inputs)[0].device
        kind = "gpu" if home.type == "cuda" else "cpu"
        try:
            device = jax.devices(kind)[home.index or 0]
        except RuntimeError as error:
            raise ExecutorUnavailableError(
                f"jax {jax.__version__} finds no {kind} ({str(error)[:200]}). Install its build "
                "for this device."
            ) from error
        weights, function = torchax.extract_jax(model.cpu())
        weights = jax.device_put(weights, device)

        def to_jax(value: Any) -> Any:
            return convert(value, lambda t: jax.dlpack.from_dlpack(t.contiguous()))

        # By default XLA multiplies float32 in TF32 even where torch does not.
        with jax.default_matmul_precision("highest"):
            compiled = jax.jit(function).lower(weights, to_jax(inputs)).compile()

    def run(*arguments: Any) -> Any:
        # JAX has streams of its own, which torch's CUDA events do not wait for.
        output = untyped(jax.block_until_ready)(compiled(weights, to_jax(arguments)))
        return pytree.tree_map_only(jax.Array, torch.utils.dlpack.from_dlpack, output)

    return run


EXECUTORS: Final = (Executor("jax", _make),)
