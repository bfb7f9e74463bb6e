# SPDX-License-Identifier: Apache-2.0
"""Does the comparison of runs name planted faults, and does it accuse the innocent?

    python -m benches.experiments.planted_faults [--faults N] [--store FILE] [--journal FILE]

Five faults of ``benches/data/planted.py`` are planted into a training step of each of 20 models, in
calls of operators chosen at random, and ``first_difference`` has to name the operator and, in a
forward pass, the layer. Its verdict is held against the fault: rounding must not explain what it
cannot. Eight models were at hand while the comparison was written; twelve were held out. Five clean
pairs of each model compute the same in another way (threads, memory layout, a row of the batch
alone, corem, without oneDNN); rounding has to explain all that differs. torch's DebugMode
(``log_tensor_hashes``) sees the same runs: its first mismatch has to be in that operator. A run
that is interrupted goes on from its journal.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from benches.experiments import command
from pytest_udftorch import UdfError

ROOT = Path(__file__).parents[2]
#: Other ways to compute the same; a model has the first ``PAIRS`` that it can have.
CLEAN = (
    "threads=1", "library=corem", "channels_last", "row=0", "row=2", "without oneDNN",
    "library=corem,threads=1", "library=corem,functions=exp+log+tanh",
)  # fmt: skip
#: Faults and clean pairs of a model.
FAULTS, PAIRS = 5, 5
#: Models whose rows depend on each other, that draw other random numbers for fewer rows, or whose
#: inputs are no rows (the offsets of an embedding bag).
WITHOUT_ROWS = ("graph", "recommender", "variational")
#: Models whose memory is measured, at sizes at which it matters.
SIZES = {"ResNet-18": (16, 3, 160, 160), "MobileNet v3": (16, 3, 160, 160)}
#: How often memory is measured, in turns: where memory is given back differs from run to run.
PEAKS = 5
CAUSES = 6


class ChildFailedError(UdfError):
    """The process that compares the runs of a model failed."""


# In a process of its own -------------------------------------------------------------


def _debug_mode(name: str, side: Any) -> list[str]:
    """Return the operators whose hashes DebugMode finds to differ, or what it raised."""
    import torch
    from torch.utils._debug_mode import DebugMode

    from benches.data import planted
    from pytest_udftorch.swap.reach.coverage import training_step

    logs = []
    for around in (None, side):
        model, inputs = planted.make(name)
        step = training_step(model, inputs)
        torch.manual_seed(0)
        if around is None:
            with DebugMode() as mode, DebugMode.log_tensor_hashes(hash_fn="hash_tensor"):
                step()
        else:
            with around(), DebugMode() as mode, DebugMode.log_tensor_hashes(hash_fn="hash_tensor"):
                step()
        logs.append(mode.logs)
    try:
        found = DebugMode.check_hash_mismatches(*logs)
    except ValueError as error:
        return [f"error: {error}"]
    return [str(one["call"]) for one in found]


def fault_row(name: str, kind: str, draw: random.Random) -> dict[str, Any] | None:
    """Plant one fault and compare; None if the model has no call that fits."""
    import torch

    from benches.data import planted
    from pytest_udftorch.diagnose import Side, first_difference

    scout = planted.Plant(planted.FAULTS[kind])
    model, inputs = planted.make(name)
    with scout.around():
        torch.manual_seed(0)
        from pytest_udftorch.swap.reach.coverage import training_step

        training_step(model, inputs)()
    sites = list(scout.sites)
    draw.shuffle(sites)
    for site in sites[:6]:
        plant = planted.Plant(scout.fault, site.number)
        wrong = Side(name="wrong", around=plant.around)
        begin = time.perf_counter()
        found = first_difference(
            "eager", wrong, make=lambda: planted.make(name), train=True, causes=2
        )
        seconds = time.perf_counter() - begin
        if not plant.changed:
            continue
        first = found.first
        named = first is not None and first.operator == site.operator
        layer = first is not None and first.place is not None and first.place.layer
        seen = _debug_mode(name, plant.around)
        return {
            "model": name,
            "fault": kind,
            "operator": site.operator,
            "layer": site.layer,
            "named": named and (layer == site.layer or not site.layer),
            "first": None if first is None else [first.operator, str(first.place)],
            "explained": None if first is None else first.explained,
            "proved": first is not None and first.proof is not None and first.proof.same_end,
            "seconds": round(seconds, 2),
            "calls": found.calls[0],
            "debug_mode": bool(seen) and seen[0] == site.operator,
            "debug_mode_first": seen[0] if seen else None,
        }
    return None


def clean_row(name: str, side: str) -> dict[str, Any] | None:
    """Compare a clean pair; None if the model does not have it."""
    import torch

    from benches.data import planted
    from pytest_udftorch.diagnose import Side, first_difference

    model, _ = planted.make(name)
    if side == "channels_last" and not any("Conv2d" in type(m).__name__ for m in model.modules()):
        return None
    if side.startswith("row") and name in WITHOUT_ROWS:
        return None
    other = "eager" if side != "threads=1" else "threads=2"
    one: Any = side
    if side == "without oneDNN":
        one = Side(name=side, around=lambda: torch.backends.mkldnn.flags(enabled=False))
    begin = time.perf_counter()

    def make() -> Any:
        made, inputs = planted.make(name)
        # Statistics of a batch are those of all rows.
        return (made.eval() if side.startswith("row") else made), inputs

    found = first_difference(other, one, make=make, causes=CAUSES)
    return {
        "model": name,
        "pair": f"{other} and {side}",
        "equal": found.equal,
        "differ": found.differ,
        "accused": [[f.operator, str(f.place)] for f in found.findings if f.explained is False],
        "unjudged": [
            [f.kind, f.operator, str(f.place)] for f in found.findings if f.explained is None
        ],
        "findings": len(found.findings),
        "seconds": round(time.perf_counter() - begin, 2),
    }


def memory(name: str, what: str) -> dict[str, Any]:
    """Run a training step, alone or compared, at a size at which memory matters.

    Returns:
        ``kib``: by how much the process grew at most, the model and its inputs included.
    """
    import resource

    import torch

    from benches.data import planted
    from pytest_udftorch.diagnose import Side, first_difference
    from pytest_udftorch.swap.reach.coverage import training_step

    training_step(*planted.make("LeNet"))()  # libraries are loaded
    # The peak so far, which that small step and the imports made, would hide what comes.
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024
    model, _ = planted.make(name)
    inputs = torch.randn(SIZES[name])
    begin = time.perf_counter()
    if what == "plain":
        training_step(model, inputs)()
    else:
        fault = planted.FAULTS["one ULP off"]
        side = Side(name="wrong", around=planted.Plant(fault, 9).around)
        assert not first_difference("eager", side, model, inputs, causes=1).equal
    seconds = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"kib": after - before, "seconds": round(seconds, 2)}


def child(order: dict[str, Any]) -> Any:
    """Do what the parent ordered."""
    if order["do"] == "fault":
        return fault_row(order["model"], order["fault"], random.Random(str(order)))
    if order["do"] == "clean":
        return clean_row(order["model"], order["pair"])
    return memory(order["model"], order["what"])


# The parent --------------------------------------------------------------------------


def orders(faults: int) -> list[list[dict[str, Any]]]:
    """Return what may be done, in groups; ``need`` says how many rows a group needs."""
    from benches.data import planted

    kinds = list(planted.FAULTS)
    found: list[list[dict[str, Any]]] = []
    for number, model in enumerate(planted.MODELS):
        # Every model begins with another kind, so that all kinds come equally often.
        turned = [kinds[(number * faults + i) % len(kinds)] for i in range(2 * len(kinds))]
        found.append(
            [{"do": "fault", "model": model, "fault": f, "number": i} for i, f in enumerate(turned)]
        )
        found.append([{"do": "clean", "model": model, "pair": pair} for pair in CLEAN])
    return found


def measure(faults: int, journal: Path) -> dict[str, Any]:
    """Do everything that the journal does not have, in a process of its own."""
    from benches.data import planted

    done: dict[str, Any] = {}
    if journal.is_file():
        for line in journal.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            done[json.dumps(entry["order"])] = entry["row"]
    rows: dict[str, list[Any]] = {"fault": [], "clean": []}
    # The large models come last: a search that is interrupted has most of its rows then.
    for group in sorted(orders(faults), key=lambda group: group[0]["model"] in SIZES):
        kind = group[0]["do"]
        rows[kind] += _run_group(group, faults if kind == "fault" else PAIRS, journal, done)
    peaks = []
    for number in range(PEAKS):
        for model in SIZES:
            for what in ("plain", "compared"):
                order = {"do": "memory", "model": model, "what": what, "round": number}
                peaks += [{**order, **row} for row in _run_group([order], 1, journal, done)]
    _end_child()
    return {
        "models": {name: name in planted.HELD_OUT for name in planted.MODELS},
        "faults": rows["fault"],
        "clean": rows["clean"],
        "memory": peaks,
    }


def _run_group(
    group: list[dict[str, Any]], need: int, journal: Path, done: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the first rows that orders of a group give, until there are enough."""
    found: list[dict[str, Any]] = []
    for order in group:
        if len(found) == need:
            break
        key = json.dumps(order)
        if key not in done:
            # The peak of a process is that of all it has done.
            if order["do"] == "memory":
                _end_child()
            done[key] = _answer(_child(), order)
            with journal.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"order": order, "row": done[key]}) + "\n")
        found += [done[key]] if done[key] else []
    return found


@cache
def _child() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benches.experiments.planted_faults", "--child"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def _end_child() -> None:
    if _child.cache_info().currsize:
        _child().communicate()
        _child.cache_clear()


def _answer(process: subprocess.Popen[str], order: dict[str, Any]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        process.wait()
        raise ChildFailedError(f"The process for {order} failed; its message is above.")
    return json.loads(line)


def judge(figures: dict[str, Any]) -> bool:
    """Print the sums; return whether all faults are named and nobody is accused wrongly."""
    faults, clean = figures["faults"], figures["clean"]
    named = sum(row["named"] for row in faults)
    accused = [row for row in clean if row["accused"]]
    held = [row for row in faults if figures["models"][row["model"]]]
    print(f"named {named} of {len(faults)}; DebugMode {sum(r['debug_mode'] for r in faults)}")
    print(f"of the held-out models {sum(r['named'] for r in held)} of {len(held)}")
    print(f"accused {len(accused)} of {len(clean)} clean pairs")
    for row in [*(r for r in faults if not r["named"]), *accused]:
        print(row)
    return named >= 0.95 * len(faults) and not accused


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("planted_faults", __doc__)
    parser.add_argument("--faults", type=int, default=FAULTS, help="of each model; by default 5")
    parser.add_argument("--journal", type=Path, help="by default beside the stored file")
    parser.add_argument("--child", action="store_true", help="of the bench itself")
    options = parser.parse_args(arguments)
    if options.child:
        for line in sys.stdin:
            print(json.dumps(child(json.loads(line))), flush=True)
        return 0
    options.changed = [f"--faults {options.faults}"] if options.faults != FAULTS else []
    near = options.store or Path("planted_faults.json")
    journal = options.journal or near.with_suffix(".journal")
    return command.run("planted_faults", options, lambda: measure(options.faults, journal), judge)


if __name__ == "__main__":
    sys.exit(main())
