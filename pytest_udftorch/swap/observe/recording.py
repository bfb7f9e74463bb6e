# SPDX-License-Identifier: Apache-2.0
"""What recorders of operators share: copies of arguments, and where the results of a call lie."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from pytest_udftorch.base import compat
from pytest_udftorch.base.tensor_contents import contents, is_plain, kind
from pytest_udftorch.swap.operators.overload import name_of
from pytest_udftorch.swap.operators.row import Kind, Row
from pytest_udftorch.swap.operators.rows import find

#: What has no row.
_PLAIN: Final = Row(name="", kind=Kind.MAPS)

#: The arguments by which a gradient gets what its operator left in memory, partly unwritten.
WORKSPACES: Final = frozenset({"reserve", "reserveSpace", "workspace"})


def strided_copy(value: Any) -> Any:
    """Return a copy of an argument that has the same strides; what is no tensor is returned."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    source = value.detach()
    if not is_plain(source):
        # What has no memory cannot be read, and nobody writes into it.
        return source.clone() if contents(source) and kind(source) != "zeros" else source
    copied = torch.empty_strided(
        source.shape, source.stride(), dtype=source.dtype, device=source.device
    )
    # Elements of expanded tensors lie at one place and are equal.
    return copied.copy_(source) if 0 not in source.stride() else source.clone()


class _Place(NamedTuple):
    position: int
    name: str

    def of(self, args: Any, kwargs: Any) -> Any:
        """Return the argument of a call, or None if it is left out."""
        return args[self.position] if self.position < len(args) else kwargs.get(self.name)


class Effects(NamedTuple):
    """Where the results of an overload lie.

    Attributes:
        written: arguments that it writes into.
        overwritten: those of them whose earlier contents do not matter, and workspaces.
        fresh: for each result, whether it is neither an argument, nor a view of one, nor memory for
            the backward pass, parts of which nobody wrote.
    """

    written: tuple[_Place, ...]
    overwritten: tuple[_Place, ...]
    fresh: tuple[bool, ...]


@functools.cache
def effects(operator: Any) -> Effects:
    """Return where the results of an overload lie, by its schema."""
    schema = compat.overload_schema(operator)
    row = find(name_of(operator)) or _PLAIN
    written, overwritten = [], []
    for index, argument in enumerate(schema.arguments):
        alias, place = argument.alias_info, _Place(index, argument.name)
        statistics = row.writes_statistics and argument.name.startswith("running_")
        if statistics or (alias is not None and alias.is_write):
            written.append(place)
            if argument.is_out or row.overwrites:
                overwritten.append(place)
        if argument.name in WORKSPACES:
            overwritten.append(_Place(index, argument.name))
    fresh = tuple(r.alias_info is None and i != row.workspace for i, r in enumerate(schema.returns))
    return Effects(tuple(written), tuple(overwritten), fresh)


def given(operator: Any, args: Any, kwargs: Any) -> list[Any]:
    """Return what a call gets, in order, without arguments that it only overwrites.

    A tensor that it gets twice, to read and to overwrite, is there once.
    """
    places = effects(operator).overwritten
    positions, names = {p.position for p in places}, {p.name for p in places}
    read = [a for at, a in enumerate(args) if at not in positions]
    return leaves_of([*read, *(v for name, v in kwargs.items() if name not in names)])


def leaves_of(values: Iterable[Any]) -> list[Any]:
    """Return what is in arguments of an operator and in lists of them, in order.

    torch's trees give the same, and take ten times as long.
    """
    found: list[Any] = []
    for value in values:
        if isinstance(value, (tuple, list)):
            found += leaves_of(value)
        else:
            found.append(value)
    return found


def results(operator: Any, args: Any, kwargs: Any, returned: Any) -> list[Any]:
    """Return the tensors that a call made, then those that it wrote into."""
    import torch

    found = effects(operator)
    several = len(found.fresh) > 1 and isinstance(returned, tuple | list)
    parts = list(returned) if several else [returned]
    made = [p for p, new in zip(parts, found.fresh, strict=False) if new]
    places = [*made, *[place.of(args, kwargs) for place in found.written]]
    tensors: list[Any] = []
    for one in places:
        if isinstance(one, torch.Tensor):
            tensors.append(one)
        elif isinstance(one, tuple | list):
            tensors += [t for t in compat.pytree().tree_leaves(one) if isinstance(t, torch.Tensor)]
    return tensors


def draws(operator: Any, args: Any, kwargs: Any) -> bool:
    """Tell whether a call draws random numbers; attention without dropout does not."""
    import torch

    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    for index, argument in enumerate(compat.overload_schema(operator).arguments):
        if argument.name == "dropout_p":
            given = args[index] if index < len(args) else kwargs.get(argument.name, 0.0)
            return bool(given)
    return True
