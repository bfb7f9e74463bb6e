# SPDX-License-Identifier: Apache-2.0
"""Substitutions: generated, proved or rejected by name, and searched through."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import journals
import pytest
import torch
from torch import nn

from pytest_udftorch.errors import JournalError, PackageMissingError, RewriteError
from pytest_udftorch.measure import generate_rules, judge_rule, judge_rules, read_rules, recording
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.deadline import NEVER
from pytest_udftorch.measure.rewrite.taso import generator, scale, search
from pytest_udftorch.measure.rewrite.taso import rules as rules_module
from pytest_udftorch.measure.rewrite.taso.backend import rules_of
from pytest_udftorch.measure.rewrite.taso.emitted import emit, write_rules
from pytest_udftorch.measure.rewrite.taso.generator import equal
from pytest_udftorch.measure.rewrite.taso.language import (
    OPERATORS,
    canonical,
    kind,
    ordered,
    parse,
    show,
    variables,
    work,
)
from pytest_udftorch.measure.rewrite.taso.rules import (
    RULES,
    Proof,
    Prover,
    Rule,
    axioms,
    by_numbers,
    checked,
)
from pytest_udftorch.measure.rewrite.taso.search import Costs

pytest.importorskip("z3", reason="z3-solver is not installed")


def term(text):
    return parse(text)


@pytest.fixture(scope="module")
def generated():
    return generate_rules(2)


@pytest.fixture(scope="module")
def brief():
    return Prover()


def test_the_language_has_twelve_operators_of_aten():
    assert len({o.aten for o in OPERATORS.values()}) >= 12


def test_each_axiom_holds():
    for left, right in axioms():
        how, why = by_numbers(left, right)
        assert how, f"{show(left)} = {show(right)}: {why}"


def test_generation_narrows_candidates_and_finds_known_rules(generated):
    candidates, funnel = generated
    counts = list(funnel.document().values())[1:7]
    assert counts[2] > counts[3] > counts[4]
    assert counts == sorted(counts, reverse=True)
    assert funnel.enumerated > 2000
    assert funnel.after_common_subgraphs == len(candidates)
    shown = {(show(left), show(right)) for left, right in candidates}
    assert {("(t (t a))", "a"), ("(neg (neg a))", "a"), ("(relu (relu a))", "(relu a)")} <= shown
    assert ("(front (channels i j))", "i") in shown
    # An instance of another pair is left out.
    assert ("(front (channels i i))", "i") not in shown
    assert all(kind(left) == kind(right) for left, right in candidates)
    assert str(funnel).endswith("not proved")


def test_what_follows_from_smaller_pairs_is_left_out():
    pairs = [("(add (neg a) b)", "(sub b a)"), ("(add a (neg b))", "(sub a b)"),
             ("(neg (sub a b))", "(sub b a)"), ("(relu (neg (neg a)))", "(relu a)")]  # fmt: skip
    named = dict.fromkeys((term(left), term(right)) for left, right in pairs)
    smaller = generator._Smaller()
    # Negative control: without smaller pairs nothing follows.
    assert generator._independent(named, smaller, 2) == list(named)
    smaller.add([(term("(add a b)"), term("(add b a)"))])
    shown = [show(left) for left, _ in generator._independent(named, smaller, 2)]
    assert shown == ["(add a (neg b))", "(neg (sub a b))", "(relu (neg (neg a)))"]
    # What a rule makes smaller is known, as far as equal terms are.
    smaller.add([(term("(relu (neg a))"), term("(neg (min a (sub a a)))"))])
    smaller.equal[term("(neg (neg a))")] = "a"
    assert set(smaller.reached(term("(add (neg (neg a)) b)"), 3)) == {(term("(add b a)"), 1)}
    assert list(smaller.reached(term("(mul a b)"), 3)) == []
    # Terms with more operators than those looked at lead nowhere.
    assert list(smaller.reached(term("(relu (neg b))"), 2)) == []
    assert list(smaller.reached(term("(relu (neg b))"), 3)) == [
        (term("(neg (min b (sub b b)))"), 3)
    ]


def test_each_pair_that_is_left_out_follows_from_those_that_are_kept(generated):
    """z3 derives the pairs of two operators from the candidates; without these it does not."""
    kept = [pair for pair in generated[0] if equal(*pair, 16)]
    found, _ = generator.pairs(2)
    named = {
        canonical(left, right): None
        for left, right in found
        if set(variables(right)) <= set(variables(left)) and equal(left, right, 16)
    }
    # That a - a is b - b is a pair, but no candidate: neither side can be made of the other.
    out = [p for p in sorted(set(named) - set(kept), key=str)[::8] if "(sub a a)" not in show(p[0])]
    assert len(out) > 20
    prover = Prover(known=kept)
    assert [pair for pair in out if not prover.proves(*pair)] == []
    none = Prover(known=[])
    assert not any(none.proves(*pair) for pair in out)


def test_three_operators_find_the_rules_of_the_paper():
    family = generator.Family(
        "some", ("add", "conv", "channels", "outputs", "both"), {"I": "i", "K": "kl", "P": "xy"}, 3
    )
    candidates, _ = generate_rules(3, family)
    shown = {f"{show(left)} => {show(right)}" for left, right in candidates}
    added = "(conv i (add k l) (add x y)) => (add (conv i k x) (conv i l y))"
    assert added in shown
    joined = "(channels (conv i k x) (conv i l y)) => (conv i (outputs k l) (both x y))"
    assert joined in shown


def test_a_coincidence_of_fingerprints_is_refuted(generated):
    """Some matrix drawn for a lies below |b| everywhere, so that fingerprints agree."""
    pair = (term("(min a (abs b))"), "a")
    assert pair in generated[0]
    proof = judge_rule(*pair)
    assert (proof.holds, proof.by_axioms, proof.by_numbers) == (False, False, "")
    assert "differ on one of 64 sets" in proof.why


PAIRS = [
    ("(t (t a))", "a"), ("(neg (neg a))", "a"), ("(mm a b)", "(mm b a)"), ("(relu a)", "a"),
]  # fmt: skip


def test_a_proof_does_not_depend_on_those_before_it_and_ends():
    """With the instances of earlier proofs, one of these came to no end."""
    known = term("(t (t a))"), "a"
    endless = term("(min a (sub a b))"), term("(sub a (relu b))")
    prover = Prover(20_000)
    for _ in range(3):
        assert prover.proves(*known)
        assert not prover.proves(*endless)


@pytest.mark.slow
def test_many_are_judged_in_other_processes_and_once(tmp_path, monkeypatch):
    candidates = [(term(left), parse(right)) for left, right in PAIRS]
    journal = tmp_path / "proofs.journal"
    proofs = judge_rules(candidates, journal=journal, workers=1)
    assert [proof.holds for proof in proofs] == [True, True, False, False]
    assert "box test finds them different" in proofs[2].why
    # What was being written when a run ended is judged again; the rest is not.
    head, first, *others = journals.payloads(journal)
    assert len(others) == 3
    assert first["by_numbers"] == "box test"
    changed = {**first, "by_numbers": "of the journal"}
    journal.write_bytes(journals.text([head, changed, *others])[:-20])
    asked = []
    monkeypatch.setattr(
        scale,
        "_on_cores",
        lambda tasks, _: asked.append(tasks) or enumerate(map(scale._judged, tasks)),
    )
    again = judge_rules(candidates, journal=journal)
    assert asked == [[[candidates[3]]]]
    assert [proof.holds for proof in again] == [True, True, False, False]
    assert again[0].by_numbers == "of the journal"
    head["run"]["axioms"] = "other"
    journal.write_bytes(journals.text([head]))
    with pytest.raises(JournalError, match="is not a journal of judgements with these axioms"):
        judge_rules(candidates, journal=journal)


@pytest.mark.slow
def test_a_dask_cluster_judges_the_same():
    distributed = pytest.importorskip("distributed", reason="dask is not whole")
    candidates = [(term(left), parse(right)) for left, right in PAIRS]
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        proofs = judge_rules(candidates, scheduler=cluster.scheduler_address)
    assert [proof.holds for proof in proofs] == [True, True, False, False]


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    distributed = pytest.importorskip("distributed", reason="dask is not whole")
    pair = (term("(t (t a))"), "a")
    real = distributed.Client
    monkeypatch.setattr(distributed, "Client", lambda where, timeout: real(where, timeout="0.2s"))
    with pytest.raises(RewriteError, match=r"No dask scheduler answers at 'tcp://127\.0\.0\.1:1'"):
        judge_rules([pair], scheduler="tcp://127.0.0.1:1")


def test_measured_times_are_kept_for_the_next_search(tmp_path):
    journal = tmp_path / "times.journal"
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = torch.rand(30, 30)
    node = graph.call_function(torch.ops.aten.exp.default, (x,))
    node.meta["val"] = x.meta["val"]
    took = Costs(journal=journal).of_node(node)
    assert took > 0
    head, line = journals.payloads(journal)
    kept = Costs(journal=journal)
    assert list(kept.known.values()) == [took]
    assert kept.of_node(node) == took
    assert len(journals.payloads(journal)) == 2
    other = {**line, "where": line["where"].replace("torch ", "another torch ")}
    journal.write_bytes(journals.text([head, other, line])[:-30])
    assert Costs(journal=journal).known == {}


def test_the_judges_of_a_rule():
    proof = judge_rule(term("(mm (t a) (t b))"), term("(t (mm b a))"))
    assert (proof.holds, proof.by_numbers) == (True, "box test")
    proof = judge_rule(term("(relu (relu a))"), term("(relu a)"))
    assert (proof.holds, proof.by_numbers) == (True, "trials")
    wrong = judge_rule(term("(mm a b)"), term("(mm b a)"))
    assert (wrong.holds, wrong.by_axioms) == (False, False)
    assert "box test finds them different in output 0[" in wrong.why


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("(mm a b)", "(mm b a)"),
        ("(conv i k x)", "(conv i l x)"),
        ("(conv i k x)", "(conv i k y)"),
        ("(conv i (ungroup q) x)", "(gconv i r x)"),
        ("(front s)", "(back s)"),
        ("(relu (neg a))", "(neg (relu a))"),
        ("(sub a b)", "(sub b a)"),
        ("a", "b"),
    ],
)
def test_the_axioms_prove_nothing_wrong(brief, left, right):
    assert not brief.proves(term(left), term(right))


def test_what_z3_cannot_derive_is_not_proved(monkeypatch):
    monkeypatch.setattr(rules_module, "axioms", lambda: [])
    proof = judge_rule(term("(t (t a))"), "a", Prover(300))
    assert (proof.holds, proof.by_numbers) == (False, "box test")
    assert proof.why == "z3 does not derive it from the axioms"


#: Rules that were written by hand before the generator emitted them, and those of the paper.
BY_HAND = """
(add (mm a b) (mm a c)) => (mm a (add b c))
(add (mm a b) (mm c b)) => (mm (add a c) b)
(sub (mm a b) (mm a c)) => (mm a (sub b c))
(columns (mm a b) (mm a c)) => (mm a (columns b c))
(rows (mm a b) (mm c b)) => (mm (rows a c) b)
(add (mm a b) (mm c d)) => (mm (columns a c) (rows b d))
(add (linear a b u) (linear a c v)) => (linear a (add b c) (add u v))
(mm (t a) (t b)) => (t (mm b a))
(mm (mm a b) c) => (mm a (mm b c))
(mm a (mm b c)) => (mm (mm a b) c)
(channels (conv i k x) (conv i l y)) => (conv i (outputs k l) (both x y))
(add (conv i k x) (conv i l y)) => (conv i (add k l) (add x y))
(add (conv i k x) (conv j k y)) => (conv (add i j) k (add x y))
(add (conv i k x) (conv j l y)) => (conv (channels i j) (inputs k l) (add x y))
(add (conv i k x) (point i o y)) => (conv i (add k (enlarge o)) (add x y))
(channels (conv i k x) (point i o y)) => (conv i (outputs k (enlarge o)) (both x y))
(gconv i q x) => (conv i (ungroup q) x)
(add (gconv i q x) (gconv i r y)) => (gconv i (add q r) (add x y))
(add a (neg b)) => (sub a b)
(add (mul a b) (mul a c)) => (mul a (add b c))
(rows (relu a) (relu b)) => (relu (rows a b))
(columns (relu a) (relu b)) => (relu (columns a b))
(channels (relu i) (relu j)) => (relu (channels i j))
(relu (front s)) => (front (relu s))
(relu (back s)) => (back (relu s))
(channels (front s) (back s)) => s
(add (add a b) c) => (add a (add b c))
"""


def test_the_emitted_rules_hold_what_was_written_by_hand():
    """Each itself, or one that leaves as little to compute."""
    rules = read_rules(RULES)
    emitted = {}
    for rule in rules:
        if len(rule.roots) == 1:
            left, right = canonical(*map(ordered, rule.roots[0]))
            emitted.setdefault(show(left), []).append((show(right), work(right)))
    for line in BY_HAND.strip().splitlines():
        left, right = canonical(*(ordered(term(side)) for side in line.split("=>")))
        found = emitted.get(show(left), [])
        assert any(show(right) == text or work(right) >= less for text, less in found), line
    several = [rule for rule in rules if len(rule.roots) > 1]
    assert {"mm", "linear", "conv", "point"} <= {left[0] for r in several for left, _ in r.roots}
    assert len({rule.name for rule in rules}) == len(rules)


def test_rules_that_are_shipped_are_proved():
    """Every twentieth, and all with several roots; the slow test emits all of them anew."""
    rules = rules_of(RULES)
    some = [rule for n, rule in enumerate(rules) if n % 20 == 0 or len(rule.roots) > 1]
    assert len(checked(some)) > 30


@pytest.mark.slow
def test_the_shipped_rules_are_those_that_are_emitted_and_proved(tmp_path):
    rules, emissions = emit(judge_rules)
    assert [e.funnel.verified > 0 for e in emissions] == [True] * len(generator.FAMILIES)
    write_rules(rules, tmp_path / "rules.txt")
    assert (tmp_path / "rules.txt").read_text() == RULES.read_text()


def test_emission_counts_and_keeps_what_the_judges_accept():
    family = generator.Family("small", ("mm", "columns", "relu"), {"M": "abc"}, 3)
    rules, (emission,) = emit(lambda pairs: [judge_rule(*pair) for pair in pairs], [family])
    shown = [str(rule).split(": ")[1] for rule in rules]
    assert "(columns (mm a b) (mm a c)) => (mm a (columns b c))" in shown
    assert (
        "(mm a b) | (mm a c) => (left (mm a (columns b c))) | (right (mm a (columns b c)))" in shown
    )
    assert emission.kept == len(rules) <= emission.candidates + emission.several_roots
    assert emission.several_roots >= 1
    assert str(emission).startswith("rules of small")
    # Negative control: judges that accept nothing.
    none, (empty,) = emit(lambda pairs: [Proof(False, "") for _ in pairs], [family])
    assert (none, empty.kept, empty.funnel.verified) == ([], 0, 0)


UNSOUND = "wrong_turn: (mm a b) => (mm b a)\n"


def test_an_unsound_rule_is_rejected_by_name(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("fine: (t (t a)) => a\n" + UNSOUND)
    with pytest.raises(RewriteError, match=r"rule 'wrong_turn' is not sound: the box test finds"):
        checked(read_rules(path))
    options = {"rules": str(path), "gain": 0}
    # Graphs that are left alone, for symbolic sizes or for gradients, are no exception.
    for dynamic, gradients in [(False, False), (True, False), (False, True)]:
        torch.compiler.reset()
        model = nn.Linear(3, 3)
        compiled = torch.compile(model, backend="udf_taso", dynamic=dynamic, options=options)
        message = "'wrong_turn' is not sound"
        with torch.set_grad_enabled(gradients), pytest.raises(RewriteError, match=message):
            compiled(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(t (t a)) => a", "line 1: .* has no name"),
        ("x: (t (t a)) = a", "not two terms with '=>'"),
        ("x: (tt a) => a", r"no operator 'tt'. Did you mean 't'"),
        ("x: (t (t a) => a", "a parenthesis is not closed"),
        ("x: (t a)) => a", "is left over"),
        ("x: (mm a k) => a", "mm takes M M or .*, not M K"),
        ("x: (mm a b) => (conv i k x)", "different kinds, M and I"),
        ("x: (t A) => a", "'A' is not a variable"),
        ("x: (mm a b) | (mm a c) => (mm a b)", "replaces 2 roots by 1"),
        ("x: (mm a b) | c => (mm a b) | c", "the left side of 'x' must be an operator"),
        ("x: (sub a a) => (sub b b)", "b is missing"),
        ("x: (neg (neg a)) => a\nx: (t (t a)) => a", "line 2: there is a rule 'x' already"),
    ],
)
def test_a_wrong_file_names_its_line(tmp_path, text, message):
    path = tmp_path / "mine.txt"
    path.write_text(text)
    with pytest.raises(RewriteError, match=message):
        read_rules(path)
    with pytest.raises(RewriteError, match="cannot be read"):
        read_rules(tmp_path / "none.txt")


def test_without_z3_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "z3", None)
    with pytest.raises(PackageMissingError, match=r"pytest_udftorch\[rewrite\]'.* z3-solver"):
        Prover()


class Branches(nn.Module):
    """Branches that TASO merges: convolutions of one image, products of one matrix."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abc":
            setattr(self, name, nn.Conv2d(4, 4, 3, padding=1, bias=False))
        self.w, self.v = (nn.Parameter(torch.randn(24, 24) / 5) for _ in range(2))

    def forward(self, x, y):
        return torch.cat([self.a(x) + self.b(x), self.c(x)], 1), y @ self.w + y @ self.v


@pytest.mark.parametrize("search", ["backtracking", "egraph"])
def test_both_searches_merge_branches(search, cheap):
    if search == "egraph":
        pytest.importorskip("egglog", reason="egglog is not installed")
    torch.manual_seed(0)
    torch.compiler.reset()
    model, x, y = Branches().eval(), torch.randn(2, 4, 12, 12), torch.randn(16, 24)
    compiled = torch.compile(
        model, backend="udf_taso", dynamic=False, options={"search": search, "gain": 0}
    )
    with torch.no_grad(), recording() as reports:
        found = compiled(x, y)
        model.a.weight.mul_(3)
        again = compiled(x, y)
        for mine, wanted in zip(again, model(x, y), strict=True):
            torch.testing.assert_close(mine, wanted)
        model.a.weight.div_(3)
        for mine, wanted in zip(found, model(x, y), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)
    (report,) = reports
    assert report.left_alone == ""
    assert report.before.kernels == 8
    assert report.after.kernels < 8
    assert report.own
    assert report.after.flops < report.before.flops
    assert report.notes[0].startswith(f"{search}: ")


def optimised(model, *inputs, **options):
    """Return the report of udf_taso on a model, whose results are those of the model."""
    torch.compiler.reset()
    given = {"gain": 0, **options}
    compiled = torch.compile(model, backend="udf_taso", dynamic=False, options=given)
    with torch.no_grad(), recording() as reports:
        found, wanted = compiled(*inputs), model(*inputs)
    far = 1e-4 if inputs[0].dtype == torch.float32 else 0.1
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs, rtol=far, atol=far)
    (report,) = reports
    assert report.left_alone == ""
    return report


class Merged(nn.Module):
    """Convolutions of one image, with norms and activations behind them."""

    def __init__(self, kernels, joined, norm=True):
        super().__init__()
        self.joined = joined
        self.convolutions = nn.ModuleList(
            nn.Conv2d(4, 4, kernel, padding=kernel // 2, bias=not norm) for kernel in kernels
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) if norm else nn.Identity() for _ in kernels)

    def forward(self, x):
        parts = [n(c(x)) for n, c in zip(self.norms, self.convolutions, strict=True)]
        return (
            sum(parts[1:], parts[0])
            if self.joined == "add"
            else torch.cat([part.relu() for part in parts], 1)
        )


class Products(nn.Module):
    """Query, key and value."""

    def __init__(self, bias, count=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8, bias=bias) for _ in range(count))

    def forward(self, x):
        first, *others = (layer(x) for layer in self.layers)
        return sum((first.tanh() * other for other in others), first)


class Batched(nn.Module):
    """Two products of matrices in a batch."""

    def __init__(self):
        super().__init__()
        self.w, self.v = (nn.Parameter(torch.randn(3, 8, 8)) for _ in range(2))

    def forward(self, x):
        return (x @ self.w).tanh() * (x @ self.v)


X, Y = torch.randn(1, 4, 8, 8), torch.randn(2, 5, 8)
FOUND = [
    (Merged((3, 3), "cat"), X, {"conv-and-conv", "channels-conv"}, 2),
    (Merged((3, 3, 3), "cat"), X, {"conv-and-conv", "channels-conv"}, 3),
    (Merged((1, 3), "add"), X, {"add-conv-point"}, 1),
    (Merged((3, 5), "add", norm=False), X, {"add-conv-point"}, 1),
    (Merged((1, 3), "cat"), X, {"conv-point", "point-conv", "conv-and-point", "point-and-conv"}, 3),
    (Products(bias=True, count=2), Y, {"linear-and-linear"}, 4),
    (Products(bias=True), Y, {"linear-and-linear"}, 6),
    (Products(bias=False), Y[0], {"mm-and-mm", "linear-and-linear"}, 6),
    (Batched(), torch.randn(3, 4, 8), {"mm-and-mm"}, 3),
]  # fmt: skip


@pytest.mark.parametrize(("model", "x", "names", "kernels"), FOUND)
def test_the_merges_of_the_papers_are_found(model, x, names, kernels, cheap):
    report = optimised(model.eval(), x)
    assert any(any(name in rule for name in names) for rule in report.own), report.own
    assert report.after.kernels <= kernels


@pytest.fixture
def cheap(monkeypatch):
    """Costs that do not depend on the machine: a unit for each call, and its operations."""

    def measured(self, node, home):
        if "convolution" not in str(node.target) and "mm" not in str(node.target):
            return 1.0
        shape = node.meta["val"].shape
        summands = node.args[1].meta["val"][0].numel() if len(node.args) > 3 else shape[-1]
        return 100.0 + summands * node.meta["val"].numel() / 1e5

    monkeypatch.setattr(Costs, "_measured", measured)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_other_formats_are_matched(dtype, cheap):
    report = optimised(Merged((1, 3), "add", norm=False).eval().to(dtype), X.to(dtype))
    assert any("add-conv-point" in rule for rule in report.own)


class Strided(nn.Module):
    """Convolutions added: strided, in groups, of two images, in one dimension."""

    def __init__(self, stride=1, groups=1, rank=2, other=None):
        super().__init__()
        make = nn.Conv1d if rank == 1 else nn.Conv2d
        self.a = make(4, 4, 3, stride, padding=1, groups=groups)
        self.b = make(4, 4, 3, other or stride, padding=1, groups=groups)

    def forward(self, x):
        return self.a(x) + self.b(x)


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Strided(stride=2), X),
        (Strided(groups=2), X),
        (Strided(groups=4), X),
        (Strided(rank=1), torch.randn(2, 4, 9)),
        (Strided(stride=2, groups=2, rank=1), torch.randn(2, 4, 9)),
    ],
)
def test_strides_groups_and_one_dimension_are_matched(model, x, cheap):
    report = optimised(model.eval(), x)
    assert report.after.kernels == 1
    assert any(rule.startswith(("add-conv-conv", "add-gconv")) for rule in report.own)


def test_groups_are_merged_two_by_two(monkeypatch):
    def by_groups(self, node, home):
        return float(node.args[8]) if "convolution" in str(node.target) else 1.0

    monkeypatch.setattr(Costs, "_measured", by_groups)
    report = optimised(
        nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=8).eval(), torch.rand(2, 8, 9, 9)
    )
    assert report.own == {"gconv_to_conv-ungroup": 3}
    odd = optimised(nn.Conv2d(6, 6, 3, groups=3).eval(), torch.rand(1, 6, 9, 9))
    assert odd.own == {}


class Unlike(nn.Module):
    """What the rules do not hold for."""

    def __init__(self):
        super().__init__()
        self.grouped = nn.ModuleList(nn.Conv2d(6, 6, 3, groups=3) for _ in range(2))
        self.strides = nn.ModuleList(nn.Conv2d(6, 6, 3, s, padding=1) for s in (2, 3))
        self.paddings = nn.ModuleList(nn.Conv2d(6, 6, k) for k in (1, 3))
        self.shift = nn.Parameter(torch.randn(1, 6, 1, 1))

    def forward(self, x):
        joined = torch.cat([c(x) for c in self.grouped], 1)  # channels of groups do not lie so
        first, second = (c(x) for c in self.strides)
        small, large = (c(x) for c in self.paddings)
        return joined, first, second, small, large, x + self.shift


def test_shapes_to_which_a_rule_does_not_apply_are_left(cheap):
    """Channels of groups, other strides or paddings, broadcasting."""
    report = optimised(Unlike().eval(), torch.randn(1, 6, 8, 8))
    assert not any("conv-and-conv" in rule or "point-" in rule for rule in report.own)


def test_a_product_of_another_product_is_not_computed_beside_it(cheap):
    """x @ w @ w has one weight twice, and its roots depend on each other."""
    w = torch.randn(8, 8)
    report = optimised(lambda x: ((x @ w).tanh() @ w).tanh(), Y[0])
    assert not any("-and-" in rule for rule in report.own)


def test_a_search_ends_by_itself_and_says_so():
    """Two folded norms beside each other once took all of 100 graphs and a minute."""
    report = optimised(Merged((3, 3), "add").eval(), X, graphs=1000)
    found = re.match(r"backtracking: (\d+) graphs in .*, until no cheaper", report.notes[0])
    assert int(found[1]) < 40
    assert all(detail["before_ns"] > 0 for detail in report.details)
    cut = optimised(Merged((3, 3), "add").eval(), X, graphs=1)
    assert "until the limit of 1 graphs" in cut.notes[0]


def test_costs_that_go_up_and_down_again_end_a_path():
    """A graph as cheap as one on its path is no gain: of such there may be any number."""

    def longer(calls):
        graph = torch.fx.Graph()
        node = graph.placeholder("x")
        for _ in range(calls):
            node = graph.call_function(torch.ops.aten.relu.default, (node,))
            node.meta["val"] = torch.ones(2)
        graph.output(node)
        return graph

    class Endless(search._Search):
        def successors(self, graph, held):
            yield [Rule("longer", ())], longer(len(graph.nodes) - 1)

    costs = SimpleNamespace(of_graph=lambda graph, _: 100 + 3 * (len(graph.nodes) % 2))
    found = Endless([], costs, graphs=1000, deadline=NEVER)
    graph = longer(2)
    region = search._Region(graph, [], [], graphs.outputs(graph), [], [], "region")
    assert found.best_of(region) is None
    assert found.visited == search.SIDEWAYS + 1


def test_results_that_become_parts_keep_their_layout(cheap):
    """Both products are returned: each is a copy of its part, if that is still cheaper."""
    report = optimised(lambda x, w, v: (x @ w, x @ v), Y[0], torch.rand(8, 8), torch.rand(8, 8))
    assert report.own == {"mm-and-mm_to_mm-columns": 1}
    assert report.after.kernels == 4  # with a copy of each result, and of the weights


def test_copies_of_what_is_returned_are_part_of_the_cost(cheap):
    """One relu before the split would leave two parts to copy, and saves one call."""
    products = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(2))
    report = optimised(lambda x: tuple(p(x).relu() for p in products), Y[0])
    assert report.own == {"mm-and-mm_to_mm-columns": 1}
    assert report.after.kernels == 3


def test_unknown_searches_are_named():
    torch.compiler.reset()
    compiled = torch.compile(torch.sin, backend="udf_taso", options={"search": "annealing"})
    with pytest.raises(Exception, match="knows no search 'annealing'"):
        compiled(torch.ones(3))
