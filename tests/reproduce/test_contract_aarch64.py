# SPDX-License-Identifier: Apache-2.0
"""What the stored training on aarch64 says."""

from benches import stored
from benches.experiments import contract_aarch64

STORED = stored.load(stored.RESULTS / "contract_aarch64.json")
DIGESTS = {(r["library"], r["processor"]): r["digest"] for r in STORED["runs"]}


def test_the_weights_on_aarch64_are_those_of_every_other_cpu():
    assert STORED["steps"] == contract_aarch64.STEPS
    here = stored.load(stored.RESULTS / "contract_digests.json")["runs"]
    assert {DIGESTS["repro", p] for p in ("aarch64", "x86_64")} == {
        r["digest"] for r in here if r["library"] == "repro"
    }


def test_those_of_stock_are_not():
    assert DIGESTS["std", "aarch64"] != DIGESTS["std", "x86_64"]


def test_the_session_leaves_erf_out_and_keeps_the_operators():
    with contract_aarch64.session("repro") as session:
        assert "erf" not in session.reached
        assert "exp" in session.reached
        assert "aten::mm" in session.operators
