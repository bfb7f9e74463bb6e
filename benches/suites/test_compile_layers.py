"""Layers of the models on their own, over modes."""

from benches.experiments import compile_layers, experiment

EXPERIMENT = compile_layers.EXPERIMENT


def test_layers(benchmark, bench_device, case, bench_scale):
    row = experiment.bench(benchmark, EXPERIMENT, case, bench_device, bench_scale)
    assert not row["failures"]
    assert row["speedup"]
    assert not row["disagree"]
