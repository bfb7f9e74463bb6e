# SPDX-License-Identifier: Apache-2.0
"""What operators compute, by simpler ones that run in float64."""

from __future__ import annotations

from typing import Any

from pytest_udftorch.base import compat
from pytest_udftorch.swap.observe.recording import draws
from pytest_udftorch.swap.operators.decompositions import DEFINITIONS
from pytest_udftorch.swap.operators.overload import name_of
from pytest_udftorch.swap.operators.rows import find
from pytest_udftorch.swap.operators.sums import FUSED


def by_definition(operator: Any, args: Any, kwargs: Any) -> Any:
    """Return what an operator returns, computed by its definition.

    Of attention without dropout this is the result and the logarithms of its sums; what remains,
    for the backward pass, is nothing.

    Args:
        operator: an overload.
        args: its arguments.
        kwargs: likewise.

    Returns:
        NotImplemented if it has no definition for these arguments.
    """
    # Kernels of attention have no float64, and torch's table has none of those for CUDA.
    if name_of(operator) in FUSED:
        return _attention(operator, args, kwargs)
    return compat.decompositions().get(operator, operator.decompose)(*args, **kwargs)


def _attention(operator: Any, args: Any, kwargs: Any) -> Any:
    if draws(operator, args, kwargs):
        return NotImplemented
    schema = compat.overload_schema(operator)
    places = [a for a in schema.arguments if not a.kwarg_only]
    given = [
        args[n] if n < len(args) else kwargs.get(a.name, a.default_value)
        for n, a in enumerate(places)
    ]
    row = find(name_of(operator))
    assert row is not None
    out, sums, *_ = DEFINITIONS[row.definition](*given, scale=kwargs.get("scale"))
    # Heads lie beside each other, as the kernels leave them: a view may follow.
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    kinds = [str(r.type) for r in schema.returns[2:]]
    return (out, sums, *[None if kind == "Tensor" else 0 for kind in kinds])
