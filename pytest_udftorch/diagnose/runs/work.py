# SPDX-License-Identifier: Apache-2.0
"""What both sides run: a model on inputs, or any callable; each run begins from the same state."""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pytest_udftorch.base import compat
from pytest_udftorch.diagnose.runs.files import needed_arguments, without_inputs
from pytest_udftorch.diagnose.runs.sides import Side
from pytest_udftorch.errors import DiagnosisError, RunError, UdfError
from pytest_udftorch.swap.observe.digests import fastest, note_of
from pytest_udftorch.swap.observe.layers import Whereabouts
from pytest_udftorch.swap.observe.recorder import Recording, Stopped, Wanted, recorder
from pytest_udftorch.swap.observe.recording import strided_copy


@dataclass(frozen=True)
class Work:
    """What is run.

    Attributes:
        make: returns a callable, which is the run, or a model and its inputs. It is called before
            every run, after the generators are seeded.
        seed: of all random numbers.
        train: whether the run of a model goes on after the forward pass: loss, backward pass and
            a step of the optimizer. None: if the model is in training mode.
        steps: of training, or forward passes.
        loss: makes a number of what the model gives; by default the mean of the squares.
        optimizer: makes an optimizer of a list of parameters; by default AdamW.
        batch: how many rows the inputs have, and the one that a side runs alone; or None.
        hashed: the kind of the digests.
        by_value: whether equal numbers of two types have one digest: the sides compute in two.
    """

    make: Callable[[], Any]
    seed: int = 0
    train: bool | None = None
    steps: int = 1
    loss: Callable[[Any], Any] | None = None
    optimizer: Callable[[list[Any]], Any] | None = None
    batch: tuple[int, int] | None = None
    hashed: str = field(default_factory=fastest)
    by_value: bool = False


def work_of(model: Any, inputs: Any) -> Callable[[], Any]:
    """Return what makes a copy of a model and of its inputs, or of a callable's inputs.

    Raises:
        RunError: the model cannot be copied.
    """
    import torch

    given = inputs if isinstance(inputs, Mapping | tuple | list) else (inputs,)

    def make() -> Any:
        try:
            own = copy.deepcopy(model) if isinstance(model, torch.nn.Module) else model
        except Exception as error:
            raise RunError(
                f"The model {type(model).__name__} cannot be copied ({error}), so two runs cannot "
                "begin from the same state. Give make=, a function that makes it anew."
            ) from error
        return own, compat.pytree().tree_map(_copied, given)

    return make


def made_of(
    make: Callable[[], Any] | None, model: Any, inputs: Any, one: Side
) -> Callable[[], Any]:
    """Return what makes the run of a single side.

    Raises:
        DiagnosisError: there is nothing to run.
    """
    if make is not None:
        return make
    if model is not None:
        return work_of(model, inputs)
    if not one.own:
        raise DiagnosisError("There is nothing to run. Give a model and its inputs, or make=.")
    return lambda: None


def _copied(value: Any) -> Any:
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    with torch.no_grad():
        return value.detach().clone().requires_grad_(value.requires_grad)


def run(
    work: Work,
    one: Side,
    wanted: Wanted | None = None,
    values: bool = False,
    mode_of: Callable[[Whereabouts], Any] | None = None,
) -> Recording:
    """Run a side once and record it.

    Args:
        work: what is run.
        one: the side.
        wanted: values to keep or to put in.
        values: whether to keep the tensors that the run gives.
        mode_of: makes another mode than the recorder; it has a ``recording`` as well.

    Raises:
        RunError: the run fails; the cause is attached.
        UdfError: as from opening a session.
    """
    where = Whereabouts()
    # Compilers would trace hooks and modes, and nobody sees what is called inside their code.
    watched = contextlib.nullcontext() if one.compiled else where
    mode: Any = None
    if mode_of is not None:
        mode = mode_of(where)
    elif not one.compiled:
        mode = recorder(where, wanted or Wanted(), work.batch, work.hashed, by_value=work.by_value)
    recording = Recording(hashed=work.hashed) if mode is None else mode.recording
    recorded = contextlib.nullcontext() if mode is None else _recording(mode)
    with seeded(work.seed):
        try:
            # Both sides begin from the same numbers: a library may draw other ones.
            step = _prepared(work, one)
            with one.applied(), watched, seeded(work.seed), recorded:
                found = step()
                known = mode.noted(found) if hasattr(mode, "noted") else {}
        except Stopped:
            return recording
        except UdfError:
            raise
        except Exception as error:
            what = f"failed{_done(recording)}: {type(error).__name__}: {error}"
            recording.failed = f"It {what}"
            failure = RunError(f"The run of {one.name!r} {what}")
            failure.recording = recording
            raise failure from error
        recording.result = {
            name: known.get(name) or note_of(t, work.batch, work.hashed, work.by_value)
            for name, t in found.items()
        }
        if values:
            recording.values = {name: strided_copy(t) for name, t in found.items()}
        return recording


def _done(recording: Recording) -> str:
    """Say how far a run came that failed, and in which operator if it was one that did."""
    said, count = "", len(recording.calls)
    # After one that failed earlier, the run went on.
    if recording.failing and recording.failing[-1][2] == count:
        operator, place, _ = recording.failing[-1]
        said = f" in {operator} of {place}"
    if not count:
        return said
    last = recording.calls[-1]
    return f"{said} after {count:,} operators, the last {last.operator} in {last.place}"


#: Whether objects are hidden from the collector: while a recording runs, or for good by somebody
#: else. To count them takes 0.1 s for a million, so nobody asks once it is known.
_aside = False


@contextlib.contextmanager
def _recording(mode: Any) -> Iterator[None]:
    """Enter a mode; what is there before is left alone by the garbage collector.

    Notes of tensors are many small objects, which make it look through all others often.
    """
    global _aside
    mine = not _aside and not gc.get_freeze_count()
    _aside = True
    if mine:
        gc.freeze()
    try:
        with mode:
            yield
    finally:
        if mine:
            gc.unfreeze()
            _aside = False


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, Python and NumPy; give their generators back as they were."""
    import random

    import numpy as np
    import torch

    cuda: Any = torch.cuda
    devices = list(range(cuda.device_count())) if cuda.is_initialized() else []
    before, numpy_before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        if torch.accelerator.is_available():
            torch.manual_seed(seed)
        else:  # the other asks each kind of device
            torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(before)
            np.random.set_state(numpy_before)


def _prepared(work: Work, one: Side) -> Callable[[], dict[str, Any]]:
    """Make what a side runs; the returned callable gives the tensors of its result by name."""
    import torch

    made = (one.make or work.make)() if one.run is None else one.run
    if isinstance(made, tuple | list) and len(made) == 2 and callable(made[0]):
        model, inputs = made
        inputs = inputs if isinstance(inputs, Mapping | tuple | list) else (inputs,)
        return _of_model(work, one, *_converted(model, inputs, one))
    if not callable(made):
        raise RunError(
            f"What makes the run returned {type(made).__name__}. It has to return a callable "
            "without parameters, or a model and its inputs."
        )
    if needed := needed_arguments(made):
        raise RunError(f"What makes the run returned {without_inputs(made, needed)}")
    unused = [n for n in ("dtype", "row") if getattr(one, n) is not None]
    unused += ["channels_last"] * one.channels_last
    if unused:
        raise DiagnosisError(
            f"{one.name!r} needs a model and its inputs, for its {' and '.join(unused)}, and this "
            "run is a callable. Return them from the function, or do it in the callable."
        )
    if one.compiled:
        made = torch.compile(made, **_compile_options(one))

    def call() -> dict[str, Any]:
        with _on_device(one), one.casting(_device_type(one)):
            returned = [made() for _ in range(work.steps)]
        return _named("output", returned if work.steps > 1 else returned[0])

    return call


def _on_device(one: Side) -> AbstractContextManager[Any]:
    """Return the context in which a callable makes its tensors on a side's device."""
    import torch

    if one.device is None or _device_type(one) == "cpu":
        return contextlib.nullcontext()
    return torch.device(one.device)


def _device_type(one: Side) -> str:
    return (one.device or "cpu").partition(":")[0]


def _compile_options(one: Side) -> dict[str, Any]:
    options: dict[str, Any] = {"backend": one.backend, "dynamic": False}
    if one.mode is not None:
        options["mode"] = one.mode
    if one.options:
        options["options"] = dict(one.options)
    return options


def _converted(model: Any, inputs: Any, one: Side) -> tuple[Any, Any]:
    """Return model and inputs as a side has them."""
    import torch

    dtype = getattr(torch, one.dtype) if one.dtype else None
    if one.row is not None:
        inputs = compat.pytree().tree_map(lambda t: _row(t, one.row or 0), inputs)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        needs = value.requires_grad
        own = value.detach().to(one.device or value.device)
        if dtype is not None and own.is_floating_point():
            own = own.to(dtype)
        if one.channels_last and own.dim() == 4:
            own = own.contiguous(memory_format=torch.channels_last)
        return own.requires_grad_(needs)

    if isinstance(model, torch.nn.Module):
        model = model.to(device=one.device, dtype=dtype)
        if one.channels_last:
            model = model.to(memory_format=torch.channels_last)
    return model, compat.pytree().tree_map(moved, inputs)


def _row(value: Any, row: int) -> Any:
    import torch

    return value[row : row + 1] if isinstance(value, torch.Tensor) and value.dim() else value


def _of_model(work: Work, one: Side, model: Any, inputs: Any) -> Callable[[], dict[str, Any]]:
    import torch

    is_module = isinstance(model, torch.nn.Module)
    train = work.train if work.train is not None else is_module and model.training
    parameters = [p for p in model.parameters() if p.requires_grad] if is_module else []
    optimizer: Any = None
    if train and parameters:
        optimizer = (work.optimizer or torch.optim.AdamW)(parameters)
    call = torch.compile(model, **_compile_options(one)) if one.compiled else model
    keywords = isinstance(inputs, Mapping)

    def step() -> tuple[Any, Any]:
        loss: Any = None
        with one.casting(_device_type(one)):
            result = call(**inputs) if keywords else call(*inputs)
            if train:
                loss = (work.loss or mean_of_squares)(result)
        if getattr(loss, "requires_grad", False):
            loss.backward()
        return result, loss

    def whole() -> dict[str, Any]:
        found: dict[str, Any] = {}
        # A function may differentiate, as plain torch lets it.
        with torch.no_grad() if is_module and not train else contextlib.nullcontext():
            for number in range(work.steps):
                prefix = f"step {number}: " if work.steps > 1 else ""
                result, loss = step()
                found |= _named(f"{prefix}output", result)
                if loss is not None:
                    found |= _named(f"{prefix}loss", loss)
                if train:
                    found |= _gradients(model if is_module else None, inputs, prefix)
                if optimizer is not None:
                    optimizer.step()
                    optimizer.zero_grad()
        if train and is_module:
            found |= {f"parameter {n}": p for n, p in model.named_parameters()}
            found |= {f"buffer {n}": b for n, b in model.named_buffers()}
        return found

    return whole


def _gradients(model: Any, inputs: Any, prefix: str) -> dict[str, Any]:
    import torch

    named = {} if model is None else dict(model.named_parameters())
    tensors = [t for t in compat.pytree().tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    named |= {f"input {i}": t for i, t in enumerate(tensors)}
    return {
        f"{prefix}gradient of {n}": p.grad.clone() for n, p in named.items() if p.grad is not None
    }


def _named(prefix: str, value: Any) -> dict[str, Any]:
    import torch

    if isinstance(value, Mapping):  # Hugging Face's results are not known to torch's trees
        value = dict(value)
    leaves = [t for t in compat.pytree().tree_leaves(value) if isinstance(t, torch.Tensor)]
    if len(leaves) == 1:
        return {prefix: leaves[0]}
    return {f"{prefix} {i}": t for i, t in enumerate(leaves)}


def mean_of_squares(result: Any) -> Any:
    """Return the sum over floating-point results of the means of their squares.

    The loss of a result that has one (Hugging Face's models) is that loss.
    """
    import torch

    if isinstance(result, Mapping):
        loss = result.get("loss")
        result = loss if loss is not None else dict(result)
        if loss is not None:
            return loss
    leaves = compat.pytree().tree_leaves(result)
    floats = [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]
    total: Any = sum(t.float().square().mean() for t in floats)
    return total
