# SPDX-License-Identifier: Apache-2.0
"""What a row says of an operator of ATen.

The rows themselves lie in a module for each kind: ``moves``, ``elements``, ``sums``, ``sources``;
``rows`` looks them up. None of these modules needs torch or Triton.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from pytest_udftorch.swap.operators.calls import Applied, calls, plain

# What an operator is -------------------------------------------------------------------------


class Kind(StrEnum):
    """What an operator does with numbers."""

    MOVES = "moves, copies or drops elements"
    CHOOSES = "chooses among numbers, or changes their signs"
    MAPS = "maps elements"
    SUMS = "adds up, with weights that are not negative"
    PRODUCTS = "adds up products"
    REDUCES = "computes an element from many in another way"
    COMPARES = "gives truth values, positions or counts"
    DRAWS = "draws random numbers"
    MAKES = "makes tensors"
    ASKS = "says nothing about numbers"


class Held(StrEnum):
    """How an operator is inside of docs/contract.md."""

    NO = "it is outside"
    MOVES = "it rounds nothing"
    ROUNDED = "IEEE 754 rounds each element once"
    FUNCTION = "it is a function of the library"
    OWN = "the contract has a kernel"
    TRIED = "torch's kernel gives the same bits everywhere: a test tries it"
    COMPOSED = "torch computes it by operators that are inside"


@dataclass(frozen=True)
class Contract:
    """How an operator is inside of the contract of ``repro``.

    Attributes:
        cpu: in float32 on the CPU.
        cpu16: in bfloat16 and half on the CPU.
        cuda: in float32 on a GPU of NVIDIA.
        cuda16: in bfloat16 and half there.
        unless: calls that are outside nevertheless: ``alpha`` (in 16 bits, with a factor that is
            not 1), or ``rounding_mode`` and ``decimals`` (on a GPU, in 16 bits, with such an
            argument).
        every_overload: whether the contract's kernel serves overloads with ``out=`` that the
            library does not name: torch's write to a result that they are given.
    """

    cpu: Held = Held.NO
    cpu16: Held = Held.NO
    cuda: Held = Held.NO
    cuda16: Held = Held.NO
    unless: tuple[str, ...] = ()
    every_overload: bool = False

    @property
    def cells(self) -> tuple[Held, Held, Held, Held]:
        """By device and width."""
        return self.cpu, self.cpu16, self.cuda, self.cuda16


def everywhere(
    held: Held, *, unless: tuple[str, ...] = (), every_overload: bool = False
) -> Contract:
    """Return the contract of an operator that is inside in the same way on each device."""
    return Contract(held, held, held, held, unless, every_overload)


OUTSIDE: Final = Contract()
MOVES: Final = everywhere(Held.MOVES)
ROUNDED: Final = everywhere(Held.ROUNDED)
FUNCTION: Final = everywhere(Held.FUNCTION)
OWN: Final = everywhere(Held.OWN)
TRIED: Final = everywhere(Held.TRIED)
COMPOSED: Final = everywhere(Held.COMPOSED)

#: Torch's kernels for GPUs give other bits than those for the CPU.
TRIED_ON_CPU: Final = Contract(Held.TRIED, Held.TRIED)
#: They do so in 16 bits, which are therefore widened there; or everywhere, for kernels of the CPU
#: do not round once.
WIDENED_ON_GPUS: Final = Contract(Held.TRIED, Held.TRIED, Held.TRIED, Held.OWN)
WIDENED: Final = Contract(Held.TRIED, Held.OWN, Held.TRIED, Held.OWN)
#: On GPUs the contract computes what torch's kernels for the CPU do.
COMPOSED_ON_GPUS: Final = Contract(Held.TRIED, Held.TRIED, Held.OWN, Held.OWN)
OWN_ON_CPU: Final = Contract(Held.OWN, Held.OWN)
OWN_IN_FLOAT32_ON_CPU: Final = Contract(cpu=Held.OWN)
OWN_ON_GPUS_IN_FLOAT32: Final = Contract(cuda=Held.OWN)
OWN_ON_GPUS: Final = Contract(cuda=Held.OWN, cuda16=Held.OWN)

# Who overrides it ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Operator:
    """Overloads that a session overrides by kernels with functions in them.

    Attributes:
        name: its name.
        kernels: formulas, or kernels over rows, that compute its calls.
        overloads: the overloads that are overridden on CUDA.
        launched: overload -> the type in ``cuda_kernels.h`` that launches its kernel.
        launched_on_cpu: the same of ``cpu_kernels.h``.
    """

    name: str
    kernels: tuple[str, ...]
    overloads: tuple[str, ...]
    launched: tuple[tuple[str, str], ...] = ()
    launched_on_cpu: tuple[tuple[str, str], ...] = ()

    @property
    def functions(self) -> frozenset[str]:
        """The functions that it calls."""
        return frozenset(call.function for kernel in self.kernels for call in calls(kernel))


@dataclass(frozen=True)
class Pointwise(Operator):
    """An operator that maps elements.

    Attributes:
        functional: the overload that returns a new tensor.
        out: the overload that writes into a tensor of the caller, and that tensor's name; None
            if there is none.
        inplace: the overload that writes into its first tensor; empty if there is none.
        foreach: whether it has operators on lists of tensors.
        places: positions of the tensors among the arguments.
        formula: takes the operator's scalars and returns the formula to apply, or None if the call
            is for the stock kernel.
        has_scalars: whether the operator has scalars.
    """

    functional: str = ""
    out: tuple[str, str] | None = None
    inplace: str = ""
    foreach: bool = False
    places: tuple[int, ...] = (0,)
    formula: Callable[..., Applied | None] = plain
    has_scalars: bool = False


#: The devices with kernels in C++: both, and one of them.
BOTH: Final = ("cpu", "cuda")
ON_CPU: Final = ("cpu",)
ON_CUDA: Final = ("cuda",)


def pointwise(  # noqa: PLR0913 - the columns of a table
    name: str,
    formula: Callable[..., Applied | None] | None = None,
    *,
    kernels: Sequence[str] = (),
    places: tuple[int, ...] = (0,),
    functional: str = "",
    out: tuple[str, str] | None,
    inplace: str = "",
    foreach: bool = False,
    launched: tuple[str, ...] = (),
    signature: str = "",
) -> Pointwise:
    """Return an operator that maps elements.

    Args:
        name: its name.
        formula: see :class:`Pointwise`; by default that of the same name, without scalars.
        kernels: see :class:`Operator`; by default the formula of the same name.
        places: see :class:`Pointwise`.
        functional: likewise; by default the name.
        out: likewise.
        inplace: likewise.
        foreach: likewise.
        launched: the devices with a kernel of it in C++.
        signature: its arguments in the words of those kernels; by default a ``T`` for each tensor.
    """
    functional = functional or name
    lists = (f"_foreach_{name}", f"_foreach_{name}_") if foreach else ()
    overloads = (functional, inplace, out[0] if out else "", *lists)
    arguments = signature or ", ".join("T" for _ in places)
    rest = arguments.partition(", ")[2]
    forms = {functional: f"M::functional<{arguments}>"}
    if out:
        forms[out[0]] = f"M::into<{arguments}>"
    if inplace:
        forms[inplace] = f"M::inPlace<{rest}>"
    types = tuple(forms.items())
    return Pointwise(
        name, tuple(kernels) or (name,), tuple(filter(None, overloads)),
        types if "cuda" in launched else (), types if "cpu" in launched else (), functional, out,
        inplace, foreach, places, formula or functools.partial(plain, name), formula is not None,
    )  # fmt: skip


def unary(name: str, *args: Any, inplace: bool = True, **options: Any) -> Pointwise:
    """Return an operator of one tensor whose overloads have the usual names."""
    inplace_name = f"{name}_" if inplace else ""
    return pointwise(name, *args, out=(f"{name}.out", "out"), inplace=inplace_name, **options)


def binary(name: str, **options: Any) -> Pointwise:
    """Return an operator of two tensors whose overloads have the usual names."""
    return pointwise(name, places=(0, 1), out=(f"{name}.out", "out"), inplace=f"{name}_", **options)


def backward(name: str, *args: Any, places: tuple[int, ...] = (0, 1), **options: Any) -> Pointwise:
    """Return the gradient of an operator whose overloads have the usual names."""
    out = (f"{name}.grad_input", "grad_input")
    return pointwise(name, *args, **{"out": out, "places": places, **options})


def over_rows(name: str, kernel: str, launcher: str) -> Operator:
    """Return an operator whose kernels compute whole rows."""
    overloads = (name, f"{name}.out")
    launched = ((name, f"make<{launcher}>"),)
    return Operator(name, (f"{kernel}_rows", f"{kernel}_tiles"), overloads, launched)


# The row -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Row:
    """What is known of an operator.

    Attributes:
        name: without namespace, overload and the ``_`` at the end of a form in place.
        kind: what it does.
        also: operators with the same facts: those of ``prims`` that stand for it, and forms of
            older or other libraries.
        exact: whether it rounds nothing: each number that it gives is one that it got, up to the
            sign, or a number of its own such as 0, or an integer or a power of two near one.
        rounds_if: a call that rounds nevertheless: ``accumulate`` (the argument is true),
            ``reduce`` and ``decimals`` (parts of the overload's name, or arguments),
            ``fractions`` (a number that is no integer), ``casts`` (to a shorter type).
        roundings: how often an element of float32 is rounded; 0 if nobody counted.
        functions: the functions that the definition of an element evaluates.
        beside: others that its kernels for the CPU evaluate, for some arguments or in its loop.
        leaf: whether each element of its result evaluates ``functions``: torch does not decompose
            it into functions, or a decomposition hides them. Special functions stand for the
            function that their method in ATen rests on, normal variates for Box and Muller's.
        counted: what counts the functions of a call, in ``definitions``, where that depends on
            more than the size of the result.
        definition: its definition in ``decompositions``, where torch has none or another one.
        undefined: whether it evaluates functions that torch has no definition to count by.
        mixes: whether its elements are sums over others: their rounding is that of the largest.
        factors: positions of the two factors, of a sum of products with the error of one.
        addend: position of what is added to such a sum.
        along_rows: whether it adds up the last dimension inside and returns as many numbers.
        values: whether its results say anything about numbers: no memory that nobody wrote.
        resizes: whether it gives the tensor that it gets other memory.
        overwrites: whether the argument that it writes has no say in what is written.
        read_by: the operator that reads the places that it writes, if several numbers may be
            written to one of them. Torch does not say which of them stays.
        compares: of which numbers it keeps one: of those at one place of its tensors, and on GPUs
            of its numbers (``pairs``), of each and zero (``zero``, on GPUs), or of all in a tensor
            (``all``; ``all, on GPUs``). Torch does not say which zero of two signs stays.
        workspace: position of the result that is memory for its gradient, partly unwritten.
        writes_statistics: whether it writes arguments of which its schema does not say so.
        contract: how it is inside of the contract of ``repro``.
        compared: whether torch's kernels for GPUs were compared with those for the CPU, where the
            contract has these.
        uncompiled: overloads that Inductor must not compute under the contract, since it rounds
            them otherwise. Kernels of lists of tensors call those of single ones.
        with_numbers: overloads that Inductor computes, but for calls with a number beside 16 bits.
        compiled: takes a call's scalars and returns the formula that Inductor uses, or None where
            it keeps its own code. The scalars are unrounded: the compiler rounds them.
        left_compiled: whether compiled code calls it where a session overrides it on the CPU:
            Inductor's own code has other functions.
        mislaid: whether its results are laid out otherwise than torch's rules for fake tensors
            say, where its arguments are laid out in two ways or with the channels last.
        statistics: which of its results are statistics: where a parameter has float32, kernels for
            the CPU give those of a tensor in 16 bits in float32.
        running: which of its results are running statistics anew; they keep their dtype.
        narrow_gradient: whether the gradient of a tensor in 16 bits has 16 bits where torch's rule
            for fake tensors says float32.
        cuda: what overrides it on CUDA.
        cpu: what overrides it on the CPU: no symbol leads into the stock kernel.
        cpu_dtypes: the dtypes that these kernels compute; empty for all three.
        composites: the functions of a library of composites that it can be.
        unscaled: stock's operator without its factor, which grows; that one needs no function.
        whole: the operator that such a function is, where ``cuda`` has none.
        stubs: ``DispatchStub`` of its CPU kernels with functions in them, for the observer. A ``*``
            says that the kernel works along the last dimension; ``STUB:NAME`` gives the operator
            a name of its own.
    """

    name: str
    kind: Kind
    also: tuple[str, ...] = ()
    exact: bool = False
    rounds_if: str = ""
    roundings: int = 0
    functions: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    leaf: bool = False
    counted: str = ""
    definition: str = ""
    undefined: bool = False
    mixes: bool = False
    factors: tuple[int, int] | None = None
    addend: int | None = None
    along_rows: bool = False
    values: bool = True
    resizes: bool = False
    overwrites: bool = False
    read_by: str = ""
    compares: str = ""
    workspace: int | None = None
    writes_statistics: bool = False
    contract: Contract = OUTSIDE
    compared: bool = True
    uncompiled: tuple[str, ...] = ()
    with_numbers: tuple[str, ...] = ()
    compiled: Callable[..., Applied | None] | None = None
    left_compiled: bool = False
    mislaid: bool = False
    statistics: tuple[int, int | None] | None = None
    running: tuple[int, int] | None = None
    narrow_gradient: bool = False
    cuda: tuple[Operator, ...] = ()
    cpu: tuple[Pointwise, ...] = ()
    cpu_dtypes: tuple[str, ...] = ()
    composites: tuple[str, ...] = ()
    unscaled: str = ""
    whole: Pointwise | None = None
    stubs: tuple[str, ...] = ()


def row(name: str, kind: Kind, functions: str = "", **facts: Any) -> Row:
    """Return a row; lists of names are texts with blanks between them.

    ``stubs=True`` stands for the stub that is called after the operator.
    """
    for key in ("also", "beside", "uncompiled", "with_numbers", "composites", "cpu_dtypes"):
        if key in facts:
            facts[key] = tuple(facts[key].split())
    stubs = facts.pop("stubs", "")
    names = (f"{name}_stub",) if stubs is True else tuple(stubs.split())
    cuda = facts.pop("cuda", ())
    several = cuda if isinstance(cuda, tuple) else (cuda,)
    own = facts.pop("cpu", ())
    # On the CPU it may be what it is on CUDA.
    cpu = tuple(op for op in several if isinstance(op, Pointwise)) if own is True else own
    return Row(
        name=name, kind=kind, functions=tuple(functions.split()), stubs=names, cuda=several,
        cpu=cpu if isinstance(cpu, tuple) else (cpu,), **facts,
    )  # fmt: skip


def moves(name: str, **facts: Any) -> Row:
    """Return the row of an operator that moves elements."""
    return row(name, Kind.MOVES, exact=True, contract=MOVES, **facts)


def chooses(name: str, **facts: Any) -> Row:
    """Return the row of an operator that chooses among numbers, or changes their signs."""
    return row(name, Kind.CHOOSES, exact=True, contract=MOVES, **facts)
