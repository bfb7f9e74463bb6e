# SPDX-License-Identifier: Apache-2.0
"""Which symbols PyTorch calls for which function, and through which ABI.

The relocations of ``libtorch_cpu.so`` in the registry's wheels say so, and ``ATen/cpu/vec`` and
``ATen/cpu/vml.h`` in the wheel's headers: GNU libm for scalars, SLEEF for vectors and, on x86-64,
MKL VML for arrays. A libtorch need not call every symbol, as long as it calls another one of the
same function.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

DTYPES: Final = ("float32", "float64")

#: dtype -> the type in C.
C_TYPES: Final = {"float32": "float", "float64": "double"}

#: Its multiples, modulo 1, spread evenly and need no random state.
GOLDEN: Final = 0.6180339887498949


@dataclass(frozen=True)
class Processor:
    """How wheels for one kind of processor call vector functions, and how their loader binds them.

    Attributes:
        name: ``platform.machine()``.
        lanes: dtype -> lanes of the vector forms, the narrowest first.
        variants: what SLEEF appends to the name of a vector function. AdvSIMD functions have two
            names each, and the linker may put either into a relocation.
        vml: True if the wheels call MKL.
        relocations: number in <elf.h> -> kind of the relocations whose slots hold an address.
        cpu_levels: level -> clang flags, number of the level, bits of a vector register; from the
            least to the most capable. A number is that of x86-64-v2 and so on.
        scalable: levels whose builds have the form ``vx`` too, of one SVE register.
    """

    name: str
    lanes: Mapping[str, tuple[int, ...]]
    variants: tuple[str, ...]
    vml: bool
    relocations: Mapping[int, str]
    cpu_levels: Mapping[str, tuple[tuple[str, ...], int, int]]
    scalable: tuple[str, ...] = ()


X86_64: Final = Processor(
    "x86_64",
    {"float32": (8, 16), "float64": (4, 8)},  # 256-bit, then 512-bit registers
    ("",),
    True,
    {7: "JUMP_SLOT", 6: "GLOB_DAT", 1: "64"},
    {
        "baseline": (("-march=x86-64-v2",), 2, 0),
        "avx2": (("-march=x86-64-v3",), 3, 256),
        "avx512": (("-march=x86-64-v4", "-mprefer-vector-width=512"), 4, 512),
    },
)

#: The Procedure Call Standard of vectors: AdvSIMD functions of SLEEF have the base standard, so
#: callees keep the low halves of v8 to v15 and no more (Arm IHI 0055, 6.1.2). ``readelf`` marks
#: the functions that need another one with VARIANT_PCS; only SLEEF's scalable ones have the mark.
AARCH64: Final = Processor(
    "aarch64",
    {"float32": (4,), "float64": (2,)},
    ("", "advsimd"),
    False,
    {1026: "JUMP_SLOT", 1025: "GLOB_DAT", 257: "64"},
    # Every aarch64 has fused multiply-add, and the sources ask __FMA__ for it.
    {
        "neon": (("--target=aarch64-linux-gnu", "-march=armv8-a", "-D__FMA__=1"), 1, 128),
        # torch's kernels for SVE are compiled for registers of this length. No host has the
        # level's number: sessions do not bind SLEEF's functions for SVE.
        "sve256": (
            (
                "--target=aarch64-linux-gnu", "-march=armv8-a+sve", "-msve-vector-bits=256",
                "-D__FMA__=1",
            ),
            2,
            256,
        ),
    },
    ("sve256",),
)  # fmt: skip

#: Processors by ``platform.machine()``.
PROCESSORS: Final = {p.name: p for p in (X86_64, AARCH64)}


def this_processor() -> Processor:
    """Return the processor of this process; that of x86-64 on hosts that are not supported."""
    return PROCESSORS.get(platform.machine(), X86_64)


@dataclass(frozen=True)
class Exact:
    """Where ISO C, annex F, makes the results of a function of one argument exact.

    Attributes:
        infinities: the results at +infinity and at -infinity; None where they are computed.
        at_zero: the result at both zeros; ``"itself"`` for f(±0) = ±0, None where it is computed,
            or follows from the domain.
        low, high: the ends of the domain.
        pole: where the result is -infinity.
        zero: where it is zero, other than at zero.
    """

    infinities: tuple[float, float] | None = None
    at_zero: float | Literal["itself"] | None = None
    low: float = -math.inf
    high: float = math.inf
    pole: float | None = None
    zero: float | None = None


@dataclass(frozen=True)
class TorchFunction:
    """One elementary function as libtorch knows it: the one place of what is known of it.

    Attributes:
        name: torch's name, also that of the canary operator ``torch.<name>``.
        arity: number of floating-point arguments.
        sleef: error-bound suffixes of the SLEEF forms (``u10`` is 1.0 ULP).
        vml: MKL VML base name (``Exp`` for ``vmsExp``), or None where VML has none.
        domain: closed interval from which the canary draws its inputs.
        exact: where its results are exact.
        ordinary: the range of arguments, for float32 and float64, in which its results are normal
            numbers and monotonic. There, code that counts does not inspect the result. It always
            inspects arguments that are zero or subnormal. None if there is no such range.
        derivative: the functions that its derivative needs and it does not
            (tools/autograd/derivatives.yaml of torch).
        family: the first function of those that an implementation may use for each other, as log
            and log1p; its own name by default.
    """

    name: str
    arity: int
    sleef: tuple[str, ...]
    vml: str | None
    domain: tuple[float, float]
    exact: Exact = Exact()
    ordinary: tuple[tuple[float, float], tuple[float, float]] | None = None
    derivative: tuple[str, ...] = ()
    family: str = ""

    def c_name(self, dtype: str) -> str:
        """Return the libm name: ``expf`` for float32, ``exp`` for float64."""
        return self.name + ("f" if dtype == "float32" else "")

    def symbols(self, dtype: str, processor: Processor | None = None) -> dict[str, tuple[str, ...]]:
        """Return form (``scalar``, ``v8``, ..., ``array``) -> the symbols bound to it.

        Without a processor they are those of this process.
        """
        processor = processor or this_processor()
        letter = "f" if dtype == "float32" else "d"
        forms: dict[str, tuple[str, ...]] = {"scalar": (self.c_name(dtype),)}
        for lanes in processor.lanes[dtype]:
            forms[f"v{lanes}"] = tuple(
                f"Sleef_{self.name}{letter}{lanes}_{u}{variant}"
                for u in self.sleef
                for variant in processor.variants
            )
        if processor.vml and self.vml is not None:
            short = "s" if dtype == "float32" else "d"
            # vsLn(n, x, y) is vmsLn without the mode, which our form does not read.
            forms["array"] = (f"vm{short}{self.vml}", f"v{short}{self.vml}")
        return forms

    def export(self, dtype: str, form: str) -> str:
        """Return the name under which udf-widen exports ``form`` (``__udf_expf_v16``)."""
        return f"__udf_{self.c_name(dtype)}" + ("" if form == "scalar" else f"_{form}")


_U10 = ("u10",)
_U10_U35 = ("u10", "u35")

#: Overloads with a UDF that one profile has room for (UDFPROF_OPERATOR_UDFS in udfprof.h).
OPERATOR_UDFS: Final = 256

_INF: Final = math.inf
_NAN: Final = math.nan

#: Near zero these are close to x, and erf to 1.13 x, so a normal argument has a normal result.
_EVERYWHERE: Final = ((-1e30, 1e30), (-1e300, 1e300))

#: Every function that libtorch reaches through symbols, by torch's name. Their ``ordinary`` ranges:
#: exp(x) is normal from ln of the smallest normal number (-87.34, -708.4) to ln of the largest
#: (88.72, 709.78), exp2(x) from -126 and -1022 to 128 and 1024. expm1 and sinh end as exp does, and
#: erfc(x) is normal below 9.19 and 26.54. Logarithms (0 at 1) and functions that are not monotonic
#: have none.
FUNCTIONS: Final[dict[str, TorchFunction]] = {
    f.name: f
    for f in (
        TorchFunction(
            "exp", 1, _U10, "Exp", (-20.0, 20.0), Exact((_INF, 0.0), 1.0),
            ((-87.0, 88.0), (-708.0, 709.0)),
        ),
        TorchFunction(
            "exp2", 1, _U10_U35, "Exp2", (-20.0, 20.0), Exact((_INF, 0.0), 1.0),
            ((-126.0, 127.0), (-1022.0, 1023.0)), family="exp",
        ),
        TorchFunction(
            "expm1", 1, _U10, "Expm1", (-10.0, 10.0), Exact((_INF, -1.0), "itself"),
            ((-1e30, 88.0), (-1e300, 709.0)), family="exp",
        ),
        TorchFunction(
            "log", 1, _U10_U35, "Ln", (0.01, 100.0),
            Exact((_INF, _NAN), low=0.0, pole=0.0, zero=1.0),
        ),
        TorchFunction(
            "log2", 1, _U10_U35, "Log2", (0.01, 100.0),
            Exact((_INF, _NAN), low=0.0, pole=0.0, zero=1.0), family="log",
        ),
        TorchFunction(
            "log10", 1, _U10, "Log10", (0.01, 100.0),
            Exact((_INF, _NAN), low=0.0, pole=0.0, zero=1.0), family="log",
        ),
        TorchFunction(
            "log1p", 1, _U10, "Log1p", (-0.9, 10.0),
            Exact((_INF, _NAN), "itself", low=-1.0, pole=-1.0),
            ((-0.99, 1e30), (-0.99, 1e300)), family="log",
        ),
        TorchFunction(
            "sin", 1, _U10_U35, "Sin", (-20.0, 20.0), Exact((_NAN, _NAN), "itself"),
            derivative=("cos",),
        ),
        TorchFunction(
            "cos", 1, _U10_U35, "Cos", (-20.0, 20.0), Exact((_NAN, _NAN), 1.0),
            derivative=("sin",), family="sin",
        ),
        TorchFunction(
            "tan", 1, _U10_U35, "Tan", (-20.0, 20.0), Exact((_NAN, _NAN), "itself")
        ),
        TorchFunction(
            "sinh", 1, _U10_U35, "Sinh", (-10.0, 10.0), Exact((_INF, -_INF), "itself"),
            ((-88.0, 88.0), (-709.0, 709.0)), ("cosh",),
        ),
        TorchFunction(
            "cosh", 1, _U10_U35, "Cosh", (-10.0, 10.0), Exact((_INF, _INF), 1.0),
            derivative=("sinh",),
        ),
        TorchFunction(
            "tanh", 1, _U10_U35, "Tanh", (-5.0, 5.0), Exact((1.0, -1.0), "itself"), _EVERYWHERE
        ),
        TorchFunction(
            "asin", 1, _U10_U35, "Asin", (-1.0, 1.0),
            Exact((_NAN, _NAN), "itself", low=-1.0, high=1.0), ((-1.0, 1.0), (-1.0, 1.0)),
        ),
        TorchFunction(
            "acos", 1, _U10_U35, "Acos", (-1.0, 1.0),
            Exact((_NAN, _NAN), low=-1.0, high=1.0, zero=1.0),
        ),
        TorchFunction(
            "atan", 1, _U10_U35, "Atan", (-20.0, 20.0), Exact(at_zero="itself"), _EVERYWHERE
        ),
        TorchFunction(
            "asinh", 1, _U10, "Asinh", (-20.0, 20.0), Exact((_INF, -_INF), "itself"), _EVERYWHERE
        ),
        TorchFunction(
            "acosh", 1, _U10, "Acosh", (1.0, 100.0), Exact((_INF, _NAN), low=1.0, zero=1.0)
        ),
        TorchFunction(
            "atanh", 1, _U10, "Atanh", (-0.99, 0.99),
            Exact((_NAN, _NAN), "itself", low=-1.0, high=1.0), ((-0.99, 0.99), (-0.99, 0.99)),
        ),
        TorchFunction(
            "erf", 1, _U10, "Erf", (-3.0, 3.0), Exact((1.0, -1.0), "itself"), _EVERYWHERE,
            ("exp",),
        ),
        TorchFunction(
            "erfc", 1, ("u15",), "Erfc", (-3.0, 3.0), Exact((0.0, 2.0), 1.0),
            ((-1e30, 9.0), (-1e300, 26.0)), ("exp",), family="erf",
        ),
        TorchFunction("pow", 2, _U10, "Pow", (0.1, 5.0), derivative=("pow", "log")),
        TorchFunction("atan2", 2, _U10_U35, "Atan2", (-10.0, 10.0)),
        TorchFunction("hypot", 2, ("u05", "u35"), "Hypot", (-10.0, 10.0)),
    )
}  # fmt: skip

#: The doubles that torch's selu passes to elu.
SELU_SCALE: Final = 1.0507009873554804934193349852946
SELU_ALPHA: Final = 1.6732632423543772848170429916717

#: Activations as functions of one float32. No symbol of libtorch stands for them: a session
#: reaches them through operators (``cpu.composites``).
COMPOSITES: Final[dict[str, TorchFunction]] = {
    f.name: f
    for f in (
        TorchFunction("sigmoid", 1, (), None, (-20.0, 20.0)),
        TorchFunction("silu", 1, (), None, (-20.0, 20.0)),
        TorchFunction("softplus", 1, (), None, (-20.0, 15.0)),
        TorchFunction("logsigmoid", 1, (), None, (-15.0, 20.0)),
        TorchFunction("gelu_erf", 1, (), None, (-6.0, 4.0)),
        TorchFunction("gelu_tanh", 1, (), None, (-6.0, 4.0)),
        TorchFunction("mish", 1, (), None, (-20.0, 8.0)),
        TorchFunction("elu", 1, (), None, (-10.0, 1.0)),
        TorchFunction("selu", 1, (), None, (-10.0, 10.0)),
        TorchFunction("rsqrt", 1, (), None, (0.01, 100.0)),
    )
}

#: Every function that a library can have.
KNOWN: Final = FUNCTIONS | COMPOSITES

#: libm's joint form ``void(x, *sin, *cos)``, which complex kernels call. A session that swaps both
#: sin and cos binds it.
SINCOS: Final = {"float32": "sincosf", "float64": "sincos"}

#: CPU levels of this processor: clang flags, number of the level, vector bits.
CPU_LEVELS: Final = this_processor().cpu_levels


def processor_of(cpu_level: str) -> Processor:
    """Return the processor that has a CPU level."""
    return next(p for p in PROCESSORS.values() if cpu_level in p.cpu_levels)


def forms(dtype: str, cpu_level: str) -> tuple[str, ...]:
    """Return the forms that a library built for ``cpu_level`` has for ``dtype``."""
    processor, width = processor_of(cpu_level), int(dtype[5:])
    bits = processor.cpu_levels[cpu_level][2]
    fixed = [f"v{n}" for n in processor.lanes[dtype] if n * width <= bits]
    return ("scalar", *fixed, *(["vx"] if cpu_level in processor.scalable else []), "array")


def golden_points(count: int, low: float, high: float) -> list[float]:
    """Return ``count`` distinct values between ``low`` and ``high``, in no order."""
    return [low + (high - low) * ((i * GOLDEN) % 1.0) for i in range(1, count + 1)]
