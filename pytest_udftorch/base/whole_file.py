# SPDX-License-Identifier: Apache-2.0
"""Files that appear whole or not at all, whatever ends the process that writes them."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pytest_udftorch.base.host import require_host

try:
    import fcntl
except ImportError:  # Windows
    require_host()
    raise

#: How the names of files begin that are being written.
_OURS: Final = ".udftorch-new-"

#: A folder this old, in seconds, is locked by the process that made it.
_SETTLED_S: Final = 60

#: What ``flock`` says on a filesystem without locks.
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextlib.contextmanager
def replaced(path: str | Path) -> Iterator[Path]:
    """Yield a path to write to; it takes the place of ``path`` at the end of the block.

    The content reaches the disk first. An exception, or the end of the process, leaves what was
    there before. A link keeps leading to its file, and a pipe or a device is written to as it is.
    What killed processes left beside the path is removed. A file in a folder that cannot be
    written is written in place, and may then be found half written.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    before = _mode(Path(path))
    if before is not None and not stat.S_ISREG(before):
        yield Path(path)
        return
    target = Path(os.path.realpath(path))
    if before is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    try:
        scratch, held = _new(target)
    except PermissionError:
        if before is None:
            raise
        yield target
        return
    try:
        if before is not None:
            os.fchmod(held, stat.S_IMODE(before))
        yield scratch
        _sync(scratch)
        scratch.replace(target)
        with contextlib.suppress(OSError):  # a folder that can be written need not be readable
            _sync(target.parent)
            remove_left(target)
    except BaseException:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise
    finally:
        os.close(held)


def write(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8; see :func:`replaced`."""
    with replaced(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def scratch_name(target: Path, number: int = 0) -> Path:
    """Return the name of a file beside the target that this process may write.

    It ends like the target's: writers of tables choose the compression by it.
    """
    return target.with_name(f"{_OURS}{os.getpid()}-{number}-{target.name}")


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _new(target: Path) -> tuple[Path, int]:
    """Return an empty file beside the target, and a descriptor that holds a lock on it."""
    for number in range(1000):
        scratch = scratch_name(target, number)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(scratch, flags, 0o666)
        except FileExistsError:
            continue
        # Another process may have taken the file for one that was left, until it was locked.
        if lock(descriptor) is not False and os.fstat(descriptor).st_nlink:
            return scratch, descriptor
        os.close(descriptor)
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))


def lock(descriptor: int) -> bool | None:
    """Lock a file unless somebody else holds it; return None if the filesystem has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def remove_left(target: Path) -> None:
    """Remove what killed writers of a file left beside it; those that live hold a lock."""
    pattern = f"{_OURS}*-*-{glob.escape(target.name)}"
    for left in target.parent.glob(pattern):
        numbers = left.name.removeprefix(_OURS).removesuffix(target.name).split("-")
        if len(numbers) != 3 or not (numbers[0].isdecimal() and numbers[1].isdecimal()):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                if lock(descriptor):
                    left.unlink()
            finally:
                os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class TemporaryFolder:
    """A folder below that for temporary files, until :meth:`remove` or the end of the process.

    What killed processes left under the same prefix is removed first. Forked children keep the
    folder too, as long as they live.

    Args:
        prefix: how the folder's name begins.

    Raises:
        OSError: there is no place for it.
    """

    def __init__(self, prefix: str) -> None:
        root = Path(tempfile.gettempdir())
        with contextlib.suppress(OSError):
            for left in root.glob(f"{glob.escape(prefix)}*"):
                _remove_folder(left)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=root))
        self._held = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        lock(self._held)

    def remove(self) -> None:
        """Remove the folder and what it holds; can be repeated."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


def _remove_folder(path: Path) -> None:
    """Remove a folder of this user that nobody holds; one made just now is about to be held."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            old = time.time() - found.st_mtime > _SETTLED_S
            if found.st_uid == os.geteuid() and old and lock(descriptor):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)
