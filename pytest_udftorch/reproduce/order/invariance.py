# SPDX-License-Identifier: Apache-2.0
"""Whether a row's result depends on the batch around it, or on its position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from pytest_udftorch.base.result import Result
from pytest_udftorch.errors import SummationError
from pytest_udftorch.reproduce.order.masking import summation_tree

#: Trials with random numbers for each batch.
_TRIALS: Final = 8


@dataclass(frozen=True, repr=False)
class Invariance(Result):
    """What held, and how it was decided.

    Attributes:
        by: ``trees`` if the order of additions was read, and trials agreed; ``trials`` if the
            operator is no plain sum, so that random rows alone were compared.
        why: why no trees could be read, or "".
        compared: how many batches, or positions, were compared.
    """

    by: Literal["trees", "trials"]
    why: str
    compared: int

    def text(self) -> str:
        """Return what held as a line."""
        why = f" ({self.why})" if self.why else ""
        return f"the same in {self.compared:,} cases, by {self.by}{why}"

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def _example(shape: Sequence[int], seed: int) -> Any:
    import torch

    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed))


def _called(op: Any, x: Any) -> Any:
    import torch

    with torch.no_grad():
        found = op(x)
    return found[0] if isinstance(found, tuple | list) else found


def _by_trees(
    op: Any, row: Sequence[int], cases: Iterable[tuple[str, int, int]], device: Any
) -> tuple[str, str]:
    """Compare the trees of a row; return how cases differ, and why there are no trees."""
    first: tuple[str, Any] | None = None
    for name, rows, at in cases:

        def one(x: Any, at: int = at) -> Any:
            return op(x)[at]

        try:
            tree = summation_tree(one, (rows, *row), device=device)
        except SummationError as error:
            return "", str(error)
        if first is None:
            first = name, tree
        elif str(tree) != str(first[1]):
            return (
                f"the order of additions is another one: {first[0]}: {first[1].kind()} "
                f"({first[1].digest}), {name}: {tree.kind()} ({tree.digest})"
            ), ""
    return "", ""


def _judge(what: str, said: str) -> None:
    if said:
        raise AssertionError(
            f"The result of a row depends on {what}: {said}. Compute in a library that promises "
            "otherwise, or compare results with a tolerance."
        )


def assert_batch_invariant(
    op_or_module: Callable[[Any], Any],
    sizes: Sequence[int],
    row: Sequence[int],
    *,
    device: Any = "cpu",
) -> Invariance:
    """Assert that the result of a row does not depend on how many rows there are.

    Args:
        op_or_module: takes one tensor and returns one whose first dimension is the batch.
        sizes: the sizes of the batch.
        row: the shape of one row.
        device: where the tensors lie.

    Returns:
        How it was decided. The first row is compared by its order of additions, where the operator
        is a plain sum, and all rows by random numbers.

    Raises:
        AssertionError: a row's result differs between two batches.
        SummationError: there are fewer than two sizes, or one is below 1.
    """
    import torch

    if len(set(sizes)) < 2 or min(sizes) < 1:
        raise SummationError(f"sizes={sizes!r}: give two sizes of a batch or more, 1 or above.")
    said, why = _by_trees(op_or_module, row, [(f"batch {s}", s, 0) for s in sizes], device)
    _judge("the size of the batch", said)
    for trial in range(_TRIALS):
        x = _example((max(sizes), *row), trial).to(device)
        whole = _called(op_or_module, x)
        for size in sizes:
            part = _called(op_or_module, x[:size].clone())
            same = torch.equal(part, whole[:size])
            _judge("the size of the batch", "" if same else f"batches {size} and {max(sizes)}")
    return Invariance("trials" if why else "trees", why, len(sizes))


def assert_position_invariant(
    op_or_module: Callable[[Any], Any], rows: int, row: Sequence[int], *, device: Any = "cpu"
) -> Invariance:
    """Assert that equal rows have equal results, wherever in the batch they lie.

    The arguments are those of :func:`assert_batch_invariant`; ``rows`` is the size of the batch.

    Raises:
        AssertionError: a row's result depends on its position.
        SummationError: there are fewer than two rows.
    """
    import torch

    if rows < 2:
        raise SummationError(f"rows={rows}: give two rows or more.")
    cases = [(f"row {at}", rows, at) for at in sorted({0, 1, rows // 2, rows - 1})]
    said, why = _by_trees(op_or_module, row, cases, device)
    _judge("its position", said)
    for trial in range(_TRIALS):
        x = _example((1, *row), trial).to(device).expand(rows, *row).contiguous()
        y = _called(op_or_module, x)
        differs = [at for at in range(rows) if not torch.equal(y[at], y[0])]
        _judge("its position", f"rows 0 and {differs[0]}" if differs else "")
    return Invariance("trials" if why else "trees", why, rows)
