# SPDX-License-Identifier: Apache-2.0
"""Functions in FPCore become C that computes the same, and libraries."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

import mpmath
import pytest
import torch

from pytest_udftorch import patched
from pytest_udftorch.cli.command import main
from pytest_udftorch.errors import SourceError
from pytest_udftorch.swap.library.fpcore import c_function, read_fpcore
from pytest_udftorch.swap.toolchain.compiler import find_compiler

PAGE = Path(__file__).parents[2] / "docs" / "prove" / "precision_tools.md"
#: Expressions of FPBench (hamming-ch3 and logexp), as they stand and rewritten as in Hamming's book
#: and by Herbie; and what each is of real numbers, with an input at which the first loses all.
FPBENCH = [
    (
        '(FPCore (x) :name "NMSE example 3.1" :pre (>= x 0) (- (sqrt (+ x 1)) (sqrt x)))',
        "(FPCore (x) (/ 1 (+ (sqrt (+ x 1)) (sqrt x))))",
        lambda x: mpmath.sqrt(x + 1) - mpmath.sqrt(x), 2.0**60,
    ),
    (
        '(FPCore (x) :name "NMSE example 3.7" (- (exp x) 1))',
        "(FPCore (x) (expm1 x))",
        mpmath.expm1, 2.0**-60,
    ),
    (
        '(FPCore (x) :name "NMSE problem 3.3.1" :pre (!= x 0) (- (/ 1 (+ x 1)) (/ 1 x)))',
        "(FPCore (x) (/ -1 (* x (+ x 1))))",
        lambda x: 1 / (x + 1) - 1 / x, 2.0**60,
    ),
    (
        '(FPCore (x) :name "NMSE problem 3.4.1" :pre (!= x 0) (/ (- 1 (cos x)) (* x x)))',
        "(FPCore (x) (let ((s (sin (/ x 2)))) (/ (* 2 (* s s)) (* x x))))",
        lambda x: (1 - mpmath.cos(x)) / x**2, 2.0**-40,
    ),
    (
        '(FPCore (x) :name "logexp" (let* ((e (exp x)) (t (+ 1 e))) (log t)))',
        "(FPCore (x) (log1p (exp x)))",
        lambda x: mpmath.log1p(mpmath.exp(x)), -60.0,
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return the functions of a text of C."""

    def functions(text, *names, arity=1):
        folder = tmp_path_factory.mktemp("fpcore")
        (folder / "f.c").write_text(text)
        command = [str(find_compiler().path), "-O1", "-ffp-contract=off", "-shared", "-fPIC"]
        subprocess.run([*command, "f.c", "-o", "f.so", "-lm"], cwd=folder, check=True)
        found = [getattr(ctypes.CDLL(str(folder / "f.so")), name) for name in names]
        for function in found:
            function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float] * arity
        return found

    return functions


def rounded(value):
    return torch.tensor(float(value)).view(torch.int32).item()


def test_five_expressions_of_fpbench_keep_what_they_say(compiled):
    names = [f"{kind}{n}" for n in range(len(FPBENCH)) for kind in ("plain", "rewritten")]
    cores = [read_fpcore(text)[0] for case in FPBENCH for text in case[:2]]
    text = "\n".join(c_function(core, name) for core, name in zip(cores, names, strict=True))
    found = dict(zip(names, compiled(text, *names), strict=True))
    with mpmath.workdps(80):
        for n, (*_, truth, hard) in enumerate(FPBENCH):
            wanted = rounded(truth(mpmath.mpf(hard)))
            assert rounded(found[f"plain{n}"](hard)) != wanted, "the control"
            inputs = [hard, 0.1, 0.5, 1.25, 3.0, 7.5]
            for x in map(float, torch.tensor(inputs)):
                wanted = rounded(truth(mpmath.mpf(x)))
                assert abs(rounded(found[f"rewritten{n}"](x)) - wanted) <= 1, (n, x)


def test_the_syntax_that_is_taken(compiled):
    text = """; a comment
    (FPCore [x y] :pre (and (< 0 x 9) (not (== y 0))) :precision binary32
      (let ((x y) (y x) (z 0x1.8p1))
        (if (or (>= x 2 1) (!= x x)) (fma x y z) (- (pow x 1/2) PI))))"""
    (core,) = read_fpcore(text)
    assert (core.name, core.arguments, core.precision) == ("", ("x", "y"), "binary32")
    (f,) = compiled(c_function(core, "f"), "f", arity=2)
    assert f(5, 2) == 13
    assert f(5, 0.25) == torch.tensor(0.5).sub(torch.pi).item()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("(FPCore (x) (sin x)", "no closing one"),
        ("(FPCore (x) x))", "no opening one"),
        ('(FPCore (x) :name "a x)', "in line 1 has no end"),
        ("(define x 1)", "expected (FPCore"),
        ("(FPCore (x))", "expected (FPCore"),
        ("(FPCore ((! :precision binary32 x)) x)", "arguments with sizes"),
        ("(FPCore (x) :precision binary80 x)", "precision binary80 is not taken"),
        ("(FPCore (x) y)", "'y' is no variable"),
        ("(FPCore (x) (sinn x))", "Did you mean"),
        ("(FPCore (x) (sin x x))", "'sin' with 2 arguments"),
        ("(FPCore (x) (while (< x 1) ((x x (+ x 1))) x))", "'while'"),
        ("(FPCore (x) ())", "'' with 0 arguments"),
    ],
)
def test_what_is_not_taken_is_named(text, problem):
    with pytest.raises(SourceError, match=re.escape(problem)):
        [c_function(core, "f") for core in read_fpcore(text)]


def test_the_page_makes_a_library(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    name, text = re.search(r"<!-- file: (\S+) -->\n```text\n(.*?)```", page, re.S).groups()
    Path(name).write_text(text)
    commands = re.findall(r"^\$ udftorch (.*)$", page, re.M)
    for command in commands:
        assert main(command.split()) == 0, command
    shown = capsys.readouterr().out
    assert "udf.toml" in shown
    assert "largest error" in shown
    x = torch.linspace(-2, 2, 1001)
    with patched("./my_math"):
        found = torch.expm1(x)
    torch.testing.assert_close(found, torch.expm1(x.double()).float(), rtol=2e-7, atol=0)


def test_a_library_needs_names_of_torch(tmp_path, capsys):
    file = tmp_path / "f.fpcore"
    for text in ("(FPCore (x) x)", "(FPCore expml (x) x)", "(FPCore exp (x y) x)"):
        file.write_text(text)
        assert main(["new", str(tmp_path / "lib"), "--fpcore", str(file)]) != 0
        assert "torch calls no such function" in capsys.readouterr().err
    assert main(["new", str(tmp_path / "lib"), "--fpcore", str(tmp_path)]) != 0
    assert "Name a text file" in capsys.readouterr().err
    assert not (tmp_path / "lib").exists()


def test_the_page_runs_as_shown():
    text = PAGE.read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile(script, str(PAGE), "exec"), {})
