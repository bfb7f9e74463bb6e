# SPDX-License-Identifier: Apache-2.0
"""The rows of contenders in pytest-benchmark's table and file."""

import json

import pytest

from benches import rows
from benches.store import condensed

pytest.importorskip("pytest_benchmark")

BENCH = """
from benches import rows

def test_two(benchmark):
    rows.add(benchmark, {"stock": [1e6, 2e6, 6e6], "corem": [4e6]}, pair={"a": 1})

def test_one(benchmark):
    benchmark.pedantic(lambda: None, rounds=2)
"""


@pytest.fixture
def suite(pytester, request):
    pytester.syspathinsert(request.config.rootpath)
    pytester.makepyfile(BENCH)
    return pytester


def test_each_contender_has_its_row(suite):
    done = suite.runpytest_subprocess(
        "-p", "no:udftorch", "--benchmark-json=out.json", "--benchmark-columns=min,rounds"
    )
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(
        ["*benchmark 'test_two': 2 tests*", "test_two: stock * 1.0000 (1.0) * 3",
         "test_two: corem * 4.0000 (4.00) * 1"]
    )  # fmt: skip
    done.stdout.no_fnmatch_line("*was not used at all*")
    document = json.loads((suite.path / "out.json").read_text())
    found = condensed(document)
    assert set(found) == {"test_two: stock", "test_two: corem", "test_one"}
    assert found["test_two: stock"]["time_ns"]["median"] == 2_000_000
    assert found["test_two: corem"]["time_ns"]["median"] == 4_000_000
    # Once in the file, or a report would draw it twice.
    assert [b["extra_info"] for b in document["benchmarks"][:2]] == [{"pair": {"a": 1}}, {}]
    assert document["benchmarks"][1]["fullname"].endswith("::test_two: corem")


def test_a_bench_that_is_disabled_passes(suite):
    done = suite.runpytest_subprocess("-p", "no:udftorch", "--benchmark-disable")
    done.assert_outcomes(passed=2)
    done.stdout.no_fnmatch_line("*test_two: stock*")


@pytest.mark.parametrize("times", [{}, {"stock": []}])
def test_a_contender_without_a_run_is_an_error(times):
    with pytest.raises(ValueError, match="each contender a run"):
        rows.add(None, times)
