# SPDX-License-Identifier: Apache-2.0
"""What the table of models says of where each was measured."""

from benches import stored
from benches.experiments.same import earlier
from benches.render import same as render
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


def test_none_of_the_stored_models_that_strict_takes_is_accused():
    document = stored.load(stored.RESULTS / "same.json")
    every, accused = render.taken(document)
    assert len(every) > len(document["models"]) / 2
    assert accused == []


def test_a_model_that_is_taken_and_differs_is_counted_and_named():
    row = {"subject": "a", "strict": [], "differ": {"std": {}, "repro": {}}}
    apart = {**row, "subject": "b", "differ": {"std": {}, "repro": {"prefix": {}}}}
    left = {**apart, "subject": "c", "strict": ["aten::mm", "layer"]}
    document = {"models": [row, apart, left, {"subject": "d", "refused": "it cannot be made"}]}
    assert render.taken(document) == (["a", "b"], ["b"])
    assert render.strict(document) == (
        "`--strict` takes 2 of the 3 models, with all their ways. Of these 1 are accused under "
        "`repro`: `b`. It refuses the other 1 by name."
    )
    clean = [{"ways": 13, "differ": []}, {"ways": 13, "differ": ["prefix"]}]
    said = render.planted({"faults": [], "clean": clean}, document)[0]
    assert "1 of 2 small ones are accused, in 13 ways each, and 1 of the 2 in the table" in said
