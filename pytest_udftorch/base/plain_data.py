# SPDX-License-Identifier: Apache-2.0
"""Files from outside: read with limits, parsed, and compared with the shape that they must have.

Whoever reads a format states its shape once and uses the values without further checks. A
:class:`Malformed` says which value is wrong; the reader turns it into the error of its format.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import reprlib
import stat
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

#: Far more than any description, plan or certificate has.
LARGEST: Final = 64 << 20
#: Levels of lists and tables within each other. Python gives up at some hundred.
DEEPEST: Final = 64
#: No count, time or encoding in our files is larger.
_MOST: Final = (1 << 64) - 1

#: The name under which a document states its SHA-256.
SEAL: Final = "sha256"

#: Checks a value, whose place in the document is given, and raises :class:`Malformed`.
Shape: TypeAlias = Callable[[Any, str], None]

_LINES: Final = {ord("\n"): None, ord("\t"): None}


class Malformed(ValueError):
    """What is wrong with a document, and where."""


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def shown(value: object) -> str:
    """Return a value as one short line for a message."""
    return _short.repr(value)


# Reading -----------------------------------------------------------------------------


def read_file(path: Path, largest: int | None = LARGEST) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: it cannot be read, is a folder, pipe or device, or is larger than ``largest``.
    """
    try:
        # Opening a pipe waits for whoever writes to it, unless told not to.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a NUL in the path
        raise OSError(errno.EINVAL, str(error), shown(str(path))) from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "It is not a regular file", str(path))
        if largest is not None and found.st_size > largest:
            raise OSError(errno.EFBIG, f"It is larger than {largest:,} bytes", str(path))
        return file.read()


def parse_json(text: str | bytes, *, finite: bool = True) -> Any:
    """Parse JSON as Python's json writes it.

    Args:
        text: the document; bytes are UTF-8.
        finite: refuse infinities and NaN, which Python's json reads and writes.

    Raises:
        Malformed: the text is no JSON, or goes beyond what any of our files holds.
    """
    try:
        data = json.loads(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed(f"it is not JSON ({_reason(error)})") from None
    _check_leaves(data, finite, 0)
    return data


def parse_toml(text: bytes) -> dict[str, Any]:
    """Parse TOML in UTF-8.

    Raises:
        Malformed: the text is no TOML, or goes beyond what any of our files holds.
    """
    try:
        data = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise Malformed(_reason(error)) from None
    _check_leaves(data, False, 0)
    return data


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)


def _check_leaves(value: Any, finite: bool, depth: int) -> None:
    if depth > DEEPEST:
        raise Malformed(f"it is nested more than {DEEPEST} levels deep")
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_leaves(key, finite, depth)
            _check_leaves(inner, finite, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_leaves(inner, finite, depth + 1)
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:  # JSON can write half of a pair of surrogates
            raise Malformed(f"{shown(value)} is not Unicode") from None
    elif isinstance(value, int) and abs(value) > _MOST:
        raise Malformed(f"the number {shown(value)} needs more than 64 bits")
    elif isinstance(value, float) and finite and not math.isfinite(value):
        raise Malformed(f"there is a number {value}")


def canonical_json(data: Any, *, finite: bool = True) -> bytes:
    """Return the canonical text of plain data, over which digests are taken.

    Raises:
        ValueError: there is an infinity or a NaN in it, and ``finite`` is true.
    """
    separators = (",", ":")
    return json.dumps(data, sort_keys=True, separators=separators, allow_nan=not finite).encode()


def sealed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document that also states the SHA-256 of what else it says."""
    return {**data, SEAL: _seal_of(data)}


def sealed_text(data: Mapping[str, Any]) -> str:
    """Return the JSON of :func:`sealed`, which is made once."""
    text = json.dumps(data, sort_keys=True, check_circular=False)
    seal = hashlib.sha256(text.encode()).hexdigest()
    return f'{text[:-1]}, "{SEAL}": "{seal}"}}'


def check_seal(data: Mapping[str, Any]) -> None:
    """Check a document's SHA-256, if it states one; earlier versions wrote none.

    Raises:
        Malformed: the document is not what was sealed.
    """
    if SEAL in data and data[SEAL] != _seal_of({n: v for n, v in data.items() if n != SEAL}):
        raise Malformed("it does not have the SHA-256 that it states")


def _seal_of(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


# Shapes ------------------------------------------------------------------------------


def of(kind: type) -> Shape:
    """Return the shape of values of one type; bools are no numbers."""

    def check(value: Any, where: str) -> None:
        if type(value) is not kind:
            raise Malformed(f"{where} is {shown(value)}, not of type {kind.__name__}")

    return check


flag: Final = of(bool)


def whole(low: int = 0, high: int = _MOST) -> Shape:
    """Return the shape of whole numbers from ``low`` to ``high``."""

    def check(value: Any, where: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise Malformed(f"{where} is {shown(value)}, not a whole number from {low} to {high}")

    return check


def number(low: float = 0.0) -> Shape:
    """Return the shape of finite numbers, ``low`` or more."""

    def check(value: Any, where: str) -> None:
        if type(value) not in (int, float) or not low <= value < math.inf:
            raise Malformed(f"{where} is {shown(value)}, not a finite number from {low:g} on")

    return check


def text(pattern: str | None = None) -> Shape:
    """Return the shape of printable text, in any number of lines, that matches the pattern."""
    compiled = None if pattern is None else re.compile(pattern, re.ASCII)

    def check(value: Any, where: str) -> None:
        if type(value) is not str or not value.translate(_LINES).isprintable():
            raise Malformed(f"{where} is {shown(value)}, not printable text")
        if compiled is not None and not compiled.fullmatch(value):
            raise Malformed(f"{where} is {shown(value)}, which does not look like {pattern}")

    return check


def one_of(known: Collection[str]) -> Shape:
    """Return the shape of what is one of some words."""

    def check(value: Any, where: str) -> None:
        if type(value) is not str or value not in known:
            raise Malformed(f"{where} is {shown(value)}, not one of {', '.join(known)}")

    return check


def optional(shape: Shape) -> Shape:
    """Return the shape of what may also be null."""

    def check(value: Any, where: str) -> None:
        if value is not None:
            shape(value, where)

    return check


def each(shape: Shape) -> Shape:
    """Return the shape of lists of values of one shape."""

    def check(value: Any, where: str) -> None:
        of(list)(value, where)
        for position, inner in enumerate(value):
            shape(inner, f"{where}[{position}]")

    return check


def row(*shapes: Shape) -> Shape:
    """Return the shape of lists with one value of each shape."""

    def check(value: Any, where: str) -> None:
        if type(value) is not list or len(value) != len(shapes):
            raise Malformed(f"{where} is {shown(value)}, not a list of {len(shapes)}")
        for position, (shape, inner) in enumerate(zip(shapes, value, strict=True)):
            shape(inner, f"{where}[{position}]")

    return check


def mapping(key: Shape, shape: Shape) -> Shape:
    """Return the shape of objects with any names of one shape, and values of one shape."""

    def check(value: Any, where: str) -> None:
        of(dict)(value, where)
        for name, inner in value.items():
            key(name, f"a name in {where}")
            shape(inner, f"{where}.{name}")

    return check


def record(
    required: Mapping[str, Shape], may_have: Mapping[str, Shape] | None = None, *, closed: bool
) -> Shape:
    """Return the shape of objects with these names.

    Args:
        required: name -> shape of the value.
        may_have: the same for names that may be missing.
        closed: refuse other names; otherwise they are left alone.
    """
    known = {**required, **(may_have or {})}

    def check(value: Any, where: str) -> None:
        of(dict)(value, where)
        if missing := sorted(required.keys() - value.keys()):
            raise Malformed(f"{where} lacks {', '.join(missing)}")
        if closed and (unknown := sorted(value.keys() - known.keys())):
            raise Malformed(f"{where} has the unknown entry {shown(unknown[0])}")
        for name, shape in known.items():
            if name in value:
                shape(value[name], f"{where}.{name}")

    return check
