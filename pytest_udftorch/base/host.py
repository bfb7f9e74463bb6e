# SPDX-License-Identifier: Apache-2.0
"""Which hosts are served, and what this one is."""

from __future__ import annotations

import functools
import os
import platform
import sys
import sysconfig
from dataclasses import dataclass
from typing import Final

from pytest_udftorch.errors import UnsupportedHostError

#: "1" lets a session open on aarch64, which was tried under QEMU only (docs/machines.md).
TRY_AARCH64: Final = "UDFTORCH_TRY_AARCH64"


@dataclass(frozen=True)
class Host:
    """What decides whether the package can work here.

    Attributes:
        system: ``sys.platform``.
        processor: ``platform.machine()``.
        python: the first two numbers of Python's version.
        abi: Python's ``SOABI``, which ends with the C library; or None.
        free_threaded: True for a build of Python without the GIL.
    """

    system: str
    processor: str
    python: tuple[int, int]
    abi: str | None
    free_threaded: bool


@functools.cache
def this_host() -> Host:
    """Return the host of this process."""
    return Host(
        sys.platform,
        platform.machine(),
        sys.version_info[:2],
        sysconfig.get_config_var("SOABI"),
        bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    )


def require_host(host: Host | None = None) -> None:
    """Refuse a host on which the package cannot work.

    Raises:
        UnsupportedHostError: the message says what is missing, why, and what to use instead.
    """
    host = host or this_host()
    version = ".".join(map(str, host.python))
    if host.system != "linux":
        name = {"darwin": "macOS", "win32": "Windows"}.get(host.system, host.system)
        raise UnsupportedHostError(
            f"pytest_udftorch does not work on {name}: it changes relocations of ELF files that "
            "the loader of Linux keeps. Use Linux on x86-64; in a virtual machine or, on Windows, "
            "in WSL 2 it is the same."
        )
    tried = host.processor == "aarch64" and os.environ.get(TRY_AARCH64) == "1"
    if host.processor not in ("x86_64", "AMD64") and not tried:
        more = f" {TRY_AARCH64}=1 tries it all the same." if host.processor == "aarch64" else ""
        raise UnsupportedHostError(
            f"pytest_udftorch does not work on {host.processor} processors: its runtime and its "
            f"functions are compiled for x86-64. Use Linux on x86-64.{more}"
        )
    if "musl" in (host.abi or ""):
        raise UnsupportedHostError(
            "This Python is built for musl, and torch's wheels and the runtime of pytest_udftorch "
            "need the GNU C library. Use a distribution that has it (Debian, Ubuntu, Fedora), for "
            "instance python:3-slim instead of python:3-alpine."
        )
    if host.free_threaded:
        raise UnsupportedHostError(
            f"This is a free-threaded build of Python {version}, with which nothing of "
            f"pytest_udftorch was tested. Use the ordinary build of Python {version}."
        )


def let_threads_sleep() -> None:
    """Let threads of OpenMP sleep while they wait, unless the environment says otherwise.

    It has an effect before torch is loaded. The calls of a small model are short: a thread that
    spins until the next one takes the core that another program, or the call itself, needs.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
