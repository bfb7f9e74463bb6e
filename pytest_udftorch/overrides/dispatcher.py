"""Overrides of operators in torch's dispatcher: put in, layered by session, taken out.

An :class:`Override` stands for one overload at one dispatch key. What is there when it is put
in, the stock kernel, stays below it, and is what the dispatcher goes back to. The latest session
that names an overload decides it, as for functions; sessions may close in any order.

torch changes its table of kernels without a lock against threads that are calling the very
operator: open and close sessions while no other thread is inside it. What a thread has entered
stays alive.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Protocol

from pytest_udftorch import compat
from pytest_udftorch.errors import (
    CompositeOperatorError,
    DispatchKeyError,
    OperatorRecursionError,
    OperatorStateError,
    RestoreError,
    SwapReachedNothingError,
    UnknownOperatorError,
    nearest,
)
from pytest_udftorch.native.runtime import runtime
from pytest_udftorch.overrides.stacked import Stacked

#: Dispatch keys of backends whose tensors can be made here -> torch's name of the device.
BACKENDS: Final = {"CPU": "cpu", "CUDA": "cuda", "XPU": "xpu", "MPS": "mps"}


class Role(IntEnum):
    """What a kernel makes of the author's function; as in llvm/operator/udf_operator.h."""

    AS_IS = 0
    FUNCTIONAL = 1
    IN_PLACE = 2
    OUT = 3


class Mode(IntEnum):
    """What overrides do when they are called on a thread; as in udf_operator.h."""

    NORMAL = 0
    #: Count the call and leave by an exception instead of calling the function.
    PROBE = 1
    #: Go to the stock kernel.
    BYPASS = 2


@dataclass(frozen=True)
class Spec:
    """What an override stands for.

    Attributes:
        declared: the name that the library gives the UDF.
        operator: the overload that is overridden (``aten::log.out``).
        key: dispatch key (``CPU``).
        role: what is made of the author's function.
        author: the overload that the function has the type of.
        meta: the functional overload, whose meta kernel says what the result is; empty
            where the function is taken as it is.
        dtypes: names; calls with tensors of another go to the stock kernel. Empty for all.
    """

    declared: str
    operator: str
    key: str
    role: Role
    author: str
    meta: str = ""
    dtypes: tuple[str, ...] = ()


class Override(Protocol):
    """One overload at one dispatch key."""

    spec: Spec
    #: Number under which its calls are profiled, or -1.
    counter: int

    def register(self) -> None:
        """Note the stock kernel, and put the override before it."""

    def unregister(self) -> None:
        """Take it out."""

    def hits(self) -> int:
        """Return how many calls of this thread a probe ended, of any override of its kind."""

    def recursions(self) -> int:
        """Return how many calls of this thread were refused, of any override of its kind."""


# Operators ---------------------------------------------------------------------------


@functools.cache
def _operator_names() -> frozenset[str]:
    return frozenset(compat.operator_names())


def has_overload(name: str) -> bool:
    """Tell whether the dispatcher has an overload (``aten::log.out``)."""
    if name not in _operator_names():
        _operator_names.cache_clear()  # a library may have been loaded since
    return name in _operator_names()


def overloads(base: str) -> list[str]:
    """Return the overloads of an operator (``aten::log``), sorted."""
    has_overload(base)
    return sorted(n for n in _operator_names() if n.partition(".")[0] == base)


def schema(name: str) -> Any:
    """Return torch's schema of an overload.

    Raises:
        UnknownOperatorError: the dispatcher has no such operator or overload.
    """
    import torch

    base, _, last = name.partition(".")
    if has_overload(name):
        return compat.schema(base, last)
    known = overloads(base)
    if known:
        raise UnknownOperatorError(
            f"torch {torch.__version__} has no operator {name!r}. The overloads of {base}: "
            f"{', '.join(known)}."
        )
    bases = {n.partition(".")[0] for n in _operator_names()}
    raise UnknownOperatorError(
        f"torch {torch.__version__} has no operator {name!r}. {_near(base, bases)}"
    )


def _near(name: str, known: set[str]) -> str:
    sentence = nearest(name, known)
    if sentence.startswith("Known"):  # thousands
        return "torch.ops.aten lists ATen's; the library of another's must be imported before."
    return sentence


def overload(name: str) -> Any:
    """Return the callable of an overload: ``torch.ops.aten.log.out``."""
    import torch

    space, _, rest = name.partition("::")
    base, _, last = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, space), base), last or "default")


def check_key(name: str, key: str) -> bool:
    """Check an operator's dispatch key; tell whether a device of it is here.

    Raises:
        DispatchKeyError: torch has no such key, or it is no backend's.
        CompositeOperatorError: torch computes the operator by others at this key.
    """
    import torch

    if key not in compat.dispatch_keys():
        raise DispatchKeyError(
            f"{name}: torch {torch.__version__} has no dispatch key {key!r}. "
            f"{nearest(key, BACKENDS)}"
        )
    if key not in BACKENDS:
        raise DispatchKeyError(
            f"{name}: the dispatch key {key!r} is no backend's ({', '.join(BACKENDS)}). What lies "
            "above the backends, such as autograd, stays torch's."
        )
    if compat.has_kernel(name, "CompositeImplicitAutograd") and not compat.has_kernel(name, key):
        raise CompositeOperatorError(
            f"torch computes {name} by other operators, which also give its gradient; a kernel "
            "of its own would have none. Override the operators that it calls: torch.profiler "
            "shows them."
        )
    if key == "CPU":
        return True
    backend = getattr(torch, BACKENDS[key], None)
    return backend is not None and bool(backend.is_available())


# Modes -------------------------------------------------------------------------------


class _Thread(threading.local):
    def __init__(self) -> None:
        self.frames: list[_Frame] = []
        self.mode = Mode.NORMAL
        self.hits = 0
        self.recursions = 0


class _Reached(BaseException):
    """Ends a call that a probe was waiting for."""


@dataclass
class _Frame:
    override: PythonOverride
    stock: bool = False


_thread: Final = _Thread()


def _set_mode(mode: int) -> int:
    before, _thread.mode = _thread.mode, Mode(mode)
    return before


#: Set the mode of this thread and return the one before: one for each kind of override.
mode_setters: Final[list[Callable[[int], int]]] = [_set_mode]


@contextlib.contextmanager
def mode(wanted: Mode) -> Iterator[None]:
    """Let this thread's calls of overrides do something else."""
    setters = tuple(mode_setters)
    before = [set_one(wanted) for set_one in setters]
    try:
        yield
    finally:
        # The last first: a library that was loaded twice has two setters of one mode.
        for set_one, old in reversed(list(zip(setters, before, strict=True))):
            set_one(old)


def bypass() -> contextlib.AbstractContextManager[None]:
    """Let this thread's calls go to the stock kernels."""
    return mode(Mode.BYPASS)


# Overrides in Python -----------------------------------------------------------------


def implement(space: str, key: str, kernels: Mapping[str, Callable[..., Any]]) -> Any:
    """Put kernels into the dispatcher; ``compat.destroy`` takes them out again.

    Args:
        space: namespace of the operators (``aten``).
        key: dispatch key.
        kernels: overload in it (``log.out``) -> what is called.

    Raises:
        RuntimeError: torch rejects one of them; then it has none of them.
    """
    import torch

    kind: Any = torch.library.Library
    library = kind(space, "IMPL", key)
    try:
        with warnings.catch_warnings():
            # torch 2.11 warns of the first in a process.
            warnings.filterwarnings("ignore", "(?s).*Overriding a previously registered kernel")
            for name, kernel in kernels.items():
                library.impl(name, kernel)
    except BaseException:
        compat.destroy(library)
        raise
    return library


# A thread may be inside a kernel that is taken out: the last ones stay alive.
_alive: Final[collections.deque[Any]] = collections.deque(maxlen=256)


def stock(*args: Any, **kwargs: Any) -> Any:
    """Call the stock kernel of the operator whose UDF is running.

    Takes the arguments that the UDF takes. In C++ it is ``udf::stock<function>``.

    Raises:
        OperatorStateError: no UDF at operator level, written in Python, runs on this thread.
    """
    if not _thread.frames:
        raise OperatorStateError(
            "pytest_udftorch.stock was called while no UDF at operator level runs on this "
            "thread. It stands for the stock kernel of the operator that torch called the UDF "
            "for, within that call."
        )
    frame = _thread.frames[-1]
    before, frame.stock = frame.stock, True
    try:
        return frame.override.author_stock(*args, **kwargs)
    finally:
        frame.stock = before


class PythonOverride:
    """An override by a Python function, which is called with the schema's arguments.

    Args:
        spec: what it stands for.
        function: takes the arguments of the overload ``spec.author``.
    """

    def __init__(self, spec: Spec, function: Callable[..., Any]) -> None:
        import torch

        self.spec = spec
        self.counter = -1
        self.function = function
        self._library: Any = None
        self._dtypes = frozenset(getattr(torch, d) for d in spec.dtypes)
        arguments = schema(spec.operator).arguments
        self._positional = [a for a in arguments if not a.kwarg_only]
        self._keywords = [a for a in arguments if a.kwarg_only]
        self._written = [a.name for a in arguments if a.alias_info and a.alias_info.is_write]
        self._out = written_keyword(spec.author)
        self.author_stock: Callable[..., Any] = self._not_registered

    def _not_registered(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError

    def register(self) -> None:
        """Note the stock kernel, and put the override before it."""
        import torch

        spec = self.spec
        self._stock = _kernel(spec.operator, spec.key)
        self.author_stock = _kernel(spec.author, spec.key)
        if spec.meta:
            self._meta = _kernel(spec.meta, "Meta")
        space, _, name = spec.operator.partition("::")
        self._library = implement(space, spec.key, {name: self._call})
        _alive.append(torch.library.get_kernel(spec.operator, spec.key))

    def unregister(self) -> None:
        """Take it out."""
        compat.destroy(self._library)

    def hits(self) -> int:
        """Return how many calls of this thread a probe ended."""
        return _thread.hits

    def recursions(self) -> int:
        """Return how many calls of this thread were refused."""
        return _thread.recursions

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        # torch leaves out arguments that have their default value.
        args = (*args, *(a.default_value for a in self._positional[len(args) :]))
        kwargs = {a.name: a.default_value for a in self._keywords} | kwargs
        if self._stays(args, kwargs):
            return self._stock(*args, **kwargs)
        match self.spec.role:
            case Role.FUNCTIONAL:
                like = self._like(args)
                result = _empty(like, _tensors(args)[0].device)
                self._run(*args, **{self._out: result})
            case Role.IN_PLACE:
                result = args[0]
                self._into(result, self._like(args), args, resize=False)
            case Role.OUT:
                result = kwargs.pop(self._out)
                self._into(result, self._like(args), args, resize=True)
            case Role.AS_IS:
                result = self._run(*args, **kwargs)
                if len(self._written) == 1:  # such an overload returns it
                    named = dict(zip((a.name for a in self._positional), args, strict=True))
                    result = (named | kwargs)[self._written[0]]
        return result

    def _stays(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Tell whether a call goes to the stock kernel.

        Raises:
            OperatorRecursionError: the function called what it stands in for.
        """
        if _thread.mode is Mode.BYPASS:
            return True
        if self._dtypes:
            tensors = _tensors((*args, *kwargs.values()))
            if any(t.dtype not in self._dtypes for t in tensors):
                return True
        if _thread.mode is Mode.PROBE:
            _thread.hits += 1
            raise _Reached
        for frame in _thread.frames:
            if frame.override.function is self.function:
                if frame.stock:
                    return True
                _thread.recursions += 1
                raise OperatorRecursionError(
                    f"The UDF of {frame.override.spec.operator} called {self.spec.operator}, "
                    "which it stands in for itself, and would recurse without end. Call the "
                    "stock kernel by pytest_udftorch.stock(...), or write the UDF without this "
                    "operator."
                )
        return False

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        cells = runtime().cells if self.counter >= 0 else None
        start = cells.ticks() if cells is not None else 0
        _thread.frames.append(_Frame(self))
        try:
            # As from a kernel in C++, a user's TorchFunctionMode does not see these calls.
            with compat.no_torch_function():
                result = self.function(*args, **kwargs)
        finally:
            _thread.frames.pop()
        if cells is not None:
            tensors = _tensors((*args, *kwargs.values()))
            cells.operator_udf(self.counter, tensors[0].numel() if tensors else 0, start)
        return result

    def _like(self, args: tuple[Any, ...]) -> Any:
        """Return the result on the device ``meta``: all but its data."""
        return self._meta(*(_to_meta(a) for a in args))

    def _into(self, to: Any, like: Any, args: tuple[Any, ...], *, resize: bool) -> None:
        """Call the function on a tensor that may have another dtype or size than the result."""
        import torch

        if not resize and like.shape != to.shape:
            raise RuntimeError(
                f"output with shape {list(to.shape)} doesn't match the broadcast shape "
                f"{list(like.shape)}"
            )
        if like.dtype == to.dtype:
            if resize:
                _resize(to, like)
            self._run(*args, **{self._out: to})
            return
        if not torch.can_cast(like.dtype, to.dtype):
            raise RuntimeError(
                f"result type {like.dtype} can't be cast to the desired output type {to.dtype}"
            )
        wide = _empty(like, to.device)
        self._run(*args, **{self._out: wide})
        if resize:
            _resize(to, like)
        to.copy_(wide)


def written_keyword(name: str) -> str:
    """Return the name of the one keyword that an overload writes to (``out``), or ""."""
    found = [
        a.name
        for a in schema(name).arguments
        if a.kwarg_only and a.alias_info and a.alias_info.is_write
    ]
    return str(found[0]) if len(found) == 1 else ""


def _kernel(operator: str, key: str) -> Callable[..., Any]:
    kernel: Callable[..., Any] = compat.stock_kernel(operator, key)
    return kernel


def _tensors(values: Sequence[Any]) -> list[Any]:
    import torch

    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [v for v in value if isinstance(v, torch.Tensor)]
    return found


def _to_meta(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list | tuple):
        return [_to_meta(v) for v in value]
    return value


def _empty(like: Any, device: Any) -> Any:
    import torch

    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=device)


def _resize(to: Any, like: Any) -> None:
    """As torch's own kernels do: strides are the result's where the size changed."""
    if to.shape != like.shape:
        if to.numel():
            warnings.warn(
                f"An output with one or more elements was resized: it had shape "
                f"{list(to.shape)}, which does not match the required output shape "
                f"{list(like.shape)}.",
                stacklevel=2,
            )
        to.resize_(like.shape)
        to.as_strided_(like.shape, like.stride())


# Layers ------------------------------------------------------------------------------


@dataclass(frozen=True)
class StockOperators:
    """A layer below which overrides do not show.

    Attributes:
        names: of overloads, or as libraries declare them; None for every operator.
    """

    names: frozenset[str] | None

    def hides(self, spec: Spec) -> bool:
        """Tell whether an override is one of those named."""
        return self.names is None or bool(self.names & {spec.declared, spec.operator})


Layer = Sequence[Override] | StockOperators


class Overrides(Stacked[Layer]):
    """The layers of a process's open sessions, and what is registered for them."""

    def __init__(self) -> None:
        super().__init__()
        self._registered: dict[tuple[str, str], Override] = {}

    def registered(self) -> list[Override]:
        """Return the overrides that are in the dispatcher now."""
        with self.lock:
            return list(self._registered.values())

    def _wanted(self) -> dict[tuple[str, str], Override]:
        wanted: dict[tuple[str, str], Override] = {}
        for _, layer in self._layers:
            if isinstance(layer, StockOperators):
                wanted = {at: o for at, o in wanted.items() if not layer.hides(o.spec)}
            else:
                wanted.update({(o.spec.operator, o.spec.key): o for o in layer})
        return wanted

    def _apply(self) -> None:
        wanted = self._wanted()
        # All out before any goes in: what an override takes for stock is stock.
        for at, override in list(self._registered.items()):
            if wanted.get(at) is not override:
                try:
                    override.unregister()
                except RuntimeError as error:
                    raise RestoreError(
                        f"torch did not let go of the override of {at[0]} at {at[1]}: {error}"
                    ) from error
                del self._registered[at]
        for at, override in wanted.items():
            if at not in self._registered:
                try:
                    override.register()
                except RuntimeError as error:
                    raise SwapReachedNothingError(
                        f"torch does not take a kernel for {at[0]} at {at[1]}: {error}. Another "
                        "tool may have one there, or the operator has no stock kernel."
                    ) from error
                self._registered[at] = override


#: Those of this process.
overrides: Final = Overrides()


def _after_fork() -> None:
    # Another thread of the parent may have held the lock; it does not exist in the child.
    overrides.lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)
