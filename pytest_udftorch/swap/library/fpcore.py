# SPDX-License-Identifier: Apache-2.0
"""Functions in FPCore, as Herbie and the tools of FPBench write them, in C.

The syntax is that of the standard 2.0, https://fpbench.org/spec/fpcore-2.0.html, without loops,
arrays, casts and annotations of parts. The C calls the functions of the math library.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pytest_udftorch.errors import SourceError, nearest

_TOKEN: Final = re.compile(r'[\s]+|;[^\n]*|("(?:[^"\\]|\\.)*"|[()\[\]]|[^\s()\[\]";]+)')
_NUMBER: Final = re.compile(
    r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?0x[\da-fA-F.]+(p[+-]?\d+)?"
)
_RATIONAL: Final = re.compile(r"([+-]?\d+)/(\d+)")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_CONSTANTS: Final = {
    "E": math.e, "LN2": math.log(2), "LN10": math.log(10), "LOG2E": math.log2(math.e),
    "LOG10E": math.log10(math.e), "PI": math.pi, "PI_2": math.pi / 2, "PI_4": math.pi / 4,
    "M_1_PI": 1 / math.pi, "M_2_PI": 2 / math.pi, "M_2_SQRTPI": 2 / math.sqrt(math.pi),
    "SQRT2": math.sqrt(2), "SQRT1_2": math.sqrt(0.5),
}  # fmt: skip
_WORDS: Final = {"INFINITY": "INFINITY", "NAN": "NAN", "TRUE": "1", "FALSE": "0"}
_INFIX: Final = frozenset({"+", "-", "*", "/"})
_TESTS: Final = frozenset({"<", ">", "<=", ">=", "==", "!="})
#: Function -> how many arguments it takes.
_CALLS: Final = {
    **dict.fromkeys((
        "acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh",
        "erf", "erfc", "exp", "exp2", "expm1", "fabs", "floor", "lgamma", "log", "log10",
        "log1p", "log2", "nearbyint", "round", "sin", "sinh", "sqrt", "tan", "tanh",
        "tgamma", "trunc",
    ), 1),
    **dict.fromkeys(
        ("atan2", "copysign", "fdim", "fmax", "fmin", "fmod", "hypot", "pow", "remainder"), 2
    ),
    "fma": 3,
}  # fmt: skip
_HEADS: Final = (*_CALLS, *sorted(_INFIX | _TESTS), "if", "and", "or", "not")
_PRECISIONS: Final = {"binary32": "float", "binary64": "double"}


@dataclass(frozen=True)
class Core:
    """A function in FPCore.

    Attributes:
        name: its symbol, or "".
        arguments: their names.
        precision: ``binary32`` or ``binary64``, in which it is computed.
        body: an expression, as nested lists of words.
    """

    name: str
    arguments: tuple[str, ...]
    precision: str
    body: Any


def _words(text: str) -> Iterator[str]:
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            line = text.count("\n", 0, place) + 1
            raise SourceError(f"FPCore: a string in line {line} has no end.")
        place = found.end()
        if found[1]:
            yield found[1]


def _parsed(words: Iterator[str], depth: int = 0) -> list[Any]:
    """Return expressions as nested lists, up to the bracket that ends them."""
    found: list[Any] = []
    for word in words:
        if word in "([":
            found.append(_parsed(words, depth + 1))
        elif word in ")]":
            if depth:
                return found
            raise SourceError("FPCore: a closing bracket has no opening one.")
        else:
            found.append(word)
    if depth:
        raise SourceError("FPCore: an opening bracket has no closing one.")
    return found


def read_fpcore(text: str) -> list[Core]:
    """Return the functions in a text of FPCore.

    Raises:
        SourceError: it is none, or uses what is not taken here.
    """
    cores = []
    for form in _parsed(_words(text)):
        if not isinstance(form, list) or form[:1] != ["FPCore"] or len(form) < 3:
            raise SourceError("FPCore: expected (FPCore (arguments) ... body) at the outer level.")
        name = form[1] if isinstance(form[1], str) else ""
        arguments, *rest = form[2:] if name else form[1:]
        properties = dict(zip(rest[:-1:2], rest[1:-1:2], strict=False))
        if not rest or not all(isinstance(a, str) for a in arguments):
            raise SourceError(f"FPCore {name}: arguments with sizes or precisions are not taken.")
        precision = properties.get(":precision", "binary64")
        if precision not in _PRECISIONS:
            raise SourceError(
                f"FPCore {name}: the precision {precision} is not taken. Use binary32 or binary64."
            )
        cores.append(Core(name, tuple(arguments), precision, rest[-1]))
    return cores


class _Writer:
    """The C of one function."""

    def __init__(self, core: Core) -> None:
        self.core, self.single = core, core.precision == "binary32"
        self.type = _PRECISIONS[core.precision]
        self.lines: list[str] = []

    def name(self, word: str) -> str:
        """Return a name in C that is like a variable's and is not used yet."""
        return f"{re.sub(r'[^A-Za-z0-9_]', '_', word)}_{len(self.lines)}"

    def number(self, value: float | str) -> str:
        """Return a number in C."""
        text = value if isinstance(value, str) else repr(value)
        if not re.search(r"[.eExX]", text):
            text += ".0"
        if "x" in text and "p" not in text:
            text += "p0"
        return f"{text}f" if self.single else text

    def word(self, word: str, known: Mapping[str, str]) -> str:
        """Return the C of a word: a variable, a constant or a number."""
        if word in known:
            return known[word]
        if word in _CONSTANTS:
            return self.number(_CONSTANTS[word])
        if word in _WORDS:
            return _WORDS[word]
        ratio = _RATIONAL.fullmatch(word)
        if ratio:
            return f"({self.number(ratio[1])} / {self.number(ratio[2])})"
        if not _NUMBER.fullmatch(word):
            raise SourceError(
                f"FPCore {self.core.name}: {word!r} is no variable, constant or number."
            )
        return self.number(word)

    def expression(self, given: Any, known: Mapping[str, str]) -> str:
        """Return the C of an expression; variables that it binds are written before."""
        if isinstance(given, str):
            return self.word(given, known)
        head, *parts = given or [""]
        if head in ("let", "let*") and len(parts) == 2:
            inner = dict(known)
            for variable, value in parts[0]:
                made = self.expression(value, inner if head == "let*" else known)
                own = self.name(variable)
                self.lines.append(f"{self.type} {own} = {made};")
                inner[variable] = own
            return self.expression(parts[1], inner)
        if head not in _HEADS:
            raise self.refused(head, parts)
        values = [self.expression(part, known) for part in parts]
        if head == "if" and len(values) == 3:
            return f"({values[0]} ? {values[1]} : {values[2]})"
        if head == "-" and len(values) == 1:
            return f"(-{values[0]})"
        if head in _INFIX and len(values) == 2:
            return f"({values[0]} {head} {values[1]})"
        if head in _TESTS and len(values) >= 2:
            pairs = itertools.pairwise(values)
            return "(" + " && ".join(f"{a} {head} {b}" for a, b in pairs) + ")"
        if head in ("and", "or") and values:
            return f"({(' && ' if head == 'and' else ' || ').join(values)})"
        if head == "not" and len(values) == 1:
            return f"(!{values[0]})"
        if _CALLS.get(head) == len(values):
            return f"{head}{'f' if self.single else ''}({', '.join(values)})"
        raise self.refused(head, parts)

    def refused(self, head: Any, parts: list[Any]) -> SourceError:
        """Return the error of an operation that is not taken."""
        return SourceError(
            f"FPCore {self.core.name}: {head!r} with {len(parts)} arguments is not taken. "
            f"{nearest(str(head), _HEADS)}"
        )


def c_function(core: Core, symbol: str) -> str:
    """Return a function in C, of float32 numbers, that computes in the precision of a core.

    Args:
        core: the function.
        symbol: its name in C.

    Raises:
        SourceError: it uses what is not taken here.
    """
    writer = _Writer(core)
    known = {}
    for argument in core.arguments:
        known[argument] = writer.name(argument)
        writer.lines.append(f"{writer.type} {known[argument]} = a{len(known) - 1};")
    result = writer.expression(core.body, known)
    taken = ", ".join(f"float a{n}" for n in range(len(core.arguments)))
    body = "\n".join(f"  {line}" for line in [*writer.lines, f"return (float){result};"])
    return f"#include <math.h>\n\nfloat {symbol}({taken}) {{\n{body}\n}}\n"
