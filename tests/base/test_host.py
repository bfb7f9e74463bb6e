# SPDX-License-Identifier: Apache-2.0
"""Where the package cannot work it says so in one sentence, before anything else fails."""

import dataclasses
import subprocess
import sys

import pytest

from pytest_udftorch.base.host import require_host, this_host
from pytest_udftorch.errors import UnsupportedHostError

GOOD = dataclasses.replace(
    this_host(),
    system="linux",
    processor="x86_64",
    python=(3, 12),
    abi="cpython-312-x86_64-linux-gnu",
    free_threaded=False,
)


def test_this_host_is_supported():
    require_host()
    require_host(GOOD)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"system": "darwin"}, r"not work on macOS.*ELF.*Use Linux on x86-64"),
        ({"system": "win32", "processor": "AMD64"}, r"not work on Windows.*WSL 2"),
        ({"system": "freebsd14"}, r"not work on freebsd14"),
        ({"processor": "aarch64"}, r"not work on aarch64.*compiled for x86-64.*Use Linux"),
        ({"processor": "i686"}, r"not work on i686"),
        (
            {"abi": "cpython-312-x86_64-linux-musl"},
            r"built for musl.*torch's wheels.*python:3-slim",
        ),
        ({"free_threaded": True}, r"free-threaded build of Python 3\.12.*Use the ordinary build"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_the_error_names_what_is_missing_and_what_to_use(facts, says):
    with pytest.raises(UnsupportedHostError, match=says):
        require_host(dataclasses.replace(GOOD, **facts))


def test_aarch64_can_be_tried_on_request(monkeypatch):
    there = dataclasses.replace(GOOD, processor="aarch64", abi="cpython-312-aarch64-linux-gnu")
    with pytest.raises(UnsupportedHostError, match="UDFTORCH_TRY_AARCH64=1 tries it"):
        require_host(there)
    monkeypatch.setenv("UDFTORCH_TRY_AARCH64", "1")
    require_host(there)
    with pytest.raises(UnsupportedHostError, match="not work on riscv64"):
        require_host(dataclasses.replace(there, processor="riscv64"))
    with pytest.raises(UnsupportedHostError, match="musl"):
        require_host(dataclasses.replace(there, abi="cpython-312-aarch64-linux-musl"))
    monkeypatch.setenv("UDFTORCH_TRY_AARCH64", "0")
    with pytest.raises(UnsupportedHostError, match="not work on aarch64"):
        require_host(there)


def test_newer_pythons_and_unnamed_abis_are_not_refused():
    require_host(dataclasses.replace(GOOD, python=(3, 99), abi=None))


# Hosts, by what they say and the modules that they lack.
_HOSTS = {
    "aarch64": ("platform.machine = lambda: 'aarch64'", ("torch",)),
    "Windows": ("sys.platform = 'win32'", ("fcntl", "torch")),
    "macOS": ("sys.platform = 'darwin'", ("torch",)),
}
_WAYS_IN = {
    "patched": "import pytest_udftorch; pytest_udftorch.patched('corem').__enter__()",
    "build_library": "from pytest_udftorch import build_library; build_library('corem')",
    "command": "from pytest_udftorch.cli import main; sys.exit(main(['verify', 'corem', 'exp']))",
}


@pytest.mark.parametrize("host", _HOSTS)
@pytest.mark.parametrize("way", _WAYS_IN)
def test_every_way_in_gives_the_sentence(host, way):
    said, lacks = _HOSTS[host]
    # These look at the facts too, so that they are imported before: shutil from Python 3.13 on.
    elsewhere = (
        "import argparse, platform, sys, asyncio, numpy, multiprocessing, shutil, sysconfig; "
        f"sysconfig.get_config_var('SOABI'); {said}; sys.modules |= dict.fromkeys({lacks}); "
    )
    done = subprocess.run(
        [sys.executable, "-c", elsewhere + _WAYS_IN[way]],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert host in last
    assert "Use Linux on x86-64" in last


def test_in_pytest_it_is_a_usage_error(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n", encoding="utf-8")
    run = (
        "import platform, sys, pytest; platform.machine = lambda: 'aarch64'; "
        "sys.exit(pytest.main(['--udf-lib=corem', '-p', 'no:cacheprovider']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.strip().startswith("ERROR: pytest_udftorch does not work on aarch64")
    assert "Traceback" not in done.stderr
