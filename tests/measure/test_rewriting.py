# SPDX-License-Identifier: Apache-2.0
"""Backends that rewrite graphs: what they change, how they check it, and what they leave alone."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest
import torch
from torch import nn

from pytest_udftorch.measure import model_pair, recording
from pytest_udftorch.measure.rewrite import backends, check, graphs
from pytest_udftorch.measure.rewrite.templates import TEMPLATES


class Busy(nn.Module):
    """A model in which each template finds something."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)
        self.shift = nn.Parameter(torch.randn(4, 1, 1))

    def forward(self, x):
        y = self.norm(self.conv(x)).relu().relu() + self.shift.exp()
        return (y.tanh() * y.tanh()).permute(0, 2, 3, 1).permute(0, 3, 1, 2) * 1, x * 1


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    with torch.no_grad():
        yield


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Busy().eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def compiled(model, backend="udf_templates", **options):
    return torch.compile(model, backend=backend, dynamic=False, options={"gain": 0, **options})


def rewritten(model, *inputs, **options):
    with recording() as reports:
        found = compiled(model, **options)(*inputs)
    (report,) = reports
    return found, report


def test_scalar_tensors_that_a_graph_holds_become_numbers():
    weight = nn.Parameter(torch.tensor(0.3))

    def function(x):
        y = (x * torch.tensor(3.1, dtype=torch.float64) + 2) * torch.tensor(2) - weight
        return y / torch.tensor(0.7), x.bfloat16() * torch.tensor(1.1)

    x = torch.randn(5, 7)
    found, report = rewritten(function, x, templates=["literals"])
    assert all(map(torch.equal, found, function(x)))
    # A whole number, what is computed in 16 bits, and a weight, which may be written, stay.
    assert [f.where.split()[-1] for f in report.fired] == ["3.1", str(float(torch.tensor(0.7)))]
    torch.compiler.reset()
    _, report = rewritten(function, x, templates=["dce"])
    assert report.fired == []


def test_templates_change_the_graph_and_say_where(model):
    (found, copied), report = rewritten(model, X)
    wanted, _ = model(X)
    torch.testing.assert_close(found, wanted)
    assert copied.data_ptr() != X.data_ptr()
    assert report.left_alone == ""
    assert (report.before.kernels, report.after.kernels) == (11, 6)
    assert report.after.operators < report.before.operators
    assert report.after.bytes_moved < report.before.bytes_moved
    assert report.after.flops == report.before.flops == 2 * 2 * 4 * 6 * 6 * 27
    assert report.after.intermediates < report.before.intermediates
    assert {f.rule for f in report.fired} == {
        "two permutations", "multiplication by one", "function applied twice",
        "movement that moves nothing", "convolution and batch norm", "common subexpression",
        "computed once",
    }  # fmt: skip
    assert report.constants == 3
    assert "computed once: 3 times" in str(report)
    assert report.own == {}
    assert report.gain is None
    assert json.loads(json.dumps(report.document()))["after"]["kernels"] == 6
    svg = ElementTree.fromstring(report.pictures["after"].svg())
    assert len(svg.findall("{*}rect")) == len(report.pictures["after"].nodes)
    assert '"conv' in report.pictures["after"].dot()
    assert report.pictures["before"].dot().count('label="_native_batch_norm') == 1
    page = report.page()
    assert page.count("<svg ") == 2
    assert page.count("<li>") == len(report.fired)
    assert "<td>kernels</td><td>11</td><td>6</td>" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("name", [n for n, t in TEMPLATES.items() if t.exact])
def test_a_template_alone_keeps_the_bits(model, name):
    found, report = rewritten(model, X, templates=name)
    assert all(map(torch.equal, found, model(X)))
    assert (report.check, report.left_alone) == ("the same bits", "")
    if name == "fold":
        assert report.constants == 1  # exp of a parameter
    elif name not in ("dce", "literals"):  # AOTAutograd leaves no dead code
        assert report.fired
        assert {f.rule for f in report.fired} <= {*TEMPLATES[name].rules}


class Lecture(nn.Module):
    """What lectures fold: sums and factors of numbers, batch norms of linear layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 6), nn.Linear(6, 5, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for width in (6, 5))
        for norm in self.norms:
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        y = self.norms[1](self.second(self.norms[0](self.first(x)).relu()))
        return ((y + 3) + 4 - 2) * 2 * 3.5, x + 1


def test_numbers_and_norms_of_products_are_folded():
    torch.manual_seed(0)
    model, x = Lecture().eval(), torch.randn(4, 8)
    found, report = rewritten(model, x)
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)
    counted = report.document()["fired"]
    rules = [firing["rule"] for firing in counted]
    assert rules.count("two summands") == 2
    assert rules.count("two factors") == 1
    assert [f.where for f in report.fired if f.rule == "product and batch norm"] == [
        "addmm folded into addmm_default", "mm folded into addmm_default_1",
    ]  # fmt: skip
    assert report.after.kernels == 6


def test_numbers_that_may_not_be_added_stay():
    """Whole numbers wrap round, and others leave float32; a sum that others read."""

    def other(x, n):
        y = x + 3
        wide = (x * 1e-30) * 1e-30, (x * 1e30) * 1e30, (x + 3e38) + 3e38
        return y, y + 4, (n + 100) + 100, torch.add(x * 2, 3, alpha=2) + x, *wide

    whole = torch.arange(4, dtype=torch.int8)
    call = compiled(other)
    with recording() as reports:
        for x in torch.randn(4), torch.tensor([0.0, 1.0, 1e30, -3e38]):
            assert all(map(torch.equal, call(x, whole), other(x, whole)))
    (report,) = reports
    assert not {f.rule for f in report.fired} & {"two summands", "two factors"}


class Hooked(nn.Module):
    """Weight norm as a hook, the older form."""

    def __init__(self):
        super().__init__()
        with pytest.warns(FutureWarning, match="deprecated"):
            self.linear = torch.nn.utils.weight_norm(nn.Linear(8, 6))

    def forward(self, x):
        return self.linear(x)


@pytest.mark.parametrize(
    "make", [Hooked, lambda: torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 6))]
)
def test_weight_norm_is_computed_once_in_both_forms(make):
    model, x = make().eval(), torch.randn(4, 8)
    call = compiled(model)
    with recording() as reports:
        call(x)
    (report,) = reports
    assert "computed once" in {f.rule for f in report.fired}
    assert "_weight_norm_interface" not in report.pictures["after"].dot()
    for parameter in model.parameters():
        parameter.mul_(1.5)  # and again when the weights are written
    torch.testing.assert_close(call(x), model(x))


def test_dead_code_goes():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.ops.aten.exp.default, (x,))
    graph.output((graph.call_function(torch.ops.aten.sin.default, (x,)),))
    module, fired = TEMPLATES["dce"].apply(torch.fx.GraphModule({}, graph), ())
    assert [f.where for f in fired] == ["exp_default"]
    assert torch.equal(module(X)[0], X.sin())


def test_constants_follow_the_weights(model):
    call = compiled(model)
    call(X)
    model.conv.weight.mul_(2)
    torch.testing.assert_close(call(X), model(X))
    model.load_state_dict(Busy().state_dict())
    torch.testing.assert_close(call(X), model(X))
    model.norm.running_var = torch.full((4,), 9.0)
    torch.testing.assert_close(call(X), model(X))


def test_only_weights_of_which_constants_are_made_are_looked_at(monkeypatch):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.folded, self.plain = (nn.Parameter(torch.randn(8, 8)) for _ in range(2))

        def forward(self, x):
            return x @ self.folded.exp() @ self.plain

    runners = []
    made = backends._Runner.__init__

    def noted(self, *given):
        made(self, *given)
        runners.append(self)

    monkeypatch.setattr(backends._Runner, "__init__", noted)
    model, x = Two().eval(), torch.randn(3, 8)
    call = compiled(model)
    call(x)
    runner = runners[-1]
    assert len(runner.held) == 1
    constants = runner._constants
    model.plain.mul_(2)
    torch.testing.assert_close(call(x), model(x))
    assert runner._constants is constants
    model.folded.mul_(2)
    torch.testing.assert_close(call(x), model(x))
    assert runner._constants is not constants


def test_a_result_may_be_written_into(model):
    """Neither a constant nor another result lies in the memory of a result."""

    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(3))

        def forward(self, x):
            return x.exp(), x.exp(), self.w.exp(), self.w.exp() * 1

    call, twins = compiled(Twins()), Twins()
    x = torch.randn(3)
    for result in call(x):
        result.zero_()
        torch.testing.assert_close(call(x), twins(x))
    first, second, *_ = call(x)
    first.zero_()
    assert torch.equal(second, x.exp())


@pytest.mark.parametrize("backend", ["udf_templates", "udf_fusion"])
def test_results_that_share_memory_still_do(backend):
    """Views of what is computed once, and what a kernel for rows would write a second time."""

    class Views(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(4, 8))

        def forward(self, x):
            sums, twice = x.sum(1), self.w * 2
            return twice, twice.t(), sums, sums.unsqueeze(1), (x - sums.unsqueeze(1)).relu()

    model, x = Views(), torch.randn(4, 8)
    call = compiled(model, backend)
    for _ in range(2):
        twice, turned, sums, column, _ = results = call(x)
        for found, wanted in zip(results, model(x), strict=True):
            torch.testing.assert_close(found, wanted)
        twice.zero_()
        sums.zero_()
        assert not turned.any()
        assert not column.any()


@pytest.mark.parametrize("backend", ["udf_pet", "udf_taso"])
def test_a_search_draws_none_of_the_models_numbers(backend):
    layers = [nn.Conv2d(3, 3, 3, padding=1) for _ in range(2)]

    def noisy(x):
        return torch.nn.functional.dropout(layers[0](x) + layers[1](x))

    torch.manual_seed(5)
    found, after = compiled(noisy, backend, seconds=5)(X), torch.rand(3)
    torch.manual_seed(5)
    torch.testing.assert_close(found, noisy(X))
    assert torch.equal(after, torch.rand(3))


def test_random_numbers_are_drawn_as_often_as_before():
    def noisy(x):
        return x + torch.randn_like(x) - torch.randn_like(x)

    call = compiled(noisy)
    call(X)
    torch.manual_seed(5)
    found = call(X)
    torch.manual_seed(5)
    assert torch.equal(found, noisy(X))
    assert not torch.equal(found, X)


def test_what_writes_into_its_input_still_does(model):
    def writes(x):
        x.add_(1)
        return x * 1

    x = X.clone()
    found, report = rewritten(writes, x)
    assert torch.equal(x, X + 1)
    assert torch.equal(found, x)
    assert report.left_alone == ""


@torch.library.custom_op("udftorch_tests::half_of", mutates_args=())
def half_of(x: torch.Tensor) -> torch.Tensor:
    return x / 2


@half_of.register_fake
def _(x):
    return torch.empty_like(x)


def breaks(x):
    return x.sin() if x.sum() > 0 else x.cos()


LEFT_ALONE = {
    "custom operator": (lambda x: half_of(x) * 1, r"half_of\.default is a custom operator"),
    "control flow": (breaks, "Dynamo had to break the graph behind it: generic_jump"),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_strict_makes_an_error_of_what_is_left_alone(name):
    function, why = LEFT_ALONE[name]
    assert torch.equal(compiled(function)(X), function(X))
    torch.compiler.reset()
    with pytest.raises(Exception, match=why) as error:
        compiled(function, strict=True)(X)
    assert "RewriteError" in repr(error.value) + str(error.value)


def test_gradients_leave_the_graph_alone(model):
    with torch.enable_grad(), recording() as reports:
        compiled(model)(X)[0].sum().backward()
    assert model.conv.weight.grad is not None
    assert {r.left_alone for r in reports} == {
        "gradients are wanted; call it under torch.no_grad()"
    }


def test_sizes_that_are_symbols_leave_the_graph_alone(model):
    call = torch.compile(model, backend="udf_templates", dynamic=True)
    with recording() as reports:
        torch.testing.assert_close(call(X), model(X))
    assert all("sizes are symbols" in r.left_alone for r in reports)
    assert reports


def wrong(scale):
    """A rewriter whose graph is off by a factor."""

    def rewriter(graph, inputs, held, report, deadline):
        for node in graph.graph.nodes:
            if graphs.packet_name(node) == "tanh":
                with graph.graph.inserting_after(node):
                    new = graph.graph.call_function(torch.ops.aten.mul.Tensor, (node, scale))
                node.replace_all_uses_with(new, lambda user, new=new: user is not new)
        graphs.propagate(graph)
        return backends.Candidate(graph, exact=False, fold=True)

    return lambda module, examples: backends.compile_graph(
        "wrong", rewriter, module, examples, backends.Terms(gain=0)
    )


@pytest.mark.parametrize("scale", [1.001, 1.00001])
def test_a_wrong_graph_never_runs(model, scale):
    with recording() as reports:
        found = torch.compile(model, backend=wrong(scale), dynamic=False)(X)
    assert all(map(torch.equal, found, model(X)))
    assert "does not pass its check: an output" in reports[0].left_alone


def test_a_rewriter_that_fails_leaves_the_graph_alone(model):
    def fails(*_):
        raise ZeroDivisionError("on purpose")

    with recording() as reports:
        found = torch.compile(
            model, backend=lambda m, e: backends.compile_graph("fails", fails, m, e), dynamic=False
        )(X)
    assert all(map(torch.equal, found, model(X)))
    assert reports[0].left_alone == "rewriting failed: ZeroDivisionError: on purpose"


def test_shuffled_inputs_keep_weights_and_whole_numbers():
    given = [torch.arange(9.0), torch.arange(9.0), torch.arange(9)]
    mixed, weight, whole = check.shuffled(given, {1})
    assert not torch.equal(mixed, given[0])
    assert torch.equal(mixed.sort().values, given[0])
    assert weight is given[1]
    assert whole is given[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"templates": "cs"}, "There is no template 'cs'. Did you mean 'cse'?"),
        ({"template": "cse"}, "udf_templates has no option 'template'. Did you mean 'templates'"),
    ],
)
def test_unknown_options_are_named(model, options, message):
    with pytest.raises(Exception, match=message):
        compiled(model, **options)(X)


def test_it_is_an_executor_of_a_pair(model):
    pair = model_pair(model, X, ["udf_templates"])
    pair.check()
    assert pair.failures == {}


def test_autocast_and_half(model):
    with torch.autocast("cpu", torch.bfloat16), recording() as reports:
        found, _ = compiled(model)(X)
        wanted, _ = model(X)
    assert found.dtype == wanted.dtype
    assert reports[0].left_alone == ""
    torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.5)


@pytest.mark.slow
def test_fusion_compiles_what_is_left(model):
    found, report = rewritten(model, X, templates=["conv_bn", "fold", "fusion"])
    torch.testing.assert_close(found, model(X))
    assert report.left_alone == ""


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 1, x.relu()),
        lambda x: x.permute(1, 0) + torch.zeros(1),
        lambda x: (x.relu(), x.relu() - 0),
    ],
)
def test_what_inductor_would_not_compute_has_memory_of_its_own(function):
    """It returns x for ``x * 1``, and one result for two."""
    x = torch.randn(6, 6)
    found, report = rewritten(function, x, templates=["fusion"])
    assert report.left_alone == ""
    wanted = function(x)
    found, wanted = (v if isinstance(v, tuple) else (v,) for v in (found, wanted))
    assert all(map(torch.equal, found, wanted))
    places = {t.untyped_storage().data_ptr() for t in (x, *found)}
    assert len(places) == 1 + len(found)
