# SPDX-License-Identifier: Apache-2.0
"""What ``kills.py`` kills besides builds: verifications, profiles, plan searches and patches.

Each scenario checks what it wrote by reading it back, and what earlier runs left: a file that is
there is whole, or is refused by an error of this package.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import journals
from kills import Scenario

from pytest_udftorch import cli
from pytest_udftorch.errors import ProfileLossWarning, UdfError
from pytest_udftorch.prove.verify.certificate import Certificate
from pytest_udftorch.swap.records.profile import Profile

#: Chunks of 2**8 inputs around 1.
CHUNKS = range(0x3F8000, 0x3F8004)


def _command(*arguments: object) -> str:
    """Run ``udftorch``; return what it printed.

    Raises:
        UdfError: the command refused.
    """
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        status = cli.main([*map(str, arguments)])
    if status == cli.MISUSE:
        raise UdfError(text.getvalue())
    return text.getvalue()


# Verifications ------------------------------------------------------------------------


def verify(folder: Path, library: Path) -> bytes:
    """Verify some chunks; return the certificate without its date and duration."""
    from pytest_udftorch.prove.verify.certificate_file import load_certificate

    path = folder / "exp.float32.certificate.json"
    if path.exists():
        with contextlib.suppress(UdfError):  # what is damaged is refused, and made again
            _check_verified(load_certificate(path))
    chunks = f"--chunks={CHUNKS.start}:{CHUNKS.stop}"
    _command(
        "verify", library, "exp", "--resume", "--quiet", "--workers=0", "--chunk-bits=8", chunks,
        "--reference=libm", "--out", folder,
    )  # fmt: skip
    return _check_verified(load_certificate(path))


def _check_verified(certificate: Certificate) -> bytes:
    (run,) = certificate.runs
    assert sorted(run.chunks) == list(CHUNKS)
    assert run.tally.inputs == len(CHUNKS) << 8
    return json.dumps([run.identity, run.chunks, run.tally.as_json(32)], sort_keys=True).encode()


def _warm_verify(library: Path) -> None:
    from pytest_udftorch.prove.verify.schedule import Request, make_schedule

    make_schedule(str(library), "exp", Request(chunk_bits=8, reference="libm"))


# Profiles -----------------------------------------------------------------------------

#: Elements of each part of a run, under its name in the file.
PARTS = {"one": 10, "two": 100, "three": 1000}


def _counts(path: Path) -> dict[str, int]:
    """Return the elements of each part in a file; parts that it lacks are missing."""
    from pytest_udftorch.swap.records import file as record

    cells = record.read(path).cells
    return {name: int(rows["elements"].sum()) for name, rows in cells.items() if len(rows)}


def _check_left(folder: Path) -> None:
    """Files of runs that were killed hold whole parts, or are refused."""
    for path in folder.rglob("*.bin"):
        with contextlib.suppress(UdfError):
            for name, count in _counts(path).items():
                assert PARTS.get(name, count) == count, f"{path}: {count} in {name}"


@contextlib.contextmanager
def _losses_are_errors() -> Iterator[None]:
    """A full disk costs records, which a warning says, and not the run."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield
    for warning in said:
        if issubclass(warning.category, ProfileLossWarning):
            raise UdfError(str(warning.message))


def profile(folder: Path, library: Path) -> bytes:
    """Profile a session in parts; store what was counted in each form."""
    import torch

    from pytest_udftorch import patched
    from pytest_udftorch.swap.records.export import write_text
    from pytest_udftorch.watch.profile import report

    _check_left(folder)
    out = folder / "out"
    with (
        _losses_are_errors(),
        patched(library, ("exp",), profile="events", profile_out=out) as session,
    ):
        for name, count in PARTS.items():
            torch.exp(torch.zeros(count))
            session.collector.take(name)
    written = session.collector.writer.path
    assert _counts(written) == PARTS
    found = Profile.load(written)
    saved = folder / "saved.bin"
    if saved.exists() and saved.stat().st_size:
        with contextlib.suppress(UdfError):
            before = Profile.load(saved)
            assert before.notes or _rows(before) == _rows(found)
        saved.unlink()
    with _losses_are_errors():
        found.save(saved)
    found.save_json(folder / "profile.json")
    found.save_trace(folder / "trace.json")
    write_text(folder / "report.html", report.profiles_html([found], title="killed"))
    json.loads((folder / "profile.json").read_text())
    assert len(json.loads((folder / "trace.json").read_text())["traceEvents"]) >= len(PARTS)
    assert "</html>" in (folder / "report.html").read_text()
    return json.dumps(_rows(Profile.load(saved))).encode()


def _rows(found: Profile) -> list[list[object]]:
    return [[r.name, r.elements, r.calls] for r in found.rows("function")]


def _forget_profiles(folder: Path) -> None:
    from pytest_udftorch.swap.records import file as record

    record.remove_earlier(folder / "out")


def _warm_profile(library: Path) -> None:
    import numpy as np  # noqa: F401
    import torch

    from pytest_udftorch.swap.counting.observer import load_observer
    from pytest_udftorch.swap.toolchain.shared_library import build_library
    from pytest_udftorch.watch.profile import report  # noqa: F401

    torch.set_num_threads(1)
    build_library(library, profiled=True)
    load_observer()


SUITE = """
import pytest
import torch

@pytest.mark.parametrize("count", [10, 100, 1000])
def test_it(count):
    torch.exp(torch.zeros(count))
"""


def run_of_pytest(folder: Path, library: Path) -> bytes:
    """Run a suite under ``--udf-profile-out``; return what each test counted."""
    import pytest

    out = folder / "out"
    if out.exists():
        for path in out.rglob("*.bin"):
            with contextlib.suppress(UdfError):
                for name, count in _counts(path).items():
                    assert name.endswith(f"[{count}]"), f"{path}: {count} in {name}"
    os.chdir(folder.parent)
    suite = folder.parent / f"{folder.name}-suite"
    suite.mkdir(exist_ok=True)
    (suite / "test_it.py").write_text(SUITE)
    sys.stdout = io.StringIO()
    status = pytest.main(
        [
            "-p", "no:cacheprovider", "-q", f"--rootdir={suite}", str(suite),
            f"--udf-lib={library}", "--udf-profile", f"--udf-profile-out={out}",
        ]
    )  # fmt: skip
    assert status == 0, sys.stdout.getvalue()
    assert "</html>" in (out / "report.html").read_text()
    (path,) = out.glob("profiled*.bin")
    return json.dumps(_counts(path), sort_keys=True).encode()


def _warm_pytest(library: Path) -> None:
    import pytest  # noqa: F401

    _warm_profile(library)


# Plans --------------------------------------------------------------------------------


def search(folder: Path, library: Path) -> bytes:
    """Search a plan with a journal, store it, and run a model by what was stored.

    The times differ from run to run, and so may the plan; what it computes does not.
    """
    import torch

    from pytest_udftorch.measure import Plan, oracle

    model, x = _model()
    file = folder / "plan.json"
    expected = model(x).detach()
    if file.exists():
        assert torch.equal(Plan.load(file).apply(model, (x,))(x), expected)
    journal = folder / "journal.json"
    plan = oracle(
        model, x, executors="eager", runs=6, rounds=1, max_units=2, journal=journal
    )  # fmt: skip
    plan.save(file)
    assert journals.entries(journal)["bounds"]
    assert torch.equal(Plan.load(file).apply(model, (x,))(x), expected)
    return str(expected.tolist()).encode()


def plan_files(folder: Path, library: Path) -> bytes:
    """Write what a search writes, step by step, without measuring anything."""
    from pytest_udftorch.measure.planning.plans import StoredPlan
    from pytest_udftorch.measure.planning.search_record import SearchRecord

    journal, file = folder / "journal.json", folder / "plan.json"
    key = {"inputs": ["float32 1x4"], "device": "cpu", "torch": "2", "executors": ["eager"]}
    notes = {f"note {n}": "n" * 10_000 for n in range(6)}
    found = {"bounds": [0, 1, 2], "unit_ns": {"eager": [1.0, 2.0]}, **notes}
    before = SearchRecord(journal, key)
    for name, value in found.items():
        assert before.report.get(name, value) == value
    for name, value in found.items():
        before.keep(**{name: value})
    segments = (0, 1, "eager"), (1, 2, "eager")
    plan = StoredPlan(segments, (0, 1, 2), "m", ("float32 1x4",), "cpu", "2", False, found)
    if file.exists():
        assert StoredPlan.load(file) == plan
    for _ in range(2):  # the second time it takes the place of the first
        plan.save(file)
    assert StoredPlan.load(file) == plan
    kept = journals.entries(journal)  # in the order in which it was found
    return json.dumps(kept, sort_keys=True).encode() + file.read_bytes()


def _model():
    import torch

    torch.manual_seed(1)
    layers = torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2)
    return torch.nn.Sequential(*layers).eval(), torch.ones(1, 4)


def _warm_search(library: Path) -> None:
    import torch

    import pytest_udftorch.measure  # noqa: F401

    torch.set_num_threads(1)


# Patches ------------------------------------------------------------------------------


def patch(folder: Path, library: Path) -> bytes:
    """Make a patch, unless a whole one is there; return the digests in its manifest."""
    from pytest_udftorch.swap.patch import folder as patches

    out = folder / "out"
    if out.exists():  # then the run that was killed had done its work
        if found := patches.verify(out):
            raise UdfError("\n".join(found))
        patches.undo(out)
    _command("patch", "--udf-lib", library, "--out", out)
    patch = patches.load(out)
    assert list(patches._changed(patch)) == []
    manifest = patch.manifest
    return json.dumps([sorted(manifest["files"]), manifest["library"]["builds"]]).encode()


def _warm_patch(library: Path) -> None:
    from pytest_udftorch.swap.library.symbols import CPU_LEVELS
    from pytest_udftorch.swap.native.runtime import runtime
    from pytest_udftorch.swap.toolchain.shared_library import build_library

    for name, (_, level, _) in CPU_LEVELS.items():
        if level <= runtime().cpu_level():
            build_library(library, name)


def _folder(folder: Path, library: Path) -> None:
    folder.mkdir(parents=True)


SCENARIOS = {
    "verify": Scenario(verify, _folder, _warm_verify),
    "profile": Scenario(profile, _folder, _warm_profile, _forget_profiles, outside=False),
    "pytest": Scenario(run_of_pytest, _folder, _warm_pytest, outside=False),
    "plan": Scenario(plan_files, _folder),
    "search": Scenario(search, _folder, _warm_search, outside=False),
    "patch": Scenario(patch, _folder, _warm_patch, outside=False),
}
