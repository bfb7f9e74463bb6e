# SPDX-License-Identifier: Apache-2.0
"""Capture work in a CUDA graph, and replay it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import torch

from pytest_udftorch.base import compat
from pytest_udftorch.base.trees import convert, tensors_in
from pytest_udftorch.errors import ExecutorError, ExecutorUnavailableError
from pytest_udftorch.measure.planning.executor import Run
from pytest_udftorch.measure.timing.timers import untyped

__all__ = ["capture"]

#: Calls before a capture: cuDNN chooses its algorithms in them, and lazy buffers are made.
_WARMUP: Final = 3


def capture(run: Run, inputs: tuple[Any, ...], *, warmup: int = _WARMUP) -> Run:
    """Capture ``run(*inputs)`` in a CUDA graph and return a callable that replays it.

    The callable copies its arguments into the graph's own inputs, except those that are the
    graph's own inputs (``.inputs`` of the callable), and returns the graph's own outputs,
    which the next replay overwrites. It raises :class:`ExecutorError` for arguments of
    other shapes or dtypes.

    All memory that the graph uses lives as long as the callable: its inputs, what ``run`` owns,
    the constants of compiled code, and the graph's own pool with everything allocated during the
    capture, cuBLAS' workspaces among it.

    Raises:
        ExecutorUnavailableError: the inputs are not on a CUDA device.
        RuntimeError: the work cannot be captured (it waits for the device, for instance).
    """
    tensors = tensors_in(inputs)
    if not tensors or any(t.device.type != "cuda" for t in tensors):
        raise ExecutorUnavailableError(
            "A CUDA graph needs all inputs on a CUDA device. Move model and inputs to cuda."
        )
    static = convert(inputs, torch.clone)
    leaves = tensors_in(static)
    stream = torch.cuda.current_stream()
    graph = torch.cuda.CUDAGraph()
    generator = torch.cuda.default_generators[leaves[0].device.index]
    side = untyped(torch.cuda.Stream)()
    side.wait_stream(stream)
    with torch.no_grad(), _without_autocast_cache(), torch.cuda.stream(side):
        for _ in range(warmup):
            run(*static)
    stream.wait_stream(side)
    torch.cuda.synchronize()
    unused = generator.clone_state()
    try:
        with (
            torch.no_grad(),
            _without_autocast_cache(),
            _own_workspaces(),
            torch.cuda.graph(graph),
        ):
            output = run(*static)
    except BaseException:
        # A failed capture leaves its stream current, and the generator believing that it is
        # being captured, so that no random number could be drawn any more.
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(unused)
        raise

    def replay(*arguments: Any) -> Any:
        for mine, theirs in zip(leaves, tensors_in(arguments), strict=True):
            if mine is theirs:
                continue
            # A copy would broadcast and convert without a word.
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                raise ExecutorError(
                    f"The graph was captured for {mine.dtype}{list(mine.shape)} and is given "
                    f"{theirs.dtype}{list(theirs.shape)}. Capture one for these inputs too, or "
                    "use an executor without cudagraph."
                )
            mine.copy_(theirs)
        graph.replay()
        return output

    replay.inputs = static  # type: ignore[attr-defined]
    # The captured kernels use buffers that ``run`` owns, and constants of compiled code, which
    # Inductor drops when its caches are cleared.
    replay.keeps = run, compat.inductor_modules()  # type: ignore[attr-defined]
    return replay


@contextlib.contextmanager
def _own_workspaces() -> Iterator[None]:
    """Let the work inside use workspaces of cuBLAS that nothing before or after it uses.

    torch (to 2.14 by default, later on demand) keeps one workspace per handle and stream for all.
    A graph that met an old one would write to memory outside its own pool, which is freed when
    torch.compile(mode="reduce-overhead") next clears the workspaces.
    """
    compat.clear_cublas_workspaces()
    try:
        yield
    finally:
        compat.clear_cublas_workspaces()


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Make autocast cast a weight whenever it is used: it frees cached casts when it ends."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
