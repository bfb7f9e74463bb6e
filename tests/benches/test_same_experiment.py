# SPDX-License-Identifier: Apache-2.0
"""What the table of models says of where each was measured."""

from benches.experiments.same import earlier
from pytest_udftorch.swap.toolchain.environment import describe


def test_models_that_are_kept_name_where_they_were_measured():
    here = describe()
    there = {**here, "versions": {**here["versions"], "torch": "2.11.0"}}
    document = {"environment": there, "models": []}
    assert earlier(document, ["a", "b"]) == [{"environment": there, "subjects": ["a", "b"]}]
    assert earlier({**document, "environment": {**here, "date": "1999-01-01"}}, ["a"]) == []
    # Twice elsewhere, and one of the models is measured again.
    document["earlier"] = [{"environment": {"date": "first"}, "subjects": ["a", "c"]}]
    found = earlier(document, ["a", "b"])
    assert [e["subjects"] for e in found] == [["a"], ["b"]]
    assert earlier({"models": []}, []) == []
