"""The cache of finished builds."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_udftorch.errors import CacheError


def cache_folder() -> Path:
    """Return the folder of finished builds: ``UDFTORCH_CACHE_DIR``, or the XDG cache."""
    named = os.environ.get("UDFTORCH_CACHE_DIR")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pytest_udftorch"


@contextlib.contextmanager
def writing(cache: Path) -> Iterator[None]:
    """Name the folder of the cache that what is done here could not write.

    Raises:
        CacheError: instead of an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise CacheError(
            f"The build cache {cache} cannot be written: {error}. Set UDFTORCH_CACHE_DIR to a "
            "folder that can."
        ) from error


def in_cache(folder: Path, make: Callable[[Path], None]) -> None:
    """Fill ``folder`` of the cache by ``make(scratch)``, unless it holds a ``build.json``.

    ``make`` writes ``build.json`` last; the scratch folder then appears by one rename. Of
    several processes one makes, the others wait.

    Raises:
        CacheError: the cache folder cannot be written.
    """
    if (folder / "build.json").is_file():
        return
    from filelock import FileLock

    cache = folder.parent
    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{folder.name}.lock"):
            if (folder / "build.json").is_file():
                return
            scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=cache))
            try:
                make(scratch)
                if folder.exists():  # without build.json: left by a crash of the machine
                    shutil.rmtree(folder)
                scratch.chmod(0o755)
                scratch.replace(folder)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
