"""The speed-up of random convolutions, measured and predicted."""

from benches.experiments import compile_predictor, experiment

EXPERIMENT = compile_predictor.EXPERIMENT


def test_predictor(benchmark, bench_device, bench_scale):
    document = benchmark.pedantic(
        experiment.run, args=(EXPERIMENT, None, bench_device, bench_scale), rounds=1
    )
    benchmark.extra_info.update({"experiment": EXPERIMENT.name, "document": document})
    assert not any("error" in row for row in document["rows"])
    judged = document["predictor"]["judged"]
    assert {"shape", "median speed-up", "one half of the runs for the other"} <= set(judged)
