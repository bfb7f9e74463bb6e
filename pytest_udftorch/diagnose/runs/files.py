# SPDX-License-Identifier: Apache-2.0
"""What a command line names as a run: a function in a file, or a script."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from pytest_udftorch.diagnose.runs.models import NAMED, named_model
from pytest_udftorch.errors import CoverageError, RunError
from pytest_udftorch.swap.reach.coverage import training_step


def load(where: str, arguments: Sequence[str] = ()) -> Callable[[], Any]:
    """Return what makes the run that ``model.py:make`` or ``train.py`` names.

    Args:
        where: a file and a function in it, or a script, which runs as ``__main__``.
        arguments: of the script. What it prints is not shown.

    Raises:
        CoverageError: there is no such function.
        RunError: there is no such script, or a function got arguments.
    """
    path = Path(where)
    if path.suffix != ".py":
        if arguments:
            raise RunError(
                f"{where} is a function, which takes no arguments ({' '.join(arguments)}). Options "
                "of udftorch stand before it."
            )
        return load_make(where)
    if not path.is_file():
        raise RunError(f"There is no script {path} to run.")

    def script() -> None:
        folder = str(path.resolve().parent)
        with (
            mock.patch.object(sys, "argv", [str(path), *arguments]),
            mock.patch.object(sys, "path", [folder, *sys.path]),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            try:
                runpy.run_path(str(path), run_name="__main__")
            except SystemExit as end:
                if end.code not in (None, 0):
                    raise RunError(f"{path} ended with {end.code!r}.") from end

    return lambda: script


def load_make(where: str) -> Callable[[], Any]:
    """Return the function that ``model.py:make`` names, or what makes a model with a name.

    Models with names are ``hf-tiny:LlamaForCausalLM``, ``hf:DIR``, ``timm:NAME`` and
    ``torchvision:NAME``; see :mod:`.models`.

    Raises:
        CoverageError: there is no such file or function.
        PackageMissingError: the package that has the model is not installed.
        RunError: the package has no such model.
    """
    named = named_model(where)
    if named is not None:
        return named
    path, colon, name = where.rpartition(":")
    if not colon or not name.isidentifier():
        raise CoverageError(
            f"{where!r} names no model. Write model.py:make, a file and a function in it, or "
            f"{', '.join(f'{word}:NAME' for word in NAMED)}."
        )
    make = getattr(_module(Path(path)), name, None)
    if not callable(make):
        raise CoverageError(f"{path} has no function {name!r}. Name one that returns the run.")
    return make  # type: ignore[no-any-return]


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"udftorch_model_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise CoverageError(f"There is no Python file {path} to take a model from.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CoverageError(f"{path} cannot be imported: {error!r}.") from error
    return module


def load_step(where: str, *, compiled: bool = False) -> Callable[[], Any]:
    """Return the run that ``model.py:make`` names; with ``compiled``, of a compiled model.

    ``make()`` returns a callable, which is the run, or a model and its inputs. For a model the run
    is a forward pass, the mean of the squares of its floating-point results, a backward pass and a
    step of AdamW.

    Raises:
        CoverageError: there is no such file or function, or it returns something else.
    """
    made = load_make(where)()
    if isinstance(made, tuple | list) and len(made) == 2 and callable(made[0]):
        return training_step(_compiled(made[0]) if compiled else made[0], made[1])
    if callable(made):
        return made  # type: ignore[no-any-return]
    raise CoverageError(
        f"{where} returned {type(made).__name__}. It has to return a callable without parameters, "
        "or a model and its inputs."
    )


def _compiled(model: Any) -> Any:
    import torch

    return torch.compile(model)
