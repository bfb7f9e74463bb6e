# SPDX-License-Identifier: Apache-2.0
"""What does `udftorch diff` say of a CPU and a GPU?

    python -m benches.experiments.cuda_differences [--seconds 50] [--store FILE]

First come cases that people reported: an operator gives one result on the CPU and another on a GPU.
Then faults are planted into the GPU's training steps of the models of ``planted_faults`` (the two
large ones left out), which are compared with its right steps. Then training steps of the CPU are
compared with the GPU's: rounding has to explain all that differs. Faults and models are begun while
there are seconds left; the result says how many.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benches.experiments import command
from benches.experiments.planted_faults import CAUSES, SIZES

#: cuBLAS sums in one order only with a workspace of its own.
WORKSPACE = ":4096:8"


def _bfloat16(*values: float) -> tuple[Any, ...]:
    import torch

    return tuple(torch.tensor([value], dtype=torch.bfloat16) for value in values)


def _log_softmax() -> tuple[Any, Any]:
    import torch

    numbers = [
        -1.6641, -0.9219, 2.5156, -0.4648, 1.0469, 1.4531, 0.0908, 0.1514, -1.2422, 1.2656,
        -1.0859, -0.0801, 2.3750, -0.4238, -0.9023, -0.4570, -1.3125, 0.1099, -0.2129, -0.6641,
        -0.3867, -0.2617, 1.1641, 0.4043, -0.5352, -0.4785, 0.2061, 0.2734, -1.3672, 0.0544,
        -1.3203, -1.5469,
    ]  # fmt: skip
    return torch.nn.LogSoftmax(-1), torch.tensor(numbers, dtype=torch.bfloat16).view(2, 2, 2, 2, 2)


def _logit() -> tuple[Any, Any]:
    import torch

    return torch.logit, _bfloat16(0.0835)


def _xlogy() -> tuple[Any, Any]:
    import torch

    return torch.special.xlogy, _bfloat16(-0.6914, 3070.0)


def _xlog1py() -> tuple[Any, Any]:
    import torch

    return torch.special.xlog1py, _bfloat16(1.9609, 41.0)


def _logcumsumexp() -> tuple[Any, Any]:
    import torch

    x = torch.tensor([[2.4375, -0.3340, -0.3711]], dtype=torch.bfloat16)
    return (lambda t: t.logcumsumexp(-1)), x


def _many_classes() -> tuple[Any, Any]:
    import torch

    return torch.nn.LogSoftmax(-1), torch.randn(4, 64, 8192)


#: Issue of pytorch/pytorch -> a model or function after it, with its inputs.
CASES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "140222": _log_softmax,
    "140252": _logit,
    "140892": _xlogy,
    "140796": _xlog1py,
    "141802": _logcumsumexp,
    "112714": _many_classes,
}


_SIDES: Mapping[str, str] = {"a": "the CPU", "b": "the GPU"}


def issue_row(issue: str, device: str) -> dict[str, Any]:
    """Compare one case on the CPU and on a device."""
    import torch

    from pytest_udftorch.diagnose import Side, first_difference

    def made() -> tuple[Any, Any]:
        torch.manual_seed(0)
        return CASES[issue]()

    other = Side(name="gpu", device=device)
    found = first_difference("cpu", other, make=made, train=False)
    first = found.first
    row: dict[str, Any] = {"issue": issue, "differs": not found.equal}
    if first is not None:
        truth = next((t for t in first.truth if t is not None), None)
        row |= {
            "operator": first.operator,
            "dtype": str(made()[1][0].dtype).removeprefix("torch."),
            "explained": first.explained,
            "proved": first.proof is not None and first.proof.same_end,
            "ulp_apart": first.apart[0].ulp if first.apart else None,
            "nearer": None if truth is None else _SIDES.get(truth.nearer, "both alike"),
            "ulp": None if truth is None else [truth.a.ulp, truth.b.ulp],
        }  # fmt: skip
    print(row, flush=True)
    return row


def pair_row(name: str, device: str) -> dict[str, Any]:
    """Compare a training step on the CPU with that on a device."""
    from benches.data import planted
    from pytest_udftorch.diagnose import Side, first_difference

    begin = time.perf_counter()
    found = first_difference(
        "cpu", Side(name="gpu", device=device), make=lambda: planted.make(name), causes=CAUSES
    )
    row = {
        "model": name,
        "equal": found.equal,
        "repeatable": all(found.repeatable.values()),
        "differ": found.differ,
        "calls": list(found.calls),
        "findings": [[f.kind, f.operator, str(f.place), f.explained] for f in found.findings],
        "accused": [[f.operator, str(f.place)] for f in found.findings if f.explained is False],
        "seconds": round(time.perf_counter() - begin, 2),
    }
    print(row, flush=True)
    return row


def _step(name: str, device: str) -> None:
    import torch

    from benches.data import planted
    from pytest_udftorch.swap.reach.coverage import training_step

    model, inputs = planted.make(name)
    moved = torch.utils._pytree.tree_map(lambda t: t.to(device), inputs)
    torch.manual_seed(0)
    training_step(model.to(device), moved)()


def fault_row(name: str, kind: str, device: str) -> dict[str, Any] | None:
    """Plant a fault into the run on a device; None if the model has no call that fits."""
    from benches.data import planted
    from pytest_udftorch.diagnose import Side, first_difference

    scout = planted.Plant(planted.FAULTS[kind])
    with scout.around():
        _step(name, device)
    sites = list(scout.sites)
    random.Random(f"{name} {kind}").shuffle(sites)
    for site in sites[:3]:
        plant = planted.Plant(scout.fault, site.number)
        right = Side(name="right", device=device)
        wrong = Side(name="wrong", device=device, around=plant.around)
        begin = time.perf_counter()
        found = first_difference(right, wrong, make=lambda: planted.make(name), causes=2)
        if not plant.changed:
            continue
        first = found.first
        layer = first is not None and first.place is not None and first.place.layer
        row = {
            "model": name,
            "fault": kind,
            "operator": site.operator,
            "layer": site.layer,
            "named": first is not None
            and first.operator == site.operator
            and (layer == site.layer or not site.layer),
            "repeatable": all(found.repeatable.values()),
            "first": None if first is None else [first.operator, str(first.place)],
            "proved": first is not None and first.proof is not None and first.proof.same_end,
            "seconds": round(time.perf_counter() - begin, 2),
        }
        print(row, flush=True)
        return row
    return None


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


def measure(device: str, seconds: float) -> Iterator[dict[str, Any]]:
    """Do everything; yield all figures so far after each part."""
    from benches.data import planted

    kinds = list(planted.FAULTS)
    # The large models come last.
    names = sorted(planted.MODELS, key=lambda name: name in SIZES)
    found: dict[str, Any] = {"issues": [], "faults": [], "pairs": []}
    with _deterministic():
        for issue in CASES:
            found["issues"].append(issue_row(issue, device))
        yield found
        end = time.perf_counter() + seconds
        # Every model begins with another kind, and no kind waits for all models.
        for turn, (i, name) in itertools.product(range(len(kinds)), enumerate(names)):
            if time.perf_counter() < end and name not in SIZES:
                row = fault_row(name, kinds[(i + turn) % len(kinds)], device)
                found["faults"] += [] if row is None else [row]
        yield found
        end = time.perf_counter() + seconds
        for name in names:
            if time.perf_counter() < end:
                found["pairs"].append(pair_row(name, device))
                yield found


def judge(figures: dict[str, Any]) -> bool:
    """Print the sums; return whether all faults are named and nobody is accused wrongly."""
    faults, pairs = figures["faults"], figures["pairs"]
    named = sum(row["named"] for row in faults)
    accused = [row for row in pairs if row["accused"]]
    print(f"named {named} of {len(faults)}; accused {len(accused)} of {len(pairs)} models")
    for row in [*(r for r in faults if not r["named"]), *accused]:
        print(row)
    return named >= 0.95 * len(faults) and not accused


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("cuda_differences", __doc__)
    parser.add_argument("--seconds", type=float, default=50, help="for faults, and for models")
    parser.add_argument("--device", default="cuda", help="cpu tries the bench itself")
    options = parser.parse_args(arguments)

    about: dict[str, Any] = {}
    if options.device != "cpu":
        from benches.experiments.cuda_digests import gpu

        about["device"] = gpu()
    figures: dict[str, Any] = {}
    # After each part, so that an interrupted run keeps its results.
    for figures in measure(options.device, options.seconds):
        command.store("cuda_differences", options, {**about, **figures})
    return 0 if judge(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
