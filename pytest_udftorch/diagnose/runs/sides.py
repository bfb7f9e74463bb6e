# SPDX-License-Identifier: Apache-2.0
"""A side of a comparison: how a run is done."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.errors import DiagnosisError, nearest

_DTYPES: Final = ("bfloat16", "float16", "float32", "float64")

#: What a part of a side's text without ``=`` means.
_WORDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "eager": {},
    "compiled": {"backend": "inductor"},
    "cpu": {"device": "cpu"},
    "cuda": {"device": "cuda"},
    "channels_last": {"channels_last": True},
}

_KEYS: Final = (
    "autocast", "backend", "capability", "device", "dtype", "functions", "library", "mode",
    "precision", "row", "threads",
)  # fmt: skip

#: Key -> the functions of torch that get and set what it stands for in the whole process.
SETTINGS: Final = {
    "precision": ("get_float32_matmul_precision", "set_float32_matmul_precision"),
    "threads": ("get_num_threads", "set_num_threads"),
}

#: Key -> the words that it may have, and what they are.
_CHOICES: Final = {
    "dtype": (_DTYPES, "no type of numbers"),
    "autocast": (_DTYPES, "no type of numbers"),
    # In ATEN_CPU_CAPABILITY.
    "capability": (("default", "avx2", "avx512"), "nothing that torch knows"),
    "precision": (("highest", "high", "medium"), "no precision of torch's float32 products"),
}

#: Words that are followed by a path, which may hold commas and equals signs.
RECORDED, PYTHON = "rec:", "python:"


@dataclass(frozen=True)
class Side:
    """How one of the two runs is done. What is left out stays as it is.

    Attributes:
        name: what reports call it.
        device: ``cpu``, ``cuda`` or ``cuda:1``: model and inputs are moved there.
        dtype: model and floating-point inputs are converted to it.
        autocast: the type of ``torch.autocast``, which covers forward pass and loss.
        library: name or path of a UDF library, whose functions are swapped in.
        functions: of the library; by default all.
        threads: of torch's operators on the CPU.
        precision: ``highest``, ``high`` or ``medium``: of float32 products, as
            ``torch.set_float32_matmul_precision`` takes it.
        row: of the batch, which runs alone; the other side runs the whole batch.
        channels_last: the model and inputs of four dimensions are stored so.
        backend: of torch.compile; None runs the model eagerly.
        mode: of torch.compile.
        options: of torch.compile.
        capability: ``default``, ``avx2`` or ``avx512``: the CPU's instructions that torch uses; the
            side runs in a process of its own.
        python: the interpreter of another environment, in which the side runs.
        record: the folder of a recorded run, which is the side.
        around: makes a context that is entered around the run.
        run: what this side runs, if the two sides do not run the same model.
        make: likewise, but it makes what is run, anew for each run: a model and its inputs, or a
            callable.
    """

    name: str = ""
    device: str | None = None
    dtype: str | None = None
    autocast: str | None = None
    library: Any = None
    functions: tuple[str, ...] | None = None
    threads: int | None = None
    precision: str | None = None
    row: int | None = None
    channels_last: bool = False
    backend: str | None = None
    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    capability: str | None = None
    python: Path | None = None
    record: Path | None = None
    around: Callable[[], AbstractContextManager[Any]] | None = None
    run: Callable[[], Any] | None = None
    make: Callable[[], Any] | None = None

    @property
    def compiled(self) -> bool:
        """Whether torch.compile has a part in it."""
        return self.backend is not None

    @property
    def own(self) -> bool:
        """Whether it runs something of its own, not what the other side runs."""
        return self.run is not None or self.make is not None

    @property
    def elsewhere(self) -> bool:
        """Whether it runs in a process of its own."""
        return self.python is not None or self.capability is not None

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Enter what holds while the side runs.

        Raises:
            UdfError: as from opening a session of the library.
        """
        import torch

        with contextlib.ExitStack() as stack:
            for key, (get, put) in SETTINGS.items():
                if (value := getattr(self, key)) is not None:
                    stack.callback(getattr(torch, put), getattr(torch, get)())
                    getattr(torch, put)(value)
            if self.library is not None:
                from pytest_udftorch.swap.session.session import patched

                stack.enter_context(patched(self.library, self.functions, ranks="ignore"))
            if self.around is not None:
                stack.enter_context(self.around())
            yield

    def casting(self, device: str) -> AbstractContextManager[Any]:
        """Return the context for the forward pass and the loss."""
        import torch

        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(device, dtype=getattr(torch, self.autocast))


def side(what: Side | str | Callable[[], Any]) -> Side:
    """Return a side from its text, or from what it runs.

    The text is one of the words ``eager``, ``compiled``, ``cpu``, ``cuda`` and ``channels_last``,
    or ``library=corem``, ``functions=exp+log``, ``threads=1``, ``precision=high``, ``row=0``,
    ``dtype=bfloat16``, ``autocast=bfloat16``, ``device=cuda:1``, ``backend=aot_eager``,
    ``mode=max-autotune``, ``capability=avx2``, ``python:PATH``, or several of them with commas
    between. ``rec:FOLDER`` is a recorded run and stands alone.

    Raises:
        DiagnosisError: it means nothing.
    """
    if isinstance(what, Side):
        return what if what.name else replace(what, name=described(what))
    if callable(what):
        return Side(name=getattr(what, "__name__", type(what).__name__), run=what)
    if not isinstance(what, str):
        raise DiagnosisError(
            f"{what!r} is not a side. Give a text such as 'library=corem' or 'compiled', a Side, "
            "or a callable that is the run."
        )
    if what.strip().startswith(RECORDED):
        return _recorded(what.strip())
    fields: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in what.split(","))):
        key, equals, value = part.partition("=")
        if part.startswith(PYTHON):
            fields["python"] = _interpreter(part.removeprefix(PYTHON))
        else:
            fields |= _field(key.strip(), value.strip()) if equals else _word(part)
    if fields.get("mode") and not fields.get("backend"):
        fields["backend"] = "inductor"
    return Side(name=what.strip() or "eager", **fields)


def _recorded(text: str) -> Side:
    folder = text.removeprefix(RECORDED)
    if not folder:
        raise DiagnosisError(f"{RECORDED} needs a folder that `udftorch record` made.")
    return Side(name=text, record=Path(folder))


def _interpreter(path: str) -> Path:
    found = Path(path)
    if not (found.is_file() and os.access(found, os.X_OK)):
        raise DiagnosisError(
            f"There is no Python at {path!r}. Name the interpreter of an environment that has "
            f"torch and NumPy, for instance {PYTHON}.venv/bin/python."
        )
    # A link is kept: it tells the interpreter which environment it belongs to.
    return found.absolute()


def _word(text: str) -> Mapping[str, Any]:
    if text not in _WORDS:
        raise DiagnosisError(
            f"A side cannot be {text!r}. "
            + nearest(
                text, [*_WORDS, *(f"{k}=..." for k in _KEYS), f"{RECORDED}...", f"{PYTHON}..."]
            )
        )
    return _WORDS[text]


def _field(key: str, value: str) -> Mapping[str, Any]:
    if key not in _KEYS or not value:
        raise DiagnosisError(f"A side cannot have {key!r}={value!r}. {nearest(key, _KEYS)}")
    if key in ("threads", "row"):
        if not value.isdecimal() or (key == "threads" and int(value) < 1):
            raise DiagnosisError(f"{key}={value} has to be a number; {key}=1 is one.")
        return {key: int(value)}
    if key in _CHOICES:
        words, what = _CHOICES[key]
        if value not in words:
            raise DiagnosisError(f"{key}={value} is {what}. {nearest(value, words)}")
    if key == "functions":
        return {key: tuple(value.split("+"))}
    return {key: value}


def described(one: Side) -> str:
    """Return the text of a side; what no text can say is named in words."""
    shown = [
        f"{key}={'+'.join(value) if isinstance(value, tuple) else value}"
        for key in _KEYS
        if (value := getattr(one, key)) is not None
    ]
    if one.channels_last:
        shown.append("channels_last")
    if one.python is not None:
        shown.append(f"{PYTHON}{one.python}")
    if one.record is not None:
        shown.append(f"{RECORDED}{one.record}")
    if one.around is not None:
        shown.append(getattr(one.around, "__name__", "in a context of its own"))
    return ",".join(shown) or "eager"
