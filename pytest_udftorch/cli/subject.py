# SPDX-License-Identifier: Apache-2.0
"""What ``udftorch diff`` and ``udftorch record`` run, and how: their common options."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from pytest_udftorch.diagnose.runs.sides import side
from pytest_udftorch.diagnose.runs.source import check_source, is_script
from pytest_udftorch.errors import RunError
from pytest_udftorch.swap.library.description import find_library

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
        "they do if it is in training mode",
    )
    parser.add_argument(
        "--steps", type=int, default=1, help="training steps of a model; by default 1"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random numbers")


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
        help="more options of udftorch, and after `--` the arguments of the script",
    )
    parser.set_defaults(runs_of=[], behind=[])


def split(words: list[str], parser: argparse.ArgumentParser) -> tuple[list[str], list[str]]:
    """Return the words before ``--`` and those behind it, where a verb leaves these to a script.

    argparse itself would drop some ``--`` and keep others.
    """
    if parser.get_default("behind") is None or "--" not in words:
        return words, []
    end = words.index("--")
    return words[:end], words[end + 1 :]


def own_options(
    options: argparse.Namespace, parser: argparse.ArgumentParser, most: int = 1
) -> argparse.Namespace:
    """Return the options with those that stand behind the subject.

    ``runs_of`` has every subject that is named.

    Args:
        options: as parsed.
        parser: what parsed them.
        most: how many subjects there may be.

    Raises:
        RunError: more subjects, or options that udftorch does not have.
    """
    ours: list[str] = list(options.arguments)
    subjects = [] if options.run_of is None else [options.run_of]
    while ours:
        # The last word is neither an option's value nor a subject, so that none is left over.
        known, unknown = parser.parse_known_args(
            [*ours, _END], argparse.Namespace(**{**vars(options), "run_of": None})
        )
        if known.run_of is None:  # an option took the last word for its value
            parser.error(f"argument {ours[-1]}: expected one argument")
        if unknown:
            raise RunError(_not_ours(options.run_of, unknown[0]))
        options, ours = known, []
        if known.run_of != _END:
            subjects.append(known.run_of)
            ours = known.arguments[:-1]
    for number, word in enumerate(subjects[1:], 1):
        if number >= most or not (is_script(word) or ":" in word):
            raise RunError(_not_ours(subjects[0], word))
    options.run_of, options.runs_of = next(iter(subjects), None), subjects
    return options


#: Stands behind all words while they are parsed. No argument of a command can hold it.
_END: Final = "\0"


def _not_ours(subject: str, word: str) -> str:
    if is_script(subject):
        return (
            f"{word} is not for udftorch, whose options may stand before and behind {subject}. If "
            f"it is for the script, write -- before it: {subject} -- {word} ..."
        )
    return (
        f"{subject} is a function, which takes no arguments, and {word} is no option of udftorch."
    )


def subject(options: argparse.Namespace, which: int = 0) -> Subject:
    """Return what is to be run.

    Mistakes that the source shows are told before torch is imported, which takes seconds.

    Args:
        options: from :func:`own_options`.
        which: of the subjects.

    Raises:
        CoverageError: there is no such function.
        RunError: there is no such script, or a number is out of range.
    """
    if options.steps < 1:
        raise RunError(f"--steps {options.steps} runs nothing. Give 1 or more.")
    if options.seed < 0:
        raise RunError(f"--seed {options.seed} is not a seed. Give 0 or more.")
    for where in options.runs_of:
        check_source(where)
    from pytest_udftorch.diagnose.runs.other_process import Subject

    return Subject(options.runs_of[which], tuple(options.behind))


def check_side(text: str) -> None:
    """Refuse a side that means nothing, or whose library does not exist, before torch is imported.

    Raises:
        DiagnosisError: it means nothing.
        UdfError: as from reading its library.
    """
    one = side(text)
    if one.library is not None:
        find_library(one.library)
