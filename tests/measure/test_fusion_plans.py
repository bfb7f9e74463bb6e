# SPDX-License-Identifier: Apache-2.0
"""Fusion plans by cost: what is fused, what the plans count, and what kernels compute."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import pytest_udftorch
from pytest_udftorch import measure
from pytest_udftorch.errors import RewriteError
from pytest_udftorch.measure import model_pair, recording
from pytest_udftorch.measure.rewrite.fusion import kernels, loops
from pytest_udftorch.measure.rewrite.fusion.plans import Planner


@pytest.fixture(autouse=True)
def fresh():
    torch.compiler.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def fused(function, *inputs, **options):
    compiled = torch.compile(
        function, backend="udf_fusion", dynamic=False, options={"gain": 0, **options}
    )
    with recording() as reports:
        found = compiled(*inputs)
    (report,) = reports
    assert report.left_alone == ""
    report.fired = [f for f in report.fired if f.rule[0].isupper()]  # without templates of torch
    return compiled, found, report


def l2svm(w, x, d, y, step):
    """The inner loop of L2SVM's line search: gradient and curvature along a direction."""
    out = 1 - y * (x @ w + step * d)
    kept = out * (out > 0)
    return (kept * y * d).sum(), (d * d * (out > 0)).sum()


N = 64
L2SVM = (
    torch.randn(5), torch.randn(N, 5), torch.randn(N), torch.randn(N).sign(), torch.tensor(0.3)
)  # fmt: skip


def test_sums_over_the_same_elements_are_one_pass():
    _, found, report = fused(l2svm, *L2SVM)
    for mine, wanted in zip(found, l2svm(*L2SVM), strict=True):
        torch.testing.assert_close(mine, wanted)
    assert [f.rule for f in report.fired] == ["MultiAggregate"]
    # The product with the matrix is all that is left of the vectors between.
    assert (report.before.intermediates, report.after.intermediates) == (12, 1)


M, COLUMN = torch.randn(N, 6), torch.rand(N, 1)
CHAINS = [
    (lambda x, w, v: x.T @ (w * (x @ v)), (M, torch.rand(N), torch.randn(6))),
    (lambda x, w, v: x.T @ (w * (x @ v)), (M, COLUMN, torch.randn(6, 1))),
    (lambda x, w, v: x.T @ (x @ v), (M, COLUMN, torch.randn(6))),
    (lambda x, y, v: x.T @ (torch.sigmoid(x @ v) - y), (M, torch.rand(N), torch.randn(6))),
    (lambda x, y, v: x.T @ torch.where(y > 0.5, x @ v, x @ v * 2), (M, torch.rand(N), M[0])),
    (lambda x, s, v: x.T @ (s * (x @ v)), (M, torch.tensor(2.0), torch.randn(12)[::2])),
]  # fmt: skip


@pytest.mark.parametrize(("function", "given"), CHAINS)
def test_a_matrix_of_a_chain_is_read_once(function, given):
    """SystemDS' MMCHAIN, in the forms of its loops: weighted, plain, with a link, minus labels."""
    _, found, report = fused(function, *given)
    torch.testing.assert_close(found, function(*given), rtol=1e-5, atol=1e-4)
    assert [f.rule for f in report.fired] == ["MMChain"]
    assert report.after.kernels == 1
    matrix = M.numel() * M.element_size()
    assert report.before.bytes_moved >= 2 * matrix > report.after.bytes_moved >= matrix


def test_what_is_no_chain_is_left():
    """A product that others read, another matrix, one that lies in columns, several vectors."""
    other = torch.randn(N, 6)
    for function, given in (
        (lambda x, v: ((x @ v) * 2, x.T @ ((x @ v) * 2)), (M, torch.randn(6))),
        (lambda x, y, v: y.T @ (2 * (x @ v)), (M, other, torch.randn(6))),
        (lambda x, v: x.T @ (2 * (x @ v)), (torch.randn(6, N).T, torch.randn(6))),
        (lambda x, v: x.T @ (2 * (x @ v)), (M, torch.randn(6, 2))),
        (lambda x, v: x.T @ ((x @ v) / (x @ v).sum()), (M, torch.rand(6))),
    ):
        torch.compiler.reset()
        _, found, report = fused(function, *given)
        pairs = zip(found, function(*given), strict=True)
        for mine, wanted in pairs:
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4)
        assert "MMChain" not in {f.rule for f in report.fired}


def test_the_allocator_sees_no_vector_between():
    """Poisson factorisation: eager mode allocates each intermediate, the kernel none."""

    def poisson(x, a, b):
        return (x * torch.log(a * b + 1e-3) - a * b).sum()

    given = [torch.rand(1000, 1000) for _ in range(3)]

    def allocated(function):
        with torch.profiler.profile(profile_memory=True) as seen:
            function(*given)
        return max(e.self_cpu_memory_usage for e in seen.events() if e.name != "[memory]")

    compiled, found, report = fused(poisson, *given)
    torch.testing.assert_close(found, poisson(*given))
    assert [f.rule for f in report.fired] == ["Cell"]
    assert report.after.intermediate_bytes == 0
    assert allocated(poisson) >= 4_000_000
    assert allocated(compiled) < 1000


def loss(x, u, v):
    return (x * torch.log(u @ v.T + 1e-3)).sum()


def test_a_product_is_computed_where_its_factor_is_not_zero(monkeypatch):
    x = torch.rand(40, 30) * (torch.rand(40, 30) < 0.1)
    u, v = torch.rand(40, 4), torch.rand(30, 4)
    compiled, found, report = fused(loss, x, u, v, sparse=0.2)
    torch.testing.assert_close(found, loss(x, u, v))
    assert [f.rule for f in report.fired] == ["Outer"]
    assert report.after.flops < report.before.flops or "mm" not in report.pictures["after"].dot()
    # Rows that meet zeros alone are not read: NaN in them goes nowhere.
    x[3] = 0
    u[3] = torch.nan
    assert compiled(x, u, v).isfinite()
    assert loss(x, u, v).isnan()
    torch.compiler.reset()
    _, _, report = fused(loss, x[:3], u[:3], v)
    assert [f.rule for f in report.fired] == ["Cell"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_csr_inputs_are_computed_where_they_have_elements():
    x = torch.rand(40, 30) * (torch.rand(40, 30) < 0.1)
    u, v = torch.rand(40, 4), torch.rand(30, 4)
    stored, sparse = int((x != 0).sum()), x.to_sparse_csr()
    function = measure.fused(loss, strict=True)
    torch.testing.assert_close(function(sparse, u, v), loss(x, u, v))
    with pytest_udftorch.patched("corem", profile=True) as session, recording() as reports:
        first = function(sparse, u, v)
        assert [f.rule for f in reports[0].fired] == ["Outer"]
    before = logarithms(session.profile)
    with pytest_udftorch.patched("corem", profile=True) as session:
        assert torch.equal(function(sparse, u, v), first)
    assert logarithms(session.profile) == stored < before
    function = measure.fused(lambda x, u: (x * (u + 1)).exp().sum(), strict=True)
    with pytest.raises(RewriteError, match="used where its zeros count"):
        function(sparse, torch.rand(40, 30))
    loose = measure.fused(lambda x, u: (x * u).sum())
    torch.testing.assert_close(loose(sparse, torch.ones(40, 30)), x.sum())


def als(x, u, v):
    """The loss of a factorisation where x has elements, and both gradients."""
    e = (x != 0) * (torch.log(u @ v.T + 1) - x) ** 2
    return e.sum(), e @ v + 0.1 * u, e.T @ u


def outer_inputs(dtype=torch.float32):
    x = torch.rand(40, 30) * (torch.rand(40, 30) < 0.1)
    y = torch.rand(30, 40)
    return [t.to(dtype) for t in (x, torch.rand(40, 4), torch.rand(30, 4), y)]


def sparse_of(function, *given, sparse=1):
    """Return what a fused function gives, dense, and the names of its kernels."""
    with recording() as reports:
        found = measure.fused(function, strict=True)(
            *(t.to_sparse_csr() for t in given[:sparse]), *given[sparse:]
        )
    return found, [f.rule for f in reports[0].fired]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_loss_and_gradients_of_als_touch_what_is_stored():
    x, u, v, _ = outer_inputs()
    counts = []
    function = measure.fused(als, strict=True)
    for matrix in (x, x.to_sparse_csr()):
        function(matrix, u, v)  # compiles, and checks
        with pytest_udftorch.patched("corem", profile=True):
            function(matrix, u, v)
        with pytest_udftorch.patched("corem", profile=True) as session:
            found = function(matrix, u, v)
        counts.append(logarithms(session.profile))
    assert counts == [x.numel(), int((x != 0).sum())]
    for mine, wanted in zip(found, als(x, u, v), strict=True):
        torch.testing.assert_close(mine, wanted)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_elements_where_a_sparse_matrix_has_them_in_other_types():
    def elements(x, u, v, y):
        e = x * (u @ v.T)
        return e, y.T + e

    x, u, v, y = outer_inputs(torch.float64)
    found, rules = sparse_of(lambda x, u, v: x * (u @ v.T).exp(), x, u, v)
    assert (rules, found.layout) == (["Outer"], torch.sparse_csr)
    torch.testing.assert_close(found.to_dense(), x * (u @ v.T).exp())
    x, u, v, y = outer_inputs(torch.bfloat16)
    found, rules = sparse_of(lambda *given: elements(*given)[1], x, u, v, y)
    assert rules == ["Outer"]
    torch.testing.assert_close(found, elements(x, u, v, y)[1])
    # Weights that are sparse elsewhere than x.
    weights = (x.T.reshape(40, 30) != 0).to(x.dtype)
    weighted, rules = sparse_of(
        lambda w, x, u, v: (w * (x - u @ v.T) ** 2).sum(), weights, x, u, v, sparse=2
    )
    assert rules == ["Outer"]
    torch.testing.assert_close(weighted, (weights * (x - u @ v.T) ** 2).sum(), rtol=0.02, atol=0)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x, u, v: (x + u @ v.T).sum(), "used where its zeros count"),
        (lambda x, u, v: ((x == 0) * (u @ v.T)).sum(), "used where its zeros count"),
        (lambda x, u, v: torch.cat([x * (u @ v.T), u], 1), "would be sparse"),
        (lambda x, u, v: (x * (u @ v.T)) @ (v * (x * (u @ v.T)).sum()), "would be sparse"),
    ],
)  # fmt: skip
def test_sparse_matrices_are_refused_where_their_zeros_count(function, reason):
    with pytest.raises(RewriteError, match=reason):
        sparse_of(function, *outer_inputs()[:3])


def test_a_driver_that_is_dense_spares_products_in_a_dense_result():
    x, u, v, y = outer_inputs()
    compiled, _, report = fused(lambda x, u, v, y: y.T + x * (u @ v.T), x, u, v, y, sparse=0.2)
    assert [f.rule for f in report.fired] == ["Outer"]
    x[3], u[3] = 0, torch.nan
    assert torch.equal(compiled(x, u, v, y)[3], y[:, 3])


def logarithms(profile):
    return sum(row.elements for row in profile.rows("function") if row.key["function"] == "log")


def everything(x, y):
    total = x.exp().sum()
    a = (x.exp() / total).sqrt()
    b = torch.where(a > y, a.sigmoid(), torch.maximum(a, y).neg())
    return b.tanh() - y[:, :1], (b * 2).relu().log1p().abs(), a.sum() / b.sum()


def test_shapes_and_levels():
    given = torch.randn(7, 9), torch.randn(7, 9)
    _, found, report = fused(everything, *given)
    for mine, wanted in zip(found, everything(*given), strict=True):
        torch.testing.assert_close(mine, wanted)
    assert report.after.kernels < report.before.kernels
    assert "plans: " in report.notes[0]
    # Transposed, expanded and other inputs.
    torch.compiler.reset()
    given = torch.randn(9, 7).T, torch.randn(1, 9).expand(7, 9)
    _, found, _ = fused(everything, *given)
    for mine, wanted in zip(found, everything(*given), strict=True):
        torch.testing.assert_close(mine, wanted)


def test_types_and_results_that_lie_in_columns():
    def turned(x, y, c):
        a = (x.T + y.T) ** 2
        return a.exp() * c, a.amax(1), x @ (x.T @ c) * 2

    x, y, c = (t.to(torch.float64) for t in (torch.rand(5, 7), torch.rand(5, 7), torch.rand(5)))
    _, found, report = fused(turned, x, y, c)
    assert {"Row", "Cell"} >= {f.rule for f in report.fired} > set()
    for mine, wanted in zip(found, turned(x, y, c), strict=True):
        assert (mine.dtype, mine.stride()) == (wanted.dtype, wanted.stride())
        torch.testing.assert_close(mine, wanted)
    torch.compiler.reset()
    given = [t.bfloat16() for t in (x, y, c)]
    _, found, report = fused(lambda x, y, c: (x * 3.1 + y).relu() - c[:, None], *given)
    assert [f.rule for f in report.fired] == ["Cell"]
    # One rounding instead of three.
    wide = (given[0].float() * 3.1 + given[1].float()).relu() - given[2].float()[:, None]
    assert torch.equal(found, wide.bfloat16())


def logistic(x, b, y):
    """The gradient of multinomial logistic regression, and its loss."""
    p = torch.softmax(x @ b, 1)
    return x.T @ (p - y), -(y * torch.log(p + 1e-9)).sum()


def distances(x, c):
    """The step of k-means: distances, the nearest centres, and their sum."""
    d = (x * x).sum(1, keepdim=True) - 2 * (x @ c.T) + (c * c).sum(1)
    least = d.amin(1, keepdim=True)
    p = (d <= least) * 1.0
    return p / p.sum(1, keepdim=True), least.sum(), d.amax(1)


def test_sums_and_extremes_of_rows_are_one_pass_over_rows():
    x, b, y = torch.randn(31, 6), torch.randn(6, 5), torch.eye(5)[torch.randint(5, (31,))]
    _, found, report = fused(logistic, x, b, y)
    for mine, wanted in zip(found, logistic(x, b, y), strict=True):
        torch.testing.assert_close(mine, wanted)
    assert [f.rule for f in report.fired] == ["Row"]
    # The product, p - y, which the other product reads, and the sum before its sign changes.
    assert report.after.intermediates == 3 < report.before.intermediates
    torch.compiler.reset()
    compiled, found, report = fused(distances, x, b.T)
    for mine, wanted in zip(found, distances(x, b.T), strict=True):
        torch.testing.assert_close(mine, wanted)
    assert {f.rule for f in report.fired} == {"Row"}
    x[7] = torch.nan
    assert compiled(x, b.T)[2][7].isnan()
    assert compiled(x, b.T)[2].isnan().sum() == 1


def through_products(x, w):
    """Rows, a product, and rows again: two kernels, for the second waits for the product."""
    a = torch.softmax(x, 1)
    b = torch.log_softmax(a @ w, -1)
    c = (a * b).sum(1)
    return c * c, b.exp(), c.unsqueeze(1) * a


def test_a_kernel_never_waits_for_what_waits_for_it():
    x, w = torch.randn(6, 6), torch.randn(6, 6)
    _, found, report = fused(through_products, x, w)
    for mine, wanted in zip(found, through_products(x, w), strict=True):
        torch.testing.assert_close(mine, wanted)
    assert [f.rule for f in report.fired] == ["Row", "Row"]


def test_branch_and_bound_finds_the_cheapest_plan():
    seen = []

    def backend(module, examples):
        seen.append(module)
        return module.forward

    def shared(x):
        a = x.exp()
        b = a * a.sum()
        c = b.sin() + a
        d = c / c.sum() + b
        return d / d.sum() - c

    from pytest_udftorch.base import compat

    wrapped = compat.aot_backend(
        backend_of := (lambda g, e: compat.boxed(backend(g, e))), backend_of
    )
    torch.compile(shared, backend=wrapped, dynamic=False)(torch.randn(300, 300))
    planner = Planner(seen[0].graph)
    plan = planner.best()
    costs = [
        sum(k.cost_ns() for k in planner.kernels(chosen))
        for r in range(len(planner.choices) + 1)
        for chosen in itertools.combinations(planner.choices, r)
    ]
    assert plan.enumerated == len(costs) == plan.evaluated + plan.pruned
    assert plan.cost_ns == min(costs) < max(costs)


@pytest.mark.parametrize("library", ["corem", "canary"])
def test_the_functions_inside_are_the_sessions(library):
    x = torch.rand(3, 50) * 4 + 0.5
    function = torch.compile(
        lambda x: x.exp() * 1.5, backend="udf_fusion", dynamic=False, options={"gain": 0}
    )
    stock = function(x)
    with pytest_udftorch.patched(library), recording() as reports:
        mine, wanted = function(x), torch.exp(x) * 1.5
    (report,) = reports
    assert (report.left_alone, [f.rule for f in report.fired]) == ("", ["Cell"])
    assert torch.equal(mine, wanted)
    assert not torch.equal(wanted, torch.exp(x) * 1.5)
    assert torch.equal(function(x), stock)


def test_kernels_hold_no_operator_that_a_session_computes_itself(tmp_path):
    (tmp_path / "udf.toml").write_text(
        '[library]\nname = "logs"\nversion = "1"\n\n[operators."aten::log.out"]\n'
        'python = "logs.py"\nfunction = "log"\n'
    )
    (tmp_path / "logs.py").write_text(
        "import torch\n\n\ndef log(self, *, out):\n    return out.copy_(self * 0 + 7)\n"
    )
    with pytest_udftorch.patched(tmp_path), recording() as reports:
        torch.compile(lambda x: x.log().sqrt(), backend="udf_fusion", options={"gain": 0})(
            torch.rand(9)
        )
    assert not any("log" in f.where for f in reports[0].fired)


def test_strict_makes_an_error_of_what_is_left_alone():
    def broken(x):
        y = x.exp() * 2
        torch._dynamo.graph_break()
        return y.sqrt()

    strict = {"backend": "udf_fusion", "options": {"strict": True}}
    torch.compile(lambda x: x.exp() * 2, **strict)(torch.rand(3))
    with pytest.raises(RewriteError, match="Dynamo had to break the graph"):
        torch.compile(broken, **strict)(torch.rand(3))


def test_a_wrong_kernel_never_runs(monkeypatch):
    monkeypatch.setattr(
        loops, "expression", lambda node, names, real=loops.expression: real(node, names) + "*2"
    )
    x = torch.rand(10)
    compiled = torch.compile(lambda x: x.exp().sum(), backend="udf_fusion", dynamic=False)
    with recording() as reports:
        assert torch.equal(compiled(x), x.exp().sum())
    assert "does not pass its check" in reports[0].left_alone


@pytest.mark.slow
def test_inductor_writes_the_kernels_of_a_plan_too(monkeypatch):
    """What runs for GPUs, here with Inductor's C++: the kernels stay those of the plan."""
    monkeypatch.setattr(kernels, "on_gpu", lambda kernel: True)
    x, b, y = torch.randn(31, 6), torch.randn(6, 5), torch.eye(5)[torch.randint(5, (31,))]
    for function, given, rules in [
        (logistic, (x, b, y), ["Row"]), (l2svm, L2SVM, ["MultiAggregate"]),
    ]:  # fmt: skip
        torch.compiler.reset()
        compiled, found, report = fused(function, *given)
        for mine, wanted in zip(found, function(*given), strict=True):
            torch.testing.assert_close(mine, wanted)
        assert [f.rule for f in report.fired] == rules
        for mine, wanted in zip(compiled(*given), function(*given), strict=True):
            torch.testing.assert_close(mine, wanted)


def test_it_is_an_executor_of_a_pair():
    pair = model_pair(
        nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval(), torch.randn(2, 4), ["udf_fusion"]
    )
    pair.check()
    assert pair.failures == {}
