# SPDX-License-Identifier: Apache-2.0
"""Someone's suite in a folder of its own, run by pytest in a process of its own on the real torch.

Its witness is ``torch.exp`` and ``torch.cos`` of zeros, exactly 1 in the stock library. The
libraries ``one`` and ``two`` invert bit 0 and bit 1 of each result, so that the bits of an
operator's result tell which library it went through.
"""

import time
from collections.abc import Iterator
from pathlib import Path

# Here: pytester forgets what is imported during its tests, which these do not survive.
import pandas  # noqa: F401
import pyarrow.parquet  # noqa: F401
import pytest
import torch
from forks import Forks

from pytest_udftorch.swap.native.runtime import runtime
from pytest_udftorch.swap.toolchain.cache import cache_folder

WITNESS = """
from pathlib import Path

NAMES = {0: "stock", 1: "one", 2: "two"}

def which(function="exp"):
    import torch

    result = getattr(torch, function)(torch.zeros(67)).view(torch.int32) ^ 0x3F800000
    (bits,) = result.unique().tolist()
    return NAMES[bits]

def note(event, function="exp"):
    with Path(__file__).with_name("log.txt").open("a") as log:
        log.write(f"{event}:{which(function)}\\n")
"""

SOURCE = """
#include <math.h>
static float flip(double y) {
  union { float f; unsigned u; } r = {(float)y};
  r.u ^= MASK;
  return r.f;
}
float udf_expf(float x) { return flip(exp(x)); }
float udf_cosf(float x) { return flip(cos(x)); }
"""

#: Runs with these import torch's compiler, which takes two seconds.
COMPILING = ("--udf-inf=error", "--udf-model=", "--udf-nan=error")

# Plugins of this repository's own tests that a suite here does not need; they load slowly.
QUIET = ("-p", "no:benchmark", "-p", "no:hypothesispytest")


class Suite:
    """A folder with the witness, the libraries, and whatever a test adds."""

    def __init__(self, pytester: pytest.Pytester, forks: dict[bool, Forks]) -> None:
        self.pytester = pytester
        self.forks = forks
        self.runs = 0
        self.path = pytester.path
        (self.path / "witness.py").write_text(WITNESS)
        self.library("one", 1)
        self.library("two", 2, functions=("exp",))

    def library(
        self, name: str, mask: int, *, folder: str = "", functions: tuple[str, ...] = ("exp", "cos")
    ) -> Path:
        home = self.path / (folder or name)
        home.mkdir(parents=True)
        (home / "f.c").write_text(f"#define MASK {mask}u\n{SOURCE}")
        tables = "".join(
            f'[functions.{f}.float32]\nsource = "f.c"\nscalar = "udf_{f}f"\n' for f in functions
        )
        (home / "udf.toml").write_text(
            f'[library]\nname = "{name}"\nversion = "1.5"\nclaim = "bit {mask // 2} inverted"\n'
            + tables
        )
        return home

    def write(self, **files: str) -> None:
        self.pytester.makepyfile(**files)

    def run(self, *args: str, torch_loaded: bool = True) -> pytest.RunResult:
        """Run pytest on the suite in a process of its own; the log starts empty.

        Without ``torch_loaded`` it is a new process, which has imported nothing.
        """
        (self.path / "log.txt").unlink(missing_ok=True)
        if not torch_loaded:
            return self.pytester.runpytest_subprocess(*QUIET, *args)
        self.runs += 1
        base = self.path / f"run-{self.runs}"
        streams = self.path / "stdout", self.path / "stderr"
        begin = time.monotonic()
        forks = self.forks[any(str(a).startswith(COMPILING) for a in args)]
        code = forks.run([f"--basetemp={base}", *QUIET, *map(str, args)], *streams)
        seconds = time.monotonic() - begin
        lines = [path.read_text().splitlines() for path in streams]
        print(*lines[0], *lines[1], sep="\n")
        return pytest.RunResult(code, *lines, seconds)

    @staticmethod
    def outcomes(result: pytest.RunResult) -> dict[str, str]:
        """Return node id -> outcome from the summary that -rA prints."""
        found = {}
        for line in result.outlines:
            word, _, rest = line.partition(" ")
            if word in ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS"):
                found[rest.split(" - ")[0].strip()] = word
        return found

    @property
    def log(self) -> list[str]:
        path = self.path / "log.txt"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="session")
def torch_header() -> str:
    capability = torch.backends.cpu.get_cpu_capability()
    return f"udftorch: torch {torch.__version__}, CPU capability {capability}"


@pytest.fixture
def level_too_low() -> str:
    """A CPU level whose vectors are narrower than those that torch uses here."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("torch runs its baseline kernels here: no level is too low")
    return "baseline"


@pytest.fixture
def has_avx2() -> None:
    if runtime().cpu_level() < 3:
        pytest.skip("this CPU has the baseline only")


@pytest.fixture(scope="session")
def build_cache() -> Path:
    """The cache of builds that these tests are run with: pytester hides the home it lies in."""
    return cache_folder()


@pytest.fixture(scope="session")
def forks() -> Iterator[dict[bool, Forks]]:
    """The processes that fork: without torch's compiler, and with it."""
    forks = {False: Forks(), True: Forks("torch._dynamo")}
    yield forks
    for one in forks.values():
        one.close()


@pytest.fixture
def suite(
    build_cache: Path,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    forks: dict[bool, Forks],
) -> Suite:
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(build_cache))
    # CI and BUILD_NUMBER make pytest print whole messages in its short summary, and COLUMNS sets
    # where it cuts them: what these tests count must not depend on who runs them.
    for name in (
        "UDFTORCH_CPU_LEVEL",
        "UDFTORCH_CUDA_FORM",
        "PYTEST_ADDOPTS",
        "CI",
        "BUILD_NUMBER",
        "COLUMNS",
    ):
        monkeypatch.delenv(name, raising=False)
    return Suite(pytester, forks)
