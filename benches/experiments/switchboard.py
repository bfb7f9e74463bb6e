# SPDX-License-Identifier: Apache-2.0
"""What it costs to open and close a session, and what a board costs once none is open.

    python -m benches.experiments.switchboard [--rounds N] [--store FILE]

Entry and exit are CPU times of the process, after the first session of a selection. The first
entry is that of a fresh process with everything built, which has imported torch: the import of the
package, and what the session adds to it. Processes of the libraries take turns.

A board stays in torch's dispatcher when the last session has closed. Its cost is the difference
between processes that have opened a session and processes that have not, which take turns: the
shortest of many blocks of calls in each.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from benches import stored
from benches.experiments import command
from pytest_udftorch import patched

#: What is opened: a name, the library, and its functions.
SESSIONS: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "corem": ("corem", None),
    "corem, exp and log": ("corem", ("exp", "log")),
    "repro": ("repro", None),
}

#: How often a session is opened and closed in a turn, and how many processes take turns.
TIMES, ROUNDS = 20, 7

#: Calls of operators with and without a board; elements do not count in them.
CALLS = {
    "exp": "torch.exp(x)",
    "sum": "torch.sum(x)",
    "softmax": "torch._softmax(x, 0, False)",
    "add (no board)": "torch.add(x, x)",
}

_PROCESS = """
import json, sys, time, torch
import pytest_udftorch
torch.set_num_threads(1)
if sys.argv[1] == "boards":
    with pytest_udftorch.patched("corem", functions=("exp",)):
        pass
x = torch.ones(1)
calls = json.loads(sys.argv[2])
found = {}
with torch.inference_mode():
    for name, text in calls.items():
        call = eval("lambda: " + text)
        for _ in range(2000):
            call()
        best = float("inf")
        for _ in range(60):
            begin = time.thread_time_ns()
            for _ in range(2000):
                call()
            best = min(best, (time.thread_time_ns() - begin) / 2000)
        found[name] = best
print(json.dumps(found))
"""


#: Prints the CPU times of the package's import and of a first session, in ms.
_FIRST = """
import sys, time, torch
times = [time.process_time_ns()]
import pytest_udftorch
times.append(time.process_time_ns())
session = pytest_udftorch.patched(sys.argv[1], functions=sys.argv[2:] or None).__enter__()
times.append(time.process_time_ns())
session.close()
print((times[1] - times[0]) / 1e6, (times[2] - times[1]) / 1e6)
"""


def first_entry(turns: int) -> dict[str, Any]:
    """Return the CPU time that a fresh process spends up to its first session, in ms."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in SESSIONS}
    for turn in range(turns + 1):
        for name, (library, functions) in SESSIONS.items():
            arguments = [sys.executable, "-c", _FIRST, library, *(functions or ())]
            done = subprocess.run(arguments, check=True, capture_output=True, text=True)
            importing, entering = map(float, done.stdout.split())
            if turn:  # the first turn builds
                found[name].append((importing, entering))
    return {
        name: {
            "import_ms": stored.summary([importing for importing, _ in times]),
            "entry_ms": stored.summary([entering for _, entering in times]),
        }
        for name, times in found.items()
    }


def entry_and_exit(turns: int) -> dict[str, Any]:
    """Return the CPU time of an entry and an exit, in ms."""
    entries: dict[str, list[float]] = {name: [] for name in SESSIONS}
    exits: dict[str, list[float]] = {name: [] for name in SESSIONS}
    for turn in range(turns + 1):
        for name, (library, functions) in SESSIONS.items():
            for _ in range(TIMES):
                session = patched(library, functions)
                times = [time.process_time_ns()]
                session.__enter__()
                times.append(time.process_time_ns())
                session.close()
                times.append(time.process_time_ns())
                if turn:  # the first turn builds
                    entries[name].append((times[1] - times[0]) / 1e6)
                    exits[name].append((times[2] - times[1]) / 1e6)
    return {
        name: {"entry_ms": stored.summary(entries[name]), "exit_ms": stored.summary(exits[name])}
        for name in SESSIONS
    }


def _times(boards: str) -> dict[str, float]:
    arguments = [sys.executable, "-c", _PROCESS, boards, json.dumps(CALLS)]
    found = subprocess.run(arguments, check=True, capture_output=True, text=True)
    times: dict[str, float] = json.loads(found.stdout)
    return times


def boards(rounds: int) -> dict[str, Any]:
    """Return the time of calls without boards, and what boards add to it, in ns."""
    without: dict[str, list[float]] = {name: [] for name in CALLS}
    added: dict[str, list[float]] = {name: [] for name in CALLS}
    for _ in range(rounds):
        before, after = _times("none"), _times("boards")
        for name in CALLS:
            without[name].append(before[name])
            added[name].append(after[name] - before[name])
    return {
        name: {"call_ns": stored.summary(without[name]), "board_ns": stored.summary(added[name])}
        for name in CALLS
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("switchboard", __doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    if options.rounds < 2:
        parser.error("--rounds must be 2 or more.")

    def measure() -> dict[str, Any]:
        return {
            "first": first_entry(options.rounds),
            "sessions": entry_and_exit(options.rounds),
            "boards": boards(options.rounds),
        }

    def judge(figures: dict[str, Any]) -> bool:
        for part in figures.values():
            for name, row in part.items():
                print(name, {kind: round(found["median"], 3) for kind, found in row.items()})
        return True

    return command.run("switchboard", options, measure, judge)


if __name__ == "__main__":
    sys.exit(main())
