# SPDX-License-Identifier: Apache-2.0
"""One run of a test or a metric, and what came of it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.tensor_contents import contents, is_plain, kind
from pytest_udftorch.errors import DiagnosisError, UdfError

#: How the outcome of a metric begins that ended with an exception.
RAISED: Final = "raised"


@dataclass(frozen=True)
class Outcome:
    """What came of a run.

    Attributes:
        shown: in words: the value, or ``passed`` or ``failed`` with the reason.
        digest: of all bits of a value, or the word of a test.
        value: as a number, if it is one; NaN otherwise. The digest is compared in its place.
    """

    shown: str
    digest: str
    value: float = field(default=math.nan, compare=False)

    def differs(self, other: Outcome, by: float) -> bool:
        """Tell whether two outcomes differ, numbers by more than ``by``."""
        if self.digest == other.digest:
            return False
        if not by or math.isnan(self.value) or math.isnan(other.value):
            return True
        return abs(self.value - other.value) > by


def outcome_of(value: Any) -> Outcome:
    """Return the outcome of a metric.

    Args:
        value: a number, a tensor, an array, or lists and dictionaries of them.

    Raises:
        DiagnosisError: it is nothing that can be compared.
    """
    import numpy as np
    import torch

    from pytest_udftorch.swap.observe.digests import array_of, digest_of

    leaves = [leaf for leaf in compat.pytree().tree_leaves(value) if leaf is not None]
    digest = hashlib.sha1(usedforsecurity=False)
    numbers: list[float] = []
    count = 0
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            parts = contents(leaf.detach())
            if parts is None:
                raise DiagnosisError(
                    f"The metric returned a tensor of the kind {kind(leaf)}, whose numbers cannot "
                    "be read. Return them as an ordinary tensor."
                )
            for part in parts:
                digest.update(digest_of(array_of(part), str(part.dtype)))
            count += sum(part.numel() for part in parts)
            single = is_plain(leaf) and leaf.numel() == 1 and not leaf.is_complex()
            numbers += [float(leaf.detach())] if single else []
        elif isinstance(leaf, np.ndarray | np.generic):
            digest.update(np.ascontiguousarray(leaf).tobytes())
            count += leaf.size
            numbers += [float(leaf)] if leaf.size == 1 else []
        elif isinstance(leaf, bool | int | float | str):
            digest.update(repr(leaf).encode())
            count += 1
            numbers += [] if isinstance(leaf, str) else [float(leaf)]
        else:
            raise DiagnosisError(
                f"The metric returned {type(leaf).__name__}, which cannot be compared. Return a "
                "number, a tensor, or a list or dictionary of them."
            )
    if not leaves:
        raise DiagnosisError("The metric returned nothing. Return a number, or a tensor.")
    if len(leaves) == len(numbers) == 1:
        return Outcome(f"{numbers[0]!r}", digest.hexdigest(), numbers[0])
    return Outcome(f"{count:,} numbers, {digest.hexdigest()[:12]}", digest.hexdigest())


def measured(metric: Callable[[], Any], seed: int) -> Outcome:
    """Call a metric with seeded generators; an exception is an outcome, too."""
    from pytest_udftorch.diagnose.runs.work import seeded

    with seeded(seed):
        try:
            value = metric()
        except UdfError:
            raise
        except Exception as error:
            shown = f"{RAISED} {type(error).__name__}: {error}"
            return Outcome(shown, shown)
    return outcome_of(value)
