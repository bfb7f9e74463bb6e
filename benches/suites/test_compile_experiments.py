# SPDX-License-Identifier: Apache-2.0
"""The experiments on torch.compile, a bench for each device and case."""

from __future__ import annotations

from typing import Any

import pytest

from benches import rows
from benches.experiments import (
    compile_chains,
    compile_convolutions,
    compile_layers,
    compile_matmul,
    compile_predictor,
    compile_resnet_convolutions,
    compile_transformers,
    experiment,
)
from pytest_udftorch.errors import DeviceMissingError
from pytest_udftorch.measure.timing.timers import require_device

#: The experiments, and the entries of a row that must not be empty beside its speed-ups.
EXPERIMENTS = (
    (compile_matmul.EXPERIMENT, ()),
    (compile_convolutions.EXPERIMENT, ()),
    (compile_resnet_convolutions.EXPERIMENT, ("in_model_ns",)),
    (compile_chains.EXPERIMENT, ("layers",)),
    (compile_layers.EXPERIMENT, ()),
    (compile_transformers.EXPERIMENT, ("layers",)),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each bench a test for every device, or for every experiment, device and case."""
    asked = metafunc.config.getoption("--bench-device")
    scale = metafunc.config.getoption("--bench-scale")
    by_case = "case" in metafunc.fixturenames
    found = []
    for device in ("cpu", "cuda") if asked == "all" else (asked,):
        try:
            require_device(device)
        except DeviceMissingError as error:
            values = (None, (), device, None) if by_case else (device,)
            found.append(pytest.param(*values, id=device, marks=pytest.mark.skip(str(error))))
            continue
        if not by_case:
            found.append(pytest.param(device, id=device))
            continue
        found += [
            pytest.param(one, needed, device, case, id=f"{one.name}-{device}-{_label(case)}")
            for one, needed in EXPERIMENTS
            for case in one.cases(device, scale)
        ]
    names = ["chosen", "needed", "bench_device", "case"] if by_case else ["bench_device"]
    metafunc.parametrize(names, found)


def _label(case: dict[str, Any]) -> str:
    return "-".join(str(v) for v in case.values() if isinstance(v, str | int | bool))


def test_case(benchmark, chosen, needed, bench_device, case, bench_scale):
    row = experiment.bench(benchmark, chosen, case, bench_device, bench_scale)
    assert not row["failures"]
    assert row["speedup"]
    # The products are compared while they are prepared; their rows have no such entry.
    assert chosen is compile_matmul.EXPERIMENT or not row["disagree"]
    assert all(row[name] for name in needed)
    assert all(row.get("in_model_ns", {}).values())


@pytest.mark.slow  # compiles a hundred convolutions
def test_predictor(benchmark, bench_device, bench_scale):
    """Measures the speed-up of random convolutions, and predicts it."""
    chosen = compile_predictor.EXPERIMENT
    document = experiment.run(chosen, None, bench_device, bench_scale)
    times = {
        f"{_label(row['case'])}: {name}": runs
        for row in document["rows"]
        for name, runs in row.get("runs_ns", {}).items()
    }
    rows.add(benchmark, times, experiment=chosen.name, document=document)
    assert not any("error" in row for row in document["rows"])
    judged = document["predictor"]["judged"]
    assert {"shape", "median speed-up", "one half of the runs for the other"} <= set(judged)
