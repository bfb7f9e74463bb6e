# SPDX-License-Identifier: Apache-2.0
"""Searches end at their deadline with what they checked so far, and are timed undisturbed."""

from __future__ import annotations

import time
import warnings

import pytest
import torch
from torch import nn

from pytest_udftorch.errors import RewriteError
from pytest_udftorch.measure import recording
from pytest_udftorch.measure.rewrite import backends, deadline, mutants, pet
from pytest_udftorch.measure.rewrite.fusion.plans import Planner
from pytest_udftorch.measure.rewrite.gain import measured
from pytest_udftorch.measure.rewrite.taso.search import Costs, backtracking

SOON = 1e-6


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def folded():
    layers = [nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Softmax(1)]
    return nn.Sequential(*layers).eval()


X = torch.randn(2, 4, 8, 8)


def run(function, backend, *inputs, **options):
    compiled = torch.compile(function, backend=backend, dynamic=False, options=options)
    with recording() as reports:
        found = compiled(*inputs)
    (report,) = reports
    return compiled, found, report


@pytest.mark.parametrize(
    "backend", ["udf_templates", "udf_taso", "udf_pet", "udf_fusion", "udf_tiled"]
)
def test_a_search_without_time_leaves_the_graph_and_says_so(backend, tmp_path):
    rules = tmp_path / "rules.txt"
    rules.write_text("turned: (t (t a)) => a\n")
    if backend == "udf_taso":
        pytest.importorskip("z3", reason="z3-solver is not installed")
    own = {"rules": str(rules)} if backend == "udf_taso" else {}
    model = nn.Softmax(1) if backend == "udf_tiled" else folded()
    compiled, found, report = run(model, backend, X, seconds=SOON, strict=True, **own)
    assert torch.equal(found, model(X))
    assert torch.equal(compiled(X), model(X))
    assert (report.after, report.fired, report.times_ns) == (None, [], {})
    assert report.cut
    assert f"out of time, left undone: {report.cut[0]}" in str(report)
    assert report.document()["cut"] == report.cut


def test_a_search_with_time_leaves_nothing_out():
    _, _, report = run(folded(), "udf_templates", X, gain=0)
    assert report.cut == []
    assert "left undone" not in str(report)
    assert report.fired


@pytest.mark.parametrize("seconds", [0, -1, "long", True, float("nan")])
def test_a_wrong_limit_is_named(seconds):
    with pytest.raises(Exception, match=r"RewriteError: seconds=.*: give the seconds after which"):
        run(torch.sin, "udf_templates", X, seconds=seconds)


@pytest.mark.usefixtures("clock")
def test_what_was_checked_in_time_is_measured_and_kept():
    """A candidate that takes all the time of its check: the one before it is what is left."""

    def rewriter(graph, inputs, held, report, deadline):
        start = backends.simplified(graph, held, deadline)
        slow = backends.Candidate(start.module, False, True, before=start)

        def waits(module):
            def call(*given):
                time.sleep(0.4)
                return module(*given)

            return call

        slow.make = waits
        slow.fired = [*start.fired, backends.Firing("waiting", "at the end")]
        return slow

    terms = backends.Terms(gain=0, seconds=0.5)
    model = folded()
    compiled = torch.compile(
        model, backend=lambda m, e: backends.compile_graph("slow", rewriter, m, e, terms)
    )
    with recording() as reports:
        torch.testing.assert_close(compiled(X), model(X))
    (report,) = reports
    assert {f.rule for f in report.fired} == {"convolution and batch norm", "computed once"}
    assert [f.rule for f in report.tried] == ["waiting"]
    assert "the check" in report.cut


def test_time_is_shared_and_what_is_left_undone_is_written_once():
    whole = deadline.Deadline(1000)
    half = whole.share(0.5)
    assert 499 < half.left() <= 500
    assert half.within(3).left() <= 3
    assert half.within(1e6).left() <= 500
    assert not half.passed("something")
    for late in (whole.share(0), whole.within(0)):
        assert late.left() == 0
        assert late.passed("kernels")
        with pytest.raises(deadline.OutOfTime, match="kernels"):
            late.check("kernels")
    assert whole.missed == ["kernels"]
    assert not deadline.NEVER.share(0.5).passed("anything")


def test_plans_end_with_the_cheapest_so_far():
    def shared(x):
        y = x.exp() * 2
        return y.sum(), y + 1, y.sqrt() * y

    graphs = []

    def rewriter(graph, inputs, held, report, deadline):
        graphs.append(graph.graph)

    torch.compile(shared, backend=lambda m, e: backends.compile_graph("seen", rewriter, m, e))(
        torch.rand(100)
    )
    planner = Planner(graphs[0])
    late = deadline.Deadline(1000).share(0)
    cut, whole = planner.best(late), planner.best()
    assert late.missed == ["plans"]
    assert cut.evaluated == 1 <= whole.evaluated + whole.pruned
    assert cut.cost_ns >= whole.cost_ns
    assert {r for k in cut.kernels for r in k.roots} == {r for k in whole.kernels for r in k.roots}


def test_substitutions_end_with_the_best_graph_so_far():
    graphs = []

    def rewriter(graph, inputs, held, report, deadline):
        graphs.append(graph)

    torch.compile(
        lambda x: x.t().t() + 1,
        backend=lambda m, e: backends.compile_graph("seen", rewriter, m, e),
    )(torch.rand(3, 3))
    late = deadline.Deadline(1000).share(0)
    found = backtracking(graphs[0], [], (), Costs(deadline=late), {"graphs": 5})
    assert found.module is graphs[0]
    assert (found.fired, found.visited) == ([], 0)
    assert late.missed == ["the search among graphs"]


def test_mutants_are_not_begun_out_of_time():
    late = deadline.Deadline(1000).share(0)
    setting = mutants.Setting((1, 1), (1, 1), (1, 1))
    with pytest.raises(deadline.OutOfTime):
        pet.measured_mutant(torch.rand(2, 2, 6, 6), torch.rand(2, 2, 3, 3), None, setting, 3, late)
    assert late.missed == ["convolutions"]


@pytest.mark.usefixtures("clock")
def test_a_measurement_that_is_cut_decides_nothing():
    limit = deadline.Deadline(0.5)
    calls = {"original": lambda x: time.sleep(0.15), "rewritten": lambda x: None}
    timing = measured(calls, [X], limit)
    assert 1 <= len(timing["original"].runs_ns) < 7
    assert timing.verdict("rewritten", "original") == "too few runs"
    assert limit.missed
    assert "turns of the measurement" in limit.missed[0]


def test_the_first_call_is_timed_outside_the_modes_of_python():
    """AOTAutograd runs the first call in a mode that looks at each operator."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    seen, inside = [], []

    def rewriter(graph, inputs, held, report, deadline):
        seen.append(_get_current_dispatch_mode())

    def without(module, examples):
        made = backends.compile_graph("modes", rewriter, module, examples)
        inside.append(1)
        return made

    torch.compile(lambda x: x * 2 + 1, backend=without, dynamic=False)(X)
    assert inside == [1]
    assert seen == [None]


def test_a_warning_of_a_compiler_is_a_note_and_no_failure():
    """Warnings are errors in the tests: one inside TorchInductor made rewriting fail."""
    from torch._inductor import config

    def warns(graph):
        warnings.warn("a pass has something to say", UserWarning, stacklevel=1)

    def chain(x):
        return torch.tanh(x) * 2 + 1

    with config.patch(post_grad_custom_post_pass=warns, fx_graph_cache=False):
        compiled, found, report = run(
            chain, "udf_templates", X, templates=["fusion"], gain=0, strict=True
        )
        torch.testing.assert_close(found, chain(X))
        assert report.left_alone == ""
        # The control: TorchInductor itself hands the warning on.
        torch.compiler.reset()
        with pytest.raises(Exception, match="a pass has something to say"):
            torch.compile(chain, dynamic=False)(X)
    torch.testing.assert_close(compiled(X), chain(X))


def test_a_warning_while_a_graph_is_rewritten_is_a_note():
    def rewriter(graph, inputs, held, report, deadline):
        for _ in range(2):
            warnings.warn("so it is", UserWarning, stacklevel=1)

    with recording() as reports:
        torch.compile(
            lambda x: x + 1, backend=lambda m, e: backends.compile_graph("w", rewriter, m, e)
        )(X)
    assert reports[0].left_alone == ""
    assert reports[0].notes == ["warning: so it is"]


def test_strict_takes_no_offence_at_a_deadline_but_at_what_is_left_alone():
    with pytest.raises(RewriteError, match="custom operator"):
        run(lambda x: torch.ops.udftorch_deadline.half(x), "udf_templates", X, strict=True,
            seconds=SOON)  # fmt: skip


@torch.library.custom_op("udftorch_deadline::half", mutates_args=())
def half(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@half.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.parametrize("backend", ["udf_templates", "udf_pet", "udf_fusion"])
def test_tensors_that_a_graph_holds_are_constants(backend):
    """Masks of transformers are such: every graph with one was left alone."""

    def masked(x, w):
        mask = torch.tensor([[0.0, -3.0], [0.5, 1.0]])
        return torch.softmax(x @ w + mask, 1) + torch.arange(2)

    x, w = torch.randn(2, 2), torch.randn(2, 2)
    compiled, found, report = run(masked, backend, x, w, gain=0, strict=True)
    torch.testing.assert_close(found, masked(x, w))
    torch.testing.assert_close(compiled(-x, w), masked(-x, w))
    assert report.left_alone == ""
    assert report.constants
    assert report.after.kernels < report.before.kernels


def test_calls_go_around_aotautograd_where_it_has_nothing_to_do():
    """Its wrapper takes longer than the graph of a small model; writes and views still need it."""
    from pytest_udftorch.measure.rewrite.backends import _Whole

    seen = []

    def backend(module, examples):
        seen.append(backends.templates(module, examples, options={"gain": 0}))
        return seen[-1]

    def plain(x):
        return x * 1 + 2, x.exp() * 1

    def shares(x):
        return x.transpose(0, 1), (x + 1) * 1

    def both(x):
        y = (x + 1) * 1
        return y, y.transpose(0, 1)

    for function, direct in [(plain, True), (shares, False), (both, False)]:
        torch.compiler.reset()
        compiled = torch.compile(function, backend=backend, dynamic=False)
        for _ in range(3):
            for mine, wanted in zip(compiled(X), function(X), strict=True):
                assert torch.equal(mine, wanted)
        whole = seen[-1]
        assert isinstance(whole, _Whole)
        assert (whole.run is not whole.compiled) == direct
