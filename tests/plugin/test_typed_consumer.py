# SPDX-License-Identifier: Apache-2.0
"""A small project that uses the public API passes ``mypy --strict``, and its mistakes do not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CONSUMER = """
from pathlib import Path

import torch

from pytest_udftorch import Session, UdfError, UdfLibrary, build_library, find_library, patched, udf
from pytest_udftorch.prove import load_certificate
from pytest_udftorch.watch import Profile, load_profiles
from pytest_udftorch.prove import approx, ulp_distance
from pytest_udftorch.diagnose import Difference, first_difference
from pytest_udftorch.measure import sync_timer


def share(x: torch.Tensor) -> float:
    with patched("corem", functions=("exp",), profile=True) as session:
        torch.exp(x)
    rows = session.profile.rows("function")
    reached: set[str] = {name for name in session.reached}
    return len(reached) / sum(row.elements for row in rows)


def explained(model: torch.nn.Module, x: torch.Tensor) -> str:
    found: Difference = first_difference("eager", "library=corem", model, (x,), seconds=60.0)
    return found.verdict() if found.explained else found.text()


@patched("corem")
def decorated(x: torch.Tensor, power: int) -> torch.Tensor:
    return x**power


def profiles(folder: Path) -> list[str]:
    found: list[Profile] = load_profiles([folder], add_runs=True)
    return [profile.table("function", 5) for profile in found]


def library(path: Path) -> UdfLibrary:
    try:
        chosen = find_library(path)
    except UdfError as error:
        raise SystemExit(str(error)) from error
    print(build_library(chosen).build_id, load_certificate(path).failures())
    return chosen


def fastest(x: torch.Tensor) -> str:
    found = sync_timer(runs=6).compare({"exp": lambda: torch.exp(x)})
    print(found["exp"].median_ns + 1)
    return found.fastest


def opened(session: Session) -> bool:
    y = decorated(torch.ones(3), 2)
    print(int(ulp_distance(y, y).max()))
    return bool(y == approx(y, ulp=1))


rough: UdfLibrary = udf("exp", max_ulp=8.0)(lambda x: 1 + x)
"""

#: A line that is wrong, and what mypy says of it.
MISTAKES = {
    'patched("corem", function=("exp",))': "call-arg",
    "patched(3)": "arg-type",
    'decorated(torch.ones(3), "2")': "arg-type",
    'find_library("corem").claims': "attr-defined",
    'load_profiles("folder", runs=True)': "call-arg",
    "sync_timer().compare(3)": "arg-type",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What mypy --strict says of the project, whose last lines are the mistakes."""
    folder = tmp_path_factory.mktemp("consumer")
    wrong = "".join(f"{line}\n" for line in MISTAKES)
    (folder / "consumer.py").write_text(f"{CONSUMER}\n\n{wrong}")
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = True\n[mypy-torch.*]\nfollow_imports = skip\n"
        "[mypy-numpy.*]\nfollow_imports = silent\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "consumer.py"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "is in the package" not in done.stdout
    return done.stdout


def test_the_public_api_is_typed(said):
    assert (ROOT / "pytest_udftorch" / "py.typed").exists()
    assert "missing library stubs or py.typed" not in said
    right = (CONSUMER.count("\n")) + 2
    lines = [int(n) for n in re.findall(r"^consumer\.py:(\d+): error", said, re.M)]
    assert [n for n in lines if n <= right] == [], said


@pytest.mark.parametrize(("line", "code"), MISTAKES.items())
def test_mistakes_of_types_are_seen(line, code, said):
    number = f"{CONSUMER}\n\n".count("\n") + 1 + list(MISTAKES).index(line)
    assert re.search(rf"^consumer\.py:{number}: error: .*\[{code}\]$", said, re.M), said
