"""Blocks of convolution, norm and ReLU in series."""

from benches.experiments import compile_chains, experiment

EXPERIMENT = compile_chains.EXPERIMENT


def test_chains(benchmark, bench_device, case, bench_scale):
    row = experiment.bench(benchmark, EXPERIMENT, case, bench_device, bench_scale)
    assert not row["failures"]
    assert row["speedup"]
    assert not row["disagree"]
    assert row["layers"]
