# SPDX-License-Identifier: Apache-2.0
"""Golden files: the float64 results of a computation, and how far rounding may lead from them.

A file is JSON with a line for each output, so that a change is a readable diff. Of a large output
it keeps ``MOST`` elements at places spread over the whole, and sums of all elements under signs:
an element that is changed by more than the errors of all others together moves every sum.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base import plain_data as shapes
from pytest_udftorch.base import whole_file
from pytest_udftorch.errors import GoldenError

FORMAT: Final = "udftorch-golden/1"

#: Elements of an output that are kept.
MOST: Final = 4096

#: Sums of a larger output.
SUMS: Final = 8

#: What the fractional parts of its multiples spread over evenly: 2^64 over the golden ratio
#: (Knuth, The Art of Computer Programming, vol. 3, section 6.4).
_RATIO: Final = 0x9E3779B97F4A7C15

_NUMBER: Final = r"-?(?:inf|nan|[0-9][0-9.e+-]*)"
_NUMBERS: Final = shapes.text(rf"(?:{_NUMBER}(?: {_NUMBER})*)?")
_SHA: Final = shapes.text(r"[0-9a-f]{64}")
_OUTPUT: Final = shapes.record(
    {"dtype": shapes.text(), "shape": shapes.each(shapes.whole())},
    {"sha256": _SHA, **dict.fromkeys(("truth", "limits", "sums", "sum_limits"), _NUMBERS)},
    closed=True,
)
_SHAPE: Final = shapes.record(
    {
        "format": shapes.one_of((FORMAT,)),
        "about": shapes.mapping(shapes.text(), shapes.text()),
        "inputs": _SHA,
        "outputs": shapes.each(_OUTPUT),
        "digests": shapes.mapping(shapes.text(), _SHA),
        "sha256": _SHA,
    },
    closed=True,
)


@dataclass(frozen=True)
class Output:
    """One tensor of the result.

    Attributes:
        dtype: as torch names it, ``float32``.
        shape: the tensor's.
        sha256: of the bytes, where the tensor holds no floating-point numbers; else empty.
        truth: float64 values at :func:`places`.
        limits: how far a result may lie from each.
        sums: of all elements of the float64 result under the signs of :func:`signs`; empty where
            ``truth`` has them all.
        sum_limits: how far a result's sums may lie from these.
    """

    dtype: str
    shape: tuple[int, ...]
    sha256: str = ""
    truth: tuple[float, ...] = ()
    limits: tuple[float, ...] = ()
    sums: tuple[float, ...] = ()
    sum_limits: tuple[float, ...] = ()


@dataclass
class Golden:
    """What a golden file holds.

    Attributes:
        about: versions, CPU and unit roundoff when it was written.
        inputs: SHA-256 of the inputs and of the module's parameters and buffers.
        outputs: the tensors of the result, in the order of its leaves.
        digests: platform -> SHA-256 of the bits of all outputs there.
    """

    about: dict[str, str]
    inputs: str
    outputs: tuple[Output, ...]
    digests: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the file; its folder is made if needed.

        Raises:
            GoldenError: the system refuses.
        """
        data: dict[str, Any] = {
            "format": FORMAT,
            "about": self.about,
            "inputs": self.inputs,
            "outputs": [_as_data(output) for output in self.outputs],
            "digests": dict(sorted(self.digests.items())),
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            whole_file.write(path, "\n".join(_lines(shapes.sealed(data))) + "\n")
        except OSError as error:
            raise GoldenError(
                f"Cannot write the golden values {path}: {error.strerror or error}. Give the "
                "folder of the tests rights to write."
            ) from error


def places(count: int) -> list[int]:
    """Return the indices of the elements that are kept of ``count``, in rising order."""
    if count <= MOST:
        return list(range(count))
    return sorted({((k * _RATIO % 2**64) * count) >> 64 for k in range(MOST)})


def load(path: Path) -> Golden:
    """Read a golden file.

    Raises:
        GoldenError: it cannot be read, or is none.
    """
    try:
        data = shapes.parse_json(shapes.read_file(path))
        _SHAPE(data, "the file")
        shapes.check_seal(data)
        outputs = tuple(_output(one, f"outputs[{i}]") for i, one in enumerate(data["outputs"]))
    except OSError as error:
        raise GoldenError(f"Cannot read {path}: {error.strerror or error}.") from error
    except shapes.Malformed as error:
        raise GoldenError(
            f"{path} holds no golden values of this version: {error}. Take it from version control "
            "again, or delete it and store it anew with --udf-golden-update."
        ) from error
    return Golden(data["about"], data["inputs"], outputs, data["digests"])


def _as_data(output: Output) -> dict[str, Any]:
    data: dict[str, Any] = {"dtype": output.dtype, "shape": list(output.shape)}
    if output.sha256:
        return data | {"sha256": output.sha256}
    for name in ("truth", "sums"):
        data[name] = " ".join(map(repr, getattr(output, name)))
    for name in ("limits", "sum_limits"):
        # Three digits decide as well as seventeen, and make the file a third shorter.
        data[name] = " ".join(f"{value:.3g}" for value in getattr(output, name))
    return data


def _lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield the text of the file: a line for each entry, and for each output."""
    yield "{"
    last = list(data)[-1]
    for name, value in data.items():
        end = "" if name == last else ","
        if name == "outputs":
            rows = ",\n".join(f"  {json.dumps(one)}" for one in value)
            yield f' "outputs": [\n{rows}\n ]{end}' if value else f' "outputs": []{end}'
        else:
            yield f" {json.dumps(name)}: {json.dumps(value)}{end}"
    yield "}"


def _output(data: dict[str, Any], where: str) -> Output:
    shape = tuple(data["shape"])
    if "sha256" in data:
        if len(data) != 3:
            raise shapes.Malformed(f"{where} has both a digest and values")
        return Output(data["dtype"], shape, data["sha256"])
    rows = {name: _numbers(data, name, where) for name in ("truth", "limits", "sums", "sum_limits")}
    count = math.prod(shape)
    kept, sums = len(places(count)), SUMS if count > MOST else 0
    for name, row in rows.items():
        wanted = sums if "sum" in name else kept
        if len(row) != wanted:
            raise shapes.Malformed(f"{where}.{name} has {len(row)} numbers instead of {wanted}")
        if "limits" in name and not all(value >= 0 for value in row):
            raise shapes.Malformed(f"{where}.{name} has a limit that is none")
    return Output(data["dtype"], shape, "", **rows)


def _numbers(data: dict[str, Any], name: str, where: str) -> tuple[float, ...]:
    try:
        return tuple(map(float, data.get(name, "").split()))
    except ValueError:
        raise shapes.Malformed(f"{where}.{name} has a word that is not a number") from None
