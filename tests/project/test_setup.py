# SPDX-License-Identifier: Apache-2.0
"""What the commands for other versions of Python and torch say when they are misused."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def told(*command, **environment):
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr


def test_a_python_that_is_not_there_is_named():
    said = told(".ci/setup", WITH_PYTHON="3.99")
    assert "PATH has no python3.99 of version 3.11 or newer; install it" in said
    assert not (ROOT / ".venv-python-3.99").exists()


@pytest.mark.parametrize(
    ("target", "example"), [("test-python", "PYTHON=3.13"), ("test-torch", "TORCH=2.11.0")]
)
def test_a_target_without_a_version_says_how_to_name_one(target, example):
    said = told("make", "--no-print-directory", target, PYTHON="", TORCH="")
    assert f"Name a version: make {target} {example}" in said


def test_what_is_set_up_is_for_the_demo_or_for_the_tests():
    assert "FOR=dinner is neither demo nor tests" in told(".ci/setup", FOR="dinner")


def test_the_demo_imports_nothing_that_its_setup_leaves_out():
    """Of the extras it gets torch, NumPy and mlxtend without what that needs."""
    left_out = (
        "dask", "gmpy2", "hypothesis", "joblib", "matplotlib", "numba", "pandas", "playwright",
        "pyarrow", "pynvml", "scipy", "sklearn", "tabulate", "torchvision", "tqdm",
    )  # fmt: skip
    script = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({left_out!r}))\n"  # None: cannot be imported
        "from benches.data.mnist import load\n"
        "import benches.experiments.demo_lenet\n"
        "from pytest_udftorch.swap.toolchain.environment import caption, describe\n"
        "assert load() and caption(describe())\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=200)


def test_uv_looks_for_packages_where_pip_does(tmp_path):
    (tmp_path / "bin").mkdir()
    python, uv = tmp_path / "bin" / "python", tmp_path / "bin" / "uv"
    python.symlink_to(Path(sys.executable).resolve())
    uv.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    uv.chmod(0o755)
    settings = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    settings |= {
        "PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": sysconfig.get_path("purelib"),
        "PIP_INDEX_URL": "https://here.example/simple", "PIP_FIND_LINKS": "/a /b",
        "PIP_NO_CACHE_DIR": "1",
    }  # fmt: skip
    done = subprocess.run(
        [python, ROOT / ".ci" / "uv.py", "--no-deps", "torch"], env=settings, check=True,
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    said = done.stdout.split()
    assert said[:4] == ["pip", "install", "--python", str(python)]
    assert said[-9:] == [
        "--default-index", "https://here.example/simple", "--find-links", "/a", "--find-links",
        "/b", "--no-cache", "--no-deps", "torch",
    ]  # fmt: skip
    assert "--no-index" not in said
