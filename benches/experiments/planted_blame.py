# SPDX-License-Identifier: Apache-2.0
"""Does blame name planted functions, and does the search for origins name planted numbers?

    python -m benches.experiments.planted_blame [--cases N] [--store FILE]

Half of the cases are of blame: the metric is the output of one layer, chosen at random, of one of
the 20 models of ``benches/data/planted.py``, on an input that is the same under both libraries.
``canary``, in which every function is wrong in the last bit, runs against ``std``; the rest of the
model runs too, and differs. Blame has to name the layer and its one operator that calls a function.
As a control, a layer that calls none has to be refused.

The other half are of origins: a NaN or an infinity is planted into the output of an operator chosen
at random in a training step, forward or backward. ``first_origin`` has to name the operator and, in
a forward pass, the layer. As a control, nothing is found in the step as it is.
"""

from __future__ import annotations

import copy
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benches.experiments import command

ROOT = Path(__file__).parents[2]
CANARY = ROOT / "udfs" / "canary"
CASES = 50


# Blame -------------------------------------------------------------------------------


def _metric(model: Any, inputs: Any, layer: str) -> Callable[[], Any]:
    """Return the output of a layer on the input that it gets under the stock functions."""
    import torch

    given: list[Any] = []
    scout = copy.deepcopy(model)
    scout.get_submodule(layer).register_forward_pre_hook(lambda m, a: given.append(a) and None)
    torch.manual_seed(0)
    with torch.no_grad():
        scout(*inputs) if isinstance(inputs, tuple) else scout(inputs)
    fixed = [copy.deepcopy(a) for a in given]

    def metric() -> Any:
        own, calls, kept = copy.deepcopy(model), iter(fixed), list[Any]()

        def keep(module: Any, args: Any, out: Any) -> None:
            kept.append(out)

        target = own.get_submodule(layer)
        target.register_forward_pre_hook(lambda m, a: next(calls))
        target.register_forward_hook(keep)
        with torch.no_grad():
            own(*inputs) if isinstance(inputs, tuple) else own(inputs)
        return kept

    return metric


def _sites(model: Any, inputs: Any) -> tuple[list[Any], list[str]]:
    """Return units that are alone in their layer, and layers that call no function."""
    import torch

    from pytest_udftorch.diagnose.blame.search import units_of

    own = copy.deepcopy(model)

    def forward() -> Any:
        with torch.no_grad():
            return own(*inputs) if isinstance(inputs, tuple) else own(inputs)

    units = units_of("std", CANARY, forward)
    layers = {name for name, _ in own.named_modules() if name}
    inside: dict[str, list[Any]] = {
        name: [u for u in units if u.layer == name or u.layer.startswith(f"{name}.")]
        for name in layers
    }
    alone = [some[0] for some in inside.values() if len(some) == 1]
    alone = [u for u in alone if u.layer in layers]
    leaves = [n for n, m in own.named_modules() if n in layers and not list(m.children())]
    return sorted(set(alone)), sorted(n for n in leaves if not inside[n])


def _place(unit: Any) -> list[str]:
    """Return function, layer and operator of a unit."""
    return [unit.function, unit.layer, unit.operator]


def blame_row(name: str, draw: random.Random) -> dict[str, Any] | None:
    """Blame one layer of a model; None if no layer is fit."""
    import torch

    from benches.data import planted
    from pytest_udftorch.diagnose import smallest_cause
    from pytest_udftorch.errors import DiagnosisError

    torch.manual_seed(0)
    model, inputs = planted.make(name)
    sites, innocent = _sites(model, inputs)
    draw.shuffle(sites)
    for site in sites[:4]:
        begin = time.perf_counter()
        try:
            found = smallest_cause("std", CANARY, _metric(model, inputs, site.layer))
        except DiagnosisError as error:
            # The last bit of a function may be lost on the way to the layer's output.
            if "does not differ" in str(error):
                continue
            raise
        seconds = time.perf_counter() - begin
        return {
            "model": name, "planted": _place(site),
            "named": [_place(unit) for unit in found.blamed],
            "right": found.blamed == (site,), "proved": found.proved, "units": found.units,
            "trials": found.trials, "seconds": round(seconds, 2),
            "control": _refused(model, inputs, innocent, draw),
        }  # fmt: skip
    return None


def _refused(model: Any, inputs: Any, innocent: list[str], draw: random.Random) -> bool | None:
    """Tell whether a layer that calls no function is said not to differ."""
    from pytest_udftorch.diagnose import smallest_cause
    from pytest_udftorch.errors import DiagnosisError

    if not innocent:
        return None
    try:
        smallest_cause("std", CANARY, _metric(model, inputs, draw.choice(innocent)))
    except DiagnosisError as error:
        if "returned nothing" in str(error):  # a layer that is never called
            return None
        return "does not differ" in str(error)
    return False


# Origins -----------------------------------------------------------------------------


def origin_row(name: str, kind: Any, draw: random.Random) -> dict[str, Any]:
    """Plant a number into an output of a training step."""
    from benches.data import planted
    from pytest_udftorch.diagnose import Side, first_origin

    value = math.nan if kind == "nan" else math.inf

    def spoiled(func: Any, args: Any, kwargs: Any) -> Any:
        made = func(*args, **kwargs)
        parts = made if isinstance(made, tuple) else (made,)
        first = next(part for part in parts if part is not None and part.numel())
        first[tuple(draw.randrange(n) for n in first.shape)] = value
        return made

    every = dict.fromkeys(o for fault in planted.FAULTS.values() for o in fault.operators)
    scout = planted.Plant(planted.Fault(tuple(every), spoiled))

    def make() -> Any:
        return planted.make(name)

    clean = first_origin(kind, make=make, train=True, on=Side(name="x", around=scout.around))
    site = draw.choice(scout.sites)
    plant = planted.Plant(scout.fault, site.number)
    begin = time.perf_counter()
    side = Side(name="planted", around=plant.around)
    found = first_origin(kind, make=make, train=True, on=side)
    layer = found.place.layer if found.place else ""
    return {
        "model": name, "kind": kind, "planted": [site.operator, site.layer],
        "named": [found.operator, str(found.place)],
        "right": found.operator == site.operator and (layer == site.layer or not site.layer),
        "calls": found.calls, "seconds": round(time.perf_counter() - begin, 2),
        "control": not clean.found or clean.came_in,
    }  # fmt: skip


def measure(cases: int) -> dict[str, Any]:
    """Run the cases, as many of either half."""
    from benches.data import planted

    rows: dict[str, list[Any]] = {"blame": [], "origin": []}
    for half in rows:
        turn = 0
        while len(rows[half]) < cases // 2 and turn < 4 * len(planted.MODELS):
            name = list(planted.MODELS)[turn % len(planted.MODELS)]
            draw = random.Random(f"{half} {turn} {name}")
            kind = ("nan", "inf")[turn % 2]
            row = blame_row(name, draw) if half == "blame" else origin_row(name, kind, draw)
            turn += 1
            if row is not None:
                rows[half].append(row)
                print(half, len(rows[half]), row, file=sys.stderr, flush=True)
    return rows


def judge(figures: dict[str, Any]) -> bool:
    """Print the sums; return whether every planted case is named and no control fails."""
    good = True
    for half, rows in figures.items():
        right = sum(row["right"] for row in rows)
        controls = [row["control"] for row in rows if row["control"] is not None]
        print(f"{half}: {right} of {len(rows)} named, {sum(controls)} of {len(controls)} controls")
        good &= right == len(rows) and all(controls)
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("planted_blame", __doc__)
    parser.add_argument("--cases", type=int, default=CASES, help="by default 50")
    options = parser.parse_args(arguments)
    options.changed = [f"--cases {options.cases}"] if options.cases != CASES else []
    return command.run("planted_blame", options, lambda: measure(options.cases), judge)


if __name__ == "__main__":
    sys.exit(main())
