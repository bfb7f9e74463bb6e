# SPDX-License-Identifier: Apache-2.0
"""torch's operators: their overloads, schemas and dispatch keys."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from pytest_udftorch import errors
from pytest_udftorch.base import compat

#: Dispatch key of a backend whose tensors a canary can make -> torch's name of the device.
BACKENDS: Final = {"CPU": "cpu", "CUDA": "cuda", "XPU": "xpu", "MPS": "mps"}

#: Operators that a library overrides above autograd, with the key below it, and at that: torch
#: composes them, or leaves their gradients to others, and so does the override.
ABOVE_AUTOGRAD: Final = {
    ("aten::mkldnn_rnn_layer", "AutogradCPU"): "CPU",
    ("aten::_cudnn_rnn", "AutogradCUDA"): "CUDA",
    ("aten::rms_norm", "AutogradCUDA"): "CUDA",
    ("aten::scaled_dot_product_attention", "AutogradCUDA"): "CUDA",
    ("aten::_scaled_dot_product_attention_math", "AutogradCPU"): "CPU",
    ("aten::_scaled_dot_product_attention_math", "AutogradCUDA"): "CUDA",
}


def is_composed_anew(name: str, key: str) -> bool:
    """Tell whether a library composes an operator of others than torch does, at a key."""
    above = key if key.startswith("Autograd") else f"Autograd{key}"
    return (name, above) in ABOVE_AUTOGRAD


@functools.cache
def _operators() -> Mapping[str, frozenset[str]]:
    """Return each operator's overloads, by its name."""
    found: dict[str, set[str]] = {}
    for name in compat.operator_names():
        found.setdefault(name.partition(".")[0], set()).add(name)
    return {base: frozenset(names) for base, names in found.items()}


def has_overload(name: str) -> bool:
    """Tell whether the dispatcher has an overload (``aten::log.out``)."""
    base, _, last = name.partition(".")
    if name in _operators().get(base, ()):
        return True
    if not compat.has_schema(base, last):
        return False
    _operators.cache_clear()  # someone has loaded a library since
    return name in _operators().get(base, ())


def overloads(base: str) -> list[str]:
    """Return the overloads of an operator (``aten::log``), sorted; an overload has none."""
    # Asked for each overload that a library overrides, and the table takes 6 ms.
    if "." not in base and base not in _operators():
        _operators.cache_clear()
    return sorted(_operators().get(base, ()))


def schema(name: str) -> Any:
    """Return torch's schema of an overload.

    Raises:
        OperatorError: the dispatcher has no such operator or overload.
    """
    import torch

    base, _, last = name.partition(".")
    if has_overload(name):
        return compat.schema(base, last)
    known = overloads(base)
    if known:
        raise errors.OperatorError(
            f"torch {torch.__version__} has no operator {name!r}. The overloads of {base}: "
            f"{', '.join(known)}."
        )
    raise errors.OperatorError(
        f"torch {torch.__version__} has no operator {name!r}. {_near(base, set(_operators()))}"
    )


def _near(name: str, known: set[str]) -> str:
    sentence = errors.nearest(name, known)
    if sentence.startswith("Known"):  # there are thousands
        return "torch.ops.aten lists ATen's. The library of another must be imported before."
    return sentence


def overload(name: str) -> Any:
    """Return the callable of an overload: ``torch.ops.aten.log.out``."""
    import torch

    path = name.replace("::", ".")
    return attrgetter(path if path.count(".") == 2 else f"{path}.default")(torch.ops)


def check_key(name: str, key: str, beside: Sequence[str] = ()) -> bool:
    """Check an operator's dispatch key; tell whether this machine has a device of it.

    Args:
        name: the overload.
        key: the dispatch key.
        beside: all dispatch keys at which it is overridden.

    Raises:
        OperatorError: torch has no such key, or it does not belong to a backend; torch computes the
            operator by others at this key.
    """
    import torch

    if key not in compat.dispatch_keys():
        raise errors.OperatorError(
            f"{name}: torch {torch.__version__} has no dispatch key {key!r}. "
            f"{errors.nearest(key, BACKENDS)}"
        )
    above = key.startswith("Autograd") or f"Autograd{key}" in beside
    anew = is_composed_anew(name, key)
    composed = anew and above
    if key not in BACKENDS and not composed:
        raise errors.OperatorError(
            f"{name}: the dispatch key {key!r} does not belong to a backend "
            f"({', '.join(BACKENDS)}). Keys above the backends, such as autograd, stay torch's."
        )
    made_of_others = compat.has_kernel(name, "CompositeImplicitAutograd")
    # A kernel of one that is composed anew may be a board of this process.
    if made_of_others and (anew or not compat.has_kernel(name, key)) and not composed:
        raise errors.OperatorError(
            f"torch computes {name} by other operators, which also give its gradient. A kernel of "
            "its own would have none. Override the operators that it calls; torch.profiler shows "
            "them."
        )
    if key == "CPU":
        return True
    backend = getattr(torch, BACKENDS[key.removeprefix("Autograd")], None)
    return backend is not None and bool(backend.is_available())


def written_keyword(name: str) -> str:
    """Return the name of the one keyword that an overload writes to (``out``), or ""."""
    keywords = [a for a in schema(name).arguments if a.kwarg_only]
    found = [a.name for a in keywords if a.alias_info and a.alias_info.is_write]
    return str(found[0]) if len(found) == 1 else ""
