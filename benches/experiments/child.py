# SPDX-License-Identifier: Apache-2.0
"""A fresh process that has imported torch and waits for orders, to time what happens once.

``python -m benches.experiments.child`` reads a JSON order from each line, and answers with a line
of JSON:

    {"do": "build", "library": "corem"}
    {"do": "enter", "library": "corem", "functions": ["exp"] or null}
    {"do": "exit"}
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


class Child:
    """The parent's end.

    ``order`` sends one order, waits for the answer and returns it. ``ns`` in the answer is the time
    that the child itself measured, without the pipe.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benches.experiments.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **(environment or {})},
        )
        self.answer()  # it has imported torch

    def order(self, **what: Any) -> dict[str, Any]:
        """Send an order and return the answer.

        Raises:
            RuntimeError: the child failed; its own traceback is on stderr.
        """
        self.send(**what)
        return self.answer()

    def send(self, **what: Any) -> None:
        """Send an order; the answer waits for :meth:`answer`."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")

    def answer(self) -> dict[str, Any]:
        """Wait for one answer and return it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the child ended with status {self.process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the child and wait for it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def timed(
    benchmark: Any, rounds: int, start: Callable[[], Child] = Child, **order: Any
) -> list[dict[str, Any]]:
    """Time an order with pytest-benchmark, each time in a new child; return the answers."""
    children: list[Child] = []
    answers: list[dict[str, Any]] = []
    benchmark.pedantic(
        lambda: answers.append(children[-1].order(**order)),
        setup=lambda: children.append(start()),
        teardown=lambda: children.pop().close(),
        rounds=rounds,
    )
    return answers


def main() -> None:
    """Serve until stdin ends."""
    import torch

    import pytest_udftorch

    torch.ones(1)
    print(json.dumps({"torch": torch.__version__}), flush=True)
    session: Any = None
    for line in sys.stdin:
        order = json.loads(line)
        answer: dict[str, Any] = {}
        start = time.perf_counter_ns()
        if order["do"] == "build":
            built = pytest_udftorch.build_library(order["library"])
            answer = {"build_id": built.build_id, "compiled_s": built.seconds}
        elif order["do"] == "enter":
            session = pytest_udftorch.patched(order["library"], order["functions"])
            session.__enter__()
            answer = {"reached": sorted(session.reached)}
        else:
            session.close()
        answer["ns"] = time.perf_counter_ns() - start
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
