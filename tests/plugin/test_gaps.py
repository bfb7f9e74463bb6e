# SPDX-License-Identifier: Apache-2.0
"""The summary names what ran with the stock functions beside the run's session."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import torch

EXTENSION = """
#include <Python.h>
#include <math.h>
extern double (*volatile pointer)(double);
double (*volatile pointer)(double);
static PyObject *call(PyObject *self, PyObject *x) {
  return PyFloat_FromDouble(expf((float)PyFloat_AsDouble(x)));
}
static PyMethodDef methods[] = {{"call", call, METH_O, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, NAME, "", -1, methods};
PyMODINIT_FUNC INIT(void) { return PyModule_Create(&module); }
"""

SUITE = """
import multiprocessing

import alone
import linked
import torch
from witness import which

def test_extension():
    assert which() == "one"
    assert linked.call(0.0) == alone.call(0.0) == 1

def test_processes():
    for way in WAYS:
        process = multiprocessing.get_context(way).Process(target=print)
        process.start()
        process.join()
"""


def extension(folder: Path, name: str, *linked: str) -> None:
    (folder / f"{name}.c").write_text(EXTENSION)
    subprocess.run(
        [
            "cc", "-shared", "-fPIC", "-fno-builtin", f'-DNAME="{name}"', f"-DINIT=PyInit_{name}",
            f"-I{sysconfig.get_path('include')}", f"{name}.c", "-o", f"{name}.so",
            "-Wl,--no-as-needed", *linked, "-lm",
        ],
        cwd=folder, check=True,
    )  # fmt: skip


def test_what_kept_the_stock_functions_is_named(suite):
    library = Path(torch.__file__).parent / "lib"
    extension(suite.path, "linked", f"-L{library}", "-lc10", f"-Wl,-rpath,{library}")
    extension(suite.path, "alone")
    suite.write(test_it=SUITE.replace("WAYS", '("fork", "spawn")'))
    said = suite.run("--udf-lib=./one")
    said.assert_outcomes(passed=2)
    text = said.stdout.str()
    assert "multiprocessing started processes with spawn, which begin with the stock" in text
    assert "linked.so is C++ code of another package, which calls expf itself" in text
    assert "alone.so" not in text  # it computes nothing for torch


def test_without_gaps_nothing_is_said(suite):
    suite.write(test_it="def test_it(): import torch; torch.exp(torch.zeros(9))")
    said = suite.run("--udf-lib=./one")
    said.assert_outcomes(passed=1)
    assert "kept the stock" not in said.stdout.str()
    assert "multiprocessing" not in said.stdout.str()
