# SPDX-License-Identifier: Apache-2.0
"""Settings that spare processor time, and fixtures of many tests: builds, kernels, faults."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import pytest
from faults import Faults

# Threads that have nothing to do sleep: OpenMP's would spin, clang's for 200 ms after each loop.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# So do NumPy's, which would spin for longer than most products here take.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Inductor would start a pool of processes, each of which imports torch.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# Under load any build may take two seconds, and some tests read all of standard error.
os.environ.setdefault("UDFTORCH_PROGRESS", "0")

# Jobs that a shell runs in the background ignore Ctrl-C, and so would all that tests start there.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: In the process that :func:`pytest_pyfunc_call` starts.
FRESH = "UDFTORCH_TEST_FRESH"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    # Imports and tests that are collected stay: going through them again and again takes a quarter
    # of the time that they take.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish():
    # What is imported by now stays: no later collection has to go through it.
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _same_path():
    """Take back the folders that a test lets Python import from: a model's file adds its own."""
    before = [*sys.path]
    yield
    if sys.path != before:
        sys.path[:] = before


@pytest.fixture
def faults(request):
    """Count what a test injects; see ``faults.Faults``."""
    counted = Faults()
    yield counted
    request.node.user_properties.append(("faults", counted.as_json()))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A build cache of this test's own, of which this process knows nothing."""
    import builds

    folder = tmp_path / "cache"
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(folder))
    builds.forget(monkeypatch)
    return folder


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Give a test marked ``without_cuda`` the outcome that it has where CUDA is not in use.

    Earlier tests on a GPU leave kernels of theirs with the dispatcher, and a lazy start of CUDA
    registers those of open sessions at a time of its own choosing.
    """
    if pyfuncitem.get_closest_marker("without_cuda") is None or not cuda_in_use():
        return None
    how = outcomes(pyfuncitem.path)[pyfuncitem.name]
    if how.startswith("skipped"):
        pytest.skip(how)
    if how != "passed":
        pytest.fail(how, pytrace=False)
    return True


def cuda_in_use():
    """Tell whether this process has used CUDA, or is asked to act so."""
    torch = sys.modules.get("torch")
    if FRESH in os.environ:
        return os.environ[FRESH] == "parent"
    return torch is not None and torch.cuda.is_initialized()


@functools.cache
def outcomes(path: Path) -> dict[str, str]:
    """Run a file in a process of its own; return test -> ``passed``, or what it said."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly",
             f"--junitxml={report}", str(path)],
            env={**os.environ, FRESH: "child"}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
        cases = ET.parse(report).iter("testcase")
        return {case.attrib["name"]: _said(case) for case in cases}


def _said(case):
    for child in case:
        if child.tag in ("failure", "error", "skipped"):
            return f"{child.tag}: {child.attrib.get('message', '')}\n{child.text or ''}"
    return "passed"


@pytest.fixture
def one_thread():
    """Tiny operators on many threads of a busy machine take milliseconds."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def kernel_file(tmp_path_factory):
    """Return what imports kernels from a file of their own: Triton reads their source."""
    folder = tmp_path_factory.mktemp("kernels")

    def load(text: str):
        # PTX names the file: one name for one text.
        path = folder / f"kernels_{zlib.crc32(text.encode()):08x}.py"
        path.write_text(
            "import triton\nimport triton.language as tl\n"
            f"from triton.language.extra import libdevice\n{text}"
        )
        spec = importlib.util.spec_from_file_location(f"{folder.name}.{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def ptx(tmp_path_factory, monkeypatch):
    """Return what compiles a kernel; parameters that are not in ``numbers`` are pointers."""
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "triton"))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")

    def text(kernel, dtype: str = "fp32", capability: int = 90, numbers=("n",), **constants) -> str:
        types = {name: f"*{dtype}" for name in kernel.arg_names}
        types |= {name: "i32" for name in numbers if name in types}
        types |= dict.fromkeys(constants, "constexpr")
        source = ASTSource(kernel, types, constexprs=constants)
        return triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"]

    return text
