# SPDX-License-Identifier: Apache-2.0
"""A script with the saved inputs of one operator, which shows its difference when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_udftorch.base import whole_file
from pytest_udftorch.diagnose.diff.result import Difference, Finding
from pytest_udftorch.diagnose.runs.sides import SETTINGS, Side
from pytest_udftorch.diagnose.runs.stored_values import FORMAT_OF_MEMORY, packed
from pytest_udftorch.errors import DiagnosisError
from pytest_udftorch.swap.observe.recorder import Kept
from pytest_udftorch.swap.observe.recording import effects

#: Names of the files in the folder of a reproducer.
SCRIPT, VALUES = "reproduce.py", "values.pt"

_TEMPLATE = '''\
"""{operator} in {place}: {a} and {b} differ. Written by udftorch; torch {version}."""

import contextlib
from pathlib import Path

import torch

def restored(value):
    if isinstance(value, str) and value.startswith({prefix!r}):
        return getattr(torch, value.removeprefix({prefix!r}))
    return value


saved = torch.load(Path(__file__).with_name({values!r}), weights_only=True)
for side in saved.values():
    side["args"] = [restored(v) for v in side["args"]]
    side["kwargs"] = {{name: restored(v) for name, v in side["kwargs"].items()}}
operator = {call}


def results(args, kwargs):
    returned = operator(*args, **kwargs)
    parts = returned if isinstance(returned, (tuple, list)) else [returned]
    written = [args[i] if i < len(args) else kwargs.get(n) for i, n in {written}]
    found = []
    for part in [*(p for p, new in zip(parts, {fresh}) if new), *written]:
        found += part if isinstance(part, (tuple, list)) else [part]
    return [t.detach().cpu() for t in found if isinstance(t, torch.Tensor)]


def side_a():
    args, kwargs = saved["a"]["args"], saved["a"]["kwargs"]
{code_a}


def side_b():
    args, kwargs = saved["b"]["args"], saved["b"]["kwargs"]
{code_b}


with torch.no_grad():
    ours = {{"a": side_a(), "b": side_b()}}
for name, found in ours.items():
    same = all(torch.equal(x, y) for x, y in zip(found, saved[name]["outputs"]))
    print(f"side {{name}} gives the saved output {{'again' if same else 'NOT'}}")
apart = 0
for i, (x, y) in enumerate(zip(ours["a"], ours["b"])):
    if x.shape == y.shape:
        wrong = (x != y) & ~(x.isnan() & y.isnan())
        apart += int(wrong.sum())
        far = (x.double() - y.double()).abs()[wrong].max().item() if wrong.any() else 0
        differ = f"{{int(wrong.sum())}} of {{x.numel()}} elements differ"
        print(f"output {{i}}: {{differ}}, by at most {{far}}")
raise SystemExit(0 if apart else "The difference does not show here.")
'''


def save_reproducer(difference: Difference, folder: Path, which: int = 0) -> Path:
    """Write a script that shows one of the differences, with the values that it needs.

    Args:
        difference: from :func:`first_difference`.
        folder: is made if it is missing; files of an earlier reproducer are replaced.
        which: the number of the finding.

    Returns:
        The script. It ends with status 0 if the difference shows.

    Raises:
        DiagnosisError: that finding has no operator, a side cannot be written as code, or the
            folder cannot be written.
    """
    import torch

    if which >= len(difference.findings) or difference.findings[which].kept is None:
        raise DiagnosisError(
            "There is no operator to reproduce: "
            + ("the runs are equal." if difference.equal else "none was named with its values.")
        )
    found = difference.findings[which]
    one, other = found.kept, found.other
    assert one is not None
    assert other is not None
    assert difference.sides is not None
    if isinstance(one.operator, str):
        raise DiagnosisError(
            f"{one.operator} is a kernel that Inductor generated in that run, so no script can "
            "call it alone. Compare the compiled side with an eager one, which names operators."
        )
    text = _script(found, one, *difference.sides)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"a": _values(one), "b": _values(other)}, folder / VALUES)
        whole_file.write(folder / SCRIPT, text)
    except OSError as error:
        raise DiagnosisError(
            f"The reproducer cannot be written to {folder}: {error.strerror}. Name a folder that "
            "can be written."
        ) from error
    return folder / SCRIPT


def _values(kept: Kept) -> dict[str, Any]:
    outputs = [t.cpu() for t in kept.outputs]
    args, kwargs = packed(list(kept.args)), packed(dict(kept.kwargs))
    return {"args": args, "kwargs": kwargs, "outputs": outputs}


def _script(found: Finding, kept: Kept, a: Side, b: Side) -> str:
    import torch

    name = str(kept.operator.name()).replace("::", ".")
    call = f"torch.ops.{name}" if "." in name.partition(".")[2] else f"torch.ops.{name}.default"
    known = effects(kept.operator)
    return _TEMPLATE.format(
        operator=found.operator,
        place=found.place,
        a=a.name,
        b=b.name,
        version=torch.__version__,
        values=VALUES,
        prefix=FORMAT_OF_MEMORY,
        call=call,
        written=[tuple(p) for p in known.written],
        fresh=list(known.fresh),
        code_a=_code(a),
        code_b=_code(b),
    )


def _code(one: Side) -> str:
    """Return the body of the function that runs the operator as a side does."""
    if one.around is not None or one.run is not None or not isinstance(one.library, str | None):
        raise DiagnosisError(
            f"{one.name!r} cannot be written as a script: it is made of objects of this process. "
            "Name the library by name or path, and use sides that are texts."
        )
    settings = {put: getattr(one, key) for key, (_, put) in SETTINGS.items()}
    lines = [f"torch.{put}({v!r})" for put, v in settings.items() if v is not None]
    if one.library is not None:
        names = f", {one.functions!r}" if one.functions else ""
        lines += [
            "import pytest_udftorch",
            f"with pytest_udftorch.patched({one.library!r}{names}):",
            "    return results(args, kwargs)",
        ]
    else:
        lines.append("return results(args, kwargs)")
    return "\n".join(f"    {line}" for line in lines)
