# SPDX-License-Identifier: Apache-2.0
"""What to do where a process may open no more files."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator

from pytest_udftorch.errors import CacheError


@contextlib.contextmanager
def enough_files() -> Iterator[None]:
    """Say what to do where a block cannot open files because too many are open.

    Raises:
        CacheError: it is so.
    """
    try:
        yield
    except OSError as error:
        refuse_too_few(error)
        raise


def refuse_too_few(error: OSError) -> None:
    """Say what to do if the process, or the machine, may open no more files.

    Raises:
        CacheError: it is so.
    """
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    raise CacheError(
        f"A session opens a few files, and this process may open no more: its limit is {limit:,} "
        f"at once. Close files, or raise the limit (ulimit -n, at most {most:,} here). The system "
        f"says: {error}"
    ) from error
