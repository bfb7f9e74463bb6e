# SPDX-License-Identifier: Apache-2.0
"""The cache of finished builds: one folder for each build, one lock and one check for all.

A build is written in a scratch folder, and one rename puts it in its place. Its ``build.json``
states the SHA-256 of every file, and a seal over what it states. A process checks a build before
it first uses it, and holds a shared lock on it from then on. It makes a damaged build again, and
refuses one that belongs to another user. After a build it removes what killed builders left,
and the builds that were used longest ago if the cache is over its limit.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base.host import require_host
from pytest_udftorch.base.open_files import refuse_too_few
from pytest_udftorch.errors import CacheError, UdfError

try:
    import fcntl
except ImportError:  # Windows
    require_host()
    raise

FACTS: Final = "build.json"
_SEAL: Final = "seal"

#: How the names of locks and scratch folders begin. Whatever has such a name may be removed.
_OURS: Final = ".udftorch-"


def inside(value: Any, where: str) -> None:
    """Check a path that leads from a folder to something in it: the shape of such values.

    Raises:
        Malformed: it is none.
    """
    shapes.of(str)(value, where)
    path = PurePosixPath(value)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in value:
        raise shapes.Malformed(f"{where} is {shapes.shown(value)}, which leads elsewhere")


#: Shape of the digests of a build's files.
DIGESTS: Final = shapes.mapping(inside, shapes.text(r"[0-9a-f]{64}"))
_FACTS: Final = shapes.record({"build": shapes.of(str), "files": DIGESTS}, closed=False)

#: What damaged JSON raises when it is read, and used as if it were whole.
DAMAGED: Final = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

#: What ``flock`` says on a filesystem without locks.
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)

#: Seconds between two attempts to take a lock.
_PAUSE: Final = 0.05

_turn = threading.RLock()
#: Descriptors of the lock files that this process holds.
_held: Final[set[int]] = set()
#: Build -> states of its files when they were checked, and its facts.
_checked: Final[dict[Path, tuple[tuple[int, ...], dict[str, Any]]]] = {}
#: Build -> descriptor with the shared lock that keeps other processes from evicting it.
_used: Final[dict[Path, int]] = {}


def cache_folder() -> Path:
    """Return the folder of finished builds: ``UDFTORCH_CACHE_DIR``, or the XDG cache.

    Raises:
        CacheError: the folder is below the home of a user who has none.
    """
    try:
        if named := os.environ.get("UDFTORCH_CACHE_DIR"):
            return Path(named).expanduser().absolute()
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # XDG's specification says that a relative path is to be ignored.
        base = base if base.is_absolute() else Path.home() / ".cache"
        return (base / "pytest_udftorch").absolute()
    except RuntimeError as error:
        raise CacheError(
            f"The build cache has no place: {str(error).rstrip('.')}. Set UDFTORCH_CACHE_DIR to a "
            "folder of yours."
        ) from error


def setting(name: str, default: float, error: type[UdfError] = CacheError) -> float:
    """Return a number, 0 or more, that an environment variable states.

    Raises:
        UdfError: it states something else; ``error`` is the class.
    """
    text = os.environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise error(f"{name}={text!r} is not a number from 0. Correct or unset it.")
    return value


def patience() -> float:
    """Return how many seconds to wait for another builder, or for a tool, at most."""
    return setting("UDFTORCH_BUILD_TIMEOUT", 600)


# The lock ----------------------------------------------------------------------------


def turn() -> threading.RLock:
    """Return the lock that lets one thread of this process build at a time."""
    return _turn


@contextlib.contextmanager
def opened(path: Path) -> Iterator[None]:
    """Keep other threads, and other processes that open the same path, out of a block.

    The cache folder is made if necessary. On a filesystem without locks other processes are not
    kept out; builds are renamed into their places, so they then make the same build twice.

    Raises:
        CacheError: the cache cannot be written; an ``OSError`` in the block says so too. Or
            another process holds the lock for too long, or other users can write the cache.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_open_to_others(path.parent)
        with turn():
            name = _lock_of(path.parent, path.name)
            before = set(_held)
            locked = False
            try:
                _lock(name)
                locked = True
                yield
            finally:
                # An interrupt may come before the lock is known here. A child that was forked in
                # the block has closed it already.
                for descriptor in _held - before:
                    with contextlib.suppress(OSError):
                        if locked:
                            name.unlink()
                    _held.discard(descriptor)
                    os.close(descriptor)
    except OSError as error:
        refuse_too_few(error)
        raise CacheError(
            f"The build cache {path.parent} cannot be written: {error}. Set UDFTORCH_CACHE_DIR to "
            "a folder that can be."
        ) from error


def _lock_of(folder: Path, name: str) -> Path:
    return folder / f"{_OURS}{name}.lock"


def _lock(name: Path) -> None:
    """Wait until this process alone holds a lock file, whose descriptor goes into ``_held``."""
    limit = patience()
    end = time.monotonic() + limit
    while True:
        descriptor = os.open(name, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        _held.add(descriptor)  # before it is locked, so that no forked child keeps the lock
        if _try_lock(descriptor, name) is not False:
            with contextlib.suppress(OSError):  # the disk may be full
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} on {os.uname().nodename}".encode(), 0)
            return
        if time.monotonic() > end:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "unknown"
            raise CacheError(
                f"Another process is building in {name.parent}, and this one has waited for it "
                f"for {limit:g} s. The process is {holder}. Wait until it is done, or end it, "
                "or set UDFTORCH_CACHE_DIR to another folder. UDFTORCH_BUILD_TIMEOUT sets how "
                "many seconds to wait."
            )
        _held.discard(descriptor)
        os.close(descriptor)
        time.sleep(_PAUSE)


def _try_lock(descriptor: int, name: Path) -> bool | None:
    """Lock a file unless somebody else holds it; return None if the filesystem has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The last holder has removed the file that was waited for; another may have a new one.
        return os.path.samestat(os.fstat(descriptor), name.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None


def _renew() -> None:
    """Replace the lock in a forked child, where the thread that holds it does not exist.

    The child closes its copies of the lock files: a lock lasts until every copy is closed.
    """
    global _turn
    _turn = threading.RLock()
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_renew)


# Remembering -------------------------------------------------------------------------


def remembered(name: str, state: Any, ask: Callable[[], str]) -> str:
    """Return an answer that is known from before for this state, or else what ``ask`` returns.

    Without a cache that can be written, every process asks for itself.

    Args:
        name: of the question, as part of a file's name.
        state: what the answer depends on, as plain data.
        ask: finds the answer. Its errors pass, and nothing is remembered.
    """
    state = json.loads(json.dumps(state))
    with contextlib.suppress(CacheError, *DAMAGED):
        path = cache_folder() / f"{name}.seen"
        refuse_foreign(path)
        said = unseal(shapes.read_file(path))
        if said["state"] == state and isinstance(said["answer"], str):
            return said["answer"]
    answer = ask()
    with contextlib.suppress(CacheError, OSError):
        path = cache_folder() / f"{name}.seen"
        with opened(path):
            store(path, seal({"state": state, "answer": answer}))
    return answer


# Checking ----------------------------------------------------------------------------


def seal(facts: Mapping[str, Any]) -> str:
    """Return facts as JSON that also states its own SHA-256."""
    return json.dumps({**facts, _SEAL: _seal_of(facts)}, indent=1)


def unseal(text: str | bytes) -> dict[str, Any]:
    """Return the facts that ``seal`` wrote.

    Raises:
        ValueError: the text is damaged.
    """
    try:
        facts: dict[str, Any] = json.loads(text)
    except RecursionError as error:
        raise ValueError("The text is nested too deeply.") from error
    shapes.record({_SEAL: shapes.of(str)}, closed=False)(facts, "the text")
    if facts.pop(_SEAL) != _seal_of(facts):
        raise ValueError("The text is not what was sealed.")
    return facts


def _seal_of(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state_of(found: os.stat_result) -> tuple[int, ...]:
    """Return what changes when a file changes, even if its time is set back."""
    return (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


def refuse_foreign(path: Path) -> os.stat_result:
    """Return the status of a file or folder if it belongs to the user of this process.

    Raises:
        CacheError: it belongs to another user.
        OSError: it does not exist, or is neither a file nor a folder.
    """
    found = path.lstat()
    if found.st_uid != os.geteuid():
        raise CacheError(
            f"{path} belongs to user {found.st_uid}, and this process runs as {os.geteuid()}. Code "
            "that another user built is not loaded. Delete it, or set UDFTORCH_CACHE_DIR to a "
            "folder of yours."
        )
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        raise OSError(f"{path} is neither a file nor a folder.")
    return found


def _refuse_open_to_others(folder: Path) -> None:
    """Refuse a folder whose content other users can exchange; in a sticky one they cannot."""
    found = folder.stat()
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise CacheError(
            f"Every user can write the build cache {folder}, and could put code there for this "
            f"process to load. Run chmod o-w {folder}, or set UDFTORCH_CACHE_DIR to a folder of "
            "yours."
        )
    if found.st_uid not in (os.geteuid(), 0):
        raise CacheError(
            f"The build cache {folder} belongs to user {found.st_uid}, and this process runs as "
            f"{os.geteuid()}. Set UDFTORCH_CACHE_DIR to a folder of yours."
        )


def look(folder: Path) -> dict[str, Any] | None:
    """Return what ``build.json`` states of an intact build; None if it is missing or damaged.

    Contents are compared once in a process, and again when a size or time changes. From then on
    the process holds a shared lock on ``build.json``, so that no other evicts the build.

    Raises:
        CacheError: the build belongs to another user, or other users can write the cache.
    """
    if folder in _checked:
        state, facts = _checked[folder]
        with contextlib.suppress(*DAMAGED):
            if state == _state(folder, facts):
                return dict(facts)
        del _checked[folder]
    try:
        refuse_foreign(folder)
        _refuse_open_to_others(folder.parent)
        refuse_foreign(folder / FACTS)
        _use(folder, folder / FACTS)
        facts = unseal(shapes.read_file(folder / FACTS))
        _FACTS(facts, FACTS)
        state = _state(folder, facts)
        if facts["build"] != folder.name:
            return None
        if any(sha256_of(folder / name) != digest for name, digest in facts["files"].items()):
            return None
    except DAMAGED:
        return None
    with contextlib.suppress(OSError):  # the cache may be read-only
        os.utime(folder)
    _checked[folder] = (state, facts)
    return dict(facts)


def _state(folder: Path, facts: Mapping[str, Any]) -> tuple[int, ...]:
    state: list[int] = []
    for name in (FACTS, *facts["files"]):
        state += state_of(refuse_foreign(folder / name))
    return tuple(state)


def _use(folder: Path, file: Path) -> None:
    """Hold a shared lock on the ``build.json`` of a build until the process ends.

    Raises:
        OSError: another process is evicting the build.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    before = _used.pop(folder, None)
    _used[folder] = descriptor
    if before is not None:
        os.close(before)


def let_go(folder: Path, *, remove: bool = False) -> None:
    """Stop using a build in this process.

    Args:
        folder: the build.
        remove: remove it too, unless another process uses it.
    """
    descriptor = _used.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)
    if remove:
        with contextlib.suppress(OSError), _unless_locked(folder / FACTS) as free:
            if free:
                _checked.pop(folder, None)
                with scratch(folder) as aside:
                    folder.rename(aside / "old")


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
                tidy_now_and_then(folder.parent)
    return facts


@contextlib.contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """Make a private folder below one beside a path, and remove both at the end."""
    home = Path(tempfile.mkdtemp(prefix=f"{_OURS}{path.name}-", dir=path.parent))
    try:
        (home / "new").mkdir(mode=0o700)
        yield home / "new"
    finally:
        shutil.rmtree(home, ignore_errors=True)


def publish(aside: Path, folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Rename a finished scratch folder into its place, and return its facts.

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
    text = seal(stated)
    (aside / FACTS).write_text(text, encoding="utf-8")
    for path in (*files, aside / FACTS, aside):
        sync(path)
    told = unseal(text)  # the facts as the next process will read them
    state = _state(aside, told)  # a rename of the folder leaves the files as they are
    _use(folder, aside / FACTS)
    while True:
        try:
            aside.replace(folder)
            break
        except OSError:
            if not os.path.lexists(folder):
                raise
        # A damaged build is in the way. Or, where there are no locks, another process was first:
        # its build stays where it is, because a third may be reading it.
        before = look(folder)
        if before is not None and before["files"] == stated["files"]:
            return before
        with contextlib.suppress(FileNotFoundError):
            folder.rename(Path(tempfile.mkdtemp(prefix="old-", dir=aside.parent)) / "old")
    sync(folder.parent)
    _checked[folder] = (state, told)
    return dict(told)


def store(path: Path, text: str, locked: Path | None = None) -> None:
    """Write a new file beside a path, and rename it to the path.

    Args:
        path: of the file.
        text: its content.
        locked: the path whose lock is held; by default the file's.
    """
    with scratch(locked or path) as aside:
        new = aside / path.name
        new.touch(mode=0o600)
        new.write_text(text, encoding="utf-8")
        sync(new)
        if path.is_dir():
            path.rename(aside / "old")
        new.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Removing ----------------------------------------------------------------------------


def limit() -> float:
    """Return the size to which the cache is cut after builds, in bytes.

    Raises:
        CacheError: ``UDFTORCH_CACHE_MIB`` is no number.
    """
    return setting("UDFTORCH_CACHE_MIB", 4096) * 2**20


#: Cache and its limit -> when this process last tidied it, by ``time.monotonic``.
_tidied: Final[dict[tuple[Path, float], float]] = {}

#: Tidying reads the whole cache, which can take longer than a build: a process does it once in so
#: many seconds.
_TIDY_AFTER: Final = 60.0


def tidy_now_and_then(root: Path) -> None:
    """Tidy a cache after a build, unless this process has just done it."""
    key, now = (root, limit()), time.monotonic()
    if now - _tidied.get(key, -_TIDY_AFTER) >= _TIDY_AFTER:
        _tidied[key] = now
        tidy(root)


def tidy(root: Path, most: float | None = None) -> None:
    """Remove what killed builders left in a cache, and what puts it over its limit.

    Only what this package wrote is removed, whatever else the folder holds. The builds that were
    used longest ago go first, and none that a process uses.

    Args:
        root: the cache.
        most: bytes that may stay; by default its limit.
    """
    most = limit() if most is None else most
    with contextlib.suppress(OSError):
        for left in (*root.glob(f"{_OURS}*"), *root.glob(f"*/{_OURS}*")):
            name = left.name.removeprefix(_OURS)
            name = name[:-5] if name.endswith(".lock") else name.rpartition("-")[0]
            with _unless_locked(_lock_of(left.parent, name), os.O_CREAT) as free:
                if free and left.is_dir():
                    shutil.rmtree(left, ignore_errors=True)
        _evict(root, most)
        for index in (*root.glob("*.reads"), *root.glob("*.recipe")):
            with contextlib.suppress(*DAMAGED):
                said = unseal(shapes.read_file(index))
                if not index.with_name(said["folder"]).exists():
                    index.unlink()


@contextlib.contextmanager
def clean_scratch(path: Path) -> Iterator[Path]:
    """Make a private folder beside a path, as :func:`scratch` does, in a folder of the user.

    What killed processes left there of the same path is removed first, unless another process
    is making the path now.
    """
    with _unless_locked(_lock_of(path.parent, path.name), os.O_CREAT) as free:
        if free:
            # Eight characters that tempfile chose, none of which is a hyphen.
            pattern = re.compile(rf"{re.escape(_OURS + path.name)}-[a-z0-9_]{{8}}")
            with contextlib.suppress(OSError):
                for left in path.parent.iterdir():
                    mine = left.lstat().st_uid == os.geteuid() and not left.is_symlink()
                    if pattern.fullmatch(left.name) and mine:
                        shutil.rmtree(left, ignore_errors=True)
        with scratch(path) as aside:
            yield aside


@dataclass(frozen=True)
class Stored:
    """A build in a cache.

    Attributes:
        folder: where it lies.
        bytes: its size.
        used_ns: when it was last used, in ns since the epoch.
        facts: what ``build.json`` states.
    """

    folder: Path
    bytes: int
    used_ns: int
    facts: Mapping[str, Any]


def builds(root: Path) -> list[Stored]:
    """Return the builds in a cache, the one that was used longest ago first."""
    found = []
    for file in root.glob(f"*/{FACTS}"):
        with contextlib.suppress(*DAMAGED):
            folder = file.parent
            facts = unseal(shapes.read_file(file))
            if facts["build"] == folder.name:
                size = sum(p.lstat().st_size for p in folder.rglob("*"))
                found.append(Stored(folder, size, folder.lstat().st_mtime_ns, facts))
    return sorted(found, key=lambda build: (build.used_ns, build.bytes, build.folder))


def _evict(root: Path, most: float) -> None:
    stored = builds(root)
    total = sum(build.bytes for build in stored)
    for build in stored:
        if total <= most:
            return
        with contextlib.suppress(OSError), _unless_locked(build.folder / FACTS) as free:
            if free:
                with scratch(build.folder) as aside:
                    build.folder.rename(aside / "old")
                total -= build.bytes


@contextlib.contextmanager
def _unless_locked(path: Path, flags: int = 0) -> Iterator[bool]:
    """Lock a file during a block, and tell whether that was possible."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | flags, 0o600)
    except OSError:
        yield False
        return
    try:
        free = _try_lock(descriptor, path) is True
        try:
            yield free
        finally:
            if free and flags:
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
