# SPDX-License-Identifier: Apache-2.0
"""Runs of pytest that start with torch imported: forks of one process that did nothing else.

Importing torch takes longer than most runs of the suites here. Started as a program, this reads
a line of JSON for each run from its standard input, forks, and writes the run's exit code.

Taking torch apart at the end of a process takes about as long as a run, so a fork ends without it.
The ends of whole processes are shown by the suites that start one.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, NoReturn


class Forks:
    """The process that forks; it starts with the first run and ends with the test run.

    Args:
        modules: what it imports besides.
    """

    def __init__(self, *modules: str) -> None:
        self._modules = modules
        self._process: subprocess.Popen[str] | None = None

    def run(self, arguments: list[str], stdout: Path, stderr: Path) -> int:
        """Run pytest in this process's folder and environment; return its exit code."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *self._modules],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {
            "arguments": arguments,
            "folder": os.getcwd(),
            "environment": dict(os.environ),
            "streams": [str(stdout), str(stderr)],
        }
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def become(order: dict[str, Any]) -> None:
    """Take the place that ``python -m pytest`` would have in an order."""
    for number, mode, path in zip((0, 1, 2), "rww", [os.devnull, *order["streams"]], strict=True):
        with open(path, mode) as file:
            os.dup2(file.fileno(), number)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    before = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [order["folder"], *before]
    sys.argv = ["pytest", *order["arguments"]]


def run_pytest() -> NoReturn:
    """Run pytest and end as an interpreter does, up to where it takes its modules apart."""
    code: object = 0
    try:
        runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(int(code or 0))


def main() -> None:
    """Fork for each order; in the fork, run pytest."""
    import pytest  # noqa: F401
    import torch._subclasses.schema_check_mode  # noqa: F401
    from _pytest.config import default_plugins

    import pytest_udftorch.plugin.gaps
    import pytest_udftorch.plugin.reach_check
    import pytest_udftorch.plugin.switcher
    import pytest_udftorch.swap.session.session
    import pytest_udftorch.swap.session.startup  # noqa: F401

    for name in default_plugins:
        importlib.import_module(f"_pytest.{name}")
    plugins = "pytest_rerunfailures", "pytest_timeout", "xdist.looponfail", "xdist.plugin"
    for name in (*plugins, *sys.argv[1:]):
        importlib.import_module(name)

    sys.path.pop(0)  # this folder
    # pytest and the end of a process collect garbage several times; torch's objects are none.
    gc.freeze()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            become(order)
            run_pytest()
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
