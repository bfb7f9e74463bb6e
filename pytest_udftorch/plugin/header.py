# SPDX-License-Identifier: Apache-2.0
"""The lines that the plugin adds to the header of a run."""

from __future__ import annotations

from pytest_udftorch.plugin.options import Options
from pytest_udftorch.plugin.targets import Target
from pytest_udftorch.swap.library.description import is_operator
from pytest_udftorch.swap.toolchain.cuda_form import AUTO, DOUBLE, asked_form, gpus
from pytest_udftorch.swap.toolchain.selection import Part, cuda_forms
from pytest_udftorch.swap.toolchain.shared_library import Build


def describe(target: Target, build: Build | None, options: Options) -> str:
    """Return library, version, claim, build, CPU level and functions as one line."""
    library = target.library
    if library.stock:
        how = "nothing swapped" + (", but watched" if options.profile else "")
    elif build is not None:
        how = f"build {build.build_id}, CPU level {build.cpu_level}"
        how += _on_gpus(target, build, options)
    elif all(map(is_operator, target.functions or library.names)):
        how = "operators only"
    else:
        how = "not built, as no test is run"
    if target.functions is None and library.stock:
        functions = "all"
    else:
        functions = ", ".join(target.functions or library.names)
    text = f"{library.name} {library.version}"
    text += f" ({library.claim})" if library.claim else ""
    text += f" from {target.path}" if target.path is not None else ""
    return f"{text}; {how}; functions: {functions}"


def _on_gpus(target: Target, build: Build, options: Options) -> str:
    """Return which form GPUs get, if there are any or one was asked for."""
    asked = asked_form(options.cuda_form)
    if asked == AUTO and not gpus():
        return ""
    names = target.functions or target.library.function_names
    keys = tuple((n, "float32") for n in names if (n, "float32") in target.library.functions)
    forms = cuda_forms(Part(build, keys, asked))
    double = [name for name, form in forms.items() if form == DOUBLE]
    if len(double) == len(forms):
        return ", on GPUs double"
    rest = f" (double: {', '.join(double)})" if double else ""
    return f", on GPUs float-float{rest}"
