# SPDX-License-Identifier: Apache-2.0
"""Certified functions as FPCore and as a platform of Herbie.

A reader written for these tests follows the grammars: fpbench.org/spec/fpcore-2.0.html, and
herbie.uwplse.org/doc/2.2/platforms.html. What is read is evaluated with mpmath and held against
MPFR, and against the activations' own oracle.
"""

from __future__ import annotations

import dataclasses
import math
import re
from fractions import Fraction
from pathlib import Path

import gmpy2
import mpmath
import pytest

from pytest_udftorch import cli
from pytest_udftorch.errors import CertificateError
from pytest_udftorch.prove import fpcore, herbie_platform, load_certificate
from pytest_udftorch.prove.exact import composites
from pytest_udftorch.prove.verify.export import FORMULAS

UDFS = Path(__file__).parents[2] / "udfs"
BITS = 400

#: Functions of FPCore 2.0, and of Herbie's specifications, with their number of arguments.
TWO = ("+", "-", "*", "/", "pow", "atan2", "hypot", ">", "<", "<=", ">=", "==", "!=")
ONE = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "exp", "exp2",
    "expm1", "fabs", "log", "log10", "log1p", "log2", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
CORE = {**dict.fromkeys(TWO, 2), **dict.fromkeys(ONE, 1), "if": 3}
SPEC = {n: k for n, k in CORE.items() if n not in ("erfc", "expm1", "log1p", "hypot")} | {"neg": 1}
MEANING = {
    "+": lambda *a: sum(a),
    "-": lambda *a: -a[0] if len(a) == 1 else a[0] - a[1],
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    ">": lambda a, b: a > b,
    "neg": lambda a: -a,
    "pow": mpmath.power,
    "exp2": lambda a: mpmath.power(2, a),
    "log2": lambda a: mpmath.log(a, 2),
    "fabs": abs,
}


def read(text):
    """Return the s-expressions of a text; ``[`` and ``(`` are told apart."""
    text = re.sub(r";.*", "", text)
    tokens = re.findall(r'"[^"]*"|[()\[\]]|[^\s()\[\]]+', text)
    stack, closing = [[]], []
    for token in tokens:
        if token in "([":
            stack.append([])
            closing.append(")" if token == "(" else "]")
        elif token in ")]":
            if not closing or closing.pop() != token:
                raise SyntaxError(f"{token} closes nothing")
            done = stack.pop()
            stack[-1].append(tuple(done) if token == ")" else done)
        else:
            stack[-1].append(token)
    if closing:
        raise SyntaxError(f"{closing[-1]} is missing")
    return stack[0]


def value(expression, known, values):
    """Evaluate an expression; ``known`` are its functions."""
    if isinstance(expression, str):
        if expression in values:
            return values[expression]
        if expression == "PI" and "neg" not in known:
            return mpmath.pi()
        if not re.fullmatch(r"[-+]?\d+(/\d*[1-9]\d*)?", expression):
            raise SyntaxError(f"{expression} is no number")
        number = Fraction(expression)
        return mpmath.mpf(number.numerator) / number.denominator
    if expression == ("PI",) and "neg" in known:
        return mpmath.pi()
    name, *parts = expression
    if name == "if":
        return value(parts[1 if value(parts[0], known, values) else 2], known, values)
    counts = {known[name], 1} if name == "-" and "neg" not in known else {known[name]}
    assert len(parts) in counts, expression
    function = MEANING.get(name) or getattr(mpmath, name)
    return function(*[value(part, known, values) for part in parts])


def want(function, inputs):
    """Return the function by MPFR, or by the oracle of the activations."""
    if function in composites._LIMITS:
        a = composites.Arithmetic(
            mpmath.mpf, mpmath.exp, mpmath.expm1, mpmath.log1p, mpmath.erfc, mpmath.sqrt,
            lambda: mpmath.pi(),
        )  # fmt: skip
        found = composites.special(function, inputs[0])
        return composites.value(function, inputs[0], a) if found is None else mpmath.mpf(found)
    arguments = [gmpy2.mpfr(x) for x in inputs]
    if function == "pow":
        return mpmath.mpf(str(arguments[0] ** arguments[1]))
    return mpmath.mpf(str(getattr(gmpy2, function)(*arguments)))


def inputs_of(function):
    """Return arguments inside the function's domain."""
    if function in ("atan2", "hypot", "pow"):
        return [(0.3, 1.75), (2.5, -0.625), (1.25, 7.0)]
    if function == "acosh":
        return [(1.25,), (3.5,), (100.0,)]
    if function in ("asin", "acos", "atanh"):
        return [(-0.75,), (0.1,), (0.96875,)]
    if function in ("log", "log2", "log10", "rsqrt"):
        return [(0.001,), (1.7,), (300.0,)]
    if function == "log1p":
        return [(-0.4,), (0.001,), (300.0,)]
    return [(-2.7,), (-0.015625,), (0.3,), (3.9,)]


def apart(expression, known, function):
    """Return how far an expression lies from the truth at worst."""
    with mpmath.workprec(BITS), gmpy2.context(gmpy2.get_context(), precision=BITS):
        found = []
        for inputs in inputs_of(function):
            values = dict(zip(("x", "y"), map(mpmath.mpf, inputs), strict=False))
            truth = want(function, inputs)
            found.append(abs(value(expression, known, values) - truth) / abs(truth))
        return max(found)


@pytest.fixture(scope="module")
def certificates():
    paths = [p for lib in ("corem", "corem-composites") for p in UDFS.glob(f"{lib}/*/*float32.c*")]
    assert len(paths) == 34
    return [load_certificate(path) for path in sorted(paths)]


@pytest.fixture(scope="module")
def cores(certificates):
    return read(fpcore(certificates))


@pytest.fixture(scope="module")
def platform(certificates):
    return herbie_platform(certificates, {"exp": 0.60, "+": 0.05})


def test_each_benchmark_is_fpcore_and_is_its_function(cores, certificates):
    assert [core[1] for core in cores] == [c.subject["function"] for c in certificates]
    assert set(FORMULAS) == {core[1] for core in cores}
    for core in cores:
        head, function, arguments, *properties, body = core
        assert head == "FPCore"
        assert arguments in (("x",), ("x", "y"))
        table = dict(zip(properties[::2], properties[1::2], strict=True))
        assert list(table) == [":name", ":description", ":precision", ":spec"]
        assert table[":precision"] == "binary32"
        assert re.search(r"[0-9a-f]{64}", table[":description"])
        assert table[":spec"] == body
        assert apart(body, CORE, function) < mpmath.mpf(2) ** -(BITS - 60)


def operations(text):
    """Return name -> (arguments, result, fields) of a platform; its grammar is checked."""
    first, _, rest = text.partition("\n")
    assert first == "#lang herbie/platform"
    found, representations = {}, set()
    for form in read(rest):
        if form[0] == "require":
            continue
        if form[0] == "define-representation":
            name, key, cost = form[1:]
            assert key == "#:cost"
            assert float(cost) >= 0
            representations.add(name)
            continue
        assert form[0] == "define-operation"
        (name, *arguments), result, *fields = form[1:]
        table = dict(zip(fields[::2], fields[1::2], strict=True))
        assert set(table) - {"#:fpcore"} == {"#:spec", "#:impl", "#:cost"}
        assert {result, *[kind for _, kind in arguments]} <= representations
        assert float(table["#:cost"]) >= 0
        assert name not in found
        found[name] = [n for n, _ in arguments], result, table
    return found


def test_the_platform_follows_the_documented_grammar(platform, certificates):
    found = operations(platform)
    functions = {c.subject["function"] for c in certificates}
    assert {f"{f}.f32" for f in functions} <= set(found)
    assert {"+.f32", "-.f32", "*.f32", "/.f32", "sqrt.f32", "<=.f32", "if.f32"} <= set(found)
    assert found["exp.f32"][2]["#:cost"] == "0.6"
    assert found["+.f32"][2]["#:cost"] == "0.05"
    assert found["log.f32"][2]["#:cost"] == "1"
    for function in functions:
        _, result, table = found[f"{function}.f32"]
        assert result == "<binary32>"
        assert table["#:impl"] == ("from-rival",)
        mark, key, precision, core = table["#:fpcore"]
        assert (mark, key, precision) == ("!", ":precision", "binary32")
        limit = mpmath.mpf(2) ** -(BITS - 80)  # erfc is 1 - erf
        assert apart(table["#:spec"], SPEC, function) < limit
        assert apart(core, CORE, function) < limit


def test_what_is_read_is_judged():
    """Negative controls: a wrong formula, a wrong name, and a parenthesis less."""
    limit = mpmath.mpf(2) ** -(BITS - 80)
    assert apart(read("(/ 1 (+ 1 (exp (- x))))")[0], CORE, "sigmoid") < limit
    assert apart(read("(/ 1 (+ 1 (exp x)))")[0], CORE, "sigmoid") > 0.1
    assert apart(read("(/ 1 (+ 1 (exp (neg x))))")[0], SPEC, "sigmoid") < limit
    for text, known in (("(neg x)", CORE), ("(erfc x)", SPEC), ("(fma x x)", CORE)):
        with pytest.raises(KeyError):
            apart(read(text)[0], known, "sigmoid")
    with pytest.raises(SyntaxError):
        apart("0x1p3", CORE, "sigmoid")
    for text in ("(FPCore", "(x))", "([x)"):
        with pytest.raises(SyntaxError):
            read(text)
    with pytest.raises(AssertionError):
        operations("#lang herbie/platform\n(define-operation (f [x <r>]) <r> #:spec x #:cost 1)")


def test_what_a_certificate_does_not_prove_is_not_exported(certificates):
    one = certificates[0]

    def other(**subject):
        return dataclasses.replace(one, subject={**one.subject, **subject})

    cut = dataclasses.replace(one.runs[0], chunks={})
    tally = dataclasses.replace(one.runs[0].tally, wrong=1)
    for wrong, message in [
        (other(max_ulp=1.0), "does not claim correct rounding"),
        (other(max_ulp=None), "does not claim correct rounding"),
        (other(function="sinc"), "no formula for 'sinc'"),
        (dataclasses.replace(one, runs=(cut,)), "0 of 256 chunks"),
        (
            dataclasses.replace(one, runs=(dataclasses.replace(one.runs[0], tally=tally),)),
            "not correctly rounded",
        ),
    ]:
        for export in (fpcore, herbie_platform):
            with pytest.raises(CertificateError, match=message):
                export([wrong])
    half = other(dtype="bfloat16")
    assert ":precision (float 8 16)" in fpcore([half])
    with pytest.raises(CertificateError, match="no representation for bfloat16"):
        herbie_platform([half])
    with pytest.raises(CertificateError, match="two certificates of"):
        herbie_platform([one, other(library="corem-ff")])
    double = operations(herbie_platform([one, other(dtype="float64")]))
    assert double["+.f64"][2]["#:impl"] == "+"
    assert double["+.f32"][2]["#:impl"] == ("compose", "flsingle", "+")


def test_the_command_writes_both(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = [str(UDFS / f"corem/{n}/{n}.float32.certificate.json") for n in ("exp", "pow")]
    assert cli.main(["certificate", "export", *files, "--fpcore", "--out", "a.fpcore"]) == 0
    assert [c[1] for c in read(Path("a.fpcore").read_text())] == ["exp", "pow"]
    assert cli.main(["certificate", "export", *files, "--herbie", "--out", "a.rkt"]) == 0
    assert operations(Path("a.rkt").read_text())["exp.f32"][2]["#:cost"] == "1"
    assert "2 functions" in capsys.readouterr().out
    assert cli.main(["certificate", "export", *files, "--fpcore", "--out", "no/a"]) == cli.MISUSE
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.slow
def test_costs_are_measured(tmp_path):
    files = [
        str(UDFS / "corem/exp/exp.float32.certificate.json"),
        str(UDFS / "corem-composites/mish/mish.float32.certificate.json"),
    ]
    out = tmp_path / "a.rkt"
    assert (
        cli.main(["certificate", "export", *files, "--herbie", "--measure", "--out", str(out)]) == 0
    )
    costs = {n: float(t["#:cost"]) for n, (_, _, t) in operations(out.read_text()).items()}
    assert all(0 < c < math.inf for c in costs.values())
    # However busy the machine: mish evaluates more than a comparison does.
    assert costs["mish.f32"] > costs["<.f32"]
