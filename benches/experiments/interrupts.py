# SPDX-License-Identifier: Apache-2.0
"""Is everything restored when a signal handler raises while a session opens or closes?

    python -m benches.experiments.interrupts [--trials N] [--store FILE]

A timer raises KeyboardInterrupt, as Ctrl-C does, at a random time within the life of a short
session, with torch.compile's modules imported or not. Afterwards the process must be as before:
``torch.exp`` has the stock bits, gradients are on, Inductor's settings are the old ones, and
another session opens and closes. Python offers no place to step in between the end of
``__enter__`` and the begin of ``__exit__``: such a session is still open, says so, and closes when
asked; these are counted apart.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch

from benches.experiments import command
from pytest_udftorch import patched

TRIALS = 10_000
X = torch.linspace(-5, 5, 1001)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _settings() -> list[Any]:
    modes = [torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")]
    config: Any = sys.modules.get("torch._inductor.config")
    if config is None:
        return modes
    return [*modes, config.cpp.cxx, config.compile_threads, config.eager_numerics.division_rounding]


def _lasts() -> float:
    """Return how long a session that does nothing takes at least, in seconds."""
    taken = []
    for _ in range(50):
        begin = time.perf_counter()
        with patched("corem", functions=("exp",)):
            pass
        taken.append(time.perf_counter() - begin)
    return min(taken)


def interrupted(trials: int, seed: int) -> dict[str, int]:
    """Interrupt sessions at random times; return counts of what was found afterwards."""
    choose = random.Random(seed)
    stock, settings = torch.exp(X), _settings()
    lasts = _lasts()
    found = dict.fromkeys(
        ("trials", "interrupted", "still_open", "left_swapped", "left_changed", "other_errors"), 0
    )
    before = signal.signal(signal.SIGALRM, _interrupt)
    try:
        for _ in range(trials):
            session = patched("corem", functions=("exp",))
            hit = False
            try:
                try:
                    signal.setitimer(signal.ITIMER_REAL, choose.uniform(1e-6, 1.1 * lasts))
                    with session:
                        pass
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                hit = True
            except Exception:
                found["other_errors"] += 1
            found["trials"] += 1
            found["interrupted"] += hit
            if session.is_open:
                found["still_open"] += 1
                session.close()
            found["left_swapped"] += not torch.equal(torch.exp(X), stock)
            found["left_changed"] += _settings() != settings
    finally:
        signal.signal(signal.SIGALRM, before)
    with patched("corem", functions=("exp",)):
        pass
    return found


def measure(trials: int) -> dict[str, Any]:
    """Interrupt sessions without and with torch.compile's modules."""
    plain = interrupted(trials, 0)
    import torch._inductor.compile_fx  # noqa: F401 - its import is what is measured

    return {"sessions": plain, "sessions beside torch.compile": interrupted(trials // 10, 1)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("interrupts", __doc__)
    parser.add_argument("--trials", type=int, default=TRIALS)
    options = parser.parse_args(arguments)
    if options.trials < 10:
        parser.error("--trials must be at least 10.")

    def judge(figures: dict[str, Any]) -> bool:
        for name, row in figures.items():
            print(name, row)
        bad = ("left_swapped", "left_changed", "other_errors")
        return not any(row[kind] for row in figures.values() for kind in bad)

    return command.run("interrupts", options, lambda: measure(options.trials), judge)


if __name__ == "__main__":
    sys.exit(main())
