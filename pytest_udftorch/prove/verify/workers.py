# SPDX-License-Identifier: Apache-2.0
"""Running many chunks: in this process, or on the workers of a dask.distributed cluster."""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import VerifyError
from pytest_udftorch.prove.verify.candidate import STOCK
from pytest_udftorch.prove.verify.certificate import ChunkResult
from pytest_udftorch.prove.verify.chunks import run_chunk, shipped
from pytest_udftorch.prove.verify.schedule import Schedule

#: How long to wait for a scheduler, in seconds.
CONNECT_SECONDS: Final = 30

#: How often to start the event loop of dask.distributed.
_STARTS: Final = 3


def results_of(
    schedule: Schedule, todo: Sequence[int], workers: int, scheduler: str | None
) -> Iterator[ChunkResult]:
    """Yield the results of chunks in the order in which they finish."""
    if workers == 0 and scheduler is None:
        yield from map(partial(run_chunk, schedule), todo)
        return
    with cluster(workers, scheduler) as client:
        dask = _distributed()
        client.register_plugin(_files_plugin(schedule), name="udftorch-files")
        # A chunk depends on nothing but its number, but two runs must not share results.
        futures = client.map(partial(run_chunk, schedule), todo, pure=False)
        try:
            for future in dask.as_completed(futures, loop=client.loop):
                yield future.result()
                future.release()
        except dask.KilledWorker as error:
            raise VerifyError(
                f"Several workers died on the same chunk of {schedule.candidate.function}: "
                f"{error}. Finished chunks are recorded; look for too little memory or a crash "
                "in the function itself (--workers 0 runs it in this process), then use --resume."
            ) from error
        finally:
            client.cancel(futures)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise VerifyError(
            "dask.distributed, which spreads the chunks over processes, is not installed: pip "
            "install 'dask[distributed]', or use --workers 0 to stay in this process."
        ) from error
    return distributed


@contextmanager
def cluster(workers: int, scheduler: str | None) -> Iterator[Any]:
    """Yield a client of dask.distributed: of new local workers, or of a scheduler's.

    Raises:
        VerifyError: dask.distributed is missing, or no scheduler answers.
    """
    dask = _distributed()
    if scheduler is None:
        with (
            _started(
                dask.LocalCluster,
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                # Any free port, so that two runs at once do not collide.
                dashboard_address="127.0.0.1:0",
                # Chunks need two fixed buffers; dask's guard would pause workers whose
                # libtorch is mapped.
                memory_limit=0,
            ) as cluster,
            dask.Client(cluster) as client,
        ):
            yield client
        return
    try:
        # As a default it would stay dask's scheduler even if its loop did not start.
        client = _started(dask.Client, scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise VerifyError(
            f"No dask scheduler answers at {scheduler!r}: {error}. Start one with 'dask "
            "scheduler', and workers with 'dask worker' where this package is installed."
        ) from error
    with client:
        yield client


def _started(make: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Make a client or a cluster, whose event loop has to start first.

    distributed gives the loop's thread 10 s, and then fails an assertion. A busy machine can take
    longer, so there are three attempts. A loop that starts too late stays idle in a daemon.

    Raises:
        VerifyError: the loop has not started in any of them.
    """
    attempts = 0
    while True:
        try:
            return make(*args, **keywords)
        except AssertionError as error:
            attempts += 1
            if attempts == _STARTS:
                raise VerifyError(
                    f"The event loop of dask.distributed did not start in {_STARTS} attempts of "
                    "10 s, so this machine is too busy. Run again when it is not, or use "
                    "--workers 0 to stay in this process."
                ) from error


@contextmanager
def cluster_address(workers: int | None, scheduler: str | None) -> Iterator[str | None]:
    """Yield the scheduler of a cluster that many runs share: the given one or a local one.

    With 0 workers, it yields None: the runs stay in this process.
    """
    if workers == 0 or scheduler is not None:
        yield scheduler
        return
    with cluster(workers or default_workers(), None) as client:
        yield client.scheduler.address


def _files_plugin(schedule: Schedule) -> Any:
    """Return a plugin that sends the schedule's files to all workers, later ones too."""
    contents = {}
    for role, (name, sha256) in schedule.files.items():
        # libtorch is too large to send: workers must have the same one.
        if role != "candidate" or schedule.candidate.library not in STOCK:
            contents[sha256] = (Path(name).name, Path(name).read_bytes())

    def setup(self: Any, worker: Any) -> None:
        receive_files(contents, Path(worker.local_directory))

    return type("Files", (_distributed().WorkerPlugin,), {"setup": setup})()


def receive_files(contents: Mapping[str, tuple[str, bytes]], folder: Path) -> None:
    """Store files that a schedule needs (SHA-256 -> name, content) on a worker."""
    for sha256, (name, content) in contents.items():
        if hashlib.sha256(content).hexdigest() != sha256:
            raise VerifyError(f"{name} was damaged on its way to {platform.node()}.")
        target = folder / f"{sha256[:16]}-{name}"
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as scratch:
            scratch.write(content)
        os.replace(scratch.name, target)
        shipped[sha256] = target


def default_workers() -> int:
    """Return one worker per CPU that this process may use."""
    return len(os.sched_getaffinity(0))
