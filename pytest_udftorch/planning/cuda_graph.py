# SPDX-License-Identifier: Apache-2.0
"""Capture work in a CUDA graph, and replay it."""

from __future__ import annotations

from typing import Any, Final

import torch

from pytest_udftorch.planning.executor import (
    CapturedShapeError,
    ExecutorUnavailableError,
    Run,
    convert,
    tensors_in,
)
from pytest_udftorch.timing.timers import untyped

__all__ = ["capture"]

#: Calls before a capture: cuDNN chooses its algorithms in them, and lazy buffers are made.
_WARMUP: Final = 3


def capture(run: Run, inputs: tuple[Any, ...], *, warmup: int = _WARMUP) -> Run:
    """Capture ``run(*inputs)`` in a CUDA graph and return a callable that replays it.

    The callable copies its arguments into the graph's own inputs, except those that are the
    graph's own inputs (``.inputs`` of the callable), and returns the graph's own outputs,
    which the next replay overwrites. It raises :class:`CapturedShapeError` for arguments of
    other shapes or dtypes.

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
    side = untyped(torch.cuda.Stream)()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(warmup):
            run(*static)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    generator = torch.cuda.default_generators[leaves[0].device.index]
    unused = generator.clone_state()
    try:
        with torch.no_grad(), torch.cuda.graph(graph):
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
                raise CapturedShapeError(
                    f"The graph was captured for {mine.dtype}{list(mine.shape)} and is given "
                    f"{theirs.dtype}{list(theirs.shape)}. Capture one for these inputs too, or "
                    "use an executor without cudagraph."
                )
            mine.copy_(theirs)
        graph.replay()
        return output

    replay.inputs = static  # type: ignore[attr-defined]
    # The captured kernels use buffers that ``run`` owns.
    replay.keeps = run  # type: ignore[attr-defined]
    return replay
