# SPDX-License-Identifier: Apache-2.0
"""Substitutions: generated, proved or rejected by name, and searched through."""

from __future__ import annotations

import sys

import journals
import pytest
import torch
from torch import nn

from pytest_udftorch.errors import JournalError, PackageMissingError, RewriteError
from pytest_udftorch.measure import generate_rules, judge_rule, judge_rules, read_rules, recording
from pytest_udftorch.measure.rewrite.taso import generator, scale
from pytest_udftorch.measure.rewrite.taso import rules as rules_module
from pytest_udftorch.measure.rewrite.taso.backend import rules_of
from pytest_udftorch.measure.rewrite.taso.generator import enumerate_pairs, equal
from pytest_udftorch.measure.rewrite.taso.language import (
    OPERATORS,
    canonical,
    kind,
    parse,
    show,
    variables,
)
from pytest_udftorch.measure.rewrite.taso.rules import RULES, Prover, axioms, by_numbers, checked
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
    paired = enumerate_pairs(2)
    assert list(paired.document().values())[:4] == [funnel.operators, *counts[:3]]
    assert paired.after_smaller is None


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
    candidates, _ = generate_rules(3, {"I": "i", "K": "kl"})
    shown = {f"{show(left)} => {show(right)}" for left, right in candidates}
    assert "(add (conv i k) (conv i l)) => (conv i (add k l))" in shown
    assert "(channels (conv i k) (conv i l)) => (conv i (outputs k l))" in shown


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
        ("(conv i k)", "(conv i l)"),
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


def test_all_rules_that_are_shipped_are_proved():
    rules = rules_of(RULES)
    assert len(rules) >= 20
    assert len({rule.name for rule in rules}) == len(rules)


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
        ("x: (mm a b) => (conv i k)", "different kinds, M and I"),
        ("x: (t z) => a", "'z' is not a variable"),
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
def test_both_searches_merge_branches(search):
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
    assert report.after.flops < report.before.flops
    assert report.notes[0].startswith(f"{search}: ")


def test_shapes_to_which_a_rule_does_not_apply_are_left():
    """Broadcasting, a bias and groups are none of what the rules were proved for."""

    def other(x, w, v, b):
        conv = torch.conv2d
        y = conv(x, w, groups=2) + conv(x, v, groups=2) + conv(x, w, b, groups=2)
        return y, (x + b.reshape(1, -1, 1, 1)) + x[:, :1]

    torch.compiler.reset()
    given = [torch.randn(s) for s in [(1, 4, 5, 5), (4, 2, 3, 3), (4, 2, 3, 3), (4,)]]
    compiled = torch.compile(
        other, backend="udf_taso", dynamic=False, options={"graphs": 5, "gain": 0}
    )
    with torch.no_grad(), recording() as reports:
        for mine, wanted in zip(compiled(*given), other(*given), strict=True):
            torch.testing.assert_close(mine, wanted)
    assert {f.rule for f in reports[0].fired} <= {
        "add_images_turned",
        "add_turned",
        "add_associated",
    }


def test_unknown_searches_are_named():
    torch.compiler.reset()
    compiled = torch.compile(torch.sin, backend="udf_taso", options={"search": "annealing"})
    with pytest.raises(Exception, match="knows no search 'annealing'"):
        compiled(torch.ones(3))
