# SPDX-License-Identifier: Apache-2.0
"""Certificates: digests, files that were edited or truncated, and merging."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import pytest
from certificates import DOMAIN, digest, make, make_run

from pytest_udftorch import errors, prove
from pytest_udftorch.base.plain_data import canonical_json
from pytest_udftorch.prove.verify import merge
from pytest_udftorch.prove.verify.certificate import (
    bin_edges,
    ulp_text,
)
from pytest_udftorch.prove.verify.certificate_file import _bin_from
from pytest_udftorch.prove.verify.reference.checker import BINS


def test_a_file_from_before_sparse_runs_is_read(tmp_path):
    data = make().document()
    del data["runs"][0]["sparse"], data["sha256"]
    data["sha256"] = hashlib.sha256(canonical_json(data)).hexdigest()
    (tmp_path / "old.json").write_text(json.dumps(data))
    assert prove.load_certificate(tmp_path / "old.json") == make()


def test_the_label_of_a_run_names_its_modes():
    assert make_run().label == "array, avx512"
    assert make_run(flush=True, sparse=True).label == "array, avx512, denormals flushed, sparse"


def test_a_certificate_survives_its_file(tmp_path):
    two = make(make_run(), make_run(form="scalar", symbol="__udf_expf"))
    prove.save_certificate(two, tmp_path / "exp.json")
    assert prove.load_certificate(tmp_path / "exp.json") == two


def test_digest_is_that_of_the_chunks_in_order():
    whole = hashlib.sha256(b"".join(bytes.fromhex(digest(i)) for i in range(4))).hexdigest()
    shuffled = replace(make_run(), chunks={i: (digest(i), digest(100 + i)) for i in (2, 0, 3, 1)})
    assert shuffled.digest() == whole
    assert make_run(range(3)).digest() is None


def test_equal_digests_are_stored_once(tmp_path):
    two = make(make_run(), make_run(form="scalar"))
    stored = two.document()
    assert stored["runs"][1]["chunk_digests"] == {"same_as_run": 0}
    assert len(stored["runs"][0]["chunk_digests"]) == 4
    other = make(make_run(), make_run(form="scalar", salt=1)).document()
    assert len(other["runs"][1]["chunk_digests"]) == 4


def test_share_of_hard_inputs_and_histogram_are_readable():
    (run,) = make().document()["runs"]
    assert run["hard_share"] == 3 / 1024
    assert run["histogram_ulp"] == [[0, 1 / 64, 1019], [28 / 64, 29 / 64, 4], [1, 2, 1]]


@pytest.mark.parametrize("number", [0, 1, 63, 64, 65, 100, 127])
def test_bins_are_found_again_by_their_lower_edge(number):
    low, high = bin_edges(number)
    assert low < high
    assert _bin_from(low) == number
    assert bin_edges(BINS - 1) is None


def test_an_error_just_below_one_half_is_not_shown_as_one_half():
    assert ulp_text(0.5) == "0.5"
    assert ulp_text(0.5 - 2.0**-30) == "0.5 - 2^-30.0"
    assert ulp_text(0.5 + 2.0**-30) == "0.5"
    assert ulp_text(1.25) == "1.25"


# Files that are not as they were written ---------------------------------------------


def test_a_truncated_file_is_refused(tmp_path):
    path = tmp_path / "exp.json"
    prove.save_certificate(make(), path)
    text = path.read_text()
    for length in (0, 10, len(text) // 2, len(text) - 3):
        path.write_text(text[:length])
        with pytest.raises(errors.CertificateError, match="truncated"):
            prove.load_certificate(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"wrong": 3', '"wrong": 0'),
        ('"version": "0.1.0"', '"version": "0.2.0"'),
        (digest(2), digest(9)),
        ('"date": "2026-01-02', '"date": "2027-01-02'),
    ],
)
def test_an_edited_file_is_refused(tmp_path, old, new):
    path = tmp_path / "exp.json"
    prove.save_certificate(make(make_run(wrong=3)), path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(errors.CertificateError, match="SHA-256"):
        prove.load_certificate(path)


def reseal(path, change):
    """Edit a certificate and give it a fitting SHA-256 again."""
    data = json.loads(path.read_text())
    del data["sha256"]
    change(data)
    data["sha256"] = hashlib.sha256(canonical_json(data)).hexdigest()
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["runs"][0]["chunk_digests"].update({"2": digest(9)}), "do not give"),
        (lambda d: d["runs"][0].update(digest=digest(9)), "do not give"),
        (lambda d: d["runs"][0]["histogram_ulp"].pop(), "does not count all"),
        (lambda d: d["runs"][0].pop("wrong"), "wrong"),
        (lambda d: d["runs"][0].update(chunk_digests={"same_as_run": 5}), "names run 5"),
        (lambda d: d.pop("library"), "library"),
    ],
)
def test_an_edited_file_with_a_new_seal_is_refused(tmp_path, change, message):
    path = tmp_path / "exp.json"
    prove.save_certificate(make(), path)
    reseal(path, lambda _: None)
    prove.load_certificate(path)
    reseal(path, change)
    with pytest.raises(errors.CertificateError, match=message):
        prove.load_certificate(path)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "exp.json"
    path.write_text("[1, 2]")
    with pytest.raises(errors.CertificateError, match="is not a certificate of the format"):
        prove.load_certificate(path)
    with pytest.raises(errors.CertificateError, match=r"none\.json"):
        prove.load_certificate(tmp_path / "none.json")


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.CertificateError, match="--out"):
        prove.save_certificate(make(), tmp_path / "file" / "exp.json")


# Merging -----------------------------------------------------------------------------


def test_parts_of_the_inputs_become_one_run():
    merged = prove.merge_certificates(
        [make(make_run(range(2, 4), ulp=0.25)), make(make_run(range(2)))]
    )
    (run,) = merged.runs
    assert run.digest() == make_run().digest()
    assert run.tally.inputs == 1024
    assert run.tally.hard == 6
    assert run.tally.histogram[28] == 8
    assert run.largest["ulp"] == 0.4375


@pytest.mark.parametrize("key", ["short_sha256", "quick_sha256"])
def test_a_path_in_a_file_of_its_own_is_part_of_the_identity(tmp_path, key):
    """The digest of its sources is that of some forms alone, so the others lack it."""
    short = make_run(form="scalar", **{key: "33" * 32})
    path = tmp_path / "made.json"
    prove.save_certificate(make(make_run(), short), path)
    loaded = prove.load_certificate(path)
    assert [run.identity.get(key) for run in loaded.runs] == [None, "33" * 32]
    halves = [
        make(make_run(chunks, form="scalar", **{key: digits * 32}))
        for chunks, digits in ((range(2), "33"), (range(2, 4), "44"))
    ]
    with pytest.raises(errors.CertificateError, match=rf"different builds.*{key}"):
        prove.merge_certificates(halves)
    reseal(path, lambda data: data["runs"][1].update({key: "odd"}))
    with pytest.raises(errors.CertificateError, match=key):
        prove.load_certificate(path)


def test_forms_stand_side_by_side():
    merged = prove.merge_certificates(
        [make(), make(make_run(form="v16")), make(make_run(cpu_level="avx2"))]
    )
    assert len(merged.runs) == 3
    assert merged.run(form="v16").identity["form"] == "v16"
    assert merged.run(form="v8") is None


@pytest.mark.parametrize("key", ["build_id", "library_sha256", "compiler", "reference"])
def test_parts_of_different_builds_are_refused(key):
    with pytest.raises(errors.CertificateError, match=f"different builds.*{key}"):
        prove.merge_certificates(
            [make(make_run(range(2))), make(make_run(range(2, 4), **{key: "another"}))]
        )


@pytest.mark.parametrize("key", ["function", "library", "version", "max_ulp", "source_sha256"])
def test_different_subjects_are_refused(key):
    with pytest.raises(errors.CertificateError, match=key):
        prove.merge_certificates([make(), make(make_run(form="v16"), **{key: "another"})])


def test_different_inputs_are_refused():
    other = replace(make(), domain={**DOMAIN, "chunk_bits": 9})
    with pytest.raises(errors.CertificateError, match="different inputs"):
        prove.merge_certificates([make(), other])


def test_overlapping_parts_are_refused():
    with pytest.raises(errors.CertificateError, match="would count twice"):
        prove.merge_certificates([make(make_run(range(3))), make(make_run(range(2, 4)))])
    with pytest.raises(errors.CertificateError, match="different outputs"):
        prove.merge_certificates([make(make_run(range(3))), make(make_run(range(2, 4), salt=1))])


def test_the_same_run_twice_stays_one():
    assert prove.merge_certificates([make(), make()]).runs == make().runs
    with pytest.raises(errors.CertificateError, match="no certificate"):
        prove.merge_certificates([])


# Claims ------------------------------------------------------------------------------


def test_a_correct_rounding_claim_fails_by_one_result():
    assert make().failures() == []
    (sentence,) = make(make_run(wrong=1)).failures()
    assert "1 of 1,024 results are not correctly rounded" in sentence


def test_a_bound_is_compared_with_the_largest_error():
    assert make(make_run(wrong=9, ulp=1.5), max_ulp=1.5).failures() == []
    (sentence,) = make(make_run(wrong=9, ulp=1.5), max_ulp=1.25).failures()
    assert "1.5 ULP, the claim is 1.25" in sentence


def test_a_nan_for_a_number_breaks_any_bound():
    run = make_run(ulp=0.25)
    nan = replace(run, tally=replace(run.tally, histogram={0: 1023, BINS - 1: 1}))
    (sentence,) = make(nan, max_ulp=1000.0).failures()
    assert "NaN or infinite" in sentence


def test_without_a_claim_nothing_fails():
    assert make(make_run(wrong=9), max_ulp=None).failures() == []


def test_table_has_a_line_per_run():
    table = merge.comparison_table(
        [make(make_run(wrong=1234), make_run(range(1), form="v8")), make(library="vml")]
    )
    lines = table.splitlines()
    assert len(lines) == 5
    assert "| 1,234 | 1,024 | 0.4375 | 0x00000007 |" in table
    assert "(incomplete)" in table
