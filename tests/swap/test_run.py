# SPDX-License-Identifier: Apache-2.0
"""``udftorch run``: a program runs as under ``python``, and each of its processes in a session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json
import multiprocessing
import subprocess
import sys

def shift(_=None):
    import torch

    return torch.exp(torch.zeros(70)).unique().tolist()

if __name__ == "__main__":
    early = "torch" in sys.modules
    found = {"main": shift()}
    for method in sys.argv[3:]:
        with multiprocessing.get_context(method).Pool(1) as pool:
            found[method] = pool.map(shift, [0])[0]
    command = [sys.executable, "-c", "import program; print(program.shift())"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found["subprocess"] = json.loads(told)
    print(json.dumps([sys.argv, early, found]))
    raise SystemExit(5)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "udf.toml").write_text(
        '[library]\nname = "shifted"\nversion = "1"\n'
        '[functions.exp.float32]\nsource = "u.c"\nscalar = "e"\n'
    )
    (folder / "u.c").write_text("float e(float x) { return x + 100; }\n")
    (folder / "program.py").write_text(PROGRAM)
    return folder


def run(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_udftorch", "run", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    "methods", [("fork",), pytest.param(("spawn", "forkserver"), marks=pytest.mark.slow)]
)
def test_every_process_of_a_program_opens_the_session(folder, methods):
    arguments = ["-m", "--udf-lib", *methods]
    done = run(folder, "--udf-lib=./", "--udf-functions=exp", "program.py", *arguments)
    assert done.returncode == 5, done.stderr
    argv, early, found = json.loads(done.stdout)
    assert argv == ["program.py", *arguments]
    assert not early
    processes = ("main", *methods, "subprocess")
    assert found == {process: [100.0] for process in processes}


def test_without_the_command_the_same_program_has_stock_functions(folder):
    """The negative control."""
    code = "import program; print(program.shift())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [1.0]


def test_status_traceback_and_path_are_pythons(folder):
    code = "import sys; print(sys.path, sys.flags.dev_mode); sys.stdout.flush(); 1/0"
    done = run(folder, "--udf-lib=std", "-c", code)
    plain = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, plain.stdout, plain.stderr)
    module = run(folder, "--udf-lib=std", "-m", "json.tool", "--help")
    assert module.returncode == 0
    assert "json.tool" in module.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_program_with_its_status(folder, number):
    done = run(folder, "--udf-lib=std", "-c", f"import os; os.kill(os.getpid(), {int(number)})")
    assert done.returncode == -number


def test_the_interpreters_own_sitecustomize_runs(folder, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.theirs = 1\n")
    code = "import sys, sitecustomize; print(sys.theirs, sitecustomize.__file__, sys.meta_path[0])"
    done = run(folder, "--udf-lib=std", "-c", code, PYTHONPATH=str(tmp_path))
    assert done.stdout.startswith(f"1 {tmp_path}/sitecustomize.py <pytest_udftorch."), done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--udf-lib=std"], "There is nothing to run"),
        (["--udf-lib=nosuch", "program.py"], "No UDF library is called 'nosuch'"),
        (["--udf-lib=./", "--udf-functions=exp,", "program.py"], "has an empty name in 'exp,'"),
        (["--udf-lib=./", "--udf-functions=log", "program.py"], "has no function 'log'"),
        (["--udf-lib=./", "--udf-cpu-level=best", "program.py"], "'best'"),
        (["--udf-lib=./", "--udf-profile=timed", "program.py"], "Give both"),
    ],
)
def test_a_mistake_is_told_before_the_program_starts(folder, arguments, says, capsys, monkeypatch):
    from pytest_udftorch.cli import main

    monkeypatch.chdir(folder)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started"))
    assert main(["run", *arguments]) == 2
    assert says in capsys.readouterr().err


def test_an_interpreter_that_ignores_the_environment_is_refused(folder):
    done = subprocess.run(
        [sys.executable, "-E", "-m", "pytest_udftorch", "run", "--udf-lib=std", "program.py"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "python -E, -I and -S switch off the start-up file" in done.stderr


def test_a_wrong_variable_is_an_error_at_the_import_of_torch(folder):
    from pytest_udftorch.swap.session import startup

    code = "import os; os.environ['UDFTORCH_RUN'] = '[]'; import torch"
    done = run(folder, "--udf-lib=std", "-c", code)
    assert done.returncode == 1
    assert f"SessionStateError: {startup.VARIABLE}='[]' does not hold" in done.stderr
