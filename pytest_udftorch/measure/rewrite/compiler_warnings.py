# SPDX-License-Identifier: Apache-2.0
"""Compilers that warn: what they say is noted, and ends no search.

TorchInductor warns, for instance, where it does not compute softmax in one pass, and where TF32 is
off. A program that makes errors of warnings, such as a test suite, would lose the graph by that.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from pytest_udftorch.base import compat


@contextlib.contextmanager
def noted_warnings(notes: list[str]) -> Iterator[None]:
    """Add what the block warns of to notes, each text once; nothing is raised or printed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            said = (f"warning: {' '.join(str(w.message).split())[:300]}" for w in caught)
            notes += [text for text in dict.fromkeys(said) if text not in notes]


def _inductor(graph: fx.GraphModule, examples: Sequence[Any]) -> Any:
    """Backend of torch.compile: TorchInductor, without its warnings."""
    with noted_warnings([]):
        return compat.inductor_backend()(graph, examples)


def by_inductor(module: fx.GraphModule) -> Callable[..., Any]:
    """Return a graph that TorchInductor compiles when it is first called, and warns of nothing."""
    compiled: Callable[..., Any] = torch.compile(module, backend=_inductor, dynamic=False)
    return compiled
