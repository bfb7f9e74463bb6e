# SPDX-License-Identifier: Apache-2.0
"""pytest --udf-profile: figures of tests, their way through xdist, files, and what goes wrong."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pytest_udftorch.swap.records import file as record
from pytest_udftorch.swap.records import layout
from pytest_udftorch.swap.records.profile import Profile, load_profiles

# The witness computes with torch itself, so these tests do without it.
FILES = {
    "test_it": """
        import pytest
        import torch

        torch.log(torch.full((7,), 3.0))  # while the suite is collected

        @pytest.fixture
        def prepared():
            torch.exp(torch.linspace(0, 1, 100))
            yield
            torch.exp(torch.full((1000,), 50.0))

        def test_fixture(prepared, udf_profile):
            torch.exp(torch.linspace(1, 2, 50))
            (row,) = udf_profile.test.rows("function")
            assert (row.elements, row.limits("in")) == (150, (0, 2))
            assert udf_profile.run.rows("function", "stage")

        def test_next(udf_profile):
            torch.log(torch.full((20,), 5.0))
            (row,) = udf_profile.test.rows("function")
            assert row.limits("in") == (5, 5)

        def test_fails():
            torch.exp(torch.full((3,), 100.0))
            raise RuntimeError

        def test_nothing():
            pass

        def test_skipped():
            pytest.skip()
    """,
    "conftest": """
        import json
        from pathlib import Path

        # The controller's, or the only process's, view of what the reports carry.
        def pytest_runtest_logreport(report):
            import os

            if report.when == "call" and "PYTEST_XDIST_WORKER" not in os.environ:
                with Path(__file__).with_name("properties.txt").open("a") as file:
                    file.write(json.dumps([report.nodeid, dict(report.user_properties)]) + "\\n")
    """,
}

#: Test -> function -> elements, least and largest input, of setup and call.
WANT = {
    "test_fixture": {"exp": [150, 0, 2]},
    "test_next": {"log": [20, 5, 5]},
    "test_fails": {"exp": [3, 100, 100]},
    "test_nothing": {},
    "test_skipped": {},
}


def properties(suite):
    """Return test -> what its report says, as WANT."""
    path = suite.path / "properties.txt"
    found = {}
    for line in path.read_text().splitlines():
        test, carried = json.loads(line)
        found[test.split("::")[1]] = {
            f["function"]: [f["elements"], f["in_min"], f["in_max"]]
            for f in carried["udf_profile"]["functions"]
        }
    path.unlink()
    return found


def totals(profile):
    return {r.key["function"]: r.elements for r in profile.rows("function")}


@pytest.fixture
def profiled(suite):
    suite.write(**FILES)
    return suite


def elements_shown(result, function):
    """Return the elements of a function in the terminal summary."""
    line = next(x for x in result.outlines if re.match(rf"{function} +\d", x))
    return int(line.split()[3].replace(",", ""))


def test_each_test_has_its_own_figures_and_the_run_the_sum(profiled):
    result = profiled.run("--udf-profile", "--udf-profile-out=out")
    result.assert_outcomes(passed=3, failed=1, skipped=1)
    assert properties(profiled) == WANT
    out = profiled.path / "out"
    (file,) = out.glob("profiled-*.bin")
    content = record.read(file)
    assert content.ended
    parts = {
        scope.split("::")[-1]: totals(Profile.load(file, scope=scope)) for scope in content.cells
    }
    assert parts == {
        "": {},
        "(before the tests)": {"log": 7},
        "test_fixture": {"exp": 150},
        "test_fixture (teardown)": {"exp": 1000},
        "test_next": {"log": 20},
        "test_fails": {"exp": 3},
        "test_nothing": {},
        "test_skipped": {},
    }
    (whole,) = load_profiles([out])
    assert totals(whole) == {"exp": 1153, "log": 27}
    assert (whole.label, whole.meta["depth"]) == ("std", "counters")
    assert elements_shown(result, "exp") == 1153
    page = (out / "report.html").read_text()
    (table,) = re.findall(r'<table class="sortable" id="tests">.*?</table>', page, re.S)
    assert [name in table for name in ("::test_next", "::test_fails", "failed")] == [True] * 3
    assert elements_shown(result, "log") == 27
    result.stdout.fnmatch_lines(
        [
            "udftorch: std *; nothing swapped, but watched; functions: all",
            "udftorch: profile: counters, written to *out",
            "*= udftorch profile =*",
            "std *, depth counters",
            "first inf made: exp (float32) in aten::exp, layer (no module), forward, *",
            "report: *out/report.html",
        ]
    )
    page = (out / "report.html").read_text()
    assert ">1,153<" in page


# The test of a worker that dies merges two, one after the other.
@pytest.mark.slow
def test_workers_of_xdist_are_merged(profiled):
    pytest.importorskip("xdist")
    result = profiled.run("--udf-lib=corem", "--udf-profile=timed", "--udf-profile-out=out", "-n2")
    result.assert_outcomes(passed=3, failed=1, skipped=1)
    assert properties(profiled) == WANT
    out = profiled.path / "out"
    assert len(list(out.glob("profiled-*.bin"))) == 2
    (whole,) = load_profiles([out])
    assert whole.notes == ()
    # Each worker collects the suite.
    assert totals(whole) == {"exp": 1153, "log": 20 + 2 * 7}
    assert elements_shown(result, "exp") == 1153
    assert whole.wall_ns > 0
    assert whole.time_ns > 0
    result.stdout.fnmatch_lines(["corem *, depth timed, 2 processes"])
    assert (out / "report.html").exists()


@pytest.mark.slow
def test_workers_without_a_folder_leave_nothing_behind(profiled, tmp_path, monkeypatch):
    pytest.importorskip("xdist")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    result = profiled.run("--udf-profile", "-n1")
    assert elements_shown(result, "exp") == 1153
    assert list((tmp_path / "temporary").glob("udftorch*")) == []
    assert list(profiled.path.rglob("profiled*.bin")) == []


def test_a_worker_that_dies_loses_no_finished_test(profiled):
    pytest.importorskip("xdist")
    profiled.write(
        test_z="""
        import os
        import torch
        def test_dies():
            os._exit(7)
        def test_another_worker_goes_on():
            torch.exp(torch.zeros(13))
    """
    )
    result = profiled.run(
        "--udf-profile", "--udf-profile-out=out", "-n1", "test_it.py", "test_z.py"
    )
    result.stdout.fnmatch_lines(["*worker 'gw0' crashed while running 'test_z.py::test_dies'*"])
    assert properties(profiled).items() >= WANT.items()
    assert elements_shown(result, "exp") == 1153 + 13
    result.stdout.fnmatch_lines(["note: profiled-*.bin was not closed: its process died*"])
    # The worker that replaced it began after its end. Both are of one run.
    (profile,) = load_profiles([profiled.path / "out"])
    assert len(profile.processes) == 2
    assert {r.key["function"]: r.elements for r in profile.rows("function")}["exp"] == 1153 + 13


SEVERAL = {
    "test_it": """
        import pytest
        import torch

        @pytest.fixture(scope="session")
        def weights():
            return torch.exp(torch.zeros(11))

        def test_one(weights, udf_session):
            torch.exp(torch.zeros(5))

        @pytest.mark.udf_lib("./one")
        def test_marked(udf_session, udf_profile):
            torch.exp(torch.zeros(9))
            assert udf_session.library.name == "one"
            assert udf_profile.run.label == "one"

        def test_back(udf_session, udf_profile):
            torch.exp(torch.zeros(3))
            assert udf_profile.run.label == udf_session.library.name
    """,
}


def test_a_marker_makes_room_for_its_library(suite):
    suite.write(**SEVERAL)
    suite.run("--udf-profile", "--udf-profile-out=out").assert_outcomes(passed=3)
    found = {p.label: totals(p) for p in load_profiles([suite.path / "out"])}
    assert found == {"std": {"exp": 11 + 5 + 3}, "one": {"exp": 9}}


def test_several_libraries_stand_beside_each_other(suite):
    suite.write(**SEVERAL)
    result = suite.run("--udf-lib=std", "--udf-lib=./one", "--udf-profile", "--udf-profile-out=out")
    result.assert_outcomes(passed=5)
    found = {p.label: totals(p) for p in load_profiles([suite.path / "out"])}
    # The fixture is made anew for each library.
    assert found == {"std": {"exp": 19}, "one": {"exp": 9 + 19}}
    page = (suite.path / "out" / "report.html").read_text()
    assert '<span class="library">std</span>' in page
    assert '<span class="library">one</span>' in page


def test_events_reach_the_file(profiled):
    profiled.run("--udf-profile=events", "--udf-profile-out=out", "-k", "fixture or next")
    (whole,) = load_profiles([profiled.path / "out"])
    frame = whole.to_pandas("events")
    assert frame["elements"].sum() == sum(totals(whole).values()) == 7 + 150 + 1000 + 20
    assert (frame["end_ns"] >= frame["start_ns"]).all()


def test_benchmarks_carry_the_figures(suite):
    pytest.importorskip("pytest_benchmark")
    suite.write(
        test_it="""
        import torch
        def test_it(benchmark):
            benchmark.pedantic(torch.exp, (torch.zeros(10),), rounds=7)
    """
    )
    result = suite.pytester.runpytest_subprocess(
        "-p", "no:hypothesispytest", "--udf-profile", "--benchmark-json=bench.json"
    )
    result.assert_outcomes(passed=1)
    (bench,) = json.loads((suite.path / "bench.json").read_text())["benchmarks"]
    (function,) = bench["extra_info"]["udf_profile"]["functions"]
    assert function["elements"] == 70


def test_reports_in_junit_xml(profiled):
    profiled.run("--udf-profile", "--junitxml=j.xml", "-k", "next")
    assert 'property name="udf_profile"' in (profiled.path / "j.xml").read_text()


def test_the_ini_value(profiled):
    (profiled.path / "pytest.ini").write_text("[pytest]\nudf_profile = timed\n")
    result = profiled.run("-k", "next")
    result.stdout.fnmatch_lines(["udftorch: profile: timed", "std *, depth timed"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["--udf-profile", "below/test_it.py"],
        ["--udf-profile", "below"],
        ["--udf-profile", "below/test_it.py::test_it"],
    ],
)
def test_a_path_after_the_option_names_tests(suite, arguments):
    """It would be taken for the depth; then the conftest beside it would come too late."""
    (suite.path / "below").mkdir()
    suite.write(test_other="def test_other(): assert False")
    (suite.path / "below" / "conftest.py").write_text(
        "def pytest_addoption(parser): parser.addoption('--mine')"
    )
    (suite.path / "below" / "test_it.py").write_text(
        "def test_it(request): assert request.config.getoption('--mine') == 'x'"
    )
    result = suite.run(*arguments, "--mine=x")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["udftorch: profile: counters"])


# Mistakes and misfortunes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--udf-profile", "test_is.py"], r"'test_is\.py', which is not a depth.*with the sign ="),
        (["--udf-profile=test_it.py"], r"'test_it\.py', which is not a depth.*with the sign ="),
        (["--udf-profile=deep"], r"'deep', which is not a depth of profiling"),
        (["-o", "udf_profile=deep"], r"'deep', which is not a depth of profiling"),
        (["--udf-profile-out=out"], r"none is made\. Add --udf-profile"),
        (["--udf-profile", "--udf-profile-out="], r"--udf-profile-out is empty"),
        (["--udf-profile", "--udf-profile-out=file"], r"Cannot write profiles into .*file: "),
    ],
)
def test_misuse_is_a_usage_error(suite, arguments, message):
    suite.write(test_it="def test_it(): pass")
    (suite.path / "file").touch()
    result = suite.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(message, result.stderr.str())
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_the_fixture_without_profiling(suite):
    suite.write(test_it="def test_it(udf_profile): pass")
    result = suite.run("--udf-lib=std")
    result.assert_outcomes(errors=1)
    assert "The fixture udf_profile needs profiling, and it is off" in result.stdout.str()


def test_collecting_only_makes_no_folder(profiled):
    result = profiled.run("--udf-profile", "--udf-profile-out=out", "--collect-only")
    assert result.ret == 0
    assert not (profiled.path / "out").exists()
    assert "udftorch profile" not in result.stdout.str()


def earlier(folder: Path, name: str) -> record.ProfileWriter:
    writer = record.ProfileWriter(folder / name, layout.StringTable(), {"library": "earlier"})
    writer.events(np.zeros(1, layout.EVENT))
    return writer


def test_profiles_of_an_earlier_run_are_replaced_and_other_files_kept(profiled, monkeypatch):
    out = profiled.path / "out"
    earlier(out, "profiled-old.bin").close()
    (out / "profiled-notes.bin").write_text("mine")
    profiled.run("--udf-profile", "--udf-profile-out=out", "-k", "next")
    assert not (out / "profiled-old.bin").exists()
    assert (out / "profiled-notes.bin").read_text() == "mine"
    # The ranks of a distributed run share the folder.
    earlier(out, "profiled-old.bin").close()
    monkeypatch.setenv("WORLD_SIZE", "2")
    profiled.run("--udf-profile", "--udf-profile-out=out", "-k", "next")
    assert (out / "profiled-old.bin").exists()


def test_a_folder_that_another_session_writes_to(profiled):
    with earlier(profiled.path / "out", "profiled-busy.bin"):
        result = profiled.run("--udf-profile", "--udf-profile-out=out")
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert "Another session is writing the profile" in result.stderr.str()


LOSS = "pytest_udftorch.errors.ProfileLossWarning"

DISK = """
    import resource
    import torch
    from pathlib import Path

    def test_before():
        torch.exp(torch.zeros(10))

    def test_full():
        # From here on files may not grow beyond what this one has, as on a full disk.
        (profile,) = Path("out").iterdir()
        size = profile.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        torch.exp(torch.zeros(20))

    def test_after():
        torch.log(torch.ones(30))
"""


@pytest.mark.slow
def test_a_full_disk_costs_records_and_no_test(suite):
    suite.write(test_it=DISK)
    # Through pipes: pytester's own files would be full as well.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:cacheprovider",
    ]
    run = subprocess.run(
        [*command, "--udf-profile", "--udf-profile-out=out"],
        cwd=suite.path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 passed" in run.stdout
    assert re.search(r"^exp +2 +\d+ +30 ", run.stdout, re.M)  # memory has it all
    assert re.search(
        r"profiled-.*\.bin is not complete: \d+ records and 0 events are lost \(File too "
        r"large\)\.",
        run.stdout,
    )
    assert re.search(r"cannot be shown in full: Cannot write .*report\.html: File too", run.stdout)
    assert "ProfileLossWarning" in run.stderr
    (whole,) = load_profiles([suite.path / "out"])
    assert totals(whole) == {"exp": 10}


def test_a_folder_that_is_deleted_costs_records_and_no_test(suite):
    suite.write(
        test_it="""
        import shutil
        import torch
        from pathlib import Path

        def test_it():
            shutil.rmtree("out")
            torch.exp(torch.zeros(10))
    """
    )
    result = suite.run("--udf-profile", "--udf-profile-out=out", "-W", f"error::{LOSS}")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    assert elements_shown(result, "exp") == 10
    assert "the file or its folder was deleted during the run" in result.stderr.str()


def test_code_without_modules_and_functions(suite):
    suite.write(test_it="def test_it(): import torch; torch.ones(3) + 1")
    result = suite.run("--udf-profile", "--udf-profile-out=out")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["no watched function was called"])
