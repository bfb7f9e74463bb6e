# SPDX-License-Identifier: Apache-2.0
"""Which operators of a run are outside of docs/reproduce/contract.md, so that machines may differ.

An operator is inside if its kernel is the contract's, if it only moves or compares numbers, if it
rounds each element once, or if tests hold torch's kernel to the same bits at every CPU level: its
row says how. Everything else is outside, also where nothing is known against it.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.base.dispatch_mode import Call, watching_eagerly
from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.base.source_line import source_line
from pytest_udftorch.base.tensor_contents import is_plain, kind
from pytest_udftorch.errors import OutsideContractError
from pytest_udftorch.swap.library.description import find_library
from pytest_udftorch.swap.operators.overload import arguments_of, is_view, name_of
from pytest_udftorch.swap.operators.row import Held, Row
from pytest_udftorch.swap.operators.rows import BY_NAME, ROWS, find, names
from pytest_udftorch.swap.overrides.dispatcher import thread as override_thread
from pytest_udftorch.swap.overrides.python_override import stock
from pytest_udftorch.swap.overrides.tape import in_python

LIBRARY: Final = "repro"

_SIXTEEN: Final = frozenset({"bfloat16", "float16"})


def _held(how: Held) -> frozenset[str]:
    """Return the operators that are inside in a way on the CPU."""
    return names(lambda row: row.contract.cpu is how)


#: Operators that move, choose or compare numbers, by the name without overload.
MOVES: Final = _held(Held.MOVES)

#: Operators whose every element is rounded once by IEEE 754.
ROUNDED: Final = _held(Held.ROUNDED)

#: Operators whose kernels are torch's, and give the same bits at AVX2 and AVX-512 and with any
#: number of threads: ``tests/reproduce/test_contract_outside.py`` tries each.
TRIED: Final = _held(Held.TRIED)

#: Operators that torch computes by others, which the contract has.
COMPOSED: Final = _held(Held.COMPOSED)

#: Of the operators whose kernels are torch's on the CPU, those that give other bits on GPUs. The
#: others give the same: ``tests/gpu/test_contract_outside_gpu.py`` tries each.
NOT_ON_GPUS: Final = frozenset(n for n in TRIED if BY_NAME[n].contract.cuda is Held.NO)

#: Of these, those that nobody tried on a GPU.
NOT_COMPARED: Final = names(lambda row: not row.compared)

#: The same in 16 bits, besides those.
NOT_SIXTEEN_ON_GPUS: Final = names(
    lambda row: (
        row.contract.cpu16 is not Held.NO
        and row.contract.cuda is not Held.NO
        and row.contract.cuda16 is Held.NO
        and Held.TRIED in row.contract.cells
    )
)

#: Of those that torch's kernels compute, those whose kernels for 16 bits depend on the number of
#: threads.
NOT_SIXTEEN: Final = frozenset(n for n in TRIED if BY_NAME[n].contract.cpu16 is Held.NO)

#: Overloads of these that Inductor would compute by formulas of its own, rounded otherwise.
UNCOMPILED: Final = tuple(sorted(f"aten::{n}" for row in ROWS for n in row.uncompiled))

#: Overloads of single elements that Inductor computes, but for calls with a number beside 16 bits.
WITH_NUMBERS: Final = tuple(sorted(f"aten::{n}" for row in ROWS for n in row.with_numbers))


def has_contract(registered: Iterable[Any]) -> bool:
    """Tell whether one of the overrides in the dispatcher is a kernel of the contract."""
    functions = (getattr(o, "function", None) for o in registered)
    # A function that was made by exec() in a bare namespace has None for its module.
    modules = (getattr(f, "__module__", None) or "" for f in functions)
    return any(m.startswith("pytest_udftorch.swap.contract.") for m in modules)


def holds(uncomputed: Iterable[str]) -> bool:
    """Tell whether compiled code has to keep to the contract, by the operators that it calls."""
    return bool(UNCOMPILED) and frozenset(UNCOMPILED).issubset(uncomputed)


@dataclass(repr=False)
class Outside(Result):
    """What a run called that is outside of the contract.

    Attributes:
        operators: the overload (``aten::grid_sampler_2d``) -> why, and how many calls.
    """

    operators: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    strict: bool = False

    def note(self, operator: str, why: str) -> None:
        """Take a call.

        Raises:
            OutsideContractError: outside calls are refused.
        """
        self.operators.setdefault(operator, why)
        self.calls[operator] = self.calls.get(operator, 0) + 1
        if self.strict:
            line = source_line()
            where = f" It is called at {line}" if line else ""
            raise OutsideContractError(
                f"{operator} is outside of the contract of {LIBRARY}: {why}. Another machine may "
                "give other bits. Replace it by operators of docs/reproduce/contract.md, or leave "
                f"out strict=True (--udf-strict) to have such operators listed instead.{where}"
            )

    def _shown(self) -> Shown:
        title = f"{len(self.operators)} operators are outside of the contract of {LIBRARY}"
        rows = [(name, f"{self.calls[name]:,}", why) for name, why in self.operators.items()]
        return Shown(title, ("operator", "calls", "why"), rows)

    def document(self) -> dict[str, Any]:
        """Return the operators with their calls as plain data."""
        return {n: {"calls": self.calls[n], "why": why} for n, why in self.operators.items()}

    def text(self) -> str:
        """Return a line for each operator; nothing if none is outside."""
        return "\n".join(
            f"{name}, {self.calls[name]} calls: {why}" for name, why in self.operators.items()
        )


class _Watching(threading.local):
    now: Outside | None = None


_watching: Final = _Watching()


def declined(*args: Any, **kwargs: Any) -> Any:
    """Call the stock kernel for what the contract does not have; errors are those of torch."""
    found = stock(*args, **kwargs)
    watch = _watching.now
    if watch is not None and any(t.numel() for t in _inexact(found)):
        watch.note(
            override_thread.frames[-1].override.spec.operator,
            "the contract has no order for these arguments, so the stock kernel computed it",
        )
    return found


@contextmanager
def within_contract(*, strict: bool = False) -> Iterator[Outside]:
    """List or refuse the operators of a block that are outside of the contract of ``repro``.

    >>> with patched("repro"), within_contract(strict=True):  # doctest: +SKIP
    ...     train()

    It follows this thread, and backward passes that it calls, operator by operator, which costs a
    call some ten microseconds.

    Args:
        strict: refuse the first such operator, instead of listing them. Its result is computed
            before that.

    Yields:
        what was outside; its ``operators`` fill while the block runs.

    Raises:
        OutsideContractError: with ``strict``, in the block, at the call.
    """
    found = Outside(strict=strict)
    before, _watching.now = _watching.now, found
    try:
        with in_python(), watching_eagerly(_judging(found)):
            yield found
    finally:
        _watching.now = before


def _judging(found: Outside) -> Call:
    """Return what judges each operator after its call."""

    def call(func: Any, args: Any, kwargs: Any) -> Any:
        zeros = _zeros_meet(func, (args, kwargs))
        result = func(*args, **kwargs)
        name = str(func.name())
        why = reason(func, (args, kwargs), result, zeros)
        if why is not None:
            found.note(name, why)
        return result

    return call


#: Why a call is outside that its row excepts.
_UNLESS: Final = {
    "rounding_mode": "in 16 bits torch's kernel for GPUs gives other bits than that for the CPU",
    "decimals": "in 16 bits torch's kernel for GPUs gives other bits than that for the CPU",
    "alpha": "in 16 bits torch rounds alpha in some places of a vector, and not in others",
}


def _excepted_why(func: Any, given: Any, row: Row, away: bool) -> str | None:
    """Return why a call with numbers of 16 bits is outside, which its row excepts; or nothing.

    Args:
        func: the overload.
        given: its arguments.
        row: that of the operator.
        away: whether it ran on a GPU.
    """
    if not row.contract.unless:
        return None
    arguments = arguments_of(func, *given)
    for word in row.contract.unless:
        if word == "alpha":
            outside = arguments.get("alpha", 1) != 1
        else:
            outside = away and bool(arguments.get(word))
        if outside:
            return _UNLESS[word]
    return None


@functools.cache
def _keys(overload: str) -> frozenset[str]:
    """Return the dispatch keys under which the library has an overload; none if it has it not."""
    found = find_library(LIBRARY).operators.values()
    return frozenset(
        key for those in found for udf in those if udf.name == overload for key in udf.dispatch_keys
    )


def _away_why(func: Any, devices: Any, row: Row, narrow: bool) -> str | None:
    """Return why a call elsewhere than on the CPU is outside, by its operator; or nothing."""
    if devices != {"cuda"}:
        return f"it ran on {min(devices)}, and the contract is about CPUs and NVIDIA's GPUs"
    contract = row.contract
    torchs = Held.TRIED in contract.cells
    if torchs and (contract.cuda is Held.NO or (narrow and row.name in NOT_SIXTEEN_ON_GPUS)):
        if row.compared:
            return "torch's kernel for GPUs gives other bits than that for the CPU"
        return "nobody compared torch's kernel for GPUs with that for the CPU"
    if contract.cuda is Held.NO and contract.cpu is Held.OWN:
        return "the contract has it for the CPU alone"
    if contract.cuda is Held.NO and contract.cpu is Held.COMPOSED:
        return "torch has a kernel of its own for it on GPUs"
    return None


#: Kinds of tensors whose kernels are others than those of strided ones.
_LAYOUTS: Final = frozenset(
    {"sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc", "mkldnn", "nested"}
)


def _inexact(values: Any) -> list[Any]:
    """Return the tensors in what an operator takes or gives whose numbers are rounded."""
    import torch

    found = [v for v in compat.pytree().tree_leaves(values) if isinstance(v, torch.Tensor)]
    return [t for t in found if t.is_floating_point() or t.is_complex()]


def _bare(name: str) -> str:
    """Return a name without what says that it writes, takes lists, or is for torch's own use."""
    return name.strip("_").removeprefix("foreach_")


def _is_inside(row: Row | None) -> bool:
    return row is not None and any(held is not Held.NO for held in row.contract.cells)


#: What torch calls by another name where no gradients are recorded: ``softmax`` for ``_softmax``.
_BARE: Final = {_bare(n): row for n, row in BY_NAME.items() if _is_inside(row)}


@functools.cache
def _row(func: Any) -> Row | None:
    """Return the row of an overload that the contract has; None if it is outside by its name."""
    name = name_of(func)
    row = next((r for r in (find(name), _BARE.get(_bare(name))) if _is_inside(r)), None)
    if row is None:
        return None
    if row.rounds_if == "reduce" and "reduce" in str(func.name()):
        return None
    if Held.OWN in (row.contract.cpu, row.contract.cuda) and row.contract.cpu in _OF_LIBRARY:
        # The kernel of an overload with out= is torch's unless the library names the overload.
        named = row.contract.every_overload or func.name() in find_library(LIBRARY).names
        if _outs(func) and not named:
            return None
    return row


def _outs(func: Any) -> set[str]:
    """Return the names of the arguments that a call writes its results to."""
    arguments = compat.overload_schema(func).arguments
    return {a.name for a in arguments if a.kwarg_only and a.alias_info and a.alias_info.is_write}


#: How an operator is inside on the CPU whose kernel is the library's, or that has none there.
_OF_LIBRARY: Final = frozenset({Held.OWN, Held.NO})


def captures(x: Any) -> bool:
    """Tell whether a CUDA graph is being captured, so that no number can be asked for."""
    import torch

    return bool(x.is_cuda and torch.cuda.is_current_stream_capturing())


def _meet(func: Any, given: Any, result: Any, read_by: str) -> bool:
    """Tell whether a call wrote different numbers to one place, of which one stayed.

    It reads back what was written: each number is there, unless another one took its place. While
    a CUDA graph is captured nothing can be read.
    """
    import torch

    arguments = arguments_of(func, *given)
    values: Any = arguments.get({"index_select": "source", "gather": "src"}.get(read_by, "values"))
    if arguments.get("accumulate") or not is_plain(values) or not is_plain(result):
        return False
    if captures(result):
        return False
    aten = torch.ops.aten
    if read_by == "index":
        found = aten.index(result, arguments["indices"])
    else:
        index = arguments["index"]
        found = getattr(aten, read_by)(result, arguments["dim"], index)
        if read_by == "gather":
            values = values[tuple(map(slice, index.shape))]
    values = values.expand_as(found)
    if found.is_complex():
        found, values = torch.view_as_real(found), torch.view_as_real(values)
    same = found == values
    if found.is_floating_point():
        same = same & (found.signbit() == values.signbit()) | found.isnan() & values.isnan()
    return not bool(same.all())


def _compared(func: Any, given: Any) -> Iterator[list[Any]]:
    """Yield what a call compares with each other, tensor first; of lists, what is at one place."""
    outs = _outs(func)
    arguments = [v for n, v in arguments_of(func, *given).items() if n not in outs]
    if not isinstance(arguments[0], (list, tuple)):
        yield arguments
        return
    each = [a if isinstance(a, (list, tuple)) else itertools.repeat(a) for a in arguments]
    yield from map(list, zip(*each, strict=False))


def _zeros_meet(func: Any, given: Any) -> bool:
    """Tell whether a call that keeps the largest or smallest number is given zeros of both signs.

    It looks before the call, which may overwrite what it compares.
    """
    row = _row(func)
    if row is None or not row.compares:
        return False
    return any(_both_signs(values, row.compares) for values in _compared(func, given))


def _both_signs(values: list[Any], compares: str) -> bool:
    """Tell whether a tensor and what it is compared with have zeros of both signs."""
    first, *others = values
    if not is_plain(first) or not first.is_floating_point() or captures(first):
        return False
    if not first.is_cuda and compares not in ("pairs", "all"):
        return False
    zero, negative = first == 0, first.signbit()
    if compares.startswith("all"):
        signs = negative[zero]
        return bool(signs.any()) and not bool(signs.all())
    if compares == "zero":
        others = [0.0]
    tensors = [t for t in others if is_plain(t) and t.is_floating_point()]
    # A CPU keeps the tensor's zero where a number is one, too.
    numbers = [n for n in others if type(n) in (int, float) and n == 0 and first.is_cuda]
    return any(
        bool((zero & (other == 0) & (negative != other.signbit())).any()) for other in tensors
    ) or any(bool((zero & (negative != (math.copysign(1, n) < 0))).any()) for n in numbers)


def reason(func: Any, given: Any, result: Any, zeros: bool = False) -> str | None:
    """Return why a call is outside of the contract; nothing for one that is inside.

    Args:
        func: the overload.
        given: its arguments, after the call.
        result: what it returned.
        zeros: whether it compared zeros of both signs.
    """
    row = _row(func)
    if row is not None and row.read_by and _meet(func, given, result, row.read_by):
        return "it wrote different numbers to one place, and torch does not say which one stays"
    schema = compat.overload_schema(func)
    wrote = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    made = _inexact((given, result) if wrote else result)
    if not any(t.numel() for t in made):
        return None  # integers and truth values are exact
    if zeros and any(bool((t == 0).any()) for t in made):
        return "it compared zeros of both signs, and torch does not say which one stays"
    floats = [*_inexact(given), *made]
    devices = {t.device.type for t in floats} - {"cpu"}
    dtypes = {str(t.dtype).removeprefix("torch.") for t in floats} - {"float32"}
    narrow = bool(dtypes & _SIXTEEN)
    if narrow and row is not None and (why := _excepted_why(func, given, row, bool(devices))):
        return why
    if is_view(func) or (row is not None and row.contract.cpu is Held.MOVES):
        return None
    if odd := {k for k in map(kind, floats) if k in _LAYOUTS}:
        return f"it computes with {min(odd)} tensors, for which the contract has no kernels"
    if row is None:
        return "the contract has no such operator, and no test holds torch's kernel to its bits"
    if devices and (why := _away_why(func, devices, row, narrow)):
        return why
    if narrow:
        held = row.contract.cuda16 if devices else row.contract.cpu16
        if held is Held.NO:
            return "it has numbers of 16 bits, in which the contract does not have it"
        dtypes -= _SIXTEEN
    if row.contract.cpu is Held.ROUNDED:
        dtypes = {d for d in dtypes if d.startswith("complex")}
    return f"it has {min(dtypes)} numbers, and the contract is about float32" if dtypes else None
