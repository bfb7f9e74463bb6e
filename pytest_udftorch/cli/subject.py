# SPDX-License-Identifier: Apache-2.0
"""What ``udftorch diff`` and ``udftorch record`` run, and how: their common options."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pytest_udftorch.errors import RunError

if TYPE_CHECKING:
    from pytest_udftorch.diagnose.runs.other_process import Subject

#: The models that need no file, as help texts name them.
SUBJECTS: Final = "hf-tiny:CLASS, hf:DIR, timm:NAME, torchvision:NAME"


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a model or a script is run."""
    parser.add_argument(
        "--train",
        action=argparse.BooleanOptionalAction,
        help="whether loss, backward pass and optimizer follow a model's forward pass; by default "
        "if it is in training mode",
    )
    parser.add_argument("--steps", type=int, default=1, help="of a model; by default 1")
    parser.add_argument("--seed", type=int, default=0, help="of random numbers")


def add_subject(parser: argparse.ArgumentParser, optional: bool = False) -> None:
    """Add the model or script and its arguments."""
    parser.add_argument(
        "run_of",
        metavar="FILE:FUNCTION or FILE",
        help="a function that returns a callable, which is the run, or a model and its inputs; a "
        f"script; or {SUBJECTS}",
        **({"nargs": "?"} if optional else {}),  # type: ignore[arg-type]
    )
    parser.add_argument(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="of the script; options of udftorch may stand behind a function, and behind a script "
        "if `--` ends them",
    )


def own_options(options: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Return the options with those that stand behind the subject, which ``--`` ends."""
    rest: Sequence[str] = options.arguments
    if options.run_of is None:
        return options
    is_script = options.run_of.endswith(".py")
    if is_script:
        if "--" not in rest:
            return options
        end = list(rest).index("--")
    else:
        end = len(rest)
    ours, left = list(rest[:end]), list(rest[end + 1 :])
    if not ours:
        return _with_arguments(options, left)
    # The subject comes last, so that nothing is left over for it.
    found = parser.parse_args([*ours, options.run_of], argparse.Namespace(**vars(options)))
    if found.run_of != options.run_of or found.arguments:
        stray = next(word for word in ours if not word.startswith("-"))
        raise RunError(
            f"{options.run_of} is a function, which takes no arguments ({stray}). Options of "
            "udftorch stand beside it."
        )
    return _with_arguments(found, left)


def _with_arguments(options: argparse.Namespace, found: list[str]) -> argparse.Namespace:
    options.arguments = found
    return options


def subject(options: argparse.Namespace) -> Subject:
    """Return what is to be run.

    Raises:
        CoverageError: there is no such function.
        RunError: there is no such script, or a number is out of range.
    """
    from pytest_udftorch.diagnose.runs.other_process import Subject

    if options.steps < 1:
        raise RunError(f"--steps {options.steps} runs nothing. Give 1 or more.")
    if options.seed < 0:
        raise RunError(f"--seed {options.seed} is no seed. Give 0 or more.")
    return Subject(options.run_of, tuple(options.arguments))
