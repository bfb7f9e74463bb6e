# SPDX-License-Identifier: Apache-2.0
"""Does a whole foreign suite end the same on a patched libtorch as under the plugin?

    python -m benches.experiments.patched_suite [--suite zuko] [--cache DIR] [--store FILE]

``udftorch patch`` makes a folder, and the suite runs with that folder on ``PYTHONPATH`` and the
plugin off; so nothing in the process knows of this package. Its outcomes are compared, test by
test, with those under ``--udf-lib=corem``, as ``benches.experiments.foreign_suites`` does. Both
processes must have the same mathematics, and it must not be the stock one; this is the negative
control of the path.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benches.experiments import command
from benches.experiments.foreign_suites import (
    CACHE,
    COREM,
    SUITES,
    Prepared,
    Suite,
    SuiteError,
    Way,
    compare,
    summary,
)


def measure(suite: Suite, cache: Path) -> dict[str, Any]:
    """Run a suite on a patched libtorch and under the plugin, and compare the two.

    Raises:
        SuiteError: the patch could not be made, or the processes had other mathematics.
    """
    prepared = Prepared(suite, cache)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "patch"
        made = subprocess.run(
            [sys.executable, "-m", "pytest_udftorch", "patch", "--udf-lib=corem", f"--out={out}"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode:
            raise SuiteError(f"udftorch patch failed: {made.stdout}{made.stderr}")
        on_patch = Way("patch", ("-p", "no:udftorch"), (str(out),))
        ran = {way.name: prepared.run(way, suite.tests) for way in (COREM, on_patch)}
        # A part is enough to see what the process computes with when the path is not set.
        stock = prepared.run(Way("stock", ("-p", "no:udftorch")), suite.control)
        if ran["patch"].mathematics != ran["corem"].mathematics:
            raise SuiteError("the patch and the plugin computed with other functions.")
        if ran["patch"].mathematics == stock.mathematics:
            raise SuiteError("the patch computed with the stock functions.")
        return {
            "suite": suite.name,
            "version": suite.version,
            "about": suite.about,
            **compare(prepared, COREM, on_patch, ran),
            "runs": {name: summary(run) for name, run in ran.items()},
            "stock_mathematics": stock.mathematics[:16],
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("patched_suite", __doc__)
    parser.add_argument("--suite", choices=SUITES, default="zuko")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where suites are kept")
    options = parser.parse_args(arguments)

    def once() -> dict[str, Any]:
        return measure(SUITES[options.suite], options.cache)

    def judge(found: dict[str, Any]) -> bool:
        shown = ("suite", "tests", "passed", "failed_both", "differing")
        print({name: found[name] for name in shown})
        return bool(found["differing"] == found["explained"])

    return command.run("patched_suite", options, once, judge)


if __name__ == "__main__":
    sys.exit(main())
