# SPDX-License-Identifier: Apache-2.0
"""The reach table: which symbols an operator calls, and whether a swap reaches all of it.

The table runs every operator in every dtype and layout:

- with a count of the symbols that it calls (``session.trace``);
- with one function at a time (those behind the symbols, and those that the definition needs)
  swapped for a probe that differs from the stock function at
  every argument (of float64 for a float64 tensor, of float32 for all others). An element
  of the result that keeps its bits was not computed through the swapped symbols. This shows
  when a swap reaches only the vector body or only the tail, which a count of calls cannot tell;
- for an operator that mixes rows (softmax), with a probe that differs only below a mark. One
  input alone lies below it, and moves through all positions. Otherwise the result would
  change wherever any input was reached;
- with the library ``canary``, whose results differ from the correct ones in the last bit.

``reached`` then means that each function in the operator's definition changed every element.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from pytest_udftorch.base.store import store_text
from pytest_udftorch.base.table import markdown_table
from pytest_udftorch.errors import CoverageError, nearest
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.library.symbols import DTYPES, FUNCTIONS, golden_points
from pytest_udftorch.swap.reach.catalogue import (
    BACKWARD,
    SHAPES,
    TENSOR_DTYPES,
    Operator,
    groups,
    place,
)
from pytest_udftorch.swap.session.binder import binder
from pytest_udftorch.swap.session.session import patched, trace
from pytest_udftorch.swap.toolchain.environment import caption, describe
from pytest_udftorch.swap.toolchain.progress import tell

FORMAT: Final = "udftorch-reach-2"

Direction = Literal["forward", "backward"]
Outcome = Literal[
    "reached", "partly reached", "not reached", "no function needed", "no elements", "unsupported"
]

MISSED: Final[tuple[Outcome, ...]] = ("not reached", "partly reached")

#: Below this argument, and nowhere above it, the marked probe differs from exp.
_MARK = -4.0
_MARKED_INPUT, _PLAIN_INPUT, _LARGEST_INPUT = -5.0, -1.0, 0.0


@dataclass(frozen=True)
class ReachRow:
    """One line of the table.

    Attributes:
        operator: as in ``catalogue.Operator.name``.
        direction: ``forward`` or ``backward`` (of a forward pass under stock functions).
        dtype: the tensor's.
        layout: the tensor's.
        outcome: see the module's docstring.
        symbols: symbol -> calls, under the stock functions.
        changed: function -> [elements changed, elements] under the probe of that function;
            for a function that mixes rows, elements that were marked in turn.
        canary: [elements changed, elements] under the library ``canary``, or None where
            the operator calls none of its functions.
        reason: why the operator is not reached, or only in part; empty otherwise.
    """

    operator: str
    direction: Direction
    dtype: str
    layout: str
    outcome: Outcome
    symbols: dict[str, int] = field(default_factory=dict)
    changed: dict[str, list[int]] = field(default_factory=dict)
    canary: list[int] | None = None
    reason: str = ""


# Probe libraries ---------------------------------------------------------------------


def write_probe(folder: Path, dtype: str, *, marked: bool = False, neutral: bool = False) -> Path:
    """Write a UDF library whose functions differ from the stock ones; return its folder.

    Args:
        folder: where to write it; it must not exist.
        dtype: that of its functions, ``float32`` or ``float64``.
        marked: if false, every function f of libtorch becomes f + |f|/2 + 1/4, which no
            rounding to bfloat16 hides and which is never f. If true, only exp changes, only
            below the mark, and by 64 instead of 1/4.
        neutral: if true, the functions are libm's: what a session changes beside its functions.
    """
    folder.mkdir(parents=True)
    # One marked element must show in the logarithm of a row's sum in bfloat16.
    offset = 64.0 if marked else 0.25
    name = f"reach-{'marked' if marked else 'neutral' if neutral else 'probe'}-{dtype}"
    description = [f'[library]\nname = "{name}"\nversion = "1"\nclaim = "wrong on purpose"\n']
    for function in FUNCTIONS.values():
        if marked and function.name != "exp":
            continue
        real, suffix = {"float32": ("float", "f"), "float64": ("double", "")}[dtype]
        names = "xy"[: function.arity]
        c_name = function.c_name(dtype)
        unmarked = f"  if (x > {_MARK})\n    return r;\n" if marked else ""
        wrong = "r" if neutral else f"r + ({real})0.5 * fabs{suffix}(r) + ({real}){offset}"
        (folder / f"{c_name}.c").write_text(
            f"#include <math.h>\n"
            # The passes call it; clang would warn that nobody does.
            f"__attribute__((unused))\n"
            f"static {real} probe({', '.join(f'{real} {n}' for n in names)}) {{\n"
            f"  {real} r = {c_name}({', '.join(names)});\n"
            f"{unmarked}"
            f"  return {wrong};\n"
            "}\n",
            encoding="utf-8",
        )
        description.append(
            f'[functions.{function.name}.{dtype}]\nsource = "{c_name}.c"\nscalar = "probe"\n'
        )
    (folder / "udf.toml").write_text("\n".join(description), encoding="utf-8")
    return folder


def write_gpu_probe(folder: Path) -> Path:
    """Write a library that is as wrong as that of :func:`write_probe`, but made of corem's sources.

    A GPU has no libm that it could call.
    """
    right = find_library("corem")
    folder.mkdir(parents=True)
    description = [
        '[library]\nname = "reach-gpu-probe"\nversion = "1"\nclaim = "wrong on purpose"\n'
    ]
    for function in right.functions.values():
        names = "xy"[: FUNCTIONS[function.name].arity]
        given, passed = ", ".join(f"float {n}" for n in names), ", ".join(names)
        (folder / f"{function.name}f.c").write_text(
            f'#include "{function.source}"\n'
            "UDF_INLINE float probe_wrong(float r) {\n"
            "  return r + 0.5f * __builtin_fabsf(r) + 0.25f;\n}\n"
            f"UDF_INLINE float probe_fast({given}, int *hard) {{\n"
            f"  return probe_wrong({function.fast}({passed}, hard));\n}}\n"
            f"static UDF_COLD float probe_accurate({given}) {{\n"
            f"  return probe_wrong({function.accurate}({passed}));\n}}\n",
            encoding="utf-8",
        )
        description.append(
            f'[functions.{function.name}.float32]\nsource = "{function.name}f.c"\n'
            'fast = "probe_fast"\naccurate = "probe_accurate"\n'
        )
    (folder / "udf.toml").write_text("\n".join(description), encoding="utf-8")
    return folder


#: (marked, dtype) -> folder of the probe library.
_Probes = Mapping[tuple[bool, str], Path]


# Running one operator ----------------------------------------------------------------


def _differs(a: Any, b: Any) -> Any:
    """Return which elements of two tensors of one shape differ in their encodings."""
    import torch

    integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[a.element_size()]
    first, second = (x.detach().contiguous().view(integer) for x in (a, b))
    return first != second


class _Run:
    """One operator with one input; each call repeats exactly the same work."""

    def __init__(self, operator: Operator, direction: Direction, layout: str, x: Any) -> None:
        import torch

        self.operator = operator
        self.layout = layout
        self.x = x
        self._arguments = () if operator.dim is None else (operator.dim_index(layout),)
        self._graph: Any = None
        if direction == "backward":
            self.x = x.detach().requires_grad_()
            y = operator.call(self.x, *self._arguments)
            # Positive, so that no sum over a row of them cancels.
            grad = torch.tensor(golden_points(y.numel(), 0.5, 1.5), dtype=y.dtype).reshape(y.shape)
            self._graph = (y, grad)

    def __call__(self) -> Any:
        import torch

        op = self.operator
        if op.random:
            torch.manual_seed(0)
        if self._graph is not None:
            y, grad = self._graph
            return torch.autograd.grad(y, self.x, grad, retain_graph=True)[0]
        if self.layout == "out=" and op.out is not None:
            buffer = torch.zeros_like(self.x)
            op.out(self.x, buffer)
            return buffer
        if self.layout == "in place" and op.inplace is not None:
            buffer = self.x.clone()
            op.inplace(buffer)
            return buffer
        return op.call(self.x, *self._arguments)


def _input(operator: Operator, dtype: str, layout: str) -> Any:
    import torch

    shape = operator.shape(layout)
    values = torch.tensor(golden_points(math.prod(shape), *operator.domain), dtype=torch.float64)
    return place(values.to(getattr(torch, dtype)).reshape(shape), layout)


def _marked_input(operator: Operator, dtype: str, layout: str, position: int) -> Any:
    """Return rows whose largest element is 0 and whose element ``position`` is marked."""
    import torch

    shape = operator.shape(layout)
    dim = operator.dim_index(layout)
    values = torch.full(shape, _PLAIN_INPUT, dtype=getattr(torch, dtype))
    values.select(dim, (position + 1) % shape[dim]).fill_(_LARGEST_INPUT)
    values.select(dim, position).fill_(_MARKED_INPUT)
    return place(values, layout)


def _functions_of(symbols: dict[str, int]) -> list[tuple[str, ...]]:
    """Return the functions behind the called symbols, in tuples of those to swap together."""
    known = binder().symbols
    names = {known[s].function for s in symbols}
    together: list[tuple[str, ...]] = []
    if "sincos" in names:  # libm's joint call is bound only when both are swapped
        names -= {"sin", "cos", "sincos"}
        together = [("sin", "cos")]
    return [*together, *((n,) for n in sorted(names))]


def _examine(
    operator: Operator, direction: Direction, dtype: str, layout: str, probes: _Probes
) -> ReachRow:
    head = (operator.name, direction, dtype, layout)
    try:
        run = _Run(operator, direction, layout, _input(operator, dtype, layout))
        stock = run()
    except (NotImplementedError, RuntimeError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        return ReachRow(*head, "unsupported", reason=text)
    with trace() as symbols:
        again = run()
    if stock.isnan().any() or bool(_differs(stock, again).any()):
        raise CoverageError(
            f"{' '.join(head)} gives NaN or does not repeat itself under the stock functions, so "
            "a difference would tell nothing. Change its domain in reach/operators.py."
        )
    if stock.numel() == 0:
        return ReachRow(*head, "no elements", symbols)
    # A library of float32 functions does not reach a float32 operator that computes in double
    # precision.
    precision = "float64" if dtype == "float64" else "float32"
    changed: dict[str, list[int]] = {}
    needs = groups(operator.needs if direction == "forward" else operator.needs_backward or "")
    called = _functions_of(symbols)
    # What no symbol leads to may be overridden through the dispatcher.
    inlined = [(f,) for g in needs if not g & {*sum(called, ())} for f in sorted(g)]
    for together in [*called, *inlined]:
        mixed = operator.dim is not None and together == ("exp",) and direction == "forward"
        counts = (
            _sweep(operator, dtype, layout, probes[True, precision])
            if mixed
            else _loud(run, stock, probes[False, precision], together)
        )
        changed.update(dict.fromkeys(together, counts))
    outcome = _judge(needs, changed)
    reason = reason_for(operator.name, outcome)
    return ReachRow(*head, outcome, symbols, changed, _canary(run, stock, symbols), reason)


def _loud(run: _Run, stock: Any, library: Path, functions: Sequence[str]) -> list[int]:
    with patched(library, functions):
        probed = run()
    return [int(_differs(stock, probed).sum()), stock.numel()]


def _sweep(operator: Operator, dtype: str, layout: str, library: Path) -> list[int]:
    """Count the elements of the input that reach the result through a swapped exp."""
    dim = operator.dim_index(layout)
    length = operator.shape(layout)[dim]
    runs = [
        _Run(operator, "forward", layout, _marked_input(operator, dtype, layout, i))
        for i in range(length)
    ]
    stock = [run() for run in runs]
    with patched(library, ("exp",)):
        probed = [run() for run in runs]
    hit = total = 0
    for before, after, run in zip(stock, probed, runs, strict=True):
        rows = _differs(before, after)
        if rows.dim() == run.x.dim():
            rows = rows.any(dim)
        hit += int(rows.sum())
        total += rows.numel()
    return [hit, total]


def _canary(run: _Run, stock: Any, symbols: dict[str, int]) -> list[int] | None:
    from pytest_udftorch.swap.library.description import find_library

    library, correct_library = find_library("canary"), find_library("corem")
    known = binder().symbols
    used = {known[s].function for s in symbols if known[s].dtype == "float32"}
    if "sincos" in used:
        used |= {"sin", "cos"}
    shared = set(correct_library.function_names) & used
    functions = [f for f in library.function_names if f in shared]
    if not functions:
        return None
    # Canary and corem differ in the flipped bit alone; canary and stock differ in more.
    with patched(correct_library, functions):
        correct = run()
    with patched(library, functions):
        flipped = run()
    return [int(_differs(correct, flipped).sum()), stock.numel()]


def _judge(needs: Sequence[frozenset[str]], changed: dict[str, list[int]]) -> Outcome:
    if not needs:
        # A function that it calls beyond its definition must be reached as well.
        needs = tuple(frozenset({name}) for name in changed)
        if not needs:
            return "no function needed"
    best = {
        max((changed[f][0] / changed[f][1] for f in group if f in changed), default=0.0)
        for group in needs
    }
    return "reached" if best == {1.0} else "not reached" if best == {0.0} else "partly reached"


# Reasons -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Reason:
    """Why some operators are out of reach, for some outcomes."""

    operators: tuple[str, ...]
    text: str
    outcomes: tuple[Outcome, ...] = MISSED


_COMPLEX = "calls libm's complex functions ({}), which compute inside libm"

REASONS: Final[tuple[Reason, ...]] = (
    Reason(
        (
            "torch.pow(2.5, x)",
            "torch.logcumsumexp(last)",
            "Tensor.exponential_",
        ),
        "computes in double precision, wholly or in a scalar tail; only a library that also has "
        "the function for float64 reaches it",
    ),
    Reason(("torch.erfinv",), "calls MKL's vmdErfInv, a function of its own"),
    Reason(("torch.lgamma",), "calls SLEEF's Sleef_lgammaf16_u10, a function of its own"),
    Reason(("torch.complex(x, x).exp()",), _COMPLEX.format("cexpf, cexp")),
    Reason(("torch.complex(x, x).log()",), _COMPLEX.format("clogf, clog")),
    Reason(("torch.complex(x, x).abs()",), "the tail " + _COMPLEX.format("cabsf, cabs")),
    Reason(
        ("Tensor.normal_",),
        "fills fewer than 16 elements, or elements with gaps, in double precision",
    ),
)


def reason_for(operator: str, outcome: Outcome) -> str:
    """Return why an operator is not wholly reached, or an empty string if nothing is known."""
    for reason in REASONS:
        if operator in reason.operators and outcome in reason.outcomes:
            return reason.text
    return ""


# The table ---------------------------------------------------------------------------


def _function(name: str) -> str:
    """Return the function's own name: ``softmax`` of ``F.softmax(last)``."""
    return re.split("[(,]", name)[0].rpartition(".")[2]


def cases(only: Sequence[str] = ()) -> Iterator[tuple[Operator, Direction, str, str]]:
    """Yield every combination that the table shows.

    Args:
        only: names of operators (``F.softmax(last)``), or names of torch functions
            (``torch.softmax``) for all of their operators; by default all.

    Raises:
        CoverageError: a name is unknown.
    """
    from pytest_udftorch.swap.reach.operators import OPERATORS

    known = {op.name: op for op in OPERATORS}
    chosen: set[str] = set()
    for name in only:
        found = {name} & known.keys() or {n for n in known if _function(n) == _function(name)}
        if not found:
            raise CoverageError(f"The reach table has no operator {name!r}. {nearest(name, known)}")
        chosen |= found
    for op in known.values():
        if only and op.name not in chosen:
            continue
        lacks = {"out=": op.out is None, "in place": op.inplace is None}
        forward = [layout for layout in op.layouts if not lacks.get(layout)]
        backward = [n for n in op.layouts if n in BACKWARD and op.needs_backward is not None]
        for dtype in op.dtypes:
            for layout in forward:
                yield op, "forward", dtype, layout
            for layout in backward:
                yield op, "backward", dtype, layout


def table(only: Sequence[str] = (), store: Path | None = None) -> list[ReachRow]:
    """Run the reach table, which takes about a minute for all operators.

    Args:
        only: names of operators; by default all.
        store: a file to save the rows in.

    Raises:
        CoverageError: an operator is unknown or not repeatable, or the file cannot be written.
        UdfError: as from building and opening a session.
    """
    if store and not store.parent.is_dir():
        raise CoverageError(f"No folder {store.parent} to store the reach table in. Make it.")
    chosen = list(cases(only))
    with tempfile.TemporaryDirectory() as scratch:
        probes = {
            (marked, d): write_probe(Path(scratch, f"{marked}-{d}"), d, marked=marked)
            for marked in (False, True)
            for d in DTYPES
        }
        rows = []
        for number, case in enumerate(chosen, 1):
            tell(f"case {number} of {len(chosen)}")
            rows.append(_examine(*case, probes))
    if store:
        save(rows, store)
    return rows


# Stored and shown --------------------------------------------------------------------


#: What is in a line of a stored table. ``where`` is dtype -> layouts: a line stands for the rows
#: that differ in nothing else.
_COLUMNS: Final = ("outcome", "symbols", "changed", "canary", "reason", "where")


def save(rows: Sequence[ReachRow], path: Path) -> None:
    """Write rows and environment as JSON: operator -> direction -> lines, see :data:`_COLUMNS`.

    Raises:
        CoverageError: the file cannot be written.
    """

    def line(*values: Any) -> str:
        return json.dumps(values, separators=(",", ":"), sort_keys=True)

    head = {"format": FORMAT, "command": "udftorch reach --store FILE", "environment": describe()}
    stored: dict[str, dict[str, dict[str, dict[str, list[str]]]]] = {}
    for row in rows:
        facts = line(row.outcome, row.symbols, row.changed, row.canary, row.reason)
        lines = stored.setdefault(row.operator, {}).setdefault(row.direction, {})
        lines.setdefault(facts, {}).setdefault(row.dtype, []).append(row.layout)
    operators = ",\n".join(
        f"{json.dumps(operator)}: {{"
        + ",\n".join(
            f"{json.dumps(direction)}: [\n"
            + ",\n".join(facts[:-1] + "," + line(where)[1:] for facts, where in lines.items())
            + "\n]"
            for direction, lines in directions.items()
        )
        + "}"
        for operator, directions in stored.items()
    )
    text = json.dumps({**head, "columns": _COLUMNS}, indent=1)[:-2]
    text += f',\n "rows": {{\n{operators}\n}}}}\n'
    store_text(path, text, CoverageError, "The reach table")


def load(path: Path) -> tuple[dict[str, Any], list[ReachRow]]:
    """Read what :func:`save` wrote: the environment it was made in, and the rows.

    Raises:
        CoverageError: the file is missing, is not JSON, or has another format.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r} instead of {FORMAT!r}")
        environment = dict(document["environment"])
        rows = [
            row for name, lines in document["rows"].items() for row in _of_operator(name, lines)
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CoverageError(
            f"{path} is not a stored reach table: {error}. Make it with 'udftorch reach --store'."
        ) from error
    return environment, rows


def _of_operator(operator: str, directions: Mapping[Direction, Any]) -> list[ReachRow]:
    """Return the rows of one operator, in the order of :func:`cases`."""
    rows = [
        ReachRow(operator, direction, dtype, layout, *facts)
        for direction, lines in directions.items()
        for *facts, where in lines
        for dtype, layouts in where.items()
        for layout in layouts
    ]
    dtypes, directed, layouts = list(TENSOR_DTYPES), list(get_args(Direction)), list(SHAPES)
    return sorted(
        rows,
        key=lambda row: (
            dtypes.index(row.dtype), directed.index(row.direction), layouts.index(row.layout),
        ),
    )  # fmt: skip


def _grouped(
    rows: Sequence[ReachRow], key: Callable[[ReachRow], Hashable]
) -> dict[Any, list[ReachRow]]:
    found: dict[Any, list[ReachRow]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def _merged(rows: Sequence[ReachRow]) -> list[tuple[str, str, str, str, str]]:
    """Join rows that differ only in dtype and layout.

    Returns:
        Operator, direction, where, symbols, outcome.
    """

    def key(row: ReachRow) -> tuple[str, ...]:
        symbols = ", ".join(f"`{s}`" for s in sorted(row.symbols))
        return (row.operator, row.direction, row.dtype, symbols, row.outcome)

    every = _grouped(rows, lambda r: (r.operator, r.direction, r.dtype))
    dtypes_of: dict[tuple[str, str, str, str, str], list[str]] = {}
    for (operator, direction, dtype, symbols, outcome), group in _grouped(rows, key).items():
        found = [row.layout for row in group]
        others = [r.layout for r in every[operator, direction, dtype] if r.layout not in found]
        if len(found) < 2 or len(others) >= len(found):
            where = ", ".join(found)
        else:
            where = "all layouts" + (f" but {', '.join(others)}" if others else "")
        dtypes_of.setdefault((operator, direction, where, symbols, outcome), []).append(dtype)
    return [
        (operator, direction, f"{', '.join(dtypes)}: {where}", symbols, outcome)
        for (operator, direction, where, symbols, outcome), dtypes in dtypes_of.items()
    ]


def _unreached(rows: Sequence[ReachRow]) -> list[tuple[str, str, str, str, str]]:
    """Return the rows out of reach, joined: operator, direction, where, outcome, reason."""
    missed = [row for row in rows if row.outcome in MISSED]
    groups_of = _grouped(missed, lambda r: (r.operator, r.direction, r.outcome, r.reason))
    lines = []
    for (operator, direction, outcome, reason), group in groups_of.items():
        dtypes_of: dict[str, list[str]] = {}
        for dtype, same in _grouped(group, lambda r: r.dtype).items():
            dtypes_of.setdefault(", ".join(row.layout for row in same), []).append(dtype)
        where = "; ".join(f"{', '.join(d)}: {layouts}" for layouts, d in dtypes_of.items())
        lines.append((operator, direction, where, outcome, reason))
    return lines


def counts(rows: Sequence[ReachRow]) -> dict[str, int]:
    """Return outcome -> number of rows, in the order of ``Outcome``."""
    return {name: n for name in get_args(Outcome) if (n := sum(r.outcome == name for r in rows))}


_PAGE: Final = """# What a session reaches

This page is generated from benches/results/reach.json; do not edit it. Repeat it with
`udftorch reach --store benches/results/reach.json` and `make docs`.

Measured on {machine}

{combinations:,} combinations of operator, direction, dtype and layout: {total}.

How the outcome is decided: the table first runs an operator under the stock functions and counts
the symbols that it calls. Then it runs the operator once for every function behind those symbols,
with that function swapped for a probe that differs from it at every argument.

- **reached**: every function that the operator's definition needs changed every element of the
  result. An element that keeps its bits was computed by code that no symbol leads to. In an
  operator that mixes a row (softmax) one changed element would change them all, so its probe
  differs from exp only below a mark. One input at a time lies below the mark, and moves through
  all positions of the row.
- **partly reached**: some elements changed, or some of the functions changed them.
- **no function needed**: the derivative reuses the result or is algebraic.

The probe has float64 functions for float64 tensors and float32 functions for all others: most
libraries have no float64, and operators compute bfloat16 and float16 in float32.

Shapes by layout: {layouts}. Row operators: last [3, 67], middle [2, 7, 37], first [7, 37].
Backward means the derivative alone, after a forward pass under the stock functions.

This page shows CPU operators. What is compiled inside a session has its functions inside, see
[compiled.md](../swap/compiled.md). The end of the page lists what a session overrides of eager
CUDA.

## Not reached, and why

{unreached}

## All operators

{merged}
"""


def markdown(environment: dict[str, Any], rows: Sequence[ReachRow]) -> str:
    """Return the table as a Markdown page."""

    def table_of(last: tuple[str, str], lines: Sequence[tuple[str, ...]]) -> str:
        return markdown_table(("operator", "direction", "where", *last), lines)

    return _PAGE.format(
        machine=caption(environment),
        combinations=len(rows),
        total=", ".join(f"{n:,} {name}" for name, n in counts(rows).items()),
        layouts=", ".join(f"{n} {list(shape)}" for n, shape in SHAPES.items()),
        unreached=table_of(("outcome", "reason"), _unreached(rows)),
        merged=table_of(("symbols called", "outcome"), _merged(rows)),
    )


def terminal(rows: Sequence[ReachRow]) -> str:
    """Return the table as text; join rows that differ only in dtype and layout."""
    lines = []
    for operator, direction, where, symbols, outcome in _merged(rows):
        lines.append(f"{operator} {direction} [{where}]: {outcome}")
        if symbols:
            lines.append(f"    {symbols.replace('`', '')}")
    lines.append("")
    for operator, direction, where, outcome, reason in _unreached(rows):
        lines.append(f"{outcome}: {operator} {direction} [{where}]: {reason}")
    lines.append(", ".join(f"{n} {name}" for name, n in counts(rows).items()))
    return "\n".join(lines)


def unexplained(rows: Sequence[ReachRow]) -> list[str]:
    """Return the operators that are out of reach for no known reason."""
    return sorted({r.operator for r in rows if r.outcome in MISSED and not r.reason})
