# SPDX-License-Identifier: Apache-2.0
"""Certificates of what PyTorch ships with: how often, and how far, are its functions wrong?

    python -m benches.experiments.stock_certificates [LIBRARY ...] [--certificates FOLDER] [--store]

Runs ``udftorch verify`` for each library and function whose certificate is not in the folder yet;
with ``--store`` what they counted goes to benches/results/certificates, a file for each library.
The folder keeps the certificates themselves, with the digests of all chunks and the wrong results.
Every encoding of float32 takes one or two minutes a function, the 16-bit types seconds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benches import certified, stored
from pytest_udftorch import UdfError, find_library
from pytest_udftorch.swap import FUNCTIONS

#: Where certificates are kept until all of a library are there.
FOLDER: Final = Path("build/stock_certificates")


def unary() -> list[str]:
    """Return the functions of corem that have one argument, and so can be run on every input."""
    return [f for f in find_library("corem").function_names if FUNCTIONS[f].arity == 1]


#: Library -> its functions by dtype; None for all of one argument. libm's are those that torch
#: calls for whole tensors.
LIBRARIES: Final[dict[str, dict[str, tuple[str, ...] | None]]] = {
    "libm": {"float32": ("cos", "exp", "expm1", "log", "sin", "tanh")},
    "sleef": {"float32": None},
    "std": {"bfloat16": None, "float16": None},
    "vml": {
        "float32": (
            "acos", "asin", "atan", "cos", "erf", "exp", "log", "log10", "log2", "sin", "tan",
            "tanh",
        ),
    },
}  # fmt: skip


def measure(library: str, folder: Path) -> list[Path]:
    """Verify what the folder has no certificate of; return the certificates of the library.

    Raises:
        CalledProcessError: a function was not verified.
    """
    paths = []
    for dtype, functions in LIBRARIES[library].items():
        for function in functions or unary():
            path = folder / library / f"{function}.{dtype}.certificate.json"
            paths.append(path)
            if not path.exists():
                subprocess.run(
                    [
                        sys.executable, "-m", "pytest_udftorch", "verify", library, function,
                        "--dtype", dtype, "--out", str(path.parent), "--resume", "--quiet",
                    ],
                    check=True,
                )  # fmt: skip
    return paths


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.experiments.stock_certificates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=", ".join(LIBRARIES))
    parser.add_argument("--certificates", type=Path, default=FOLDER, metavar="FOLDER")
    parser.add_argument("--store", action="store_true", help="store what they counted")
    options = parser.parse_args(arguments)
    for library in options.libraries:
        if library not in LIBRARIES:
            parser.error(f"{library!r} is not one of {', '.join(LIBRARIES)}.")
    for library in options.libraries or LIBRARIES:
        try:
            rows = certified.rows(measure(library, options.certificates))
        except (UdfError, subprocess.CalledProcessError) as error:
            print(f"stock_certificates: {error}", file=sys.stderr)
            return 2
        if options.store:
            command = f"python -m benches.experiments.stock_certificates {library} --store"
            stored.save(
                stored.RESULTS / "certificates" / f"{library}.json", command, {"rows": rows}
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
