# SPDX-License-Identifier: Apache-2.0
"""What fuzzing has kept: each input is read, or refused with an error of this package.

``make fuzz`` looks for new ones. The inputs of findings that were mended are in the archive too.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import fuzz_targets
import pytest
from audit import Forbidden
from fuzz_targets import TARGETS, Target, mutated, outcome

ARCHIVE = Path(__file__).parents[1] / "fuzz_corpus.zip"


@pytest.fixture(autouse=True)
def _quiet():
    """Ignore torch's warnings against odd tensors."""
    with warnings.catch_warnings(action="ignore"):
        yield


def kept(target):
    with zipfile.ZipFile(ARCHIVE) as archive:
        for name in archive.namelist():
            if name.removeprefix("found/").startswith(f"{target}/"):
                yield name, archive.read(name)


@pytest.mark.parametrize("name", TARGETS)
def test_kept_inputs(name, tmp_path):
    target = TARGETS[name]
    for seed in target.seeds():
        with contextlib.suppress(Forbidden):  # what is imported first is not the reader's doing
            outcome(target, seed, tmp_path)
    outcomes = {outcome(target, data, tmp_path) for _, data in kept(name)}
    assert outcome(target, target.seeds()[0], tmp_path) == "answered"
    # Some kept inputs are refused. A damaged record of a build is not: the build is made again.
    assert outcomes - {"answered"} or name == "build_cache"


def test_the_archive_is_small_and_holds_every_target():
    assert ARCHIVE.stat().st_size < 500_000
    with zipfile.ZipFile(ARCHIVE) as archive:
        names = archive.namelist()
    assert {n.partition("/")[0] for n in names} == {*TARGETS, "found"}
    assert sum(n.startswith("found/") for n in names) > 20


def _evaluates(data, folder):
    eval(data)


def _executes(data, folder):
    exec(compile(data, "plan", "exec"))


def _imports(data, folder):
    (folder / "stowaway.py").write_bytes(b"x = 1")
    sys.path.insert(0, str(folder))
    try:
        import stowaway  # noqa: F401
    finally:
        sys.path.pop(0)
        sys.modules.pop("stowaway", None)


def _opens(data, folder):
    (folder.parent / data.decode()).read_bytes()


def _removes(data, folder):
    (folder / ".." / data.decode()).unlink()


def _starts(data, folder):
    subprocess.run(["true"], check=True)


def _unpickles(data, folder):
    import pickle

    pickle.loads(pickle.dumps(print))


def _loads(data, folder):
    import ctypes

    ctypes.CDLL("libm.so.6")


@pytest.mark.parametrize(
    "run", [_evaluates, _executes, _imports, _opens, _removes, _starts, _unpickles, _loads]
)
def test_a_reader_that_does_more_than_read_is_caught(run, tmp_path):
    (tmp_path / "beside").touch()
    folder = tmp_path / "own"
    folder.mkdir()
    target = Target(list, run)
    with pytest.raises(Forbidden):
        outcome(target, b"beside" if run in (_opens, _removes) else b"1", folder)


def test_foreign_errors_and_wrong_answers_come_through(tmp_path):
    with pytest.raises(ZeroDivisionError):
        outcome(Target(list, lambda data, folder: 1 / len(data)), b"", tmp_path)

    def believes(data, folder):
        fuzz_targets.patches._check_manifest = lambda manifest: None
        TARGETS["patch"].run(data, folder)

    findings = [data for name, data in kept("patch") if name.startswith("found/")]
    before = fuzz_targets.patches._check_manifest
    blind = replace(TARGETS["patch"], run=believes)
    try:
        errors = 0
        for data in findings:
            try:
                outcome(blind, data, tmp_path)
            except (AttributeError, KeyError, TypeError):
                errors += 1
        assert errors > 1
    finally:
        fuzz_targets.patches._check_manifest = before


@pytest.mark.parametrize("name", sorted(set(TARGETS) - {"hard_cases", "entry_points"}))
def test_documents_are_changed_in_their_values(name):
    target, choose = TARGETS[name], random.Random(0)
    seed = target.seeds()[0]
    new = {mutated(target, seed, choose) for _ in range(20)}
    assert len(new - {None, seed}) > 5
