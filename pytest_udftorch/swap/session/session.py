# SPDX-License-Identifier: Apache-2.0
"""Sessions: bind a UDF library into the loaded libtorch, prove that torch calls it, restore.

``libtorch_cpu.so`` calls its math functions through relocation slots. A session stores the
addresses of a library's forms in those slots. It runs real torch operators through counting
trampolines to see that the functions are reached and give the UDF's own bits. On exit it restores
the slots. The swap is process-wide: every thread that calls into libtorch sees it.

Sessions form layers. The latest session that names a function decides it. Sessions may close in any
order; then the slots get what the remaining sessions ask for.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, TypeVar

from pytest_udftorch import errors
from pytest_udftorch.base.compat import torch_summary
from pytest_udftorch.base.interrupts import logging_goes_on
from pytest_udftorch.base.newest import Newest
from pytest_udftorch.base.open_files import enough_files
from pytest_udftorch.base.result import Result, Shown
from pytest_udftorch.swap.compiled import dynamo, inductor, optimizers
from pytest_udftorch.swap.compiled import triton as triton_kernels
from pytest_udftorch.swap.compiled.follower import active_of, follower
from pytest_udftorch.swap.contract import outside
from pytest_udftorch.swap.cpu import composites as whole_operators
from pytest_udftorch.swap.cpu import operators as cpu_operators
from pytest_udftorch.swap.cuda import operators as cuda_operators
from pytest_udftorch.swap.library.description import (
    UdfLibrary,
    check_names,
    find_library,
    is_operator,
)
from pytest_udftorch.swap.library.symbols import COMPOSITES, CPU_LEVELS, DTYPES, FUNCTIONS, SINCOS
from pytest_udftorch.swap.overrides import (
    canary,
    dispatcher,
    operator_canary,
    operator_udfs,
    schemas,
)
from pytest_udftorch.swap.overrides.active import Active
from pytest_udftorch.swap.overrides.stack import Same
from pytest_udftorch.swap.session import ranks as process_group
from pytest_udftorch.swap.session.binder import Binder, Symbol, binder, bound_so_far, slot_name
from pytest_udftorch.swap.session.builds import builds
from pytest_udftorch.swap.session.exclusive import gate
from pytest_udftorch.swap.toolchain import wheel_builds
from pytest_udftorch.swap.toolchain.agenda import Candidate, agenda, obtain_all
from pytest_udftorch.swap.toolchain.compiler import resolve_cpu_level
from pytest_udftorch.swap.toolchain.cuda_form import DOUBLE, FLOAT_FLOAT, asked_form
from pytest_udftorch.swap.toolchain.file_states import files_state
from pytest_udftorch.swap.toolchain.selection import Part, cuda_forms
from pytest_udftorch.swap.toolchain.shared_library import Build, build_library

if TYPE_CHECKING:
    from pytest_udftorch.swap.counting.collection import Collector
    from pytest_udftorch.swap.records.profile import Profile

follower.serve({**dynamo.CHANGES, **inductor.CHANGES, **optimizers.CHANGES})
follower.serve(triton_kernels.CHANGES)
follower.serve({**cpu_operators.CHANGES, **cuda_operators.CHANGES})


_P = ParamSpec("_P")
_R = TypeVar("_R")

# Functions whose call only makes an object that runs their code.
_RUNS_LATER: Final = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)


@dataclass(eq=False)
class _Plan:
    """What sessions of one selection bind: made by the first, and used again by the next.

    Attributes:
        layer: see ``Session._layer``.
        operators: see ``Session._operator_layer``.
        build: see :class:`Session`.
        composite_build: likewise.
        prepared: the overrides.
        reached: see :class:`Session`; what the first session verified. torch's way to a function
            does not change while a process runs.
        verified: whether a session of the plan has been open.
    """

    layer: dict[str, int]
    operators: dispatcher.Layer
    build: Build | None
    composite_build: Build | None
    prepared: operator_udfs.Prepared
    reached: dict[str, dict[str, int]] = field(default_factory=dict)
    verified: bool = False


#: What sessions may use again, and how many of these are kept.
_PLANS: Final = 64
_plans: Final[Newest[tuple[object, ...], _Plan]] = Newest(_PLANS)

#: What decides, besides files, which build a session gets.
_PLACES: Final = (
    "UDFTORCH_CLANG", "UDFTORCH_CPU_LEVEL", "UDFTORCH_CACHE_DIR", "XDG_CACHE_HOME", "HOME",
    wheel_builds.VARIABLE, *(f"UDFTORCH_{device}_LAUNCH" for device in ("CPU", "CUDA")),
)  # fmt: skip


class Session(Result):
    """One UDF library bound into libtorch, from ``__enter__`` to ``__exit__``.

    :func:`patched` makes one.

    Attributes:
        library: the UDF library.
        functions: torch's names of the swapped functions.
        operators: names of the overridden operators, as the library declares them. The stock
            baseline lists those that were asked for; without a selection it covers all.
        composites: names of the activations that are whole functions.
        build: the compiled library, or None if no function is swapped; set on entry.
        reached: function -> symbol -> calls, as counted by the canary operators on entry; and
            operator -> overload and dispatch key -> calls. A later session of the same selection
            has what the first one of the process counted, and runs none of them.
        composite_build: the compiled library of the composites, or None; set on entry.
        cuda_form: the form asked for on GPUs: ``double``, ``float-float`` or ``auto``.
    """

    def __init__(
        self,
        library: UdfLibrary,
        names: Sequence[str] | None,
        cpu_level: str | None,
        profiling: Profiling | None = None,
        cuda_form: str = DOUBLE,
        ranks: process_group.Ranks = "warn",
        exclusive: bool = False,
        whole: UdfLibrary | None = None,
    ) -> None:
        again = (library, names, cpu_level, profiling, cuda_form, ranks, exclusive, whole)
        self._again = functools.partial(Session, *again)
        self.library = library
        chosen = library.select(names)
        self.functions = tuple(n for n in chosen if n in FUNCTIONS)
        self.composites = tuple(n for n in chosen if n in COMPOSITES)
        if whole is not None:
            self.composites = whole.function_names
        self._composite_library = library if whole is None else whole
        self.operators = tuple(n for n in chosen if is_operator(n))
        self.build: Build | None = None
        self.composite_build: Build | None = None
        self.reached: dict[str, dict[str, int]] = {}
        self.cuda_form = cuda_form
        self._every_operator = names is None
        self._prepared = operator_udfs.Prepared()
        self._used: _Plan | None = None
        self._cpu_level = cpu_level
        self._state: Literal["new", "open", "closed"] = "new"
        self._profiling = profiling
        self._collector: Collector | None = None
        self._watch_id = ""
        self._ranks = ranks
        self._exclusive = exclusive

    def __repr__(self) -> str:
        build = f" {self.build.build_id}" if self.build else ""
        form = f" cuda={self.cuda_form}" if self.cuda_form == FLOAT_FLOAT else ""
        names = ",".join((*self.functions, *self.composites, *self.operators))
        return f"<Session {self.library.name}{build} {names}{form} {self._state}>"

    def _shown(self) -> Shown:
        title = f"{self.library.name} {self.library.version}, {self._state}"
        if self.build is not None:
            title += f", build {self.build.build_id}, {self.build.cpu_level}"
        rows = [
            (name, symbol, f"{calls:,}")
            for name, symbols in self.reached.items()
            for symbol, calls in symbols.items()
        ]
        header = ("function", "reached through", "calls on entry")
        missing = [
            n for n in (*self.functions, *self.composites, *self.operators) if n not in self.reached
        ]
        notes = [f"swaps {', '.join(missing)}"] if missing and not self.library.stock else []
        return Shown(title, header, rows, notes)

    def document(self) -> dict[str, Any]:
        """Return what is swapped and what was reached as plain data."""
        return {
            "library": self.library.name,
            "version": self.library.version,
            "state": self._state,
            "build_id": self.build.build_id if self.build else None,
            "cpu_level": self.build.cpu_level if self.build else None,
            "cuda_form": self.cuda_form,
            "functions": list(self.functions),
            "composites": list(self.composites),
            "operators": list(self.operators),
            "reached": self.reached,
        }

    @property
    def wants_every_function(self) -> bool:
        """True if the session was opened without a choice of functions."""
        return self._every_operator

    @property
    def is_open(self) -> bool:
        """True from a successful entry to the exit."""
        return self._state == "open"

    def __enter__(self) -> Session:
        """Bind and verify; on any failure, restore everything before raising the error.

        Raises:
            SessionStateError: the session was entered before.
            UnknownFunctionError: libtorch calls none of a function's symbols.
            CpuLevelError: torch calls vector forms wider than the build has.
            SwapError: an operator did not go through the rebound slots; it did, but the result is
                not the UDF's.
            RanksDifferError: with ``ranks="error"``, another rank has no such session.
            SessionBusyError: torch.compile is running in another thread; this thread is capturing a
                CUDA graph; this session or an open one is exclusive, and another thread does not
                leave its operator; another profiled session is open in this process.
            NativeError: what profiled sessions need does not compile.
            OperatorError, SourceError: a UDF at operator level cannot stand in for its operator;
                see ``operator_udfs``.
            CacheError: the cache cannot be written, or the process may open no more files.
        """
        with enough_files(), logging_goes_on():
            return self._enter()

    def _enter(self) -> Session:
        if self._state != "new":
            raise errors.SessionStateError(
                f"{self!r} was entered before. A session is used once; call patched() again."
            )
        bound = binder()
        cuda_operators.refuse_capture()
        put_back_modes = canary.put_back_modes()

        def give_up() -> None:
            put_back_modes()
            self._restore()

        restoring = bound.native.insisting(give_up)
        agenda.expect(self, self._builds())
        try:
            self._open(bound, restoring)
            # Other threads may open sessions while this one waits for others' locks and for ranks.
            follower.drop_compiled()
            if self._ranks != "ignore":
                process_group.compare(_facts(bound), self._ranks)
        except BaseException:
            self.close()
            follower.drop_compiled()
            raise
        return self

    def _open(self, bound: Binder, restoring: Callable[[], None]) -> None:
        """Bind and verify under the lock on the sessions."""
        with bound.lock:
            try:
                self._check_profile_is_free()
                # What compiles comes first: threads must not wait for it.
                plan = self._plan(bound)
                if self._exclusive:
                    gate.join(self)
                gate.close(bound.lock, "Nothing was changed.")
                self._check_profile_is_free()
                bound.push(self, plan.layer)
                if not plan.verified:
                    self._verify(bound)
                dispatcher.overrides.push(self, plan.operators)
                if not plan.verified:
                    self.reached |= operator_canary.verify(self._prepared.overrides)
                if self._profiling is not None:
                    self._collect(bound, self._profiling)
                self._state = "open"
                gate.open()
                _compilers_follow(bound, wait=False)
                if not plan.verified:
                    self._verify_composites()
                    plan.reached, plan.verified = self.reached, True
                self.reached = {name: dict(calls) for name, calls in plan.reached.items()}
                _watch_process_group(bound)
            except BaseException:
                restoring()
                raise

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Return the function with a session of its own, as this one, around each call.

        Raises:
            SessionStateError: the session is open or closed already, or a call of ``function``
                does not run its code: it is a class, a generator function or a coroutine function.
        """
        if self._state != "new":
            raise errors.SessionStateError(
                f"{self!r} cannot decorate: it was entered before. Write @patched(...)."
            )
        if isinstance(function, type) or any(kind(function) for kind in _RUNS_LATER):
            raise errors.SessionStateError(
                f"{function!r} cannot be decorated: its code runs after the call has returned, "
                "when the session is closed. Write `with patched(...):` inside of it."
            )

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self._again():
                return function(*args, **kwargs)

        return call

    def __exit__(self, *_: object) -> None:
        """Restore the slots to what the remaining sessions, or none, ask for."""
        self.close()

    def close(self) -> None:
        """Restore the slots, if the session is open."""
        if self._state == "open":
            with logging_goes_on():
                binder().native.insisting(self._end)()

    def _end(self) -> None:
        try:
            self._restore()
        finally:
            follower.drop_compiled()

    def _check_profile_is_free(self) -> None:
        if self._profiling is not None:
            from pytest_udftorch.swap.counting.forks import active

            active.check_free()

    def _restore(self) -> None:
        """Remove what this session put into the process; can be repeated.

        Where another thread does not leave its operator, or an interrupt ends the wait for it, the
        functions are restored at once, and the error comes afterwards.
        """
        bound = binder()
        with bound.lock, contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_state", "closed")
            stack.callback(_watch_process_group, bound)
            stack.callback(_compilers_follow, bound, wait=True)
            stack.callback(gate.leave, self)
            stack.callback(gate.open)
            stack.callback(bound.remove, self)
            stack.callback(dispatcher.overrides.remove, self)
            if self._collector is not None:
                stack.callback(self._collector.stop)
            if self in bound.owners():
                gate.close(bound.lock, "The functions were restored all the same.")

    @property
    def profile(self) -> Profile:
        """What was counted since entry, up to now or to the exit.

        Raises:
            SessionStateError: the session was opened without ``profile=``, or is not open yet.
        """
        return self.collector.profile()

    @property
    def collector(self) -> Collector:
        """The collector of the raw records of :attr:`profile`, which raises the same errors."""
        if self._collector is None:
            how = "not entered yet" if self._profiling else "opened without profile=True"
            raise errors.SessionStateError(f"{self!r} has no profile: it was {how}.")
        return self._collector

    def _collect(self, bound: Binder, profiling: Profiling) -> None:
        from pytest_udftorch.swap.counting.collection import Collector

        ids = self._build_ids()
        meta = {
            "library": self.library.name,
            "version": self.library.version,
            "claim": self.library.claim,
            "build_id": "+".join(i for i in ids if i) or self._watch_id,
            "cpu_level": self.build.cpu_level if self.build else resolve_cpu_level(self._cpu_level),
            "torch": torch_summary()[0],
            "functions": [*self.functions, *self.operators],
        }
        collector = Collector(
            profiling.depth, profiling.stride, meta, profiling.out, self._prepared.operators
        )
        collector.start(bound.parallel_slots)
        self._collector = collector

    def cuda_forms(self) -> dict[str, str]:
        """Return float32 function -> ``double`` or ``float-float``, as compiled for a GPU.

        The stock library has no such forms. To resolve ``auto``, this may ask the driver which
        GPUs there are.

        Raises:
            SessionStateError: the session was not entered.
        """
        if self.library.stock:
            return {}
        if self.build is None:
            raise errors.SessionStateError(
                f"{self!r} was not entered yet: its build is not chosen."
            )
        return cuda_forms(Part(self.build, tuple(self._keys()), self.cuda_form))

    def _facts(self) -> process_group.Facts:
        """Return what the ranks of a process group compare."""
        return {
            "library": self.library.name,
            "version": self.library.version,
            "build": "+".join(i for i in self._build_ids() if i),
            "cpu_level": self.build.cpu_level if self.build else "",
            "functions": [*self.functions, *self.composites, *self.operators],
        }

    def _build_ids(self) -> tuple[str, ...]:
        builds = (b.build_id if b else "" for b in (self.build, self.composite_build))
        return (*builds, self._prepared.build_id)

    def _keys(self) -> list[tuple[str, str]]:
        return [(f, dtype) for f in self.functions for dtype in self.dtypes(f)]

    def dtypes(self, function: str) -> list[str]:
        """Return the dtypes of ``function`` that the session decides."""
        if self.library.stock:
            return list(DTYPES)
        return [d for d in DTYPES if (function, d) in self.library.functions]

    def _plan(self, bound: Binder) -> _Plan:
        """Return what to bind. A profiled session makes it anew: it counts in places of its own."""
        libraries = [self.library]
        if self.composites and self._composite_library is not self.library:
            libraries.append(self._composite_library)
        key = (
            *map(Same, libraries), *map(files_state, libraries), self.functions, self.composites,
            self.operators, self._every_operator, self._cpu_level, *map(os.environ.get, _PLACES),
        )  # fmt: skip
        plan = None if self._profiling is not None else _plans.get(key)
        if plan is None:
            layer, operators = self._layer(bound), self._operator_layer()
            plan = _Plan(layer, operators, self.build, self.composite_build, self._prepared)
            if self._profiling is None:
                _plans[key] = plan
        self.build, self.composite_build = plan.build, plan.composite_build
        self._prepared = plan.prepared
        self._used = plan
        return plan

    def _builds(self, watching: bool = False) -> Callable[[], Iterator[Candidate]]:
        """Return what yields the builds that the session needs; it does not hold the session."""
        names = (*self.functions, *self.operators)
        return functools.partial(
            builds, self.library, names, self._cpu_level,
            profiled=self._profiling is not None, exclusive=self._exclusive, watching=watching,
        )  # fmt: skip

    def prepare(self, *, watching: bool = False) -> None:
        """Compile what the session needs and this machine lacks, without opening the session.

        Args:
            watching: also what notes operators and layers of calls, as ``--udf-strict`` does.

        Raises:
            UdfError: a part cannot be compiled.
        """
        obtain_all(self._builds(watching)())

    def _layer(self, bound: Binder) -> dict[str, int]:
        """Return symbol -> address for every symbol of the session's functions."""
        if self.library.stock and self._profiling is not None:
            return self._watched(bound)
        if self.functions and not self.library.stock:
            profiled = self._profiling is not None
            self.build = build_library(self.library, self._cpu_level, profiled=profiled)
            self._check_width(self.build)
        if self.composites:
            profiled = self._profiling is not None
            self.composite_build = build_library(
                self._composite_library, self._cpu_level, profiled=profiled
            )
        layer: dict[str, int] = {}
        for function in self.functions:
            for dtype in self.dtypes(function):
                if not bound.symbols_of(function, dtype):
                    if self.library.stock:
                        continue
                    raise errors.UnknownFunctionError(
                        f"None of {', '.join(bound.objects)} calls {dtype} {function!r} through "
                        "a symbol that can be rebound; torch "
                        f"{torch_summary()[0]} has it inlined or leaves it out. Choose other "
                        "functions with functions=(...) or --udf-functions."
                    )
                addresses = {} if self.build is None else self.build.forms(function, dtype)
                for form, names in FUNCTIONS[function].symbols(dtype).items():
                    # Forms that the build lacks stay stock: torch does not call them on this
                    # machine (see _check_width).
                    layer.update(dict.fromkeys(names, addresses.get(form, 0)))
        if {"sin", "cos"} <= set(self.functions):
            for dtype, name in SINCOS.items():
                if self.build is None:
                    layer[name] = 0
                elif self.build.sincos(dtype):
                    layer[name] = self.build.sincos(dtype)
        return layer

    def _operator_layer(self) -> dispatcher.Layer:
        """Return the overrides of the session's operators, compiled and checked."""
        if self.library.stock:
            names = None if self._every_operator else frozenset(self.operators)
            for name in self.operators:
                schemas.schema(name)
            return dispatcher.StockOperators(names)
        profiled = self._profiling is not None
        self._prepared = operator_udfs.prepare(
            self.library, self.operators, self._cpu_level, profiled=profiled
        )
        return self._prepared.overrides

    def _watched(self, bound: Binder) -> dict[str, int]:
        """Return symbol@version -> address of the function that watches the stock one."""
        from pytest_udftorch.swap.toolchain.watchers import Stock, watch

        chosen = set(self.functions)
        if chosen & {"sin", "cos"}:
            chosen.add("sincos")
        stock: dict[str, Stock] = {}
        for slot in bound.slots:
            symbol, name = bound.symbols[slot.symbol], slot_name(slot)
            if symbol.function in chosen:
                address = bound.stock_address(slot)
                stock[name] = Stock(name, symbol.function, symbol.dtype, symbol.form, address)
        made = watch(list(stock.values()), resolve_cpu_level(self._cpu_level))
        self._watch_id = made.build_id
        return made.addresses

    def _check_width(self, build: Build) -> None:
        """Refuse a build whose vectors are narrower than those torch dispatches on."""
        _, capability = torch_summary()
        if capability.startswith("SVE"):
            raise errors.CpuLevelError(
                f"torch runs its {capability} kernels, which call functions for SVE that no build "
                "has: the swap would be partial. Set ATEN_CPU_CAPABILITY=default before torch is "
                "imported."
            )
        needed = {"AVX512": 512, "AVX2": 256}.get(capability, 0)
        if CPU_LEVELS[build.cpu_level][2] < needed:
            raise errors.CpuLevelError(
                f"torch runs its {capability} kernels, which call {needed}-bit forms that a "
                f"build for {build.cpu_level!r} does not have: the swap would be partial. Set "
                f"ATEN_CPU_CAPABILITY={'avx2' if build.cpu_level == 'avx2' else 'default'} "
                "before torch is imported, or use a higher CPU level."
            )

    def _verify(self, bound: Binder) -> None:
        """Run the canary operators with the session's symbols behind counting trampolines."""
        if self.build is None:
            return
        symbols = {key: bound.symbols_of(*key) for key in self._keys()}
        names = [s.name for group in symbols.values() for s in group]
        with bound.counting(names), dispatcher.bypass(), canary.plain_torch() as torch:
            for (function, dtype), group in symbols.items():
                before = {s: bound.hits(s) for s in group}
                mismatch = canary.mismatch(torch, self.build, function, dtype)
                after = {s.name: bound.hits(s) - before[s] for s in group}
                calls = {name: count for name, count in after.items() if count}
                self._judge(function, dtype, group, calls, mismatch)

    def _verify_composites(self) -> None:
        """Run the operators of the composites; one that has a UDF of its own is left out."""
        if self.composite_build is None:
            return
        if self._collector is not None:
            with self._collector.starting_over():
                self._run_composites(self.composite_build)
        else:
            self._run_composites(self.composite_build)

    def _run_composites(self, build: Build) -> None:
        own = {o.spec.operator for o in dispatcher.overrides.registered() if o.spec.key == "CPU"}
        with canary.plain_torch() as torch:
            for function in self.composites:
                overload = f"aten::{whole_operators.OVERLOADS[function]}"
                if overload in own:
                    continue
                operator = whole_operators.operator(torch, function)
                with whole_operators.watching() as seen:
                    mismatch = canary.mismatch(torch, build, function, "float32", operator)
                if function not in seen:
                    raise errors.SwapError(
                        f"{overload} did not compute {function!r}, so the composites of "
                        f"{build.library.name!r} would not be used. Everything was restored. "
                        "Something else has overridden the operator: open the session before it, "
                        "or leave out composites=True."
                    )
                if mismatch:
                    raise errors.SwapError(
                        f"{overload} computed {function!r}, but {mismatch} Everything was "
                        f"restored. The forms of {build.library.name!r} disagree with each other, "
                        "or torch adds a step of its own."
                    )
                self.reached[function] = {f"{overload} CPU": seen.count(function)}

    def _judge(
        self, function: str, dtype: str, group: list[Symbol], calls: dict[str, int], mismatch: str
    ) -> None:
        if not calls:
            raise errors.SwapError(
                f"torch.{function} on {dtype} did not call any rebound symbol "
                f"({', '.join(s.name for s in group)}), so {self.library.name!r} would not be "
                "used. Everything was restored. This torch reaches the function in another way: "
                "leave the function out, and report torch's version."
            )
        if mismatch:
            raise errors.SwapError(
                f"torch.{function} on {dtype} went through {', '.join(calls)}, but {mismatch} "
                f"Everything was restored. The forms of {self.library.name!r} disagree with "
                "each other, or torch adds a step of its own."
            )
        self.reached[function] = self.reached.get(function, {}) | calls


def _compilers_follow(bound: Binder, *, wait: bool) -> None:
    """Let compilers and eager operators use the functions that the open sessions ask for."""
    while True:
        before = bound.changes
        sessions = [o for o in bound.owners() if isinstance(o, Session) and o.is_open]
        key = tuple((Same(s._used), s.cuda_form, s.library.stock) for s in sessions)
        active = _actives.get(key)
        if active is None:
            active = _actives[key] = _active_of(sessions)
        follower.follow(active, wait=wait)
        if before == bound.changes:
            return
        follower.in_doubt = True  # a session came or went in between


#: Plans of open sessions, with what decides on GPUs -> what is active.
_actives: Final[Newest[object, Active]] = Newest(_PLANS)


def _active_of(sessions: Sequence[Session]) -> Active:
    """Return what sessions ask of compilers and eager operators; the last is the uppermost."""
    chosen: dict[tuple[str, str], Session] = {}
    whole: dict[str, Build] = {}
    for owner in sessions:
        chosen.update(dict.fromkeys(owner._keys(), owner))
        if owner.library.stock and owner.wants_every_function:
            whole.clear()
        if owner.composite_build is not None:
            whole.update(dict.fromkeys(owner.composites, owner.composite_build))
    parts: dict[tuple[str, str], tuple[Build, list[tuple[str, str]]]] = {}
    for key in sorted(chosen):
        build, form = chosen[key].build, chosen[key].cuda_form
        if build is not None:
            parts.setdefault((build.build_id, form), (build, []))[1].append(key)
    return active_of(
        [Part(build, tuple(keys), form) for (_, form), (build, keys) in sorted(parts.items())],
        [
            *_uncomputed(),
            *(f"aten::{n}" for n in whole_operators.composite_overloads(frozenset(whole))),
            *cpu_operators.left_by_compilers({n for _, keys in parts.values() for n, _ in keys}),
        ],
        _composite_parts(whole),
    )


def _uncomputed() -> list[str]:
    """Return the operators that compiled code calls instead of computing them."""
    found = {o.spec.operator: o for o in dispatcher.overrides.registered()}
    if outside.has_contract(found.values()):
        return [*found, *outside.UNCOMPILED]
    return [*found]


def _composite_parts(whole: dict[str, Build]) -> list[Part]:
    """Return the parts for activations that are whole functions, by name and build."""
    by_build: dict[str, tuple[Build, list[tuple[str, str]]]] = {}
    for name in sorted(whole):
        build = whole[name]
        by_build.setdefault(build.build_id, (build, []))[1].append((name, "float32"))
    return [Part(build, tuple(keys)) for _, (build, keys) in sorted(by_build.items())]


def _compared(bound: Binder) -> list[Session]:
    """Return the open sessions that ranks compare, the lowest first."""
    sessions = [o for o in bound.owners() if isinstance(o, Session) and o.is_open]
    sessions = [s for s in sessions if s._ranks != "ignore"]
    # One rank alone may watch the stock functions.
    while sessions and sessions[0].library.stock and sessions[0]._profiling is not None:
        del sessions[0]
    return sessions


def _facts(bound: Binder) -> list[process_group.Facts]:
    return [session._facts() for session in _compared(bound)]


def _watch_process_group(bound: Binder) -> None:
    """Let the ranks compare if a process group is initialised while sessions are open."""
    if not _compared(bound):
        process_group.unwatch()
        return

    def compare() -> None:
        hows = {session._ranks for session in _compared(bound)}
        process_group.compare(_facts(bound), "error" if "error" in hows else "warn")

    process_group.watch(compare)


@dataclass(frozen=True)
class Profiling:
    """The depth of a profile, the stride of its histograms in blocks, and its folder."""

    depth: str
    stride: int
    out: Path | None


def patched(
    library: str | Path | UdfLibrary,
    functions: Sequence[str] | None = None,
    *,
    cpu_level: str | None = None,
    profile: bool | Literal["counters", "timed", "events"] = False,
    profile_out: str | Path | None = None,
    profile_stride: int | None = None,
    cuda_form: Literal["double", "float-float", "auto"] | None = None,
    ranks: Literal["warn", "error", "ignore"] = "warn",
    exclusive: bool = False,
    composites: bool = False,
) -> Session:
    """Return a context manager that swaps functions of libtorch for those of a UDF library.

    >>> with patched("corem", functions=("exp", "log")) as session:  # doctest: +SKIP
    ...     y = torch.softmax(x, -1)

    Args:
        library: name (``corem``), path of a folder with ``udf.toml``, or a ``UdfLibrary``.
        functions: torch's names of the functions to swap, and names of the operators to override
            as the library gives them (``aten::log.out``); by default all that the library has.
        cpu_level: ``baseline``, ``avx2`` or ``avx512``; by default the best of this CPU.
        profile: record what the functions do: True or ``"counters"`` only counts, ``"timed"``
            adds times, ``"events"`` adds a record of each operator call. See ``Session.profile``.
            Only one profiled session can be open in a process. Sessions without a profile may be
            opened within it; what their functions do is not counted.
        profile_out: folder that gets a file ``profiled-*.bin`` of this process, and one of each
            forked child; by default nothing is written.
        profile_stride: the histograms sample one block in this many, a power of two; 512 by
            default, 1 for every block.
        cuda_form: how GPUs compute the functions: ``"double"``; ``"float-float"``, which gives the
            same bits faster where double precision is weak, for the functions that the library
            has in that form; or ``"auto"``, which decides by the GPUs of the machine
            (``cuda_form.choose``). By default ``UDFTORCH_CUDA_FORM``, or else ``"auto"``.
        ranks: what happens if the ranks of a process group (torch.distributed) do not open the
            same sessions: a :class:`RanksDifferWarning`, a :class:`RanksDifferError`, or nothing.
        exclusive: while the session is open, every switch in the process waits until no other
            thread is in an operator, and operators wait for the switch. So no result mixes two
            libraries. Every operator then costs a little more; see ``session.exclusive``.
        composites: sigmoid, silu, gelu and other activations are correctly rounded as a whole,
            on the CPU in float32, bfloat16 and half, if the library has such functions. Without
            it, and on GPUs, they are torch's formulas over the session's functions.

    Returns:
        A :class:`Session`, which can be entered once, or can decorate functions. On entry the
        library is compiled, unless a build of the same content is in the cache.

    Raises:
        UnknownLibraryError, LibraryError, UnknownFunctionError, ProfileError, CudaFormError,
            SessionStateError: raised at once. Errors of building and binding are raised on entry.
    """
    if ranks not in process_group.RANKS:
        known = ", ".join(map(repr, process_group.RANKS))
        raise errors.SessionStateError(f"ranks={ranks!r} is not one of {known}.")
    if not isinstance(exclusive, bool):
        raise errors.SessionStateError(f"exclusive={exclusive!r} is neither True nor False.")
    if not isinstance(composites, bool):
        raise errors.SessionStateError(f"composites={composites!r} is neither True nor False.")
    with enough_files():
        found = find_library(library)
    if cuda_form == FLOAT_FLOAT and not found.stock:
        chosen = [name for name in found.select(functions) if not is_operator(name)]
        _check_float_float(found, chosen, named=functions is not None)
    return Session(
        found,
        functions,
        cpu_level,
        _profiling(profile, profile_out, profile_stride),
        asked_form(cuda_form),
        ranks,
        exclusive,
        whole_functions(found) if composites else None,
    )


def open_sessions() -> list[Session]:
    """Return the sessions that are open in this process, the one that was opened last at the end.

    Torch is not imported for it.
    """
    bound = bound_so_far()
    owners = [] if bound is None else bound.owners()
    return [o for o in owners if isinstance(o, Session) and o.is_open]


def whole_functions(library: UdfLibrary) -> UdfLibrary | None:
    """Return the library of the activations that belong to one; None for the stock library.

    Raises:
        LibraryError: there is none, or it has other functions.
        The errors of ``find_library``.
    """
    if library.stock:
        return None
    if library.composites is None:
        raise errors.LibraryError(
            f"UDF library {library.name!r} has no composites. Leave out composites=True, or let "
            "composites in [library] of its udf.toml name the folder of a library that has them: "
            f"{', '.join(COMPOSITES)}."
        )
    whole = find_library(library.composites)
    if others := [name for name in whole.names if name not in COMPOSITES]:
        raise errors.LibraryError(
            f"UDF library {library.name!r} names {whole.folder} for its composites, which has "
            f"{others[0]!r}. Only these can be there: {', '.join(COMPOSITES)}."
        )
    return whole


def _check_float_float(library: UdfLibrary, functions: Sequence[str], *, named: bool) -> None:
    pairs = library.float_float
    have = find_library(pairs).function_names if pairs is not None else ()
    if not set(have).intersection(functions):
        what = f" of {', '.join(functions)}" if named and have else ""
        known = f"; it has one of {', '.join(have)}" if have else ""
        raise errors.CudaFormError(
            f"UDF library {library.name!r} has no float-float form{what}{known}. Leave out "
            "cuda_form='float-float', or let float_float in [library] of its udf.toml name the "
            "folder of a library that computes the same in pairs of floats."
        )


def _profiling(profile: bool | str, out: str | Path | None, stride: int | None) -> Profiling | None:
    if profile is False:
        if out is None and stride is None:
            return None
        raise errors.ProfileError(
            "profile_out and profile_stride need a profile. Add profile=True."
        )
    from pytest_udftorch.swap.counting.collection import STRIDE, check_stride, depth_of

    if out is not None and not isinstance(out, (str, os.PathLike)):
        raise errors.ProfileFileError(
            f"profile_out={out!r} is not a path. Name the folder that the profile goes to."
        )
    stride = STRIDE if stride is None else check_stride(stride)
    return Profiling(depth_of(profile), stride, None if out is None else Path(out))


@contextlib.contextmanager
def trace(functions: Sequence[str] | None = None) -> Iterator[dict[str, int]]:
    """Count the calls that libtorch makes to each math symbol, whatever is bound.

    This works inside and outside sessions, for stock functions and UDFs. Counting costs one
    atomic addition per call.

    Args:
        functions: torch's names; by default every function of ``symbols.FUNCTIONS``.

    Yields:
        A dictionary that is filled on exit: symbol (``Sleef_expf16_u10``) -> calls.

    Raises:
        UnknownFunctionError: ``functions`` is empty, or names one that libtorch does not call.
    """
    if functions is not None:
        check_names(functions)
    chosen = set(FUNCTIONS if functions is None else functions)
    if unknown := sorted(chosen - set(FUNCTIONS)):
        raise errors.UnknownFunctionError(
            f"PyTorch has no function {unknown[0]!r} to trace. "
            f"{errors.nearest(unknown[0], FUNCTIONS)}"
        )
    if not chosen:
        raise errors.UnknownFunctionError(
            "An empty selection of functions would count nothing. Leave it out to count all."
        )
    bound = binder()
    if chosen & {"sin", "cos"}:
        chosen.add("sincos")
    present = {slot.symbol for slot in bound.slots}
    names = [n for n, s in bound.symbols.items() if s.function in chosen and n in present]
    with bound.counting(names) as calls:
        yield calls
