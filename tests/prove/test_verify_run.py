# SPDX-License-Identifier: Apache-2.0
"""Chunks, workers, resumption: runs over reduced ranges of inputs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pytest_udftorch import errors, prove
from pytest_udftorch.errors import (
    JournalError,
    PackageMissingError,
    UnknownFunctionError,
    VerifyError,
)
from pytest_udftorch.prove.exact.rounding import correctly_rounded, ulp_error
from pytest_udftorch.prove.verify import chunks as chunk_running
from pytest_udftorch.prove.verify import run as verify
from pytest_udftorch.prove.verify import workers
from pytest_udftorch.prove.verify.chunks import outputs_digest, run_chunk
from pytest_udftorch.prove.verify.journal import Journal
from pytest_udftorch.prove.verify.reference import checker as reference
from pytest_udftorch.prove.verify.reference.checker import checker_file, load_checker
from pytest_udftorch.prove.verify.schedule import Request, make_schedule

#: Chunks of 2**16 inputs around 1, where the C library's functions have results of all kinds.
BITS = 16
AROUND_ONE = range(0x3F70, 0x3F90)


HAS_LLVMLIBC = any(reference.LLVM_FOLDERS.glob("llvm-*/lib/libllvmlibc.a"))
REFERENCE = "auto" if HAS_LLVMLIBC else "libm"

needs_llvmlibc = pytest.mark.skipif(not HAS_LLVMLIBC, reason="LLVM-libc is not installed")


def small_schedule(function="exp", *, reference=REFERENCE, **options):
    request = Request(chunk_bits=BITS, reference=reference, **options)
    return make_schedule("libm", function, request)


def run_of(schedule, tmp_path, chunks=AROUND_ONE, *, name="run", workers=0, **options):
    how = verify.Execution(chunks, workers, **options)
    journal = Journal(tmp_path / f"{name}.journal", schedule.identity(), resume=False)
    return verify.execute(schedule, journal, how)


def verified(schedule, target, *, chunks=None, progress=None, **options):
    how = verify.Execution(chunks, workers=0, progress=progress)
    return verify.verify(schedule, target, how, **options)


def facts(run):
    """All of a run but when and how fast."""
    return (run.identity, run.chunks, run.tally, run.largest)


# Judging -----------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["exp", "sinh", "erfc", "tan"])
def test_counts_and_errors_are_those_of_the_oracle(tmp_path, function):
    schedule = small_schedule(function)
    run = run_of(schedule, tmp_path, [0x3FC0])
    (x,) = load_checker(checker_file()).inputs(1, 0, 0x3FC00000, 1 << BITS)
    job = outputs_digest(schedule, 0x3FC0)
    got = chunk_running._buffers(1 << BITS)[0].copy()
    assert run.chunks[0x3FC0][0] == job
    want = correctly_rounded(x, function=function)
    errors = ulp_error(got.view(np.float32), x, function=function)
    assert run.tally.wrong == np.count_nonzero(got != want)
    assert run.largest["ulp"] == pytest.approx(errors.max(), abs=2.0**-24)
    bins, counts = np.unique(chunk_running._bins(errors), return_counts=True)
    measured = run.tally.histogram
    # A result within 2**-24 ULP of the edge of a bin may be counted next to it.
    for number, count in zip(bins.tolist(), counts.tolist(), strict=True):
        assert abs(measured.get(number, 0) - count) <= 2
    wrong = np.flatnonzero(got != want)[:16]
    listed = [(e.inputs[0] & 0xFFFF, e.got, e.want) for e in run.tally.examples]
    assert listed == [(int(i), int(got[i]), int(want[i])) for i in wrong]


def test_the_c_library_is_wrong_somewhere(tmp_path):
    """The comparison above is only worth something if there is something to find."""
    assert run_of(small_schedule("sinh"), tmp_path).tally.wrong > 1000


@needs_llvmlibc
@pytest.mark.parametrize("function", ["exp", "log", "sin", "tanh"])
def test_references_agree_about_the_number_wrong(tmp_path, function):
    runs = {
        reference: run_of(
            small_schedule(function, reference=reference), tmp_path, AROUND_ONE[:4], name=reference
        )
        for reference in ("llvmlibc", "libm", "mpfr")
    }
    assert len({r.tally.wrong for r in runs.values()}) == 1
    assert runs["llvmlibc"].chunks == runs["libm"].chunks == runs["mpfr"].chunks
    assert runs["mpfr"].tally.arbitrated == runs["mpfr"].tally.inputs
    assert runs["libm"].tally.arbitrated < runs["libm"].tally.inputs
    assert runs["llvmlibc"].tally.reference_wrong == 0


@needs_llvmlibc
def test_erfc_which_llvmlibc_lacks_gets_another_reference():
    assert small_schedule("erfc").reference == "libm"
    with pytest.raises(PackageMissingError, match="no correctly rounded erfc"):
        small_schedule("erfc", reference="llvmlibc")


@pytest.mark.parametrize("function", ["pow", "atan2", "hypot"])
def test_pairs_are_judged_against_mpfr(tmp_path, function):
    schedule = small_schedule(function, pairs=3 << BITS, seed=9)
    assert schedule.total_chunks == 3
    run = run_of(schedule, tmp_path, None)
    assert run.complete
    checker = load_checker(checker_file())
    x, y = checker.inputs(2, 9, 0, 3 << BITS)
    want = checker.mpfr(function, x, y).view(np.uint32)
    want[np.isnan(want.view(np.float32))] = 0x7FC00000
    got = []
    for index in range(3):
        outputs_digest(schedule, index)
        got.append(chunk_running._buffers(1 << BITS)[0].copy())
    assert run.tally.wrong == np.count_nonzero(np.concatenate(got) != want)


# exp comes down to 2**-126 in the first range, and then to 0 in the second.
@pytest.mark.parametrize(
    "chunks",
    [range(0xC2AC, 0xC2B2), pytest.param(range(0xC2AA, 0xC2D0), marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_denormals_can_be_flushed_and_are_not_judged_then(tmp_path, chunks):
    plain = run_of(small_schedule(), tmp_path, chunks)
    flushed = run_of(small_schedule(flush=True), tmp_path, chunks, name="flush")
    checker = load_checker(checker_file())
    (x,) = checker.inputs(1, 0, chunks[0] << 16, len(chunks) << 16)
    want = checker.mpfr("exp", x).view(np.uint32)
    assert plain.tally.flushed == 0
    assert flushed.tally.flushed == np.count_nonzero((want != 0) & (want < 0x00800000))
    assert flushed.tally.inputs == plain.tally.inputs
    assert plain.chunks.keys() == flushed.chunks.keys()
    assert any(plain.chunks[i][0] != flushed.chunks[i][0] for i in chunks)
    assert all(plain.chunks[i][1] == flushed.chunks[i][1] for i in chunks)


# Resuming ----------------------------------------------------------------------------


class Interrupt:
    """Raises KeyboardInterrupt when a number of chunks is done."""

    def __init__(self, at):
        self.at = at
        self.first = None

    def __call__(self, done, total):
        self.first = done if self.first is None else self.first
        if done == self.at:
            raise KeyboardInterrupt


def test_an_interrupted_run_loses_nothing(tmp_path):
    schedule = small_schedule()
    whole = run_of(schedule, tmp_path, name="whole")
    target = tmp_path / "exp.json"
    with pytest.raises(KeyboardInterrupt):
        verified(schedule, target, chunks=AROUND_ONE, progress=Interrupt(11))
    assert not target.exists()
    with pytest.raises(JournalError, match="11 chunks"):
        verified(schedule, target, chunks=AROUND_ONE)
    watch = Interrupt(None)
    made = verified(schedule, target, resume=True, chunks=AROUND_ONE, progress=watch)
    assert watch.first == 11
    assert facts(made.runs[0]) == facts(whole)
    assert facts(prove.load_certificate(target).runs[0]) == facts(whole)
    assert not list(tmp_path.glob("*exp*.journal"))


def test_a_killed_process_loses_nothing(tmp_path, start_process):
    schedule = small_schedule()
    whole = run_of(schedule, tmp_path, name="whole")
    first, end = AROUND_ONE[0], AROUND_ONE[-1] + 1
    command = [sys.executable, "-m", "pytest_udftorch.cli", "verify", "libm", "exp"]
    command += ["--workers=0", f"--chunk-bits={BITS}", f"--chunks={first}:{end}", "--quiet"]
    command += [f"--out={tmp_path}", f"--reference={REFERENCE}"]
    process = start_process(command)
    while process.poll() is None and _lines(tmp_path) < 4:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait()
    recorded = _lines(tmp_path) - 1
    assert recorded >= 3
    process = start_process([*command, "--resume"])
    assert process.wait() == 0
    (target,) = tmp_path.glob("*.certificate.json")
    assert facts(prove.load_certificate(target).runs[0]) == facts(whole)


def _lines(folder):
    journals = list(folder.glob("exp*.journal"))
    return journals[0].read_bytes().count(b"\n") if journals else 0


@pytest.fixture
def start_process():
    running = []

    def start(command):
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_other_chunks_complete_a_certificate(tmp_path):
    schedule = small_schedule()
    target = tmp_path / "exp.json"
    verified(schedule, target, chunks=AROUND_ONE[:5])
    verified(schedule, target, chunks=AROUND_ONE[5:])
    (run,) = prove.load_certificate(target).runs
    assert facts(run) == facts(run_of(schedule, tmp_path))


def test_another_form_is_added_and_the_same_one_replaced(tmp_path):
    target = tmp_path / "exp.json"
    verified(small_schedule(), target, chunks=AROUND_ONE[:2])
    verified(small_schedule(flush=True), target, chunks=AROUND_ONE[:2])
    verified(small_schedule(), target, chunks=AROUND_ONE[:2])
    runs = prove.load_certificate(target).runs
    assert sorted(r.identity["flush"] for r in runs) == [False, True]


def test_a_part_never_replaces_a_complete_certificate(tmp_path):
    schedule = replace(small_schedule("sinh"), count=4 << BITS)
    target = tmp_path / "sinh.json"
    whole = verified(schedule, target)
    before = target.read_bytes()
    other_inputs = replace(schedule, count=3 << BITS)
    for part in (schedule, other_inputs):
        with pytest.raises(errors.CertificateError, match="or leave out --chunks"):
            verified(part, target, chunks=[0, 1])
    assert target.read_bytes() == before
    assert list(tmp_path.iterdir()) == [target]
    # Another form joins it, the same one elsewhere starts a certificate of its own, and all
    # chunks may replace it.
    verified(replace(schedule, flush=True), target, chunks=[0])
    kept, part = prove.load_certificate(target).runs
    assert (facts(kept), part.complete) == (facts(whole.runs[0]), False)
    assert not verified(schedule, tmp_path / "part.json", chunks=[0]).runs[0].complete
    assert verified(schedule, target, chunks=range(4), judge_all=True).runs[0].complete


def test_a_sample_is_compared_with_a_run_that_flushes_as_it_does(tmp_path):
    target, subnormal = tmp_path / "exp.json", 0xC2B8  # exp of -92 to -92.5
    for flush in (True, False):
        verified(small_schedule(flush=flush), target, chunks=[subnormal])
    stored = prove.load_certificate(target)
    # What flushes comes last, whatever was run first.
    assert [r.identity["flush"] for r in stored.runs] == [False, True]
    one, other = (r.chunks[subnormal][0] for r in stored.runs)
    assert one != other
    for flush in (True, False):
        assert verify.sample_mismatches(stored, small_schedule(flush=flush), [subnormal]) == []


def renamed(schedule, **changes):
    """The same schedule for a form that goes by other names."""
    return replace(schedule, candidate=replace(schedule.candidate, cpu_level="other", **changes))


def test_a_form_with_known_outputs_is_not_judged_again(tmp_path):
    schedule = replace(small_schedule("sinh"), count=4 << BITS)
    target = tmp_path / "sinh.json"
    first = verified(schedule, target).runs[0]
    second = verified(renamed(schedule), target).runs[0]
    assert second.chunks == first.chunks
    assert second.identity["reference"].startswith("every output that of the scalar form")
    assert second.tally == first.tally
    judged = verified(renamed(schedule), target, judge_all=True).runs[0]
    assert judged.identity["reference"] == first.identity["reference"]
    assert not list(tmp_path.glob("*.journal"))


def test_a_form_with_other_outputs_is_judged(tmp_path):
    schedule = replace(small_schedule("sinh"), count=4 << BITS)
    target = tmp_path / "sinh.json"
    assert verified(schedule, target).runs[0].tally.wrong == 0
    other = verified(renamed(schedule, symbol="expf"), target).runs[0]
    assert other.identity["reference"] == schedule.reference_text
    assert other.tally.wrong == 4 << BITS
    assert not list(tmp_path.glob("*.journal"))


def test_a_run_of_digests_is_resumed_too(tmp_path):
    schedule = replace(small_schedule("sinh"), count=4 << BITS)
    target = tmp_path / "sinh.json"
    first = verified(schedule, target).runs[0]
    with pytest.raises(KeyboardInterrupt):
        verified(renamed(schedule), target, progress=Interrupt(2))
    watch = Interrupt(None)
    again = verified(renamed(schedule), target, resume=True, progress=watch)
    assert watch.first == 2
    assert again.runs[0].chunks == first.chunks


@pytest.mark.parametrize("chunks", [[], [-1], [1 << 16]])
def test_chunks_that_are_not_there_are_refused(tmp_path, chunks):
    with pytest.raises(VerifyError, match="has the chunks 0 to 65535"):
        run_of(small_schedule(), tmp_path, chunks)


# Workers -----------------------------------------------------------------------------

CLUSTER_WARNINGS = pytest.mark.filterwarnings(
    # Raised inside distributed when a worker is killed under it.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::DeprecationWarning",
)


@CLUSTER_WARNINGS
def test_two_workers_give_what_one_process_gives(tmp_path):
    schedule = small_schedule()
    alone = run_of(schedule, tmp_path)
    assert facts(run_of(schedule, tmp_path, name="two", workers=2)) == facts(alone)


# A process that is killed, and workers that are not, are tested above.
@pytest.mark.slow
@CLUSTER_WARNINGS
def test_a_killed_worker_loses_nothing(tmp_path):
    from distributed import Client, LocalCluster

    chunks = range(0x3F00, 0x4000)
    schedule = small_schedule("tan")
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        victim, other = client.run(os.getpid).values()
        killed = []

        def kill_midway(done, total):
            if done >= total // 4 and not killed:
                os.kill(victim, signal.SIGKILL)
                killed.append(done)

        run = run_of(
            schedule, tmp_path, chunks, scheduler=cluster.scheduler_address, progress=kill_midway
        )
        assert killed
        assert killed[0] < len(chunks)
        now = set(client.run(os.getpid).values())
        assert victim not in now
        assert other in now
    assert sorted(run.chunks) == list(chunks)
    assert facts(run) == facts(run_of(schedule, tmp_path, chunks, name="alone"))


@CLUSTER_WARNINGS
def test_a_scheduler_that_does_not_answer_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 0.3)
    with pytest.raises(VerifyError, match="No dask scheduler answers"):
        run_of(small_schedule(), tmp_path, scheduler="tcp://127.0.0.1:9")


@CLUSTER_WARNINGS
@pytest.mark.parametrize("late", [1, 2, 3])
def test_an_event_loop_that_starts_late_is_given_more_time(tmp_path, monkeypatch, late):
    """distributed asserts that its thread runs after 10 s; here, after none."""
    distributed = pytest.importorskip("distributed")
    start, left = distributed.utils.LoopRunner._start_unlocked, [late]

    def starts_late(runner):
        with monkeypatch.context() as patch:
            if left[0]:
                left[0] -= 1
                patch.setattr(distributed.utils, "_CollectErrorThread", lambda **_: None)
                patch.setattr(threading.Event, "wait", lambda event, timeout=None: False)
            start(runner)

    monkeypatch.setattr(distributed.utils.LoopRunner, "_start_unlocked", starts_late)
    monkeypatch.setattr(workers, "CONNECT_SECONDS", 0.3)
    with pytest.raises(
        VerifyError, match="loop .* did not start" if late == 3 else "No dask scheduler answers"
    ):
        run_of(small_schedule(), tmp_path, scheduler="tcp://127.0.0.1:9")
    # Nor does a client that did not start become what dask's collections run on.
    assert pytest.importorskip("dask").config.get("scheduler", None) is None


def test_a_missing_dask_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(VerifyError, match=r"dask\[distributed\]"):
        run_of(small_schedule(), tmp_path, workers=2)


def test_files_reach_a_worker_that_does_not_have_them(tmp_path, monkeypatch):
    schedule = small_schedule()
    contents, moved = {}, {}
    for role, (name, sha256) in schedule.files.items():
        path = Path(name)
        contents[sha256] = (path.name, path.read_bytes())
        moved[role] = (f"/nowhere/{path.name}", sha256)
    elsewhere = replace(schedule, files={**moved, "candidate": schedule.files["candidate"]})
    monkeypatch.setattr(chunk_running, "shipped", {})
    monkeypatch.setattr(workers, "shipped", chunk_running.shipped)
    with pytest.raises(VerifyError, match="has no checker"):
        run_chunk(elsewhere, AROUND_ONE[0])
    workers.receive_files(contents, tmp_path)
    assert run_chunk(elsewhere, AROUND_ONE[0]) == run_chunk(schedule, AROUND_ONE[0])


def test_a_file_that_was_damaged_on_its_way_is_refused(tmp_path):
    with pytest.raises(VerifyError, match="damaged on its way"):
        workers.receive_files({"00" * 32: ("lib.so", b"abc")}, tmp_path)


# What cannot be verified --------------------------------------------------------------


def test_an_unknown_function_is_refused_with_near_names():
    with pytest.raises(UnknownFunctionError, match="'expm1'"):
        small_schedule("expm2")


def test_a_form_that_is_not_there_is_refused():
    with pytest.raises(errors.VerifyError, match=r"has no form 'v8'\. It has: scalar"):
        small_schedule(form="v8")


def test_float64_is_refused_with_advice():
    with pytest.raises(errors.VerifyError, match=r"pytest_udftorch\.prove"):
        small_schedule(dtype="float64")


def test_garbage_lanes_need_a_vector():
    with pytest.raises(VerifyError, match="--form v8 or v16"):
        small_schedule(garbage=True)


def test_a_certificate_of_something_else_says_nothing(tmp_path):
    made = verified(small_schedule(), tmp_path / "exp.json", chunks=[0x3F80])
    schedule = small_schedule()
    assert verify.sample_mismatches(made, schedule, [0x3F80]) == []
    with pytest.raises(errors.CertificateError, match="says nothing"):
        verify.sample_mismatches(made, small_schedule("log"), [0x3F80])
    with pytest.raises(errors.CertificateError, match="no chunk 5"):
        verify.sample_mismatches(made, schedule, [5])
