# SPDX-License-Identifier: Apache-2.0
"""``udftorch same``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from pytest_udftorch.cli.progress_bar import progress_bar
from pytest_udftorch.cli.status import FAILED, Subparsers
from pytest_udftorch.cli.subject import SUBJECTS

#: Packages that a subject needs beside torch, by the word before its colon.
_NEEDS: Final = {"hf-tiny": "transformers", "timm": "timm"}


def add(commands: Subparsers) -> None:
    """Add ``udftorch same``."""
    parser = commands.add_parser(
        "same",
        help="say which ways of running a model agree",
        description="Runs one model in the ways that ought to agree (training forward, each size "
        "of a batch, padding, packing, decoding with a cache and so on), under each library, and "
        "prints which of them give the bits of the evaluation of the whole batch, and which "
        "operator makes the others differ. It fails if a way differs under the last library.",
    )
    parser.add_argument(
        "subject",
        metavar="SUBJECT",
        help=f"{SUBJECTS}, or a function in a file that returns a model and its inputs "
        "(model.py:make)",
    )
    parser.add_argument("--libraries", default="std,corem,repro", help="by default std,corem,repro")
    parser.add_argument(
        "--ways",
        help="names of ways, joined by commas, such as 'batch 1,decoding'; or all, which adds "
        "those that take long",
    )
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="begin no further way after this time"
    )
    parser.add_argument("--dtype", help="dtype of the model: float32, bfloat16, float16 or float64")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and inputs")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse at the start a model that calls an operator outside of the contract of repro",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--store", type=Path, metavar="FILE", help="also write everything as JSON")
    parser.set_defaults(run=run, needs=_needs)


def _needs(options: argparse.Namespace) -> list[str]:
    word = options.subject.partition(":")[0]
    return ["torch", "numpy", *([_NEEDS[word]] if word in _NEEDS else [])]


def run(options: argparse.Namespace) -> int:
    """Compare, store and print; fail if a way differs under the last library."""
    from pytest_udftorch.base.host import let_threads_sleep

    let_threads_sleep()
    from pytest_udftorch.base.store import store
    from pytest_udftorch.errors import RunError
    from pytest_udftorch.reproduce.agreement.sameness import same

    with progress_bar("ways", "run", quiet=options.quiet) as progress:
        found = same(
            options.subject,
            libraries=_names(options.libraries),
            ways=_names(options.ways) if options.ways else None,
            limit=options.limit,
            dtype=options.dtype,
            seed=options.seed,
            strict=options.strict,
            progress=progress,
        )
    if options.store is not None:
        store(options.store, found.document(), RunError)
    print(found.text())
    return 0 if found.equal else FAILED


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
