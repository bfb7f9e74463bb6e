# SPDX-License-Identifier: Apache-2.0
"""A model as a program that compilers outside torch can read: tensors in, tensors out.

``torch.export`` captures one graph with its weights. A compiler makes of it a function of a list of
tensors; :meth:`Exported.callable` gives that function the signature of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import nn

from pytest_udftorch.base import compat
from pytest_udftorch.errors import ExecutorError, ExecutorUnavailableError
from pytest_udftorch.measure.planning.executor import Run, quiet

pytree: Any = compat.pytree()

#: What a compiler made: takes the tensors among the inputs, and returns those among the outputs.
#: The inputs are contiguous, and the function must neither write into them nor keep them; the
#: outputs are its own and are not written again.
Flat: TypeAlias = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]


#: The leaves of an output, None for a tensor and another value in a tuple; and its structure.
Results: TypeAlias = tuple[list[tuple[Any] | None], Any]


class _Flat(nn.Module):
    """A model that takes the tensors among its inputs and returns those among its outputs."""

    def __init__(
        self, model: nn.Module, inputs: tuple[Any, ...], note: Callable[[Results], object]
    ) -> None:
        super().__init__()
        self.model, self.note = model, note
        self.leaves, self.structure = pytree.tree_flatten(inputs)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the model."""
        given = iter(tensors)
        leaves = [next(given) if isinstance(v, torch.Tensor) else v for v in self.leaves]
        output = self.model(*pytree.tree_unflatten(leaves, self.structure))
        results, structure = pytree.tree_flatten(output)
        is_tensor = [isinstance(v, torch.Tensor) for v in results]
        values = [None if of else (v,) for v, of in zip(results, is_tensor, strict=True)]
        self.note((values, structure))
        return tuple(v for v, of in zip(results, is_tensor, strict=True) if of)


def _kind(leaf: Any) -> Any:
    """Return what a program is captured for: of a tensor its kind, and any other value itself."""
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)} on {leaf.device}"
    return leaf


@dataclass(frozen=True)
class Exported:
    """A model captured for one set of shapes and dtypes.

    Attributes:
        program: the ``torch.export.ExportedProgram``: functional, with the weights inside. It takes
            the tensors among the inputs, and returns those among the outputs as a tuple.
        examples: the inputs that it was captured with, flat and contiguous.
        made_for: the kinds of tensors among the inputs, and the other values.
        results: the leaves of the output: None for a tensor, another value as a tuple.
        structure: of the output.
    """

    program: Any
    examples: tuple[torch.Tensor, ...]
    made_for: list[Any]
    results: list[tuple[Any] | None]
    structure: Any

    def callable(self, flat: Flat) -> Run:
        """Return the compiled function with the signature and the results of the model.

        It raises :class:`ExecutorError` for inputs of other shapes, dtypes or values.
        """

        def run(*arguments: Any) -> Any:
            leaves = pytree.tree_leaves(arguments)
            kinds = [_kind(leaf) for leaf in leaves]
            if kinds != self.made_for:
                raise ExecutorError(
                    f"The program was compiled for {', '.join(map(str, self.made_for))}, but the "
                    f"inputs are {', '.join(map(str, kinds))}. Compile one for these inputs too, "
                    "or use another executor."
                )
            tensors = [t.detach().contiguous() for t in leaves if isinstance(t, torch.Tensor)]
            found = iter(flat(tensors))
            results = [next(found) if value is None else value[0] for value in self.results]
            return pytree.tree_unflatten(results, self.structure)

        return run


def export(model: nn.Module, inputs: tuple[Any, ...]) -> Exported:
    """Capture a model.

    Raises:
        ExecutorUnavailableError: its ``forward()`` writes into its inputs or its buffers, which a
            program outside torch would drop.
        Exception: whatever ``torch.export`` raises.
    """
    noted: list[Results] = []
    # Export undoes what forward() writes into attributes, and follows no list.
    flat = _Flat(model, inputs, lambda results: noted.append(results))
    leaves = pytree.tree_leaves(inputs)
    examples = tuple(t.detach().contiguous() for t in leaves if isinstance(t, torch.Tensor))
    with quiet(), torch.no_grad():
        program = torch.export.export(flat, examples, strict=False).run_decompositions({})
    outputs = program.graph_signature.output_specs
    written = sorted(spec.target for spec in outputs if spec.kind.name != "USER_OUTPUT")
    if written:
        raise ExecutorUnavailableError(
            f"forward() writes into {', '.join(w.removeprefix('model.') for w in written)}, and a "
            "program outside torch would drop that. Return the new values instead, or leave the "
            "executor out."
        )
    results, structure = noted[-1]
    return Exported(program, examples, [_kind(leaf) for leaf in leaves], results, structure)
