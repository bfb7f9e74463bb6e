"""A vision transformer and a small GPT, end to end."""

from benches.experiments import compile_transformers, experiment

EXPERIMENT = compile_transformers.EXPERIMENT


def test_transformers(benchmark, bench_device, case, bench_scale):
    row = experiment.bench(benchmark, EXPERIMENT, case, bench_device, bench_scale)
    assert not row["failures"]
    assert row["speedup"]
    assert not row["disagree"]
    assert row["layers"]
