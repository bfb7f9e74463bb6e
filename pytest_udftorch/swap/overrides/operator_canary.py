# SPDX-License-Identifier: Apache-2.0
"""Canary calls of overridden operators: they prove that a UDF of a whole operator is reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pytest_udftorch import errors
from pytest_udftorch.swap.overrides import dispatcher, schemas
from pytest_udftorch.swap.overrides.canary import plain_torch
from pytest_udftorch.swap.overrides.dispatcher import Mode, Override, Spec

# Elements of a canary tensor: four vectors of 16 and an odd tail.
_CANARY_ELEMENTS: Final = 67


def verify(overrides: Sequence[Override]) -> dict[str, dict[str, int]]:
    """Prove that each override is reached, and that it does what the operator does.

    A first call ends where it reaches the override. If torch marks the operator as pointwise, a
    second call runs to its end. Its result must have the shape, dtype and device of the stock
    kernel's.

    Returns:
        declared name -> ``operator key`` -> calls that reached the override.

    Raises:
        SwapError: torch did not call an override.
        OperatorError: a UDF called the operator that it stands in for; a UDF failed, or its result
            has another shape, dtype or device.
    """
    reached: dict[str, dict[str, int]] = {}
    for override in overrides:
        spec = override.spec
        with plain_torch():
            calls = _probe(override)
            _try(override)
        reached.setdefault(spec.declared, {})[f"{spec.operator} {spec.key}"] = calls
    return reached


def _probe(override: Override) -> int:
    spec = override.spec
    before, said = dispatcher.hits(), ""
    arguments = _Arguments(spec)
    with dispatcher.mode(Mode.PROBE):
        try:
            schemas.overload(spec.operator)(*arguments.positional, **arguments.keywords)
        except Exception as error:
            said = f" It said: {error}."
    calls = dispatcher.hits() - before
    if not calls:
        raise errors.SwapError(
            f"A call of {spec.operator} on tensors of the dispatch key {spec.key} did not reach "
            f"the UDF, so it would not be used. Everything was restored.{said} Another tool may "
            "have registered a kernel above it."
        )
    return calls


def _try(override: Override) -> None:
    """Compare one whole call with the stock kernel's; raise errors as :func:`verify` does."""
    import torch

    spec = override.spec
    call = schemas.overload(spec.operator)
    # With made-up arguments, other operators may end the process (a division by zero) or advance
    # a random generator.
    if torch.Tag.pointwise not in call.tags or torch.Tag.nondeterministic_seeded in call.tags:
        return
    stock = _Arguments(spec)
    try:
        with dispatcher.bypass():
            expected = call(*stock.positional, **stock.keywords)
    except Exception:
        return  # the operator rejects the made-up arguments
    ours = _Arguments(spec, expected)
    before = override.recursions()
    try:
        got = call(*ours.positional, **ours.keywords)
    except Exception as error:
        if override.recursions() > before:
            raise errors.OperatorError(str(error).splitlines()[0]) from error
        raise errors.OperatorError(
            f"The UDF of {spec.operator} at {spec.key} failed on {ours}, which the stock kernel "
            f"takes: {type(error).__name__}: {error}\nLimit the UDF by dtypes, or make it call the "
            "stock kernel for what it does not handle (docs/swap/operators.md)."
        ) from error
    if _kinds(got) != _kinds(expected):
        raise errors.OperatorError(
            f"The UDF of {spec.operator} at {spec.key} gave {_kinds(got)} for {ours}, where the "
            f"stock kernel gives {_kinds(expected)}."
        )


def _kinds(result: Any) -> str:
    """Describe a result without its values: type, dtype, shape and device."""
    import torch

    if isinstance(result, torch.Tensor):
        return f"{result.dtype}{list(result.shape)} on {result.device.type}"
    if isinstance(result, list | tuple):
        return f"({', '.join(map(_kinds, result))})"
    return type(result).__name__


class _Arguments:
    """Made-up arguments of an overload.

    Input tensors hold numbers from 0.1 to 0.9. Output tensors are empty, or have the shape of a
    known result.
    """

    def __init__(self, spec: Spec, result: Any = None) -> None:
        import torch

        self.dtype = getattr(torch, spec.dtypes[0] if spec.dtypes else "float32")
        self.device = schemas.BACKENDS[spec.key.removeprefix("Autograd")]
        self.positional: list[Any] = []
        self.keywords: dict[str, Any] = {}
        outputs = list(result) if isinstance(result, tuple) else [result]
        for argument in schemas.schema(spec.operator).arguments:
            if not argument.kwarg_only:
                self.positional.append(self._value(argument))
            elif argument.alias_info and argument.alias_info.is_write:
                empty = torch.empty(0, dtype=self.dtype, device=self.device)
                like = outputs.pop(0) if outputs else None
                self.keywords[argument.name] = empty if like is None else torch.empty_like(like)
            else:
                self.keywords[argument.name] = self._value(argument)

    def __str__(self) -> str:
        return f"{self.dtype} tensors of {_CANARY_ELEMENTS} elements"

    def _tensor(self) -> Any:
        import torch

        steps = torch.linspace(0.1, 0.9, _CANARY_ELEMENTS, dtype=torch.float64)
        return steps.to(self.device, self.dtype)

    def _value(self, argument: Any) -> Any:
        if argument.has_default_value():
            return argument.default_value
        kind = str(argument.real_type)
        values: dict[str, Any] = {
            "Tensor": self._tensor(),
            "List[Tensor]": [self._tensor(), self._tensor()],
            "List[Optional[Tensor]]": [self._tensor()],
            **dict.fromkeys(("number", "Scalar", "int", "SymInt"), 1),
            "float": 0.5,
            "bool": False,
            "List[int]": [1],
            "List[SymInt]": [1],
            "List[float]": [0.5],
            "List[number]": [0.5, 0.5],
            "ScalarType": self.dtype,
            "List[bool]": [True] * (argument.N or 1),
        }
        return values.get(kind)
