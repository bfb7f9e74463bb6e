# SPDX-License-Identifier: Apache-2.0
"""The pass plugin, the tools of the LLVM it is built for, and libraries made with both."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
SOURCES = HERE / "udf"

PACKAGE = "pytest_udftorch"

FLAGS = (
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-fvisibility=hidden",
)


@dataclass(frozen=True)
class Level:
    """One CPU level: the compiler's flags, the CPU's own flags, the vector register."""

    name: str
    march: tuple[str, ...]
    needs: frozenset[str]
    register_bits: int

    def lanes(self, bits: int) -> tuple[int, ...]:
        """Lanes of the vector forms that the level has, for elements of ``bits`` bits."""
        return tuple(r // bits for r in (256, 512) if r <= self.register_bits)


AVX2 = frozenset({"avx2", "bmi2", "f16c", "fma"})
LEVELS = {
    level.name: level
    for level in (
        Level("baseline", ("-march=x86-64-v2",), frozenset({"sse4_2"}), 128),
        Level("avx2", ("-march=x86-64-v3",), AVX2, 256),
        Level(
            "avx512",
            ("-march=x86-64-v4", "-mprefer-vector-width=512"),
            AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
            512,
        ),
    )
}


def cpu_flags() -> frozenset[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def missing_on_cpu(level: Level) -> str:
    """Why the level cannot be executed here; empty when it can."""
    missing = sorted(level.needs - cpu_flags())
    return f"this CPU lacks {', '.join(missing)}, which {level.name} needs" if missing else ""


def find_plugin() -> Path | None:
    """The plugin that UDFTORCH_PASS_PLUGIN names, or else the installed package's."""
    named = os.environ.get("UDFTORCH_PASS_PLUGIN")
    if named:
        return Path(named)
    spec = importlib.util.find_spec(PACKAGE)
    for entry in (spec.submodule_search_locations or ()) if spec else ():
        found = sorted((Path(entry) / "_native").glob("UdfPass-*.so"))
        if found:
            return found[-1]
    return None


@dataclass(frozen=True)
class Llvm:
    """The plugin and the tools of the LLVM version in its name."""

    plugin: Path

    @property
    def major(self) -> str:
        return self.plugin.stem.partition("-")[2]

    def tool(self, name: str) -> str:
        for candidate in (f"{name}-{self.major}", f"/usr/lib/llvm-{self.major}/bin/{name}"):
            found = shutil.which(candidate)
            if found:
                return found
        raise FileNotFoundError(
            f"no {name} of LLVM {self.major}: install llvm-{self.major} and clang-{self.major}"
        )

    @staticmethod
    def run(
        command: Iterable[str | Path], *, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            check=False,
        )

    def must(self, command: Iterable[str | Path]) -> str:
        command = list(command)
        done = self.run(command)
        assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr}"
        assert "warning:" not in done.stderr, done.stderr
        return done.stdout

    @property
    def loads(self) -> tuple[str, ...]:
        """The flags that make clang load the plugin before it reads ``-mllvm`` options."""
        plugin = str(self.plugin)
        return (f"-fpass-plugin={plugin}", "-Xclang", "-load", "-Xclang", plugin)

    def widen(
        self, source: Path, manifest: Path, out: Path, level: Level, *extra: str | Path
    ) -> None:
        """Compile one UDF source with ``udf-widen``."""
        self.must(
            [
                *(self.tool("clang"), "-std=c17", *FLAGS, *level.march, "-femit-all-decls"),
                *(*self.loads, "-mllvm", f"-udf-widen-manifest={manifest}"),
                *(source, "-o", out, *extra),
            ]
        )

    def symbols(self, path: Path) -> dict[str, str]:
        """Symbol name -> nm's letter (``T`` defined, ``U`` undefined)."""
        table = {}
        for line in self.must([self.tool("llvm-nm"), path]).splitlines():
            *_, letter, name = line.split()
            table[name] = letter
        return table

    def declares(self, path: Path) -> set[str]:
        """The names of the functions that a bitcode or IR file declares and does not define."""
        text = self.must([self.tool("opt"), "-S", path, "-o", "-"])
        heads = (line for line in text.splitlines() if line.startswith("declare"))
        return {head.partition("@")[2].partition("(")[0] for head in heads}


@dataclass(frozen=True)
class Probe:
    """One function of udf/probe.c."""

    name: str
    bits: int
    arity: int
    two_step: bool = True
    quick: bool = False
    short: bool = False

    @property
    def real(self) -> type:
        return np.float32 if self.bits == 32 else np.float64

    @property
    def word(self) -> type:
        return np.uint32 if self.bits == 32 else np.uint64

    def manifest_entry(self, level: Level) -> dict[str, object]:
        forms = {"scalar": f"__udf_{self.name}", "array": f"__udf_{self.name}_array"}
        forms |= {f"v{n}": f"__udf_{self.name}_v{n}" for n in level.lanes(self.bits)}
        udf = f"udf_{self.name}"
        return {
            "name": self.name,
            "type": "float" if self.bits == 32 else "double",
            "arity": self.arity,
            "scalar": None if self.two_step else udf,
            "short": f"{udf}_short" if self.short else None,
            "quick": f"{udf}_quick" if self.quick else None,
            "fast": f"{udf}_fast" if self.two_step else None,
            "accurate": f"{udf}_accurate" if self.two_step else None,
            "forms": forms,
        }


PROBES = (
    Probe("expf", 32, 1),
    Probe("lookupf", 32, 1, quick=True, short=True),
    Probe("exp", 64, 1, quick=True),
    Probe("hypotf", 32, 2, quick=True),
    Probe("hypot", 64, 2),
    Probe("stepf", 32, 1, two_step=False),
    Probe("step", 64, 2, two_step=False),
)


class Library:
    """A shared library of forms, called through ctypes; arrays are NumPy's."""

    def __init__(self, path: Path, level: Level) -> None:
        self.path = path
        self.level = level
        self.handle = ctypes.CDLL(str(path))

    def _call(self, symbol: str, restype: type | None, *args: object) -> object:
        function = getattr(self.handle, symbol)
        function.restype = restype
        return function(*args)

    def array(
        self, probe: Probe, n: int, arrays: list[npt.NDArray], out: npt.NDArray, mode: int = 0
    ) -> None:
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, out)]
        self._call(
            f"__udf_{probe.name}_array", None, ctypes.c_int64(n), *pointers, ctypes.c_int64(mode)
        )

    def scalar(self, probe: Probe, arrays: list[npt.NDArray]) -> npt.NDArray:
        """The scalar form on every element, by a loop in C that cannot be vectorised."""
        return self._blocks(f"shim_{probe.name}", 1, probe, arrays)

    def vector(self, probe: Probe, lanes: int, arrays: list[npt.NDArray]) -> npt.NDArray:
        """The vector form on consecutive groups of ``lanes`` elements."""
        return self._blocks(f"shim_{probe.name}_v{lanes}", lanes, probe, arrays)

    def _blocks(
        self, symbol: str, lanes: int, probe: Probe, arrays: list[npt.NDArray]
    ) -> npt.NDArray:
        (n,) = {a.size for a in arrays}
        assert n % lanes == 0
        out = np.empty(n, probe.real)
        pointers = [ctypes.c_void_p(a.ctypes.data) for a in (*arrays, out)]
        self._call(symbol, None, ctypes.c_int64(n), *pointers)
        return out

    def reference(self, probe: Probe, arrays: list[npt.NDArray]) -> npt.NDArray:
        """What the author's functions say, compiled without the plugin."""
        return self._blocks(f"reference_{probe.name}", 1, probe, arrays)


NO_PLUGIN = (
    "the pass plugin was not found: install the package (pip install .), or build llvm/pass and "
    "set UDFTORCH_PASS_PLUGIN to UdfPass-<LLVM major>.so"
)
