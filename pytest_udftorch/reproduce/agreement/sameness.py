# SPDX-License-Identifier: Apache-2.0
"""Run one model in the ways that ought to agree, and say which do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pytest_udftorch.diagnose.runs.files import load_make
from pytest_udftorch.diagnose.runs.work import seeded
from pytest_udftorch.errors import OutsideContractError, RunError, UdfError
from pytest_udftorch.reproduce.agreement.parting import (
    Cut,
    First,
    first_parting,
    recorded,
)
from pytest_udftorch.reproduce.agreement.refusal import refuse
from pytest_udftorch.reproduce.agreement.result import Outcome, Part, Sameness
from pytest_udftorch.reproduce.agreement.subject import Piece, Subject, far
from pytest_udftorch.reproduce.agreement.ways import MICRO_BATCHES, Way, chosen, evaluation, step
from pytest_udftorch.swap.contract.outside import LIBRARY
from pytest_udftorch.swap.session.binder import binder
from pytest_udftorch.swap.session.session import Session, patched

#: The libraries of a table: torch's own functions, correct ones, and those of the contract.
LIBRARIES: Final = ("std", "corem", "repro")

_DTYPES: Final = ("float32", "bfloat16", "float16", "float64")


def subject_of(subject: str | Any, inputs: Any = (), dtype: str | None = None) -> Subject:
    """Return a model as the ways see it.

    Args:
        subject: what a command line names, or a module.
        inputs: of the module.
        dtype: what its weights and floating-point inputs are converted to.

    Raises:
        CoverageError: there is no such file or function.
        RunError: it is no model that could be run in several ways.
    """
    import torch

    if isinstance(subject, str):
        made = load_make(subject)()
        if not (isinstance(made, tuple | list) and len(made) == 2):
            raise RunError(
                f"{subject} returned {type(made).__name__}. It has to return a model and its "
                "inputs."
            )
        subject, inputs = made
    found = Subject(subject, inputs)
    if dtype is None:
        return found
    if dtype not in _DTYPES:
        raise RunError(f"{dtype} is not a dtype of a model. Give one of {', '.join(_DTYPES)}.")
    wanted = getattr(torch, dtype)
    converted = {
        name: t.to(wanted) if isinstance(t, torch.Tensor) and t.is_floating_point() else t
        for name, t in found.inputs.items()
    }
    positional = all(isinstance(name, int) for name in converted)
    own = tuple(converted.values()) if positional else converted
    return Subject(subject.to(wanted), own)


def same(  # noqa: PLR0913
    subject: str | Any,
    inputs: Any = (),
    *,
    libraries: Sequence[str] | None = LIBRARIES,
    ways: Sequence[str] | None = None,
    limit: float | None = None,
    dtype: str | None = None,
    seed: int = 0,
    strict: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Sameness:
    """Run a model in the ways that ought to agree, and compare the bits of what it gives.

    Every way is compared with the evaluation of the whole batch under the same library. A result is
    a tensor of shape (rows, positions, classes) or (rows, classes); log-probabilities are float32,
    of the tokens that follow in a causal model, else of the likeliest class.

    Args:
        subject: ``hf-tiny:LlamaForCausalLM``, ``hf:DIR``, ``timm:NAME``, ``torchvision:NAME``,
            ``model.py:make``, or a module.
        inputs: of a module: its positional arguments, or a dictionary of its arguments. The first
            dimension of each tensor is the batch.
        libraries: names of libraries; the last one is what the verdict is about. None: in the
            session that is open, or in none.
        ways: names of ways; by default all that the model has.
        limit: seconds after which no further way is begun.
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``float64``, to which the model is
            converted.
        seed: of the weights and the inputs of a named model.
        strict: refuse a model before its ways are run, if it calls an operator that is outside of
            the contract, or one whose sums have terms that a mask hides; then refuse it by the
            first way that differs. For the library ``repro``.
        progress: is told how many runs are done, and how many there are.

    Raises:
        CoverageError: there is no such file or function.
        OutsideContractError: with ``strict``, the operator that cannot agree.
        PackageMissingError: the package that has the model is not installed.
        RunError: there is no such model or way, or it cannot be run in several ways.
        UdfError: as from opening a session of a library.
    """
    if libraries is not None and not libraries:
        raise RunError("There is no library to run under. Give one, such as repro.")
    module = subject.model if isinstance(subject, Subject) else subject
    named = subject if isinstance(subject, str) else type(module).__name__
    sessions = [None] if libraries is None else list(libraries)
    names = tuple(name or _open_session() for name in sessions)
    with seeded(seed):
        one = subject if isinstance(subject, Subject) else subject_of(subject, inputs, dtype)
        wanted = chosen(one, ways)
        if strict:
            if names[-1] != LIBRARY:
                raise RunError(
                    f"Strict is about the contract of {LIBRARY}, and the verdict about {names[-1]}."
                    f" Name {LIBRARY} last, or leave out --strict."
                )
            with _session(sessions[-1]):
                refuse(one, [way.name for way in wanted])
        search = _Search(one, wanted, progress, len(sessions), limit)
        found = {names[-1]: search.under(sessions[-1], strict=True)} if strict else {}
        for name, library in zip(names, sessions, strict=True):
            if name not in found:
                found[name] = search.under(library)
    return Sameness(
        named, dtype or _dtype_name(one),
        names, tuple(way.name for way in wanted),
        found, one.batch, one.length,
    )  # fmt: skip


def _refusal(way: str, outcome: Outcome) -> str:
    """Say what makes a way differ, and what to do."""
    if way == MICRO_BATCHES and outcome.first is None:
        what = (
            "torch.autograd gives gradients of micro-batches other bits, as where what is computed "
            "of weights alone is used several times"
        )
    else:
        what = f"{outcome.first or 'What is not recorded'} gives other bits in the way {way!r}"
    return f"{what}. Name other ways, or leave out --strict to see all that differ."


def _session(library: str | None) -> Any:
    return patched(library, ranks="ignore") if library else contextlib.nullcontext()


def _open_session() -> str:
    """Return the name of the library of the innermost open session, or ``std``."""
    opened = [o for o in binder().owners() if isinstance(o, Session) and o.is_open]
    return opened[-1].library.name if opened else "std"


def _dtype_name(one: Subject) -> str:
    kinds = {str(p.dtype).removeprefix("torch.") for p in one.model.parameters()}
    return ", ".join(sorted(kinds))


class _Search:
    """Runs the ways of one model under one library after another."""

    def __init__(
        self, one: Subject, ways: Sequence[Way], progress: Callable[[int, int], None] | None,
        libraries: int, limit: float | None,
    ) -> None:  # fmt: skip
        self.one, self.ways = one, ways
        self._progress = progress or (lambda done, total: None)
        self._done, self._total = 0, libraries * len(ways)
        self._end = None if limit is None else time.monotonic() + limit

    def under(self, library: str | None, *, strict: bool = False) -> dict[str, Outcome]:
        """Return way -> what came of it, of the ways that were begun in time.

        Raises:
            OutsideContractError: with ``strict``, a way differs.
        """
        found: dict[str, Outcome] = {}
        with _session(library):
            whole = _only(evaluation(self.one))
            again = _only(evaluation(self.one))
            if differing("", again.own(), whole.own()).differ:
                raise RunError(
                    f"Under {library or _open_session()} the model gives different bits when it is "
                    "run again in the same way, so no other way can agree. `udftorch diff` with "
                    "two equal sides names the operator."
                )
            trained = None
            for way in self.ways:
                if self._end is not None and time.monotonic() > self._end:
                    break
                if way.compares_gradients and trained is None:
                    trained = _only(step(self.one)).gradients
                found[way.name] = outcome = self._outcome(way, whole, trained)
                if strict and not (outcome.equal or outcome.failed):
                    raise OutsideContractError(_refusal(way.name, outcome))
                self._done += 1
                self._progress(self._done, self._total)
        return found

    def _outcome(self, way: Way, whole: Piece, trained: Mapping[str, Any] | None) -> Outcome:
        began = time.monotonic()
        parts = [Part("logits"), Part("log p"), Part("gradients")]
        parted: tuple[int, int] | None = None
        much = False
        try:
            for number, pieces in enumerate(way.run(self.one)):
                for which, piece in enumerate(pieces):
                    new = self._compared(piece, whole, trained)
                    if any(part.differ for part in new):
                        parted = parted or (number, which)
                        much = much or far(piece.own().cpu(), piece.of(whole.output).cpu())
                    parts = [a + b for a, b in zip(parts, new, strict=True)]
        except UdfError:
            raise
        except Exception as error:  # whatever a model's own code raises
            said = str(error).strip().splitlines()
            return Outcome((), failed=f"{type(error).__name__}: {said[0] if said else ''}")
        took = time.monotonic() - began
        kept = tuple(part for part in parts if part.total)
        first: First | None = None
        backward = not any(p.differ for p in kept[:2])
        if parted is not None and way.cause is not None and (backward or not way.recorded):
            first = way.cause(self.one)
        elif parted is not None and way.recorded and backward:
            first = self._first_backward(way)
        elif parted is not None and way.recorded:
            first = self._first(way, *parted)
        return Outcome(kept, first, far=much, seconds=round(took, 3))

    def _compared(
        self, piece: Piece, whole: Piece, trained: Mapping[str, Any] | None
    ) -> list[Part]:
        import torch

        own, other = piece.own(), piece.of(whole.output)
        targets = replace(piece, instead=None).of(self.one.targets)
        with torch.no_grad():
            chances = [_chances(t.to(own.device), targets.to(own.device)) for t in (own, other)]
        gradients = Part("gradients")
        for name, gradient in (piece.gradients or {}).items():
            gradients += differing("gradients", gradient, (trained or {})[name])
        return [
            differing("logits", own, other), differing("log p", *chances), gradients
        ]  # fmt: skip

    def _first(self, way: Way, number: int, which: int) -> First | None:
        """Record the call that parted, and the whole batch, and return where they part.

        If no operator of that call differs from equal inputs, an earlier call left other values in
        the cache, though its own result was the same.
        """
        for call in range(number, -1, -1):
            # The cut is known when the call has returned, so the call runs twice.
            pieces: list[Piece] = self._advanced(way, call, next)
            piece = pieces[min(which, len(pieces) - 1)]
            cut = _own_cut(self.one, piece)
            own = self._advanced(way, call, lambda run, cut=cut: recorded(lambda: next(run), cut))  # type: ignore[misc]
            other = recorded(lambda: _only(evaluation(self.one)), _whole_cut(self.one, piece))
            found = first_parting(other, own, ends=call == number)
            if found is not None:
                return found
        return None

    def _advanced(self, way: Way, calls: int, then: Callable[[Any], Any]) -> Any:
        """Run a way up to a call, and let that one run as wanted."""
        with contextlib.closing(way.run(self.one)) as run:  # type: ignore[type-var]
            for _ in range(calls):
                next(run)
            return then(run)

    def _first_backward(self, way: Way) -> First | None:
        """Return where the backward passes part, of ways that run the whole batch at once."""
        (piece,) = self._advanced(way, 0, next)
        if len(piece.rows) < self.one.batch:
            return None
        cut = _whole_cut(self.one, piece)
        own = recorded(lambda: _only(way.run(self.one)), cut)
        return first_parting(recorded(lambda: _only(step(self.one)), cut), own)


def _only(pieces: Any) -> Piece:
    """Return the piece of a way that gives one."""
    ((piece,),) = pieces
    return piece  # type: ignore[no-any-return]


def _chances(logits: Any, targets: Any) -> Any:
    """Return the float32 log-probabilities of the targets."""
    import torch

    chances = torch.log_softmax(logits.float(), -1)
    return chances.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def differing(name: str, a: Any, b: Any) -> Part:
    """Compare two tensors, which may lie on two devices, bit by bit; all NaNs are one."""
    import torch

    a, b = a.detach().cpu(), b.detach().cpu()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    bits = [t.contiguous().view(integers) for t in (a, b)]
    apart = (bits[0] != bits[1]) & ~(a.isnan() & b.isnan())
    count = int(apart.sum())
    size = float((a.double() - b.double())[apart].abs().max()) if count else 0.0
    return Part(name, count, a.numel(), size)


def _whole_cut(one: Subject, piece: Piece) -> Cut:
    stop = piece.stop or 0
    last = stop if one.causal else one.length
    return Cut(
        one.batch, piece.rows[0], one.length, piece.start, stop, one.length, 0, last
    )  # fmt: skip


def _own_cut(one: Subject, piece: Piece) -> Cut:
    stop = piece.stop or 0
    last = stop if one.causal else one.length
    shape = piece.output.shape
    length = shape[1] if one.length else 0
    return Cut(
        shape[0], piece.own_row, length, piece.own_start, piece.own_start + stop - piece.start,
        piece.memory, piece.first_key, piece.first_key + last,
    )  # fmt: skip
