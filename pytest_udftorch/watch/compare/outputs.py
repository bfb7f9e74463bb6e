# SPDX-License-Identifier: Apache-2.0
"""What functions give on a few arguments, to see when they change."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

from pytest_udftorch.prove.exact.formats import FORMATS
from pytest_udftorch.swap.library.description import UdfLibrary
from pytest_udftorch.swap.library.symbols import FUNCTIONS

#: Arguments of a function that are kept. More than a vector's lanes, and not a multiple of them.
COUNT: Final = 67


def arguments_of(function: str, dtype: str) -> list[str]:
    """Return arguments of a function as encodings in hex, evenly over its usual interval.

    They are the same in every run, so that baselines of different runs can be compared.
    """
    fmt, known = FORMATS[dtype], FUNCTIONS[function]
    values = (
        np.linspace(known.domain[0], known.domain[1], COUNT)
        .astype(f"f{fmt.bits // 8}")
        .view(fmt.dtype)
    )
    texts = [f"{int(value):0{fmt.bits // 4}x}" for value in values]
    if known.arity == 1:
        return texts
    return [f"{a},{b}" for a, b in zip(texts, reversed(texts), strict=True)]


def outputs(
    library: UdfLibrary, function: str, dtype: str, arguments: Iterable[str]
) -> dict[str, str]:
    """Return argument -> result of torch's operator of a function, as encodings in hex.

    No session that profiles may be open.

    Raises:
        The errors of a session.
    """
    import torch

    from pytest_udftorch.swap.session.session import patched

    fmt, given = FORMATS[dtype], list(arguments)
    columns = [
        np.array([int(words.split(",")[i], 16) for words in given], fmt.dtype)
        for i in range(FUNCTIONS[function].arity)
    ]
    tensors = [torch.from_numpy(c.view(f"f{fmt.bits // 8}")) for c in columns]
    session: Any = nullcontext() if library.stock else patched(library, functions=(function,))
    with session:
        result = getattr(torch, function)(*tensors).numpy().view(fmt.dtype)
    width = fmt.bits // 4
    return {x: f"{int(y):0{width}x}" for x, y in zip(given, result, strict=True)}


def probes(names: Iterable[str]) -> dict[str, list[str]]:
    """Return function -> arguments, for those functions of a baseline that ran on the CPU."""
    found = {}
    for name in names:
        _, function, dtype, *device = name.split(" ")
        if not device and function in FUNCTIONS:
            found[name] = arguments_of(function, dtype)
    return found
