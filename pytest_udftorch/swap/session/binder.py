# SPDX-License-Identifier: Apache-2.0
"""The slots through which libtorch calls its math functions, and who holds them.

Only a binder rebinds and restores slots. Sessions push layers onto it. The latest layer that names
a symbol decides what its slots hold.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pytest_udftorch.base.compat import import_torch
from pytest_udftorch.base.newest import Newest
from pytest_udftorch.errors import RestoreError, TorchNotFoundError
from pytest_udftorch.swap.library.symbols import (
    DTYPES,
    FUNCTIONS,
    SINCOS,
    Processor,
    this_processor,
)
from pytest_udftorch.swap.native.runtime import Packed, Runtime, Slot, runtime
from pytest_udftorch.swap.overrides.stack import Same, Stacked

#: The objects whose calls are rebound; torch's bundled third-party libraries are not.
TORCH_OBJECTS: Final = (
    "libtorch_cpu.so",
    "libtorch_python.so",
    "libtorch_cuda.so",
    "libtorch_cuda_linalg.so",
    "libc10.so",
)


@dataclass(frozen=True)
class Symbol:
    """A symbol that libtorch calls: which function, dtype and form it stands for."""

    name: str
    function: str
    dtype: str
    form: str
    index: int


def known_symbols(processor: Processor) -> dict[str, Symbol]:
    """Return name -> symbol for all that libtorch may call on a processor."""
    found: dict[str, Symbol] = {}
    for function in FUNCTIONS.values():
        for dtype in DTYPES:
            for form, names in function.symbols(dtype, processor).items():
                for name in names:
                    found[name] = Symbol(name, function.name, dtype, form, len(found))
    for dtype, name in SINCOS.items():
        found[name] = Symbol(name, "sincos", dtype, "scalar", len(found))
    return found


@dataclass(frozen=True)
class _Step:
    """What leads from some layers to others: the exchange, and the binder's tables after it."""

    slots: Sequence[Slot]
    packed: Packed
    ours: dict[Slot, int]
    stock: dict[Slot, int]


#: So many of them are remembered.
_STEPS: Final = 256


class Binder(Stacked[Mapping[str, int]]):
    """The slots of one process and the layers of open sessions over them.

    A layer maps ``symbol`` or ``symbol@version`` to an address; ``symbol@version`` takes
    precedence. The address 0 stands for the stock function.
    """

    def __init__(self, native: Runtime, objects: Sequence[str] = TORCH_OBJECTS) -> None:
        super().__init__()
        self.native = native
        self.objects = tuple(objects)
        self.symbols = known_symbols(this_processor())
        if len(self.symbols) > native.trampoline_count:
            raise AssertionError("more symbols than trampolines: raise UDFRT_TRAMPOLINES")
        self.slots = native.loaders(native.find(list(self.symbols), self.objects))
        self._groups: dict[tuple[str, str], list[Symbol]] = {}
        for symbol in self.symbols.values():
            self._groups.setdefault((symbol.function, symbol.dtype), []).append(symbol)
        # Slots with their names, which every change of the layers looks up.
        self._named = [(slot, slot_name(slot)) for slot in self.slots]
        self._called = {slot.symbol for slot in self.slots}
        self._counted: dict[object, frozenset[str]] = {}
        self._marking = False
        #: What a reader of marks took that is left to the reader outside.
        self._apart: set[int] | None = None
        self._stock: dict[Slot, int] = {}  # what a slot held before the first session
        self._ours: dict[Slot, int] = {}  # what we stored in it
        # Every value we stored, and whether an interrupt left the two tables above in doubt.
        self._stored: set[int] = set()
        self._in_doubt = False
        # The layers that the slots are as now; None if that is not known. And what leads from some
        # layers to others, for sessions that open again and again.
        self._at: tuple[Same, ...] | None = ()
        self._steps: Newest[tuple[object, object], _Step] = Newest(_STEPS)

    def symbols_of(self, function: str, dtype: str) -> list[Symbol]:
        """Return the symbols that libtorch calls for ``function``; empty if it calls none."""
        return [s for s in self._groups[function, dtype] if s.name in self._called]

    def slots_of(self, function: str, dtype: str) -> list[Slot]:
        """Return the slots through which libtorch calls ``function``."""
        group = self._groups[function, dtype]
        return [slot for slot in self.slots if self.symbols[slot.symbol] in group]

    def hits(self, symbol: Symbol) -> int:
        """Return how often the trampoline of ``symbol`` has been entered in this process."""
        return int(self.native.hits[symbol.index])

    def owners(self) -> list[object]:
        """Return the owners of the layers, the lowest first."""
        return [owner for owner, _ in self._layers]

    @functools.cached_property
    def parallel_slots(self) -> list[Slot]:
        """The slots through which libtorch opens parallel regions."""
        return self.native.loaders(self.native.find(["GOMP_parallel"], self.objects))

    @contextlib.contextmanager
    def counting(self, names: Iterator[str] | Sequence[str]) -> Iterator[dict[str, int]]:
        """Send the calls of ``names`` through counting trampolines.

        Yields a dictionary that is filled on exit: symbol -> calls, for the symbols called.
        Inside another that counts the same names nothing has to be bound anew.
        """
        chosen = frozenset(names)
        calls: dict[str, int] = {}
        owner = object()

        def covered() -> bool:
            return any(chosen <= others for o, others in self._counted.items() if o is not owner)

        def leave() -> None:
            with self.lock:
                self._counted.pop(owner, None)
                if not covered():
                    self.settle()

        leaving = self.native.insisting(leave)
        before: dict[str, int] = {}
        try:
            with self.lock:
                self._counted[owner] = chosen
                if not covered():
                    self.settle()
                before |= {n: self.hits(self.symbols[n]) for n in sorted(chosen)}
            yield calls
        finally:
            leaving()
            after = {n: self.hits(self.symbols[n]) for n in before}
            calls |= {n: after[n] - before[n] for n in before if after[n] > before[n]}

    @contextlib.contextmanager
    def marking(self, *, apart: bool = False) -> Iterator[None]:
        """Send the calls of every symbol through marking trampolines; see :meth:`marked`.

        Args:
            apart: whoever reads the marks inside leaves them to a reader outside.
        """
        before = self._marking, self._apart

        def leave() -> None:
            with self.lock:
                for index in (self._apart or ()) if apart else ():
                    self.native.marks[index] = 1
                self._marking, self._apart = before
                self.settle()

        leaving = self.native.insisting(leave)
        try:
            with self.lock:
                self._marking = True
                if apart:
                    self._apart = set()
                self.settle()
            yield
        finally:
            leaving()

    def marked(self) -> list[Symbol]:
        """Return the symbols called since the last time, by any thread."""
        marks = bytes(self.native.marks)
        if not any(marks):
            return []
        found = [s for s in self.symbols.values() if marks[s.index]]
        for symbol in found:
            self.native.marks[symbol.index] = 0
        if self._apart is not None:
            self._apart.update(symbol.index for symbol in found)
        return found

    def held(self, owner: object) -> frozenset[str]:
        """Return the symbols that the layer of ``owner`` decides, stock ones left out."""
        layers = (layer for o, layer in self._layers if o is owner)
        return frozenset(
            name.partition("@")[0] for layer in layers for name, address in layer.items() if address
        )

    def reset(self) -> None:
        """Restore the stock value of every slot, whoever holds it."""
        self._counted.clear()
        self._marking, self._apart = False, None
        super().reset()

    def _wanted(self) -> dict[Slot, int]:
        """Return slot -> the value it should hold; slots not listed keep their stock value."""
        chosen: dict[Slot, int] = {}
        for _, layer in self._layers:
            for slot, name in self._named:
                found = layer.get(name, layer.get(slot.symbol))
                if found is not None:
                    chosen[slot] = found
        counted = frozenset().union(*self._counted.values())
        marked: dict[int, int] = {}  # index of a trampoline -> its target
        wanted: dict[Slot, int] = {}
        for slot in self.slots:
            target = chosen.get(slot, 0)
            if slot.symbol in counted:
                index = self.symbols[slot.symbol].index
                # A trampoline keeps its symbol for the life of the process. A thread that is
                # inside one while the target changes still calls a function of the same ABI.
                self.native.targets[index] = target or self.stock_address(slot)
                wanted[slot] = self.native.trampoline(index)
            elif self._marking:
                index, target = self.symbols[slot.symbol].index, target or self.stock_address(slot)
                # Two versions of a symbol are two functions, and a trampoline has one target.
                if marked.setdefault(index, target) == target:
                    self.native.marked[index] = target
                    wanted[slot] = self.native.marker(index)
                else:
                    wanted[slot] = target
            elif target:
                wanted[slot] = target
        return wanted

    def stock_address(self, slot: Slot) -> int:
        """Return what the loader would put into a slot."""
        # A slot that was never called may hold the loader's lazy stub, which would overwrite
        # the slot later. Use the address of the function itself.
        address = self.native.resolve(slot)
        if not address:
            raise TorchNotFoundError(
                f"{slot.object} calls {slot.symbol}{slot.version and '@'}{slot.version}, but the "
                "loader finds no such symbol. This torch installation is damaged: reinstall it."
            )
        return address

    def _apply(self) -> None:
        changes = self._changes  # read first: another switch may come in at any line
        plain = not self._counted and not self._marking
        to = tuple(Same(layer) for _, layer in self._layers) if plain else None
        before, self._at = self._at, None
        if self._in_doubt or before is None or to is None:
            self._change(to, None, changes)
        elif before == to:
            self._at = to
        elif (step := self._steps.get((before, to))) is not None:
            self._step(step, to, changes)
        else:
            self._change(to, before, changes)

    def _step(self, step: _Step, to: tuple[Same, ...], changes: int) -> None:
        """Go from some layers to others as it was done before; see :meth:`_change`."""
        self._in_doubt = True
        expected = self.native.exchange_packed(step.packed)
        if changes != self._changes:
            return  # another switch came in between: it all begins anew, in doubt
        self._ours, self._stock, self._in_doubt, self._at = step.ours, step.stock, False, to
        if expected:
            return
        found, stock = step.packed.changed(), dict(step.stock)
        foreign = [
            slot for slot, value in zip(step.slots, found, strict=True)
            if value is not None and self._rebind_changed(slot, value, step.ours.get(slot), stock)
        ]  # fmt: skip
        self._stock = stock
        _refuse(foreign)

    def _change(
        self, to: tuple[Same, ...] | None, known: tuple[Same, ...] | None, changes: int
    ) -> None:
        """Change the slots to what is wanted.

        Args:
            to: the layers, if they alone decide that.
            known: the layers that the slots are as now, if the change is to be remembered.
            changes: how often layers were to be applied when this was decided.
        """
        wanted = self._wanted()
        if self._in_doubt:
            self._look()
        ours, stock = dict(self._ours), dict(self._stock)
        change = [s for s in self.slots if wanted.get(s, 0) != ours.get(s, 0)]
        now = self.native.read(change)
        expected = []
        for slot, value in zip(change, now, strict=True):
            if slot not in ours:
                stock[slot] = value
            expected.append(ours.get(slot, value))
        desired = [wanted.get(slot) or stock[slot] for slot in change]
        self._stored.update(wanted.values())
        self._in_doubt = True
        self._stock = dict(stock)
        found = self.native.exchange(change, expected, desired)
        foreign = []
        for slot, value, before in zip(change, found, expected, strict=True):
            if slot in wanted:
                ours[slot] = wanted[slot]
            else:
                ours.pop(slot, None)
                stock.pop(slot, None)
            if changes != self._changes:
                return  # another switch came in between: it all begins anew, in doubt
            if value != before and self._rebind_changed(slot, value, wanted.get(slot), stock):
                foreign.append(slot)
        self._ours, self._stock, self._in_doubt = ours, stock, False
        if changes != self._changes:
            self._in_doubt = True
            return
        if found == expected:
            self._at = to
            if known is not None and to is not None:
                self._steps[known, to] = _Step(
                    change, Packed(change, expected, desired), ours, stock
                )
        _refuse(foreign)

    def _look(self) -> None:
        """Find out from the slots what an interrupted change did."""
        self._ours, self._stock = dict(self._ours), dict(self._stock)
        for slot, value in zip(self.slots, self.native.read(self.slots), strict=True):
            if value in self._stored:
                self._ours[slot] = value
                self._stock.setdefault(slot, self.stock_address(slot))
            else:
                self._ours.pop(slot, None)
                self._stock.pop(slot, None)

    def _rebind_changed(
        self, slot: Slot, value: int, wanted: int | None, stock: dict[Slot, int]
    ) -> bool:
        """Handle a slot that no longer holds what we left there; tell whether it is foreign.

        The only legitimate cause is the loader's lazy binding, which stores the stock function
        and may be under way when a session is entered.
        """
        if value != self.native.resolve(slot):
            return True
        if wanted:
            stock[slot] = value
            self.native.exchange([slot], [value], [wanted])
        return False


def _refuse(foreign: Sequence[Slot]) -> None:
    """Raise an error for slots that another tool has rebound."""
    if foreign:
        names = ", ".join(sorted({s.symbol for s in foreign}))
        raise RestoreError(
            f"Something else rebound {names} while a session was open. Those slots keep their "
            "value; everything else was restored. Remove the other tool's hook before you open "
            "the session, or open the session around it."
        )


def slot_name(slot: Slot) -> str:
    """Return ``symbol@version``, or the symbol alone if no version is asked for."""
    return f"{slot.symbol}@{slot.version}" if slot.version else slot.symbol


_binder: Binder | None = None
_binder_lock = threading.Lock()


def bound_so_far() -> Binder | None:
    """Return the process's binder if anybody has asked for it."""
    return _binder


def binder() -> Binder:
    """Return the process's binder; imports torch and reads its relocations once.

    Raises:
        TorchNotFoundError: torch cannot be imported or has no libtorch_cpu.so.
    """
    global _binder
    if _binder is not None:
        return _binder
    with _binder_lock:
        if _binder is None:
            torch = import_torch()
            fresh = Binder(runtime())
            if not any(s.object == "libtorch_cpu.so" for s in fresh.slots):
                raise TorchNotFoundError(
                    f"torch {torch.__version__} is loaded, but no libtorch_cpu.so with math "
                    "relocations. It may be a static build. Install the ordinary wheel, which has "
                    "shared libraries."
                )
            _binder = fresh
        return _binder
