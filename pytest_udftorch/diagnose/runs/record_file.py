# SPDX-License-Identifier: Apache-2.0
"""A recorded run as a folder: ``record.json`` with digests, ``values.pt`` with a window of values.

``record.json`` names every operator, layer and tensor once; a call refers to them by number. What
it says is sealed with its SHA-256. ``values.pt`` holds the arguments and outputs of the calls in
the window, as ``torch.load(weights_only=True)`` reads them; they have to have the digests that
``record.json`` states.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import gc
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import whole_file
from pytest_udftorch.base.plain_data import (
    Malformed,
    Shape,
    check_seal,
    each,
    of,
    one_of,
    optional,
    parse_json,
    read_file,
    row,
    sealed_text,
    shown,
    text,
    whole,
)
from pytest_udftorch.base.plain_data import mapping as table
from pytest_udftorch.base.plain_data import record as fields
from pytest_udftorch.diagnose.runs.stored_values import packed, unpacked
from pytest_udftorch.errors import DiagnosisError
from pytest_udftorch.swap.observe.digests import (
    KINDS,
    SAMPLES,
    SHA1,
    TensorNote,
    note_of,
    numbers_of,
    same_bits,
)
from pytest_udftorch.swap.observe.layers import PHASES, Place
from pytest_udftorch.swap.observe.recorder import KERNELS, Call, Kept, Recording, overload_of

FORMAT: Final = "udftorch-record-2"

#: The format of earlier versions: digests with SHA-1, samples as numbers. It is still read.
EARLIER: Final = "udftorch-record-1"

#: The format of a run that failed: it also says why.
FAILED: Final = "udftorch-record-3"

#: Names of the files in a record's folder.
CALLS, VALUES = "record.json", "values.pt"

#: Bytes of a file that is read, at most; a run of a million operators needs less.
_LARGEST: Final = 1 << 30

#: Elements of a tensor, at most; far more than fit into any memory.
_ELEMENTS: Final = 1 << 48


@dataclass(frozen=True)
class Record:
    """A recorded run.

    Attributes:
        side: the text of the side that ran.
        subject: what ran, as on the command line.
        machine: ``torch``, ``python``, ``cpu`` and so on -> what it was.
        seed: of the random numbers.
        steps: of training, or forward passes.
        train: whether a model was trained; None: if it was in training mode.
        recording: the calls and the result; values of the window in ``kept``.
    """

    side: str
    subject: str
    machine: Mapping[str, str]
    seed: int = 0
    steps: int = 1
    train: bool | None = None
    recording: Recording = field(default_factory=Recording)


# Writing -----------------------------------------------------------------------------


def _document(record: Record) -> dict[str, Any]:
    recording = record.recording
    operators: dict[str, int] = {}
    layers: dict[str, int] = {}
    # A note that is there twice is mostly the same object.
    notes = {id(t): t for c in recording.calls for t in (*c.inputs, *c.outputs)}
    notes |= {id(t): t for t in recording.result.values()}
    tensors: dict[tuple[Any, ...], int] = {}
    number = {key: tensors.setdefault(_own(t), len(tensors)) for key, t in notes.items()}
    phases = {phase: i for i, phase in enumerate(PHASES)}
    calls = [
        [
            operators.setdefault(operator, len(operators)),
            layers.setdefault(place.layer, len(layers)), phases[place.phase], place.step,
            [number[id(t)] for t in inputs], [number[id(t)] for t in outputs],
            arguments, None if random is None else random.hex(),
        ]
        for operator, place, inputs, outputs, arguments, random in recording.calls
    ]  # fmt: skip
    return {
        **({"failed": recording.failed} if recording.failed else {}),
        "format": FAILED if recording.failed else FORMAT,
        "digests": recording.hashed,
        "side": record.side,
        "subject": record.subject,
        "machine": dict(record.machine),
        "seed": record.seed,
        "steps": record.steps,
        "train": record.train,
        "operators": list(operators),
        "layers": list(layers),
        "tensors": [
            [shape, dtype, stride, device, digest.hex(), _written(taken)]
            for shape, dtype, stride, device, digest, taken in tensors
        ],
        "calls": calls,
        "result": {name: number[id(note)] for name, note in recording.result.items()},
    }


def _own(note: TensorNote) -> tuple[Any, ...]:
    """Return what is written of a note: all but the digests of rows."""
    return note.shape, note.dtype, note.stride, note.device, note.digest, note.taken


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the garbage collector from looking through many new objects that hold no cycles."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def _written(taken: bytes | tuple[float, ...]) -> str | list[float]:
    if isinstance(taken, bytes):
        return binascii.b2a_base64(taken, newline=False).decode("ascii")
    return list(taken)  # of a record of the earlier format


def save(record: Record, folder: Path) -> None:
    """Write a record into a folder, which is made; a record that is there is replaced.

    Raises:
        DiagnosisError: the folder cannot be written.
    """
    import torch

    folder = Path(folder)
    kept = record.recording.kept
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Values without their calls are refused by who reads them; so the calls come last.
        (folder / CALLS).unlink(missing_ok=True)
        (folder / VALUES).unlink(missing_ok=True)
        if kept:
            with whole_file.replaced(folder / VALUES) as path:
                torch.save({at: _values(one) for at, one in kept.items()}, path)
        with _without_collection():
            document = sealed_text(_document(record))
        whole_file.write(folder / CALLS, document + "\n")
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter at a full disk
        why = getattr(error, "strerror", None) or str(error)
        raise DiagnosisError(
            f"The record cannot be written to {folder}: {why}. Name a folder that can be written."
        ) from error


def _values(kept: Kept) -> dict[str, Any]:
    return {
        "operator": kept.operator if isinstance(kept.operator, str) else str(kept.operator.name()),
        "args": packed(list(kept.args)),
        "kwargs": packed(dict(kept.kwargs)),
        "outputs": list(kept.outputs),
    }


# Reading -----------------------------------------------------------------------------


def _sample(value: Any, where: str) -> None:
    if type(value) not in (int, float):
        raise Malformed(f"{where} is not a number")


def _samples(value: Any, where: str) -> None:
    if type(value) is str:
        text("[A-Za-z0-9+/]*={0,2}")(value, where)
    else:
        each(_sample)(value, where)


_HEX: Final = text("([0-9a-f]{2})*")
_SIZES: Final = each(whole(0, _ELEMENTS))
_DTYPE: Final = text("(bool|bfloat|complex|float|int|quint|qint|uint|bits)[a-z0-9_]*")
_TENSOR: Final = row(_SIZES, _DTYPE, _SIZES, text("[a-z]+"), _HEX, _samples)
_FIELDS: Final[dict[str, Any]] = {
    "format": one_of([FORMAT, EARLIER, FAILED]),
    "side": text(),
    "subject": text(),
    "machine": table(text(), text()),
    "seed": whole(),
    "steps": whole(1),
    "train": optional(of(bool)),
    "operators": each(text("[A-Za-z0-9_]+::[A-Za-z0-9_.]+")),
    "layers": each(text()),
    "tensors": each(_TENSOR),
    "calls": of(list),
    "result": table(text(), whole()),
    "sha256": text("[0-9a-f]{64}"),
}
_CURRENT: Final = {**_FIELDS, "digests": one_of(KINDS)}
_DOCUMENTS: Final = {
    FORMAT: fields(_CURRENT, closed=True),
    FAILED: fields({**_CURRENT, "failed": text()}, closed=True),
    EARLIER: fields(_FIELDS, closed=True),
}


def _call_shape(operators: int, layers: int, tensors: int) -> Shape:
    def below(count: int) -> Shape:
        return whole(0, count - 1)

    # Arguments are text as Python's repr gives it, in which strings may hold anything.
    return row(
        below(operators), below(layers), below(len(PHASES)), whole(), each(below(tensors)),
        each(below(tensors)), of(str), optional(_HEX),
    )  # fmt: skip


def load(folder: Path, put: Collection[int] = ()) -> Record:
    """Read a record.

    Args:
        folder: with ``record.json``, and ``values.pt`` if values were kept.
        put: calls whose outputs were replaced after their values had been kept.

    Raises:
        DiagnosisError: there is none, it is damaged, or of another format.
    """
    path = Path(folder) / CALLS
    try:
        data = parse_json(read_file(path, _LARGEST), finite=False)
        if isinstance(data, dict) and str(data.get("format", "")).startswith("udftorch-record-"):
            one_of([FORMAT, EARLIER, FAILED])(data["format"], "the format")
        kind = data.get("format") if isinstance(data, dict) else FORMAT
        _DOCUMENTS[kind if kind in (EARLIER, FAILED) else FORMAT](data, "the record")
        check_seal(data)
        record = _record(data)
    except OSError as error:
        raise DiagnosisError(
            f"There is no recorded run in {folder}: {error.strerror}. Make one with `udftorch "
            f"record --out {folder} model.py:make`."
        ) from error
    except Malformed as error:
        raise DiagnosisError(
            f"{path} is not a recorded run of this version: {error}. Record the run again."
        ) from error
    if (Path(folder) / VALUES).exists():
        record.recording.kept.update(_kept(Path(folder) / VALUES, record.recording, put))
    return record


def _record(data: dict[str, Any]) -> Record:
    counts = [len(data[name]) for name in ("operators", "layers", "tensors")]
    each(_call_shape(*counts))(data["calls"], "the record.calls")
    for name, number in data["result"].items():
        whole(0, counts[2] - 1)(number, f"the record.result.{name}")
    tensors = [_note(one, f"the record.tensors[{i}]") for i, one in enumerate(data["tensors"])]
    calls = [
        Call(
            data["operators"][operator],
            Place(data["layers"][layer], PHASES[phase], step),
            tuple(tensors[i] for i in inputs),
            tuple(tensors[i] for i in outputs),
            arguments,
            None if random is None else bytes.fromhex(random),
        )
        for operator, layer, phase, step, inputs, outputs, arguments, random in data["calls"]
    ]
    result = {name: tensors[i] for name, i in data["result"].items()}
    recording = Recording(calls, result, hashed=data.get("digests", SHA1))
    recording.failed = data.get("failed", "")
    names = ("side", "subject", "machine", "seed", "steps", "train")
    return Record(**{n: data[n] for n in names}, recording=recording)


def _note(one: list[Any], where: str) -> TensorNote:
    shape, dtype, stride, device, digest, samples = one
    count = math.prod(shape)
    if count > _ELEMENTS:
        raise Malformed(f"{where} has {shown(count)} elements")
    taken = _taken(samples, dtype, where)
    number = len(taken if isinstance(taken, tuple) else numbers_of(taken, dtype))
    if number not in (0, min(count, SAMPLES)):
        raise Malformed(f"{where} has {number} samples of {count} elements")
    if stride and len(stride) != len(shape):
        raise Malformed(f"{where} has {len(shape)} sizes and {len(stride)} strides")
    own = tuple(shape), dtype, tuple(stride), device, bytes.fromhex(digest)
    return TensorNote(*own, taken=taken)


def _taken(samples: str | list[float], dtype: str, where: str) -> bytes | tuple[float, ...]:
    if not isinstance(samples, str):
        return tuple(map(float, samples))
    try:
        found = base64.b64decode(samples, validate=True)
        numbers_of(found, dtype)
    except (ValueError, RuntimeError, binascii.Error) as error:
        raise Malformed(f"{where} has samples that are none of {dtype} ({error})") from error
    return found


def _kept(path: Path, recording: Recording, put: Collection[int]) -> dict[int, Kept]:
    import torch

    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
        return {at: _one_kept(at, one, recording, at in put) for at, one in data.items()}
    except Exception as error:  # torch.load raises many kinds
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DiagnosisError(
            f"{path} does not hold the values of the calls beside it ({why}). Record the run again."
        ) from error


def _one_kept(at: Any, one: Any, recording: Recording, put: bool) -> Kept:
    import torch

    if type(at) is not int or not 0 <= at < len(recording.calls):
        raise Malformed(f"there is no call {at!r}")
    call, operator = recording.calls[at], one["operator"]
    if not (isinstance(operator, str) and operator.startswith(KERNELS)):
        operator = overload_of(operator)
    if operator is None or one["operator"] != call.operator:
        raise Malformed(f"call {at} is {call.operator}, not {one['operator']!r}")
    outputs = one["outputs"]
    if not (
        type(one["args"]) is list
        and type(one["kwargs"]) is dict
        and all(isinstance(t, torch.Tensor) for t in outputs)
        and len(outputs) == len(call.outputs)
        and (
            put
            or all(
                same_bits(note_of(t, hashed=recording.hashed), n)
                for t, n in zip(outputs, call.outputs, strict=True)
            )
        )
    ):
        raise Malformed(f"the values of call {at} do not have its digests")
    return Kept(operator, tuple(unpacked(one["args"])), unpacked(one["kwargs"]), outputs)
