# SPDX-License-Identifier: Apache-2.0
"""What a command line names as a run: a function in a file, or a script."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from unittest import mock

from pytest_udftorch.diagnose.runs.models import named_model
from pytest_udftorch.diagnose.runs.source import check_function, check_source, is_script
from pytest_udftorch.errors import CoverageError, RunError


def load(where: str, arguments: Sequence[str] = ()) -> Callable[[], Any]:
    """Return what makes the run that ``model.py:make`` or ``train.py`` names.

    Args:
        where: a file and a function in it, or a script, which runs as ``__main__``.
        arguments: of the script. What it prints is not shown.

    Raises:
        CoverageError: there is no such function.
        RunError: there is no such script, or a function got arguments.
    """
    if not is_script(where):
        if arguments:
            raise RunError(
                f"{where} is a function, which takes no arguments ({' '.join(arguments)}). Only a "
                "script gets what stands behind `--`."
            )
        return load_make(where)
    check_source(where)
    path = Path(where)

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
    check_function(where)
    path, _, name = where.rpartition(":")
    make = getattr(_module(Path(path)), name, None)
    if not callable(make):
        raise CoverageError(f"{path} has no function {name!r}. Name one that returns the run.")
    return make  # type: ignore[no-any-return]


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"udftorch_model_{path.stem}", path)
    if spec is None or spec.loader is None:  # another ending than .py
        raise CoverageError(f"There is no Python file {path} to take a model from.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    _look_beside(path)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise CoverageError(f"{path} cannot be imported: {error!r}.") from error
    return module


#: The folder of the model that was loaded last, if its files are importable only since.
_beside: Final[list[str]] = []


def _look_beside(path: Path) -> None:
    """Let a model import the files beside it, also later, as Python lets a script do.

    Those beside a model of another folder are forgotten: the files of two versions of a project
    have the same names.
    """
    folder = str(path.resolve().parent)
    if folder in sys.path:
        return
    for other in _beside:
        for name, module in [*sys.modules.items()]:
            own = os.path.join(other, name.partition(".")[0])
            if (getattr(module, "__file__", None) or "").startswith((own + ".", own + os.sep)):
                del sys.modules[name]
        if other in sys.path:
            sys.path.remove(other)
    _beside[:] = [folder]
    sys.path.insert(0, folder)


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
        from pytest_udftorch.swap.reach.coverage import training_step

        return training_step(_compiled(made[0]) if compiled else made[0], made[1])
    if callable(made):
        if needed := needed_arguments(made):
            raise CoverageError(f"{where} returned {without_inputs(made, needed)}")
        return made  # type: ignore[no-any-return]
    raise CoverageError(
        f"{where} returned {type(made).__name__}. It has to return a callable without parameters, "
        "or a model and its inputs."
    )


def needed_arguments(run: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters without which a callable cannot be called."""
    try:
        # A module's own __call__ takes anything.
        known = inspect.signature(getattr(run, "forward", run)).parameters.values()
    except (TypeError, ValueError):  # some that are written in C
        return []
    kinds = inspect.Parameter
    return [
        p.name
        for p in known
        if p.default is kinds.empty and p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]


def without_inputs(run: Callable[..., Any], needed: Sequence[str]) -> str:
    """Say what is missing where a model or a function came without its inputs."""
    what = getattr(run, "__name__", type(run).__name__)
    plural = len(needed) > 1
    return (
        f"{what} without inputs, and it needs {' and '.join(needed)}. Return "
        f"{'them' if plural else 'it'} too: return model, ({', '.join(needed)}"
        f"{'' if plural else ','})."
    )


def _compiled(model: Any) -> Any:
    import torch

    return torch.compile(model)
