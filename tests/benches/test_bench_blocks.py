# SPDX-License-Identifier: Apache-2.0
"""Interleaved blocks: what they run, and that a cost that is there shows."""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from benches.experiments import blocks, training
from benches.experiments.profile_counting import operator_calls
from benches.render import profile as render_profile
from pytest_udftorch import patched
from pytest_udftorch.measure.timing.statistics import bootstrap, ratio


@pytest.fixture(scope="module")
def task():
    lenet = training.lenet()
    return replace(lenet, samples=lenet.samples.thinned(10), batch=10)


def test_every_contender_runs_once_a_block(task):
    entered, seen = [], []

    @contextmanager
    def context(name):
        entered.append(name)
        yield name.upper()

    samples = blocks.measure(
        task,
        {name: lambda name=name: context(name) for name in ("a", "b", "c")},
        blocks=4,
        steps=3,
        after=lambda name, what, times: seen.append((name, what, len(times))),
    )
    # One entry each before anything is timed.
    assert entered[:3] == ["a", "b", "c"]
    for block in range(4):
        assert sorted(entered[3 + 3 * block : 6 + 3 * block]) == ["a", "b", "c"]
    assert len({tuple(entered[3 + 3 * b : 6 + 3 * b]) for b in range(4)}) > 1
    assert set(seen) == {(n, n.upper(), 4) for n in "abc"}
    for clock in blocks.CLOCKS:
        assert {n: len(v) for n, v in samples[clock].items()} == {"a": 4, "b": 4, "c": 4}
        assert all(t > 0 for values in samples[clock].values() for t in values)


def test_every_contender_runs_between_two_of_the_base(task):
    entered = []

    @contextmanager
    def context(name):
        entered.append(name)
        yield

    ratios = blocks.against(
        task,
        lambda: context("base"),
        {name: lambda name=name: context(name) for name in ("a", "b", "c")},
        blocks=4,
        steps=2,
        warm_up=1,
    )
    assert entered[:4] == ["base", "a", "b", "c"]
    assert entered[4::2] == ["base"] * 13
    runs = entered[5::2]
    assert all(sorted(runs[i : i + 3]) == ["a", "b", "c"] for i in range(0, 12, 3))
    assert len({tuple(runs[i : i + 3]) for i in range(0, 12, 3)}) > 1
    for clock in blocks.CLOCKS:
        assert {n: len(v) for n, v in ratios.contenders[clock].items()} == {"a": 4, "b": 4, "c": 4}
        assert len(ratios.base[clock]) == 12
        assert all(r > 0 for values in ratios.contenders[clock].values() for r in values)


def test_weights_move_only_when_learning(task):
    for learning in (True, False):
        made = []
        spied = replace(task, make=lambda made=made: made.append(task.make()) or made[-1])
        blocks.measure(spied, {"std": lambda: patched("std")}, blocks=1, steps=2, learning=learning)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            fresh = task.make()
        same = all(
            torch.equal(a, b) for a, b in zip(made[0].parameters(), fresh.parameters(), strict=True)
        )
        assert same is not learning


def test_a_cost_shows(task):
    """The control of the method: work that doubles a step is told from none."""

    @contextmanager
    def slow():
        step = training.Training.step

        def twice(self, batch):
            step(self, batch)
            step(self, batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training.Training, "step", twice)
            yield

    with blocks.one_thread():
        samples = blocks.measure(
            task, {"std": lambda: patched("std"), "slow": slow}, blocks=9, steps=5
        )
        ratios = blocks.against(
            task,
            lambda: patched("std"),
            {"slow": slow, "again": lambda: patched("std")},
            blocks=9,
            steps=5,
            warm_up=2,
        ).contenders["cpu"]
    found = ratio(samples["cpu"]["slow"], samples["cpu"]["std"])
    assert found.low > 1.2
    slow_one, again = bootstrap(ratios["slow"]), bootstrap(ratios["again"])
    assert slow_one.low > 1.2
    assert again.high < slow_one.low


def test_one_thread_is_put_back():
    before = torch.get_num_threads()
    with blocks.one_thread():
        inside = torch.get_num_threads()
    with pytest.raises(KeyError), blocks.one_thread():
        raise KeyError
    assert (inside, torch.get_num_threads()) == (1, before)


def test_an_operator_call_that_uses_two_functions_is_counted_once():
    x = torch.linspace(-3, 3, 64).view(4, 16)
    with patched("std", functions=("exp", "log", "sin"), profile="counters") as session:
        for _ in range(3):
            torch.log_softmax(x, 1)
    profile = session.profile
    for functions in (("log",), ("exp",), ("exp", "log")):
        calls = sum(operator_calls(profile, functions, s) for s in ("forward", "other"))
        assert calls == 3
    assert operator_calls(profile, ("sin",), "forward") == 0


def test_the_accuracy_table_names_what_differs():
    rng = random.Random(1)
    values = [0.9 + rng.random() / 100 for _ in range(5)]
    test = {"mean": 0.0, "low": -0.001, "high": 0.001, "deviation": 0.001, "sign_flip_p": 1.0}
    arms = ("std, one weight nudged", "corem")
    model = {
        "label": "LeNet, batch 50", "epochs": 2, "data": "stand-in for MNIST", "test_targets": 100,
        "accuracy": dict.fromkeys(("std", *arms), values),
        "predictions_different": {arm: [0, 1, 0, 0, 2] for arm in arms},
        "accuracy_against_std": dict.fromkeys(arms, test),
        "loss_against_std": dict.fromkeys(arms, test),
    }  # fmt: skip
    text = "\n".join(render_profile.accuracy({"seeds": 5, "models": {"lenet": model}}))
    assert "stand-in" in text
    assert "No interval of the accuracy excludes 0" in text
    model["accuracy_against_std"] = {arms[0]: test, "corem": {**test, "low": 0.0005}}
    text = "\n".join(render_profile.accuracy({"seeds": 5, "models": {"lenet": model}}))
    assert "0 is outside of the interval for: LeNet, corem." in text
