# SPDX-License-Identifier: Apache-2.0
"""Running commands where no compiler, linker or header can be found; a wheel installed there.

The command gets a mount namespace of its own, in which empty folders and files lie over them.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

#: Folders: compilers with their headers, and headers of the system.
FOLDERS = (
    "/usr/lib/llvm-*",
    "/usr/lib/gcc",
    "/usr/lib/gcc-cross",
    "/usr/include",
    "/usr/local/include",
)
#: Programs, wherever the path finds them.
PROGRAMS = re.compile(
    r"(.*-linux-gnu-)?(cc|c\+\+|c89|c99|gcc|g\+\+|cpp|as|ld|gold|clang|clang\+\+|lld|"
    r"ld\.(bfd|gold|lld)|opt|"
    r"llvm-\w+|cmake|ninja|make|tcc|zig|icx|nvcc)(-[\d.]+)?"
)
#: A library that comes with gcc; gmpy2's wheel has its own.
LIBRARIES = ("/usr/lib/x86_64-linux-gnu/libmpfr.so.6", "/usr/lib/x86_64-linux-gnu/libgmp.so.10")
PATH = "/usr/local/bin:/usr/bin:/bin"


def folders() -> list[Path]:
    """Return the folders that are hidden, Python's headers among them."""
    found = [p for pattern in FOLDERS for p in Path("/").glob(pattern[1:]) if p.is_dir()]
    return [*found, Path(sysconfig.get_path("include"))]


def files() -> list[Path]:
    """Return the programs and libraries that are hidden; links to them lead nowhere then."""
    return sorted({*_programs(), *(p.resolve() for p in map(Path, LIBRARIES) if p.exists())})


def _programs() -> Iterator[Path]:
    for place in PATH.split(":"):
        for path in Path(place).iterdir() if Path(place).is_dir() else ():
            if PROGRAMS.fullmatch(path.name) and path.resolve().is_file():
                yield path.resolve()


def possible() -> bool:
    """Tell whether this process may make such a namespace."""
    probe = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /usr/include"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def run(
    command: Sequence[str | Path], cwd: Path, environment: Mapping[str, str], timeout: int = 600
) -> subprocess.CompletedProcess[str]:
    """Run a command with everything hidden; the environment is the one given, and ``PATH``."""
    lines = [f"mount -t tmpfs none {shlex.quote(str(p))}" for p in folders()]
    inside = tuple(f"{p}/" for p in folders())
    lines += [
        f"mount --bind /dev/null {shlex.quote(str(p))}"
        for p in files()
        if not str(p).startswith(inside)
    ]
    script = "set -e\n" + "\n".join(lines) + '\nexec "$@"\n'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *command],
        cwd=cwd, env={"PATH": PATH, "LANG": os.environ.get("LANG", "C.UTF-8"), **environment},
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip


# An installation from a wheel -----------------------------------------------------------

#: What a machine without a toolchain has not got, and our own checkout.
LEFT_OUT = ("pytest_udftorch", "_editable", "cmake", "ninja", "clang_format", "scikit_build")

SUITE = """
import torch

def test_exp_is_correctly_rounded():
    x = torch.linspace(-20, 20, 100_000)
    assert torch.equal(torch.exp(x), torch.exp(x.double()).float())
"""


class Machine:
    """An environment with the wheel, the other packages of this one, and an empty home."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, self.bin = folder, folder / "venv" / "bin"
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        for path in Path(sysconfig.get_path("purelib")).iterdir():
            if not path.name.startswith(LEFT_OUT) and not (site / path.name).exists():
                (site / path.name).symlink_to(path)
        self.package = site / "pytest_udftorch"
        pip = [self.bin / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        subprocess.run([*pip, wheel], check=True)
        self.home = folder / "home"
        self.home.mkdir()
        self.cache = self.home / ".cache" / "pytest_udftorch"

    def run(self, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.bin}:{PATH}"
        given = {"HOME": str(self.home), "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        words = [str(self.bin / str(command[0])), *map(str, command[1:])]
        if command[0] == "pytest":  # its script was not installed here
            words[:1] = [str(self.bin / "python"), "-m", "pytest"]
        return run(words, self.home, {**given, **environment})

    def python(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        file = self.home / "script.py"  # torch.compile and triton read the sources of functions
        file.write_text(code)
        return self.run("python", file, **environment)
