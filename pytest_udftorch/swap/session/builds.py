# SPDX-License-Identifier: Apache-2.0
"""What a session needs that is compiled, in the order in which it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

from pytest_udftorch.swap.contract.kernels import KERNELS
from pytest_udftorch.swap.contract.native import contract_job
from pytest_udftorch.swap.counting.observer import OBSERVER
from pytest_udftorch.swap.cpu.loops import loops_job
from pytest_udftorch.swap.library.description import UdfLibrary, is_operator
from pytest_udftorch.swap.overrides.switchboard import SWITCHBOARD
from pytest_udftorch.swap.session.exclusive import GATE
from pytest_udftorch.swap.toolchain.agenda import Candidate
from pytest_udftorch.swap.toolchain.compiler import (
    ABSENT,
    Compiler,
    find_compiler,
    resolve_cpu_level,
)
from pytest_udftorch.swap.toolchain.job import Job, available, obtain
from pytest_udftorch.swap.toolchain.shared_library import library_job


def builds(
    library: UdfLibrary,
    names: Sequence[str],
    cpu_level: str | None = None,
    *,
    profiled: bool = False,
    exclusive: bool = False,
    watching: bool = False,
) -> Iterator[Candidate]:
    """Yield what a session of a library needs, by its options; see :class:`Session`.

    Operators of a library's own, in C++, are left out: they are compiled for one library.

    Args:
        library: of the session.
        names: of its functions, composites and operators.
        cpu_level: as for :func:`patched`.
        profiled: whether it counts.
        exclusive: whether other threads wait.
        watching: whether operators and layers of calls are noted, as ``--udf-strict`` asks.
    """
    level = resolve_cpu_level(cpu_level)
    if not library.stock and not all(map(is_operator, names)):
        yield _candidate(functools.partial(library_job, library, level, profiled=profiled))
    if exclusive:
        yield GATE.candidate()
    if not library.stock:
        yield SWITCHBOARD.candidate()
        operators = [o for name in names if is_operator(name) for o in library.operators[name]]
        sources = {one.python for one in operators if one.python is not None}
        if any(b"swap.contract" in source.read_bytes() for source in sources):
            if not profiled:
                yield KERNELS.candidate()
            yield _candidate(functools.partial(contract_job, level))
    if profiled or watching:
        yield OBSERVER.candidate()
    if not library.stock:
        yield _candidate(functools.partial(loops_job, level))


def _candidate(make: Callable[[Compiler], Job]) -> Candidate:
    job = make(ABSENT)
    return Candidate(
        job.what or job.output,
        job.kind,
        functools.partial(available, make, find_compiler),
        functools.partial(obtain, make, find_compiler),
    )
