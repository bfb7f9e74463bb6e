# SPDX-License-Identifier: Apache-2.0
"""The cache of finished builds: one folder for each build, one lock and one check for all.

A build is written in a scratch folder, and one rename puts it in its place. Its ``build.json``
states the SHA-256 of every file. A process checks a build before it first uses it. It makes a
damaged build again, and refuses one that belongs to another user.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.compat import require_host
from pytest_udftorch.errors import CacheError

try:
    import fcntl
except ImportError:  # Windows
    require_host()
    raise

FACTS: Final = "build.json"

#: What damaged JSON raises when it is read, and used as if it were whole.
DAMAGED: Final = (OSError, ValueError, KeyError, TypeError, AttributeError)

_turn = threading.RLock()
#: Descriptors of the lock files that this process holds.
_held: Final[set[int]] = set()
#: Build -> sizes and times of its files when they were checked, and its facts.
_checked: Final[dict[Path, tuple[tuple[int, ...], dict[str, Any]]]] = {}


def cache_folder() -> Path:
    """Return the folder of finished builds: ``UDFTORCH_CACHE_DIR``, or the XDG cache."""
    if named := os.environ.get("UDFTORCH_CACHE_DIR"):
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "pytest_udftorch"


# The lock ----------------------------------------------------------------------------


def turn() -> threading.RLock:
    """Return the lock that lets one thread of this process build at a time."""
    return _turn


@contextlib.contextmanager
def opened(path: Path) -> Iterator[None]:
    """Keep other threads, and other processes that open the same path, out of a block.

    The cache folder is made if necessary.

    Raises:
        CacheError: the cache cannot be written; an ``OSError`` in the block says so too.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with turn():
            name = path.with_name(f"{path.name}.lock")
            descriptor = os.open(name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            _held.add(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                yield
            finally:
                if descriptor in _held:  # a child that was forked in the block has closed it
                    _held.discard(descriptor)
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                    os.close(descriptor)
    except OSError as error:
        raise CacheError(
            f"The build cache {path.parent} cannot be written: {error}. Set UDFTORCH_CACHE_DIR to "
            "a folder that can be."
        ) from error


def _renew() -> None:
    """Replace the lock in a forked child, where the thread that holds it does not exist.

    The child closes its copies of the lock files: a lock lasts until every copy is closed.
    """
    global _turn
    _turn = threading.RLock()
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_renew)


# Checking ----------------------------------------------------------------------------


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_foreign(path: Path) -> os.stat_result:
    """Return the file's status if it belongs to the user of this process.

    Raises:
        CacheError: it belongs to another user.
        OSError: it does not exist.
    """
    found = path.lstat()
    if found.st_uid != os.geteuid():
        raise CacheError(
            f"{path} belongs to user {found.st_uid}, and this process runs as {os.geteuid()}. Code "
            "that another user built is not loaded. Delete it, or set UDFTORCH_CACHE_DIR to a "
            "folder of yours."
        )
    return found


def look(folder: Path) -> dict[str, Any] | None:
    """Return what ``build.json`` states of an intact build; None if it is missing or damaged.

    Contents are compared once in a process, and again when a size or time changes.

    Raises:
        CacheError: the build belongs to another user.
    """
    if folder in _checked:
        state, facts = _checked[folder]
        with contextlib.suppress(*DAMAGED):
            if state == _state(folder, facts):
                return facts
        del _checked[folder]
    try:
        refuse_foreign(folder)
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        state = _state(folder, facts)
        if facts["build"] != folder.name:
            return None
        if any(sha256_of(folder / name) != digest for name, digest in facts["files"].items()):
            return None
    except DAMAGED:
        return None
    _checked[folder] = (state, facts)
    return dict(facts)


def _state(folder: Path, facts: Mapping[str, Any]) -> tuple[int, ...]:
    state: list[int] = []
    for name in (FACTS, *facts["files"]):
        found = refuse_foreign(folder / name)
        state += (found.st_mtime_ns, found.st_size, found.st_ino)
    return tuple(state)


# Writing -----------------------------------------------------------------------------


def fill(folder: Path, make: Callable[[Path], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the facts of a build; make the build first if it is missing or damaged.

    If several threads and processes want it, one makes it and the others wait.

    Args:
        folder: where the build belongs.
        make: writes its files into the folder it is given, and returns facts for ``build.json``.

    Raises:
        CacheError: the cache cannot be written, or the build belongs to another user.
    """
    facts = look(folder)
    if facts is None:
        with opened(folder):
            facts = look(folder)
            if facts is None:
                with scratch(folder) as aside:
                    facts = publish(aside, folder, make(aside))
    return facts


@contextlib.contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """Make a private folder beside a path, and remove it at the end."""
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def publish(aside: Path, folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a finished folder into its place, and return its facts.

    An intact build with the same content stays, because a process may be about to load it.
    """
    files = sorted(p for p in aside.rglob("*") if p.is_file())
    stated = {
        **facts,
        "build": folder.name,
        "files": {str(p.relative_to(aside)): sha256_of(p) for p in files},
    }
    if (before := look(folder)) is not None and before["files"] == stated["files"]:
        return before
    text = json.dumps(stated, indent=1)
    (aside / FACTS).write_text(text, encoding="utf-8")
    for path in (*files, aside / FACTS, aside):
        _sync(path)
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
    aside.replace(folder)
    _sync(folder.parent)
    told: dict[str, Any] = json.loads(text)  # the facts as the next process will read them
    _checked[folder] = (_state(folder, told), told)
    return dict(told)


def store(path: Path, text: str) -> None:
    """Write a new file beside a path, and rename it to the path."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
