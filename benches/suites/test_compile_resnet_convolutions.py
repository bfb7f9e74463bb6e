"""Convolutions of ResNet-50, alone and in the model."""

from benches.experiments import compile_resnet_convolutions, experiment

EXPERIMENT = compile_resnet_convolutions.EXPERIMENT


def test_resnet_convolutions(benchmark, bench_device, case, bench_scale):
    row = experiment.bench(benchmark, EXPERIMENT, case, bench_device, bench_scale)
    assert not row["failures"]
    assert row["speedup"]
    assert not row["disagree"]
    assert all(row["in_model_ns"].values())
