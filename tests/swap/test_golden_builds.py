# SPDX-License-Identifier: Apache-2.0
"""A build cannot vouch for itself: what it gives is compared with results from outside of it."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pytest_udftorch import build_library, find_library, patched
from pytest_udftorch.errors import LibraryError, WrongBuildError
from pytest_udftorch.swap.toolchain import cache as cache_module
from pytest_udftorch.swap.toolchain import golden, shared_library

UDFS = Path(__file__).parents[2] / "udfs"


def generator():
    spec = importlib.util.spec_from_file_location("udfs_golden", UDFS / "golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("library", ["corem", "canary"])
def test_the_recorded_results_are_those_of_mpfr(library):
    stored = json.loads((UDFS / library / "golden.json").read_text())
    assert stored == generator().document(library)
    assert set(stored["float32"]) == set(find_library(library).function_names)


@pytest.mark.parametrize(("library", "other"), [("corem", "canary"), ("canary", "corem")])
def test_every_function_of_another_library_is_found_out(library, other):
    right = build_library(library)
    wrong = replace(right, path=build_library(other).path)
    for function, dtype in right.library.functions:
        golden.check(right, function, dtype)
        with pytest.raises(WrongBuildError, match=rf"float32 {function} of .* records 0x"):
            golden.check(wrong, function, dtype)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(folder))
    return folder


def forget(monkeypatch):
    monkeypatch.setattr(shared_library, "_built", {})
    monkeypatch.setattr(cache_module, "_checked", {})


@pytest.fixture
def library(tmp_path):
    """A library that doubles, and records that it does."""
    folder = tmp_path / "twice"
    folder.mkdir()
    source(folder, 2)
    results = [torch.tensor(2 * x).view(torch.int32).item() for x in golden.rows("exp")[0]]
    text = "".join(f"{each & 0xFFFFFFFF:08x}" for each in results)
    (folder / "golden.json").write_text(json.dumps({"float32": {"exp": text}}))
    (folder / "udf.toml").write_text(
        '[library]\nname = "twice"\nversion = "1"\ngolden = "golden.json"\n'
        '[functions.exp.float32]\nsource = "e.c"\nscalar = "udf_expf"\n'
    )
    return folder


def source(folder: Path, factor: int) -> None:
    (folder / "e.c").write_text(f"float udf_expf(float x) {{ return {factor} * x; }}\n")


def test_a_swapped_file_with_a_record_that_fits_it_is_refused(cache, library, monkeypatch):
    """The hashes in build.json and in the index are those of the wrong file."""
    right = build_library(library).path
    source(library, 3)
    wrong = build_library(library).path
    source(library, 2)
    old, new = (cache_module.sha256_of(path) for path in (right, wrong))
    right.unlink()
    shutil.copy(wrong, right)
    changed = 0
    for record in (right.parent / "build.json", right.parent.with_suffix(".reads")):
        text = json.dumps(cache_module.unseal(record.read_text()))
        changed += text.count(old)
        record.write_text(cache_module.seal(json.loads(text.replace(old, new))))
    assert changed >= 2
    forget(monkeypatch)
    assert build_library(library).path == right, "the cache vouches for the file"
    x = torch.linspace(0, 1, 5)
    stock = torch.exp(x)
    with pytest.raises(WrongBuildError, match=r"is not a build of UDF library 'twice'.*Delete"):
        patched(library).__enter__()
    assert torch.equal(torch.exp(x), stock)
    shutil.rmtree(right.parent)
    code = (
        "import sys\nfrom pytest_udftorch import build_library\n"
        "from pytest_udftorch.swap.toolchain import golden\n"
        "golden.check(build_library(sys.argv[1]), 'exp', 'float32')\n"
    )
    subprocess.run([sys.executable, "-c", code, library], check=True)


def test_without_a_record_only_the_hash_protects(cache, library):
    """What the record adds: the build's own results are right by definition."""
    (library / "udf.toml").write_text(
        (library / "udf.toml").read_text().replace('golden = "golden.json"\n', "")
    )
    source(library, 3)
    with patched(library):
        assert torch.equal(torch.exp(torch.ones(5)), torch.full((5,), 3.0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ('{"float32": {"exp": "00"}}', "has not 67 results"),
        ('{"float32": {"exp": "xyz"}}', "does not look like"),
        ('{"float16": {}}', "unknown entry"),
    ],
)
def test_a_record_that_cannot_be_used_is_named(cache, library, text, says):
    (library / "golden.json").write_text(text)
    with pytest.raises(LibraryError, match=f"{says}.*Record the results anew"):
        patched(library).__enter__()


def test_a_record_that_is_missing_is_named(library):
    (library / "golden.json").unlink()
    with pytest.raises(LibraryError, match=r"golden names 'golden\.json', which does not"):
        find_library(library)


def test_a_function_that_is_not_recorded_is_not_compared(cache, library):
    (library / "golden.json").write_text('{"float64": {}}')
    with patched(library):
        assert torch.equal(torch.exp(torch.ones(5)), torch.full((5,), 2.0))
