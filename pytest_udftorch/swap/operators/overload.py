# SPDX-License-Identifier: Apache-2.0
"""What the schema of an overload says, and what its row says of one call."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_udftorch.base import compat
from pytest_udftorch.swap.operators.rows import find


def name_of(operator: Any) -> str:
    """Return the name of an overload's operator without its namespace: ``gelu``."""
    return str(operator.name()).partition("::")[2].partition(".")[0]


@functools.cache
def is_view(operator: Any) -> bool:
    """Tell whether an overload returns views of its arguments, and so computes nothing."""
    schema = compat.overload_schema(operator)
    returned = [r.alias_info for r in schema.returns]
    return bool(returned) and all(a is not None and not a.is_write for a in returned)


def says_numbers(operator: Any) -> bool:
    """Tell whether the results of an overload are numbers, and not whatever lay in memory."""
    row = find(name_of(operator))
    return row is None or row.values


def arguments_of(operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name; those that it leaves out are left out."""
    named = [a.name for a in compat.overload_schema(operator).arguments]
    return {**dict(zip(named, args, strict=False)), **kwargs}


def is_exact(operator: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}) -> bool:
    """Tell whether a call moves, chooses or makes numbers, and rounds none; views do.

    A copy to a shorter type is not asked about: see ``casts`` of :class:`~.row.Row`.
    """
    row = find(name_of(operator))
    if row is None or not row.exact:
        return is_view(operator)
    match row.rounds_if:
        case "accumulate":
            return not arguments_of(operator, args, kwargs).get("accumulate", False)
        case "reduce" | "decimals":
            return row.rounds_if not in str(operator.name())
        case "fractions":
            given = arguments_of(operator, args, kwargs).values()
            return all(v == int(v) for v in given if isinstance(v, float))
    return True
