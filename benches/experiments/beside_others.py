# SPDX-License-Identifier: Apache-2.0
"""What do other tools name where `udftorch diff` names an operator?

    python -m benches.experiments.beside_others [--faults N] [--store FILE]

The faults are those of ``planted_faults``: the same models, operators and calls. ``pytest-torch``
(``localize_divergence``, all modules, no tolerance) gets the right model and the wrong one; it
compares forward passes, layer by layer. torch's ``CompilerBisector`` gets a training step that is
wrong if its parameters differ in a bit from those of the right one. Then both `udftorch diff` and
CompilerBisector look at compiled code that gives other results than eager code: cases that people
reported. pytest-torch is installed into a folder of its own: as a plugin, it would join this
project's tests.
"""

from __future__ import annotations

import contextlib
import math
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benches.experiments import command
from benches.experiments.planted_faults import orders

PYTEST_TORCH = "pytest-torch==1.1.1"


# Planted faults ----------------------------------------------------------------------


def _step(name: str, around: Any) -> dict[str, Any]:
    """Return what a training step leaves in the parameters."""
    import torch

    from benches.data import planted
    from pytest_udftorch.swap.reach.coverage import training_step

    model, inputs = planted.make(name)
    torch.manual_seed(0)
    with around:
        training_step(model, inputs)()
    return {n: p.detach().clone() for n, p in model.named_parameters()}


def planted_at(order: dict[str, Any]) -> tuple[Any, Any] | None:
    """Return the fault that ``planted_faults`` plants for an order, and its site."""
    from benches.data import planted

    scout = planted.Plant(planted.FAULTS[order["fault"]])
    _step(order["model"], scout.around())
    sites = list(scout.sites)
    random.Random(str(order)).shuffle(sites)
    for site in sites[:6]:
        plant = planted.Plant(scout.fault, site.number)
        _step(order["model"], plant.around())
        if plant.changed:
            return plant, site
    return None


def _wrapped(model: Any, around: Callable[[], Any]) -> Any:
    """Run a model's forward pass as training does, though pytest-torch forbids gradients."""
    import torch

    forward = model.forward

    def call(*args: Any, **kwargs: Any) -> Any:
        torch.manual_seed(0)
        with torch.inference_mode(False), torch.enable_grad(), around():
            return forward(*[a.clone() for a in args], **kwargs)

    model.forward = call
    return model


def by_pytest_torch(name: str, plant: Any, **tolerances: float) -> dict[str, Any]:
    """Return the first layer that pytest-torch names."""
    from pytest_torch.divergence import localize_divergence

    from benches.data import planted

    right, inputs = planted.make(name)
    wrong, _ = planted.make(name)
    report = localize_divergence(
        _wrapped(right, contextlib.nullcontext), _wrapped(wrong, plant.around), inputs,
        leaf_only=False, **tolerances,
    )  # fmt: skip
    first = report.first
    if first is None:
        return {"layer": None}
    layer = type(right).__name__ if first.name == "<root>" else first.name
    return {"layer": layer, "inputs_differ": first.inputs_diverged}


def by_bisector(name: str, plant: Any) -> dict[str, Any]:
    """Return what CompilerBisector finds in a training step."""
    import torch

    from benches.data import planted
    from pytest_udftorch.swap.reach.coverage import training_step

    right = list(_step(name, contextlib.nullcontext()).values())

    def good() -> bool:
        torch.compiler.reset()
        model, inputs = planted.make(name)
        torch.manual_seed(0)
        with plant.around():
            training_step(torch.compile(model), inputs)()
        return all(map(torch.equal, right, (p.detach() for p in model.parameters())))

    return _bisected(good)


def _bisected(good: Callable[[], bool]) -> dict[str, Any]:
    from torch._inductor.compiler_bisector import CompilerBisector

    try:
        found = CompilerBisector.do_bisect(good)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"}
    if found is None:
        return {"backend": None}
    return {"backend": found.backend, "subsystem": found.subsystem, "info": found.debug_info}


def fault_rows(faults: int, bisected: int) -> list[dict[str, Any]]:
    """Show every planted fault to the other tools; the first few also to CompilerBisector."""
    rows: list[dict[str, Any]] = []
    for group in orders(faults):
        if group[0]["do"] != "fault":
            continue
        found = 0
        for order in group:
            planted_one = planted_at(order) if found < faults else None
            if planted_one is None:
                continue
            found += 1
            plant, site = planted_one
            name = order["model"]
            row = {
                "model": name,
                "fault": order["fault"],
                "operator": site.operator,
                "layer": site.layer,
                "pytest_torch": by_pytest_torch(name, plant, rtol=0.0, atol=0.0),
                "pytest_torch_default": by_pytest_torch(name, plant),
            }
            if found <= bisected:
                row["bisector"] = by_bisector(name, plant)
            row["named"] = bool(site.layer) and row["pytest_torch"]["layer"] == site.layer
            print(row, flush=True)
            rows.append(row)
    return rows


# Compiled code -----------------------------------------------------------------------


def _norm() -> Any:
    import torch

    layers = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 10)
    return torch.nn.Sequential(*layers).eval(), torch.randn(8, 32)


def _halves() -> Any:
    import torch

    class Halves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = torch.nn.Linear(16, 32), torch.nn.Linear(16, 32)

        def forward(self, x: Any) -> Any:
            a, b = (self.one(x) * self.other(x)).chunk(2, -1)
            return a + b

    return Halves().bfloat16().eval(), torch.randn(8, 16).bfloat16()


def _cosines() -> Any:
    import torch

    class Floor(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.floor(torch.cos(x))

    return Floor().eval(), torch.randn(32, 32).half()


def _root_mean_square() -> Any:
    import torch

    class Norm(torch.nn.Module):
        def forward(self, x: Any, y: Any, weight: Any) -> Any:
            wide = x.float() + y.float()
            scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
            return (wide * scale).to(x.dtype) * weight

    shapes = (16, 128), (16, 128), (128,)
    return Norm().eval(), tuple(torch.rand(s).bfloat16() for s in shapes)


def _positions() -> Any:
    import torch

    class Positions(torch.nn.Module):
        def forward(self, t: Any) -> Any:
            angles = (t * 1000).float() * torch.exp(
                torch.arange(128.0) * (-9.210340371976184 / 128)
            )
            return torch.cat((angles.sin(), angles.cos()))

    return Positions().eval(), torch.rand(1).bfloat16()


#: Issue of pytorch/pytorch -> a model after it.
CASES: dict[str, Callable[[], Any]] = {
    "168126": _norm,
    "168186": _halves,
    "145466": _cosines,
    "158699": _root_mean_square,
    "196957": _positions,
}

#: Other issues -> why they are no case here.
NO_CASES: dict[str, str] = {
    "136338": "a row alone, not compiled: `--b row=0`, above",
    "140222": "log_softmax on the CPU and on a GPU: [here](../diagnose/diff.md#cpu-and-gpu)",
    "189334": "asks for a mode of torch.compile with eager's numbers; it reports no case",
    **dict.fromkeys(("105726", "143658", "145401", "160016", "198133"), "its text was not at hand"),
}


def _nearer(found: Any) -> str | None:
    """Return which side's output is nearer the truth."""
    error = None if found.compiled is None else found.compiled.errors.get("output")
    if error is None:
        return None
    if math.isclose(error.a, error.b, rel_tol=0.05):
        return "both alike"
    return str(found.a if error.a < error.b else found.b)


def compiled_row(issue: str) -> dict[str, Any]:
    """Show one case to both tools."""
    import torch

    from pytest_udftorch.diagnose import first_difference

    def seeded() -> Any:
        torch.manual_seed(0)
        return CASES[issue]()

    model, inputs = seeded()
    with torch.no_grad():
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        right = model(*given)

    def good() -> bool:
        torch.compiler.reset()
        with torch.no_grad():
            return torch.equal(right, torch.compile(model)(*given))

    found = first_difference("eager", "compiled", make=seeded)
    by_diff = found.compiled
    row = {
        "issue": issue,
        "differs": not found.equal,
        "stage": None if by_diff is None else by_diff.stage,
        "settings": [] if by_diff is None else list(by_diff.settings),
        "operators": [] if by_diff is None else list(by_diff.operators),
        "nearer": _nearer(found),
        "bisector": _bisected(good),
    }
    print(row, flush=True)
    return row


@contextlib.contextmanager
def _installed() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps")
        subprocess.run([*pip, "--target", folder, PYTEST_TORCH], check=True)
        sys.path.insert(0, folder)
        try:
            yield
        finally:
            sys.path.remove(folder)


def measure(faults: int, bisected: int) -> dict[str, Any]:
    """Show everything to all tools."""
    compiled = [compiled_row(issue) for issue in CASES]
    with _installed():
        rows = fault_rows(faults, bisected)
    return {
        "compiled": compiled,
        "no_cases": NO_CASES,
        "faults": rows,
        "pytest_torch": PYTEST_TORCH,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("beside_others", __doc__)
    parser.add_argument("--faults", type=int, default=5, help="of each model; by default 5")
    parser.add_argument(
        "--bisected", type=int, default=1, help="of them, for CompilerBisector; by default 1"
    )
    options = parser.parse_args(arguments)
    changed = [f"--faults {options.faults}"] if options.faults != 5 else []
    options.changed = changed + (
        [f"--bisected {options.bisected}"] if options.bisected != 1 else []
    )
    return command.run("beside_others", options, lambda: measure(options.faults, options.bisected))


if __name__ == "__main__":
    sys.exit(main())
