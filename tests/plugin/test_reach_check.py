# SPDX-License-Identifier: Apache-2.0
"""The summary tells which tests a library's functions ran in; options make it an error."""

import json
import re
import xml.etree.ElementTree as ET

import pytest

SUITE = """
import pytest
import torch
from witness import which

x = torch.zeros(40)

@pytest.fixture
def prepared():
    return torch.cos(x)

def test_exp(): torch.softmax(x, 0)
def test_fixture(prepared): pass
def test_neither(): assert (x + 1).sum() == 40
def test_other(): torch.log(x + 1)
def test_double(): torch.exp(x.double())
def test_thread():
    import threading
    thread = threading.Thread(target=torch.exp, args=(x,))
    thread.start()
    thread.join()
"""


def reached_lines(result):
    return [line for line in result.outlines if line.startswith("udftorch: ") and " in " in line]


def test_the_summary_counts_the_tests_and_names_what_stayed_stock(suite):
    suite.write(test_it=SUITE)
    result = suite.run("--udf-lib=./one")
    assert reached_lines(result) == [
        "udftorch: one's functions ran in 3 of 6 tests: exp in 2, cos in 1",
        "udftorch: float32 log kept the stock function in 1 test: test_it.py::test_other",
        "udftorch: float64 exp kept the stock function in 1 test: test_it.py::test_double",
    ]
    result.assert_outcomes(passed=6)


def test_operators_that_are_overridden_whole_count(suite):
    suite.write(
        test_it="""
        import torch
        import torch.nn.functional as F

        x = torch.linspace(-1, 1, 64).view(1, 1, 8, 8)

        def test_gelu(): F.gelu(x)
        def test_attention(): F.scaled_dot_product_attention(x, x, x)
        def test_activation(): torch.sigmoid(x)
        def test_float64(): F.gelu(x.double())
        """
    )
    result = suite.run("--udf-lib=corem", "--udf-composites")
    assert reached_lines(result)[0] == (
        "udftorch: corem's functions ran in 3 of 4 tests: gelu_erf in 1, exp in 1, log in 1, "
        "sigmoid in 1"
    )


def test_functions_of_float64_are_one_line(suite):
    suite.write(
        test_it="""
        import torch
        X = torch.linspace(1, 2, 100)
        def test_a(): X.double().exp(); X.double().log()
        def test_b(): X.double().sin(); X.exp(); X.log()
        """
    )
    result = suite.run("--udf-lib=./one")
    assert reached_lines(result) == [
        "udftorch: one's functions ran in 1 of 2 tests: exp in 1",
        "udftorch: float64 exp, log and sin kept the stock functions in 2 tests: "
        "test_it.py::test_a, test_it.py::test_b",
        "udftorch: float32 log kept the stock function in 1 test: test_it.py::test_b",
    ]


def test_functions_that_the_user_left_out_are_not_missed(suite):
    suite.write(test_it=SUITE)
    result = suite.run("--udf-lib=./one", "--udf-functions=cos")
    assert reached_lines(result) == [
        "udftorch: one's functions ran in 1 of 6 tests: cos in 1",
    ]


def test_strict_fails_the_tests_that_call_what_is_not_reached(suite):
    suite.write(test_it=SUITE)
    result = suite.run("--udf-lib=./one", "--udf-strict", "-rA")
    failed = {test for test, word in suite.outcomes(result).items() if word == "FAILED"}
    assert failed == {"test_it.py::test_other", "test_it.py::test_double"}
    result.stdout.fnmatch_lines(
        ["aten::log calls float32 log, which one did not reach, and --udf-strict is on.*"]
    )


def test_strict_names_operator_and_layer_forward_and_backward(suite):
    body = """
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.head = torch.nn.LogSoftmax(1)
                self.curve = torch.nn.Softplus()
            def forward(self, x, wave=False):
                return torch.sin(x) if wave else self.curve(self.head(x))

        def test_forward(): Net()(torch.ones(2, 8))
        def test_backward(): Net()(torch.ones(2, 8, requires_grad=True), True).sum().backward()
        def test_plain(): torch.exp(torch.ones(4)); torch.log2(torch.ones(8))
        def test_profiled():
            import pytest_udftorch
            with pytest_udftorch.patched("std", functions=("cos",), profile=True) as session:
                torch.nn.Softplus()(torch.ones(8))
            assert not session.profile.rows("function")
        def test_after(): Net().curve(torch.ones(8))
    """
    suite.write(test_it=body)
    result = suite.run("--udf-lib=./two", "--udf-strict", "-rA")
    said = re.findall(r"_ (test_\w+) _+\n(.*?), which two did not reach", result.stdout.str())
    assert dict(said) == {
        "test_forward": "aten::_log_softmax of Net.head calls float32 log; aten::softplus of "
        "Net.curve calls float32 log1p",
        "test_backward": "aten::cos of Net, backward calls float32 cos; aten::sin of Net calls "
        "float32 sin",
        "test_plain": "aten::log2 calls float32 log2",
        "test_profiled": "aten::softplus of Softplus calls float32 log1p",
        "test_after": "aten::softplus of Softplus calls float32 log1p",
    }
    lines = re.findall(r"  at (test_it.py:\d+, in \w+: .*)", result.stdout.str())
    forward = "test_it.py:9, in forward: return torch.sin(x) if wave else self.curve(self.head(x))"
    assert lines[0] == forward
    assert any(line.endswith("backward()") for line in lines), "the gradient's is who asks for it"
    assert lines[-1].startswith("test_it.py:19, in test_after: def test_after(): Net().curve(")
    assert len(lines) == 6


def test_strict_without_an_observer_says_why_it_names_no_operator(suite, monkeypatch):
    suite.write(
        conftest="""
            from pytest_udftorch.errors import NativeError
            from pytest_udftorch.swap.counting import sights

            def load_observer(): raise NativeError("no headers")
            sights.load_observer = load_observer
        """,
        test_it="import torch\ndef test(): torch.log(torch.ones(3))",
    )
    result = suite.run("--udf-lib=./one", "--udf-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*operator and layer is not known here: no headers*"])


def test_a_failure_of_the_test_itself_is_not_replaced(suite):
    suite.write(test_it="import torch\ndef test(): torch.log(torch.ones(3)); assert 1 == 2")
    result = suite.run("--udf-lib=./one", "--udf-strict")
    result.stdout.fnmatch_lines(["FAILED test_it.py::test - [[]one] assert 1 == 2"])
    assert "did not reach" not in result.stdout.str()


def test_several_libraries_are_compared_test_by_test(suite):
    body = """
        import pytest, torch, unittest
        from witness import which

        def test_same(): assert which() in ("one", "two")
        @pytest.mark.parametrize("n", [1, 2])
        def test_differs(n): assert which() == "one"
        class TestOld(unittest.TestCase):
            def test_differs_too(self): assert which() == "two"
    """
    suite.write(test_it=body)
    result = suite.run("--udf-lib=./one", "--udf-lib=./two")
    result.stdout.fnmatch_lines(
        [
            "udftorch: one's functions ran in 4 of 4 tests: exp in 4",
            "udftorch: two's functions ran in 4 of 4 tests: exp in 4",
            "udftorch: 2 tests passed under one, failed under two: "
            "test_it.py::test_differs[[]1], test_it.py::test_differs[[]2]",
            "udftorch: 1 test failed under one, passed under two: *::test_differs_too",
        ]
    )
    result.stdout.fnmatch_lines(["udftorch: 1 test passed under one and two"])


def test_results_carry_the_library_through_xdist_into_junit_files(suite):
    suite.write(test_it=SUITE)
    result = suite.run("--udf-lib=./one", "-n1", "--junitxml=out.xml")
    assert reached_lines(result)[0].endswith("ran in 3 of 6 tests: exp in 2, cos in 1")
    found = {}
    for case in ET.parse(suite.path / "out.xml").iter("testcase"):
        values = {p.get("name"): p.get("value") for p in case.iter("property")}
        assert values["udf_lib"] == "one"
        found[case.get("name")] = json.loads(values["udf_reached"])
    assert found["test_exp"] == {"ran": ["exp"], "missed": [], "compiled": False}
    assert found["test_double"]["missed"] == ["float64 exp"]


def test_a_test_that_measures_runs_without_the_marks(suite):
    suite.write(
        test_it="""
        import torch
        from pytest_udftorch.swap.session.binder import binder

        def slots():
            bound = binder()
            return {slot.symbol: value for slot, value in
                    zip(bound.slots, bound.native.read(bound.slots))}["expf"]

        def marker():
            bound = binder()
            return bound.native.marker(bound.symbols["expf"].index)

        def test_marked(): assert slots() == marker()
        def test_measures(sync_timer): assert slots() != marker()
        def test_marked_again(): assert slots() == marker()
        """
    )
    result = suite.run("--udf-lib=./one")
    result.assert_outcomes(passed=3)
    assert "ran in 0 of 2 tests" in result.stdout.str()


def test_the_stock_library_has_nothing_to_reach(suite):
    suite.write(test_it=SUITE)
    result = suite.run("--udf-lib=std", "--udf-strict")
    assert not reached_lines(result)
    result.assert_outcomes(passed=6)


MAKES = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.exp(x)

def test_fine(): Net()(torch.ones(3))
def test_inf(): Net()(torch.full((3,), 100.0))
def test_inf_came_in(): Net()(torch.full((3,), float("inf")))
def test_fails(): Net()(torch.full((3,), 100.0)); assert 1 == 2
"""


def test_a_value_that_is_an_error_fails_the_test_that_made_it(suite):
    suite.write(test_it=MAKES)
    result = suite.run("--udf-inf=error", "-rA")
    words = suite.outcomes(result)
    assert [t for t, word in words.items() if word == "FAILED"] == [
        "test_it.py::test_inf",
        "test_it.py::test_fails",
    ]
    result.stdout.fnmatch_lines(
        [
            "aten::exp in Net made the first: an infinity in 3 of 3 elements, the first one at *",
            "  at test_it.py:*, in forward: *",
            "  self: 3, from 100 to 100; there: 100",
            "The first infinity that a function of std made, from arguments that held none: "
            "exp (float32) in aten::exp, layer Net, forward, after * s, at test_it.py:*",
            "--udf-inf=error is on, in test_it.py::test_inf.",
            "FAILED test_it.py::test_inf - *aten::exp in Net made*",
        ]
    )


def test_operators_of_any_kind_are_origins(suite):
    suite.write(
        test_it="""
        import torch

        class Net(torch.nn.Module):
            def forward(self, x): return x / (x - 1)

        X = torch.tensor([1.0, 2.0])
        def test_division(): Net()(X)
        def test_cast(): (X * 1e5).half()
        def test_backward():
            x = torch.zeros(2, requires_grad=True)
            x.sqrt().sum().backward()
        def test_compiled(): torch.compile(Net(), backend="aot_eager")(X)
        def test_clean(): Net()(X + 1).half(); torch.full((2,), float("-inf")).exp()
        """
    )
    result = suite.run("--udf-inf=error")
    result.assert_outcomes(failed=4, passed=1)
    result.stdout.fnmatch_lines_random(
        [
            "aten::div.Tensor in Net made the first: an infinity in 1*",
            "  at test_it.py:*, in forward: def forward(self, x): return x / (x - 1)",
            "  at test_it.py:*, in test_cast: *",
            "  at test_it.py:*, in test_backward: x.sqrt().sum().backward()",
            "  in the gradient of aten::sqrt at test_it.py:*, in test_backward: x.sqrt().sum()*",
            "aten::_to_copy in no module made the first: *",
            "aten::div.Tensor in no module, backward made *",
            "aten::div.Tensor in Net made the first: *",
        ]
    )


MASKED = """
import torch
def test_power():
    b = torch.tensor([1.0, 2.0], requires_grad=True)
    (torch.tensor([0.0, 2.0]) ** b).sum().backward()
def test_norm():
    z = torch.zeros(3, requires_grad=True)
    z.norm().backward()
    assert not z.grad.isnan().any()
def test_entropy():
    p = torch.tensor([0.0, 0.5, 0.5])
    torch.where(p > 0, p * p.log(), 0).sum()
def test_padding():
    rows = torch.softmax(torch.full((2, 3), float("-inf")), 1)
    rows.masked_fill_(rows.isnan(), 0).sum()
"""

REACHES = """
import torch
def test_gradient():
    p = torch.tensor([0.0, 0.5], requires_grad=True)
    torch.where(p > 0, p * p.log(), 0).sum().backward()
def test_parameter():
    w = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.SGD([w], lr=1.0)
    (w.sqrt() * 0).sum().backward()
    optimizer.step()
def test_result():
    (torch.zeros(2) / 0).isnan().any()
def test_read():
    (torch.zeros(1) / 0).item()
def test_again():
    for _ in range(3):
        x = torch.zeros(2) / 0
        x = torch.nan_to_num(x)
    x / x
def test_a_part_is_masked():
    x = torch.zeros(2) / 0
    x[:1] = 0
"""


def test_a_nan_that_torch_masks_away_fails_nobody_unless_it_is_asked_for(suite):
    suite.write(test_it=MASKED, test_reaches=REACHES)
    result = suite.run("--udf-nan=error", "-rA")
    result.assert_outcomes(passed=4, failed=6)
    words = suite.outcomes(result)
    assert {word for test, word in words.items() if "reaches" in test} == {"FAILED"}
    result.stdout.fnmatch_lines(["  at test_reaches.py:*, in test_again: x / x"])
    result = suite.run("--udf-nan=made", "test_it.py")
    result.assert_outcomes(failed=4)
    result.stdout.fnmatch_lines(["--udf-nan=made is on, in test_it.py::test_power."])


def test_an_infinity_that_becomes_a_nan_is_handed_on(suite):
    suite.write(
        test_it="""
        import torch

        def test_pooled():
            weights = torch.full((3,), 100.0).exp()
            weights / weights.sum()

        def test_masked():
            1 / (1 + torch.full((3,), 100.0).exp())
        """
    )
    result = suite.run("--udf-inf=error", "-rA")
    words = suite.outcomes(result)
    assert [test for test, word in words.items() if word == "FAILED"] == ["test_it.py::test_pooled"]
    result.stdout.fnmatch_lines(["aten::exp in no module made the first: an infinity in 3 of 3 *"])


def test_a_value_of_another_thread_is_one_wherever_it_ends(suite):
    suite.write(
        test_it="""
        import threading, torch

        def make(): torch.full((3,), 100.0).exp().clamp_max(1.0)
        def test_masked(): make()
        def test_thread():
            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
        """
    )
    result = suite.run("--udf-inf=error", "-rA")
    words = suite.outcomes(result)
    assert [test for test, word in words.items() if word == "FAILED"] == ["test_it.py::test_thread"]


def test_other_kinds_and_ignored_ones_pass(suite):
    suite.write(
        test_it=MAKES.replace("assert 1 == 2", ""),
        test_nan="import torch\ndef test(): torch.sin(torch.full((3,), float('inf')))",
    )
    result = suite.run("--udf-nan=error", "--udf-inf=ignore", "-rA")
    result.assert_outcomes(passed=4, failed=1)
    assert suite.outcomes(result)["test_nan.py::test"] == "FAILED"


def test_strictness_without_a_library_is_told_to_have_checked_nothing(suite):
    suite.write(
        test_it="""
        import pytest, torch
        def test(): torch.ones(3).exp()
        @pytest.mark.udf_lib("std")
        def test_marked(): torch.ones(3).exp()
        """
    )
    (suite.path / "pytest.ini").write_text("[pytest]\nudf_strict = true\n")
    said = "udftorch: udf_strict is on, but no test ran under a library, so nothing was checked. *"
    suite.run("-k", "not marked").stdout.fnmatch_lines([said])
    suite.run().stdout.no_fnmatch_line(said)


@pytest.mark.parametrize("option", ["--udf-nan=warn", "--udf-inf="])
def test_an_unknown_word_is_a_usage_error(suite, option):
    suite.write(test_it="def test(): pass")
    result = suite.run(option)
    result.stderr.fnmatch_lines(["ERROR: --udf-* (or udf_* in the ini file) is *=error*"])
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.slow
def test_strict_refuses_what_is_outside_of_the_contract(suite):
    suite.write(
        test_it="""
        import torch

        def test_inside(): torch.ones(3, 3) @ torch.ones(3, 3)
        def test_outside(): torch.ones(3).cumprod(0)
        """
    )
    result = suite.run("--udf-lib=repro", "--udf-strict", "-rA")
    failed = {test for test, word in suite.outcomes(result).items() if word == "FAILED"}
    assert failed == {"test_it.py::test_outside"}
    result.stdout.fnmatch_lines(["*aten::cumprod is outside of the contract of repro*"])
    suite.run("--udf-lib=repro").assert_outcomes(passed=2)
