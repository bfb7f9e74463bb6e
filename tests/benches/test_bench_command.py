# SPDX-License-Identifier: Apache-2.0
"""``udftorch bench``: which contenders it times, what it writes, and what it refuses."""

import json
import re

import pytest
import torch

from pytest_udftorch import cli
from pytest_udftorch.measure.timing import operators

QUICK = ["--elements=64", "--runs=4", "--rounds=2", "--quiet"]


@pytest.fixture
def own(tmp_path):
    folder = tmp_path / "own"
    assert cli.main(["new", str(folder)]) == 0
    return folder


def test_it_times_the_library_the_stock_functions_and_corem(own, tmp_path, capsys, monkeypatch):
    seen: dict[str, set[int]] = {}
    timed = operators.sync_timer

    def timer(**options):
        made = timed(**options)
        time = made.time

        def spy(call, name):
            result = int(call().view(torch.int32).sum())
            assert torch.get_num_threads() == 1
            seen.setdefault(name, set()).add(result)
            return time(call, name)

        made.time = spy
        return made

    monkeypatch.setattr(operators, "sync_timer", timer)
    threads = torch.get_num_threads()
    out = tmp_path / "bench.json"
    # Elements enough for the stock function to round some of them otherwise.
    size = ["--elements=16384", "--runs=4", "--rounds=1", "--quiet"]
    assert cli.main(["bench", str(own), *size, "--json", str(out)]) == 0
    assert torch.get_num_threads() == threads
    # Two of the three round alike nearly always; the stock function does not.
    assert len(seen["exp"]) >= 2
    data = json.loads(out.read_text())
    assert [row["contender"] for row in data["rows"]] == ["stock", "own", "corem"]
    stock, *_ = data["rows"]
    assert stock["ratio_to_stock"] == {"low": 1, "median": 1, "high": 1}
    for row in data["rows"]:
        ns = row["ns_per_element"]
        assert 0 < ns["low"] <= ns["median"] <= ns["high"]
    said = capsys.readouterr().out
    shown = [float(figure) for figure in re.findall(r"\b\d+\.\d{3}\b", said)]
    for row in data["rows"]:
        # The file holds five digits, the table three behind the point.
        median = row["ns_per_element"]["median"]
        assert any(x == pytest.approx(median, abs=0.00051, rel=6e-5) for x in shown)
    assert cli.main(["compare", str(out), str(out), "--fail=time:0%"]) == 0
    assert "3 figures are the same" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["std"], "has no float32 function"),
        (["corem", "epx"], "no float32 'epx' to time. Did you mean"),
        (["corem", "exp", "--runs=3"], "quartiles need four runs"),
        (["corem", "exp", "--elements=0"], "one element"),
        (["nowhere"], "No UDF library is called 'nowhere'"),
    ],
)
def test_what_cannot_be_timed(arguments, says, capsys):
    quick = [a for a in QUICK if a.split("=")[0] not in " ".join(arguments)]
    assert cli.main(["bench", *arguments, *quick]) == cli.MISUSE
    assert says in capsys.readouterr().err
