"""Single convolutions, interpreted and compiled."""

from benches.experiments import compile_convolutions, experiment

EXPERIMENT = compile_convolutions.EXPERIMENT


def test_convolutions(benchmark, bench_device, case, bench_scale):
    row = experiment.bench(benchmark, EXPERIMENT, case, bench_device, bench_scale)
    assert not row["failures"]
    assert row["speedup"]
    assert not row["disagree"]
