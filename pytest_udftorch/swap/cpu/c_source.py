# SPDX-License-Identifier: Apache-2.0
"""The formulas of ``operators.formulas`` as C, for the CPU.

A formula calls functions in the midst of arithmetic. Its C form computes the arguments of a call
for a whole piece of elements into an array, calls the function's array form, and goes on with the
results; see ``native/operator/cpu_loops.h``. The order of operations is the formula's.
"""

from __future__ import annotations

import ast
import ctypes
import math
import re
from collections.abc import Sequence
from typing import Final

from pytest_udftorch.swap.library.symbols import FUNCTIONS
from pytest_udftorch.swap.operators.calls import WIDE, called, calls, parsed

_BINARY: Final = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
_COMPARED: Final = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "=="}


class _Body:
    """The body of one formula, statement by statement."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.node = parsed()[name]
        self.slots = [call.function for call in calls(name)]
        self.lines: list[str] = []
        self.loop: list[str] = []
        self.arrays = 0
        #: Whether arithmetic is in double.
        self.wide = name.endswith(WIDE)
        #: The values in double that were stored, with the number of their loops.
        self.doubles: dict[str, int] = {}
        parameters = [a.arg for a in self.node.args.args]
        tensors = parameters[: parameters.index("a")]
        cast = "(double)" if self.wide else ""
        self.known = {n: f"{cast}{p}[i]" for n, p in zip(tensors, "xz", strict=False)}
        self.known |= {n: n for n in "abc"}

    def text(self) -> str:
        for at, statement in enumerate(self.node.body):
            match statement:
                case ast.Assign(targets=[ast.Name(id=target)], value=found):
                    value = self.value(found)
                    if not isinstance(found, ast.Constant) and self.uses(target, at) > 1:
                        value = self.stored(value)
                    self.known[target] = value
                case ast.Return(value=ast.expr() as found):
                    self.store("y[i]", self.value(found))
        self.end_loop()
        arrays = "".join(f", t{i}[PIECE]" for i in range(self.arrays))
        declared = [f"_Alignas(64) float {arrays[2:]};"] if arrays else []
        inside = "\n  ".join(declared + self.with_doubles())
        return (
            f"static void {self.name}(int64_t n, const float *x, const float *z, float *y,\n"
            f"    float a, float b, float c, array1 *const *f) {{\n  {inside}\n}}\n"
        )

    def with_doubles(self) -> list[str]:
        """Return the lines, with an array for each double that a later loop reads.

        The others stay in registers.
        """
        lines, arrays = list(self.lines), []
        for name, at in self.doubles.items():
            word = re.compile(rf"\b{name}\b")
            later = [i for i in range(at + 1, len(lines)) if word.search(lines[i])]
            if not later:
                continue
            kept = f"{name.replace('d', 'k')}"
            arrays.append(f"{kept}[PIECE]")
            lines[at] = lines[at].removesuffix("}") + f"{kept}[i] = {name}; }}"
            for i in later:
                lines[i] = word.sub(f"{kept}[i]", lines[i])
        return [f"_Alignas(64) double {', '.join(arrays)};", *lines] if arrays else lines

    def uses(self, name: str, at: int) -> int:
        """Return how often a statement's variable is read before it gets another value."""
        count = 0
        for statement in self.node.body[at + 1 :]:
            names = [n for n in ast.walk(statement) if isinstance(n, ast.Name) and n.id == name]
            count += sum(isinstance(n.ctx, ast.Load) for n in names)
            if any(isinstance(n.ctx, ast.Store) for n in names):
                break
        return count

    def stored(self, value: str) -> str:
        """Compute a value once; return what stands for it."""
        if self.wide:
            found = f"d{len(self.doubles)}"
            self.doubles[found] = len(self.lines)
            self.loop.append(f"double {found} = {value};")
            return found
        array = f"t{self.arrays}[i]"
        self.arrays += 1
        self.store(array, value)
        return array

    def store(self, place: str, value: str) -> None:
        """Add a statement to the loop over elements that the next call ends."""
        self.loop.append(f"{place} = {value};")

    def end_loop(self) -> None:
        if self.loop:
            self.lines.append(f"EACH {{ {' '.join(self.loop)} }}")
            self.loop = []

    def value(self, node: ast.expr) -> str:
        match node:
            case ast.Constant(value=float(constant)) if math.isinf(constant):
                return "__builtin_inff()"
            case ast.Constant(value=float(constant)) if self.wide:
                return constant.hex()
            case ast.Constant(value=float(constant)):
                return f"{ctypes.c_float(constant).value.hex()}f"
            case ast.Name(id=name):
                return self.known[name]
            case ast.BinOp():
                return (
                    f"({self.value(node.left)} {_BINARY[type(node.op)]} {self.value(node.right)})"
                )
            case ast.UnaryOp(op=ast.USub()):
                return f"(-{self.value(node.operand)})"
            case ast.Compare(ops=[operator], comparators=[right]):
                return f"({self.value(node.left)} {_COMPARED[type(operator)]} {self.value(right)})"
            case ast.Call():
                return self.call(called(node), node.args)
        raise AssertionError(f"{self.name}: a formula has no {ast.unparse(node)}")

    def call(self, name: str, arguments: Sequence[ast.expr]) -> str:
        if name not in FUNCTIONS:
            found = [self.value(a) for a in arguments]
            match name:
                case "div":
                    return f"({found[0]} / {found[1]})"
                case "fma" | "abs" | "floor" | "sqrt":
                    named = {"abs": "fabs"}.get(name, name)
                    return f"__builtin_{named}{'' if self.wide else 'f'}({', '.join(found)})"
                case "mantissa" | "exponent" | "single":
                    return f"{name}({found[0]})"
                case "where":
                    return f"({found[0]} ? {found[1]} : {found[2]})"
            raise AssertionError(f"{self.name}: a formula calls no {name}")
        arity = FUNCTIONS[name].arity
        slot = arguments[arity + 1 :]
        at = ast.literal_eval(slot[0]) if slot else 0
        values = [self.value(a) for a in arguments[:arity]]
        first = self.arrays
        self.arrays += arity
        names = [f"t{first + i}" for i in range(arity)]
        for array, value in zip(names, values, strict=True):
            self.store(f"{array}[i]", value)
        self.end_loop()
        cast = f"f[{at}]" if arity == 1 else f"((array2 *)f[{at}])"
        self.lines.append(f"{cast}(n, {', '.join(names)}, {names[0]}, 0);")
        return f"{names[0]}[i]"


#: The loop of an operator that is one function.
_WHOLE: Final = """\
static void body_whole(int64_t n, const float *x, const float *z, float *y,
    float a, float b, float c, array1 *const *f) {
  f[0](n, x, y, 0);
}
EXPORT void pointwise_whole(int64_t n, const void *x, void *y, int32_t dtype,
    const void *f, const void *t, const void *amended) {
  struct pointwise p = {body_whole, x, 0, y, n, dtype, 0, 0, 0, f, t, amended,
      {0}};
  run_kernel(t, pointwise_run, &p);
}
"""


def source(formulas: Sequence[str]) -> str:
    """Return a C file with the loops of formulas, attention, LSTM layers and normal variates.

    ``pointwise_NAME`` runs one of the loops. What C++ calls by a pointer takes pointers to void: a
    structure has another type there.
    """
    parts = ['#include "cpu_recurrent.h"\n#include "cpu_variates.h"\n']
    for name in formulas:
        # Names of libm are taken.
        text = _Body(name).text().replace(f"void {name}(", f"void body_{name}(", 1)
        parts.append(text)
        parts.append(
            f"EXPORT void pointwise_{name}(int64_t n, const void *x, const void *z, void *y,\n"
            "    int32_t dtype, float a, float b, float c, const void *f, const void *t) {\n"
            f"  struct pointwise p = {{body_{name}, x, z, y, n, dtype, a, b, c, f, t, 0, {{0}}}};\n"
            "  run_kernel(t, pointwise_run, &p);\n}\n"
        )
    parts.append(_WHOLE)
    return "\n".join(parts)
