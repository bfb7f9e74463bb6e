# SPDX-License-Identifier: Apache-2.0
"""Sessions of the library ``stochastic`` with a seed."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_udftorch.errors import DiagnosisError

if TYPE_CHECKING:
    from pytest_udftorch.swap.session.session import Session

#: The variable of the library that holds the seed; udfs/stochastic/stochastic.h defines it.
_SEED: Final = "udf_stochastic_seed"

#: The seeds of the sessions that are open in this process: one or none.
_open: list[int] = []


@contextlib.contextmanager
def stochastic(
    seed: int = 0,
    functions: Sequence[str] | None = None,
    *,
    library: str | Path = "stochastic",
) -> Iterator[Session]:
    """Open a session in which every inexact result goes up or down at random.

    A seed chooses one of 2^32 deterministic libraries: equal arguments have equal results in any
    thread and order. It holds in the whole process. Two of these sessions cannot be open at once.

    Args:
        seed: 0 to 2^32 - 1.
        functions: torch's names; by default all of the library.
        library: one whose build has the variable ``udf_stochastic_seed``.

    Raises:
        DiagnosisError: the seed is out of range, the library takes none, or another of these
            sessions is open.
        UdfError: as from opening a session.
    """
    from pytest_udftorch.swap.session.session import patched

    if not 0 <= seed < 2**32:
        raise DiagnosisError(f"seed={seed} is out of range. Give 0 to 2^32 - 1.")
    if _open:
        raise DiagnosisError(
            f"A stochastic session with seed {_open[0]} is open. Close it first: the process has "
            "one seed."
        )
    _open.append(seed)
    try:
        with patched(library, functions, ranks="ignore") as session:
            held = _variable(session)
            held.value = seed
            try:
                yield session
            finally:
                # Sessions compare results with those of seed 0 when they begin.
                held.value = 0
    finally:
        _open.remove(seed)


def _variable(session: Session) -> Any:
    if session.build is not None:
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            return ctypes.c_uint32.in_dll(session.build.load(), _SEED)
    raise DiagnosisError(
        f"UDF library {session.library.name!r} takes no seed: its build has no variable {_SEED}. "
        "Use 'stochastic', or define the variable as udfs/stochastic/stochastic.h does."
    )
