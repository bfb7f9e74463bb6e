# SPDX-License-Identifier: Apache-2.0
"""What a block of code opens, imports, runs and removes, as the interpreter's audit hooks tell it.

Reading data from outside may open that data, and whatever Python itself loads. It may not open
anything else, nor run, compile or import code from elsewhere, nor start a process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest_udftorch

#: Folders of code that this process was started with, and what the kernel tells.
TRUSTED = tuple(
    os.path.realpath(folder) + os.sep
    for folder in (
        sys.prefix,
        sys.base_prefix,
        *sysconfig.get_paths().values(),
        *pytest_udftorch.__path__,
        *(Path(folder).parent / "udfs" for folder in pytest_udftorch.__path__),
        *filter(None, sys.path),
        "/proc",
        "/sys",
    )
)

#: Events of the audit table in Python's documentation whose first argument is a path.
PATHS = {
    "open", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink",
    "os.truncate", "os.chmod", "os.chown", "os.listdir", "os.scandir", "shutil.rmtree",
    "os.utime",
}  # fmt: skip
#: Events that nothing which reads data may cause.
NEVER = {
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "os.forkpty", "pty.spawn", "socket.connect", "socket.bind", "socket.getaddrinfo",
    "urllib.Request", "pickle.find_class", "code.__new__", "ctypes.dlopen",
}  # fmt: skip

#: What torch and triton load when they are asked whether there is a GPU.
DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}


class Forbidden(AssertionError):
    """A block did what reading data must not do."""


class _Watch:
    """The one hook of this process; hooks cannot be removed, so it is switched on and off."""

    def __init__(self) -> None:
        self.roots: tuple[str, ...] | None = None
        self.seen: list[str] = []
        self.installed = False

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.roots is None:
            return
        roots, self.roots = self.roots, None  # what this itself does is not watched
        try:
            found = _fault(event, arguments, roots)
            if found is not None:
                self.seen.append(f"{event}: {found}"[:300])
        finally:
            self.roots = roots


_watch = _Watch()


def _fault(event: str, arguments: tuple[Any, ...], roots: tuple[str, ...]) -> str | None:
    if event == "ctypes.dlopen" and isinstance(arguments[0], str):
        known = arguments[0] in DRIVER or _under(arguments[0], TRUSTED)
        return None if known else repr(arguments)
    if event in NEVER:
        return None if event == "code.__new__" and _importing() else repr(arguments)
    if event in PATHS:
        path = arguments[0] if arguments else None
        if not isinstance(path, str | bytes | os.PathLike):
            return None  # a descriptor, which was opened before
        return _outside(os.fsdecode(path), event, arguments, roots)
    if event == "exec" and isinstance(arguments[0], CodeType):
        name = arguments[0].co_filename
        return None if _trusted(name) else f"code of {name}"
    if event == "compile":
        return None if _trusted(str(arguments[1])) else repr(arguments)
    # An import opens a file and runs its code, which are events of their own.
    return None


def _trusted(name: str) -> bool:
    if name.startswith("<frozen "):
        return True
    # Modules that are being imported may make functions from text, as dataclasses do.
    return _importing() if name.startswith("<") else _under(name, TRUSTED)


def _importing() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _under(path: str, roots: tuple[str, ...]) -> bool:
    try:
        # A path such as "root/../else" is not under the root.
        return (os.path.realpath(path) + os.sep).startswith(roots)
    except (OSError, ValueError):  # a NUL; such a path cannot be opened
        return True


def _outside(
    path: str, event: str, arguments: tuple[Any, ...], roots: tuple[str, ...]
) -> str | None:
    if _under(path, roots):
        return None
    reads = event in ("os.listdir", "os.scandir") or (
        event == "open" and len(arguments) > 2 and not _writes(arguments[1], arguments[2])
    )
    return None if reads and _under(path, TRUSTED) else repr(path)


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return not set(mode) <= set("rbt")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


@contextlib.contextmanager
def only(*folders: Path) -> Iterator[None]:
    """Let a block open only what lies in these folders, and Python's own files.

    Raises:
        Forbidden: at the end of the block, it did something else.
    """
    if not _watch.installed:
        sys.addaudithook(_watch.hear)
        _watch.installed = True
    _watch.seen.clear()
    _watch.roots = tuple(os.path.realpath(f) + os.sep for f in folders)
    try:
        yield
    finally:
        _watch.roots = None
        if _watch.seen:
            raise Forbidden("; ".join(_watch.seen[:5]))
