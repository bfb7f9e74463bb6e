# SPDX-License-Identifier: Apache-2.0
"""``udftorch order``."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any

from pytest_udftorch.cli.status import Subparsers
from pytest_udftorch.errors import SummationError

#: A longer order is not printed whole.
_SHOWN = 400


def add(commands: Subparsers) -> None:
    """Add ``udftorch order``."""
    parser = commands.add_parser(
        "order",
        help="read the order in which an operator adds",
        description="Reads the order of additions out of an operator by masking its inputs, and "
        "prints what kind of order it is, its digest, and the order itself in parentheses. Two "
        "machines, libraries or shapes with equal digests add in the same order.",
    )
    parser.add_argument("operator", help="such as torch.mm or torch.nn.functional.linear")
    parser.add_argument(
        "shapes", nargs="+", metavar="SHAPE", help="shape of an input, such as 8x64"
    )
    parser.add_argument(
        "--dtype", default="float32", help="dtype of the inputs; by default float32"
    )
    parser.add_argument("--device", default="cpu", help="where the inputs lie; by default cpu")
    parser.add_argument(
        "--element",
        type=int,
        default=0,
        help="which element of the flattened result; by default the first",
    )
    parser.add_argument("--udf-lib", metavar="LIBRARY", help="read it in a session of this library")
    parser.set_defaults(run=run, needs=lambda _: ["torch"], waits="reading an order of additions")


def run(options: argparse.Namespace) -> int:
    """Read the order and print it."""
    import torch

    from pytest_udftorch.reproduce.order.masking import summation_tree
    from pytest_udftorch.swap.session.session import patched

    operator = _named(torch, options.operator)
    dtype = getattr(torch, options.dtype, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise SummationError(
            f"{options.dtype} is not a dtype of floating-point numbers. Say float32."
        )
    session = patched(options.udf_lib) if options.udf_lib else contextlib.nullcontext()
    shapes = tuple(map(_shape, options.shapes))
    with session:
        try:
            tree = summation_tree(
                operator, *shapes, dtype=dtype, device=options.device, element=options.element
            )
        except (TypeError, RuntimeError, IndexError) as error:
            raise SummationError(
                f"{options.operator} cannot be called with {' and '.join(options.shapes)}"
                f": {str(error).rstrip('.')}. Give the shape of each of its tensors, and call "
                "summation_tree from Python for an operator with other arguments."
            ) from error
    text = str(tree)
    print(f"{tree.kind()}\ndigest {tree.digest}")
    print(text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ... ({len(text):,} characters)")
    return 0


def _named(torch: Any, name: str) -> Any:
    found: Any = None
    first, *rest = name.split(".")
    if first == "torch" and rest:
        found = torch
        for part in rest:
            found = getattr(found, part, None)
    if not callable(found):
        raise SummationError(
            f"{name} is not a function of torch. Name one in full, such as torch.mm."
        )
    return found


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split("x")
    if not all(size.isdecimal() for size in sizes):
        raise SummationError(
            f"{text} is not a shape. Write its sizes with x between them, such as 8x64."
        )
    return tuple(int(size) for size in sizes)
