"""Products of matrices: interpreted, by kernels of our own, and compiled."""

from benches.experiments import compile_matmul, experiment

EXPERIMENT = compile_matmul.EXPERIMENT


def test_matmul(benchmark, bench_device, case, bench_scale):
    row = experiment.bench(benchmark, EXPERIMENT, case, bench_device, bench_scale)
    assert not row["failures"]
    assert row["speedup"]
