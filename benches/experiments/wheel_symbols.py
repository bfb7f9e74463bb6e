# SPDX-License-Identifier: Apache-2.0
r"""Which math functions do the registry's wheels for another processor call, and how?

    pip download --no-deps --only-binary=:all: --platform manylinux_2_28_aarch64 \
        --python-version 3.11 --dest wheels torch==2.15.0
    python -m benches.experiments.wheel_symbols wheels/*.whl [--store FILE]

It reads the relocations of libtorch in each wheel twice: with the code that finds the slots of a
session, and with ``llvm-readelf``, which also shows the functions of SLEEF that the package does
not know. The two have to agree.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

from benches import stored
from benches.experiments import command
from pytest_udftorch import UdfError
from pytest_udftorch.swap.library.symbols import PROCESSORS
from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.session.binder import TORCH_OBJECTS, known_symbols

READELF: Final = os.environ.get("UDFTORCH_READELF") or "llvm-readelf-19"
#: offset, info, type, the symbol's value, its name with its version.
_LINE: Final = re.compile(r"[0-9a-f]+ +[0-9a-f]+ +R_(\S+) +[0-9a-f]+ +([^\s@]+)(?:@+(\S+))? \+ 0$")
#: What ``llvm-readelf`` calls the kinds of ``Processor.relocations``.
_KINDS: Final = {
    "X86_64_JUMP_SLOT": "JUMP_SLOT", "X86_64_GLOB_DAT": "GLOB_DAT", "X86_64_64": "64",
    "AARCH64_JUMP_SLOT": "JUMP_SLOT", "AARCH64_GLOB_DAT": "GLOB_DAT", "AARCH64_ABS64": "64",
}  # fmt: skip

#: (symbol, version, kind of relocation) -> how many slots there are.
Calls = Counter[tuple[str, str, str]]


class WheelError(UdfError):
    """A wheel cannot be read, or two readers of it disagree."""


def bound(path: Path) -> tuple[str, Calls]:
    """Return the processor of a shared object, and the slots that a session would bind."""
    every = sorted({name for p in PROCESSORS.values() for name in known_symbols(p)})
    processor, _ = runtime().find_in_file(path, every)
    _, slots = runtime().find_in_file(path, list(known_symbols(processor)))
    return processor.name, Counter((s.symbol, s.version, s.kind) for s in slots)


def relocated(path: Path) -> Calls:
    """Return the relocations of a shared object as ``llvm-readelf`` shows them."""
    try:
        said = subprocess.run(
            [READELF, "-rW", path], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise WheelError(f"{READELF} cannot read {path}: {error}. Install llvm-19.") from error
    found: Calls = Counter()
    for line in said.splitlines():
        match = _LINE.match(line)
        if match and match[1] in _KINDS:
            found[match[2], match[3] or "", _KINDS[match[1]]] += 1
    return found


def compare(path: Path) -> dict[str, Any]:
    """Return what a shared object calls: functions that are known, and others of SLEEF.

    Raises:
        WheelError: the two readers disagree.
    """
    processor, ours = bound(path)
    every, known = relocated(path), known_symbols(PROCESSORS[processor])
    theirs = Counter({key: n for key, n in every.items() if key[0] in known})
    if ours != theirs:
        raise WheelError(f"{path.name}: a session sees {ours - theirs} more, {theirs - ours} less.")
    calls: dict[str, list[Any]] = {}
    for name, version, kind in sorted(ours):
        calls.setdefault(name, []).append([kind, version, ours[name, version, kind]])
    other = {name for name, _, _ in every if name.startswith("Sleef_") and name not in known}
    return {"processor": processor, "calls": calls, "other_sleef": sorted(other)}


def wheel(path: Path) -> dict[str, Any]:
    """Return what the objects of one wheel call.

    Raises:
        WheelError: it is not a wheel of torch.
    """
    objects: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory() as folder:
            for name in TORCH_OBJECTS:
                member = f"torch/lib/{name}"
                if member in archive.namelist():
                    objects[name] = compare(Path(archive.extract(member, folder)))
                    Path(folder, member).unlink()
    except (OSError, zipfile.BadZipFile) as error:
        raise WheelError(f"{path} cannot be read as a wheel: {error}.") from error
    if "libtorch_cpu.so" not in objects:
        raise WheelError(f"{path} has no torch/lib/libtorch_cpu.so. Name a wheel of torch.")
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
    return {"sha256": digest.hexdigest(), "objects": objects}


def main(arguments: list[str] | None = None) -> int:
    """Read the wheels; return 2 if one cannot be read or the readers disagree."""
    parser = command.parser("wheel_symbols", __doc__)
    parser.add_argument("wheels", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    try:
        found = {path.name: wheel(path) for path in options.wheels}
    except UdfError as error:
        print(f"wheel_symbols: {error}", file=sys.stderr)
        return 2
    for name, facts in found.items():
        for title, one in facts["objects"].items():
            slots = sum(entry[2] for entries in one["calls"].values() for entry in entries)
            print(f"{name} {title} ({one['processor']}): {slots} slots of {len(one['calls'])}")
    if options.store is not None:
        repeat = f"python -m benches.experiments.wheel_symbols {' '.join(found)}"
        stored.save(options.store, repeat, {"wheels": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
