"""TorchInductor under a session: compiled with the UDFs inside, cached apart.

While sessions are open, Inductor's C++ compiler is the one of ``bitcode.compiler_for``: clang
with the pass ``udf-replace``, which puts the functions into the fused loops. The compiler's
path holds a hash of the functions, and Inductor's caches of graphs and of kernels are keyed by
it. What torch.compile holds in memory is dropped whenever the functions change, so a model
compiled before is compiled again, or taken from its own cache.

Of the operators that are composed of functions, sigmoid, softplus and gelu are rounded
otherwise by Inductor than by the eager kernels: it divides approximately on CUDA, by a constant
with its reciprocal, and does not fuse the product and sum that ATen's CPU kernel fuses. They
are given the operations of the eager kernels (``cuda_kernels``). All float32 divisions on
CUDA are correctly rounded, as in eager mode.

Operators that a session overrides are not Inductor's to compute: they are called through the
dispatcher.

A package of AOTInductor keeps the functions it was compiled with. It carries their hash in its
metadata, and in a process that has opened a session it can be called only while the same
functions are active.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch.build.bitcode import compiler_for
from pytest_udftorch.compiled.follower import STOCK, Active, Change, follower
from pytest_udftorch.errors import CompiledElsewhereError
from pytest_udftorch.overrides.dispatcher import overload

#: Key of a package's metadata; its value is the id of the active functions.
METADATA: Final = "UDFTORCH_FUNCTIONS"

#: Likewise; its value names the libraries, for people.
_LIBRARIES: Final = "UDFTORCH_LIBRARIES"

#: What is changed of Inductor itself; its caches, keyed by the metadata, outlive this package.
_CHANGES_METADATA: Final = {"UDFTORCH_CHANGES": "3"}

# What Inductor's vector code does not call by name, and what it is given instead. It spells
# asinh and atanh out with log, though at::vec has them; and at::vec's erf for AVX-512 is a
# polynomial around exp. {lanes} are those of one register of floats.
_REWRITTEN: Final = {
    "asinh": "{x}.asinh()",
    "atanh": "{x}.atanh()",
    "erf": (
        "[](const auto& v) {{ using V = std::decay_t<decltype(v)>; "
        "using One = at::vec::Vectorized<float>; "
        "if constexpr (std::is_same_v<V, One>) return One(Sleef_erff{lanes}_u10(v)); "
        "else if constexpr (std::is_same_v<typename V::value_type, float>) {{ V r; "
        "for (int i = 0; i < V::size() / One::size(); ++i) "
        "r[i] = One(Sleef_erff{lanes}_u10(v[i])); return r; }} "
        "else return v.erf(); }}({x})"
    ),
}


def _libraries(active: Active) -> str:
    """Return names and versions of the libraries that functions come from."""
    names = dict.fromkeys(f"{p.build.library.name} {p.build.library.version}" for p in active.parts)
    return ", ".join(names) or STOCK


def _set_config(config: Any, active: Active) -> Callable[[], None]:
    cxx, metadata = config.cpp.cxx, config.aot_inductor.metadata
    threads, rounding = config.compile_threads, config.eager_numerics.division_rounding
    if active.functions:
        config.eager_numerics.division_rounding = True
    if active.parts:
        config.cpp.cxx = (None, str(compiler_for(active.parts)))
    changes = _CHANGES_METADATA if active.functions else {}
    names = {METADATA: active.id, _LIBRARIES: _libraries(active)}
    config.aot_inductor.metadata = {**metadata, **changes, **names}
    # Triton's functions are changed in this process; a pool of workers would not see it.
    config.compile_threads = 1

    def restore() -> None:
        config.cpp.cxx = cxx
        config.aot_inductor.metadata = metadata
        config.compile_threads = threads
        config.eager_numerics.division_rounding = rounding

    return restore


def _set_overrides(codegen: Any, active: Active) -> Callable[[], None]:
    kind = codegen.CppVecOverrides
    own = {name: kind.__dict__[name] for name in active.functions.intersection(_REWRITTEN)}
    for name in own:
        setattr(kind, name, staticmethod(functools.partial(_rewritten, _REWRITTEN[name])))

    def restore() -> None:
        for name, value in own.items():
            setattr(kind, name, value)

    return restore


def _rewritten(template: str, x: object) -> str:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return template.format(x=x, lanes=pick_vec_isa().bit_width() // 32)


def _set_triton_overrides(codegen: Any, active: Active) -> Callable[[], None]:
    """Write out what Triton or Inductor would divide in a way of its own.

    ``tl.sigmoid`` divides approximately, and torch 2.11 takes the reciprocal of a float as an
    integer's quotient, which ``division_rounding`` does not concern.
    """
    if not active.functions:
        return lambda: None
    kind = codegen.TritonKernelOverrides
    # Wraps sigmoid for float64 when the first kernel is made, and once only.
    kind._setup_libdevice_routing()
    own = {name: kind.__dict__.get(name) for name in ("sigmoid", "reciprocal")}
    for name, formula in (("sigmoid", _sigmoid), ("reciprocal", _reciprocal)):
        setattr(kind, name, staticmethod(_in_float32(formula, getattr(kind, name))))

    def restore() -> None:
        for name, value in own.items():
            if value is None:
                delattr(kind, name)
            else:
                setattr(kind, name, value)

    return restore


def _in_float32(formula: Callable[[Any, Any, Any], Any], stock: Callable[[Any], Any]) -> Any:
    def override(x: Any) -> Any:
        import torch
        from torch._inductor.virtualized import ops

        if getattr(x, "dtype", None) != torch.float32:
            return stock(x)
        return formula(ops, ops.constant(1.0, torch.float32), x)

    return override


def _sigmoid(ops: Any, one: Any, x: Any) -> Any:
    return ops.truediv(one, ops.add(one, ops.exp(ops.neg(x))))


def _reciprocal(ops: Any, one: Any, x: Any) -> Any:
    return ops.truediv(one, x)


# Composed operators: the operations of the eager kernels ------------------------------------

#: Of one value in float32; ``ops`` are Inductor's operations, ``number`` makes a constant.
Formula = Callable[..., Any]


def _softplus(ops: Any, number: Callable[[float], Any], x: Any, beta: float = 1.0,
              threshold: float = 20.0) -> Any:  # fmt: skip
    scaled = ops.mul(x, number(beta))
    curved = ops.truediv(ops.log1p(ops.exp(scaled)), number(beta))
    return ops.where(ops.gt(scaled, number(threshold)), x, curved)


def _gelu_tanh(ops: Any, number: Callable[[float], Any], x: Any, approximate: str) -> Any:
    cubic = ops.mul(ops.mul(x, x), x)
    inner = ops.mul(number(0.7978845608028654), ops.fma(number(0.044715), cubic, x))
    return ops.mul(ops.mul(number(0.5), x), ops.add(number(1.0), ops.tanh(inner)))


def _celu(ops: Any, number: Callable[[float], Any], x: Any, alpha: float = 1.0) -> Any:
    grown = ops.mul(ops.expm1(ops.mul(x, number(1.0 / alpha))), number(alpha))
    return ops.where(ops.gt(x, number(0.0)), x, grown)


#: Overload -> formula, and whether it is the one for the other arguments of a call.
_COMPOSED: Final[dict[str, tuple[Formula, Callable[..., bool]]]] = {
    "aten::softplus": (_softplus, lambda *args, **kwargs: True),
    "aten::celu": (_celu, lambda *args, **kwargs: True),
    "aten::gelu": (_gelu_tanh, lambda approximate="none": approximate == "tanh"),
}


def _composed(active: Active) -> dict[Any, tuple[Formula, Callable[..., bool]]]:
    """Return the composed operators that Inductor is given the formulas of."""
    if not active.functions:
        return {}
    return {overload(n): how for n, how in _COMPOSED.items() if n not in active.operators}


def _lowered(formula: Formula) -> Callable[..., Any]:
    """Return a lowering: computed in float32 and rounded once to the dtype of the tensor."""

    def lower(x: Any, *args: Any, **kwargs: Any) -> Any:
        import torch
        from torch._inductor.lowering import make_pointwise, to_dtype
        from torch._inductor.virtualized import ops

        def inner(value: Any) -> Any:
            def number(constant: float) -> Any:
                return ops.constant(float(constant), torch.float32)

            return formula(ops, number, value, *args, **kwargs)

        dtype = x.get_dtype()
        wide = x if dtype == torch.float32 else to_dtype(x, torch.float32)
        result = make_pointwise(inner)(wide)
        return result if dtype == torch.float32 else to_dtype(result, dtype)

    return lower


def _set_lowerings(lowering: Any, active: Active) -> Callable[[], None]:
    """Let overridden operators be called, instead of computed by Inductor's own code."""
    fresh = {o: _lowered(formula) for o, (formula, _) in _composed(active).items()}
    for name in active.operators:
        operator = overload(name)
        fresh[operator] = lowering.fallback_handler(operator, add_to_fallback_set=False)
    own = {operator: lowering.lowerings.get(operator) for operator in fresh}
    lowering.lowerings.update(fresh)

    def restore() -> None:
        for operator, value in own.items():
            if value is None:
                del lowering.lowerings[operator]
            else:
                lowering.lowerings[operator] = value

    return restore


def _set_decompositions(decomposition: Any, active: Active) -> Callable[[], None]:
    """Let overridden and composed operators get as far as the lowerings."""
    table = decomposition.decompositions
    composed = _composed(active)
    taken = (*map(overload, active.operators), *composed)
    own = {o: table.pop(o) for o in taken if o in table}
    for operator, (_, fits) in composed.items():
        if operator in own:
            table[operator] = _unless(fits, own[operator])
    forget = decomposition.fast_random_decomps.cache_clear  # holds a copy of the table
    forget()

    def restore() -> None:
        table.update(own)
        forget()

    return restore


def _unless(fits: Callable[..., bool], stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition that leaves calls to the lowering which its formula is for."""

    @functools.wraps(stock)
    def decomposition(x: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        if x.dtype in (torch.float32, torch.bfloat16, torch.half) and fits(*args, **kwargs):
            return NotImplemented
        return stock(x, *args, **kwargs)

    return decomposition


def _set_shims(shims: Any, active: Active) -> Callable[[], None]:
    """Let code that is all C++ call overridden operators through the dispatcher.

    It calls kernels of its list past it.
    """
    table = shims.inductor_fallback_ops
    names = [str(overload(name)) for name in active.operators]
    own = {n: table.pop(n) for n in names if n in table}
    return lambda: table.update(own)


def _guard_packages(package: Any, active: Active) -> Callable[[], None]:
    """Make a package of AOTInductor refuse to run under other functions than its own.

    It stays so: the package may outlive the session.
    """
    kind = package.AOTICompiledModel
    call = kind.__call__
    if not hasattr(call, "__wrapped__"):

        @functools.wraps(call)
        def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
            made_with = self.__dict__.get(METADATA)
            if made_with is None:
                made_with = self.get_metadata().get(METADATA, STOCK)
                self.__dict__[METADATA] = made_with
            if made_with != follower.active.id:
                whose = self.get_metadata().get(_LIBRARIES, made_with)
                raise CompiledElsewhereError(
                    f"This package was compiled with the functions {made_with!r} ({whose}), and "
                    f"{follower.active.id!r} ({_libraries(follower.active)}) are active: its "
                    "results would not be theirs. Call "
                    "it inside a session of the library it was compiled under (or outside of "
                    "any, if it was compiled outside), or compile it again here."
                )
            return call(self, *args, **kwargs)

        kind.__call__ = checked
    return lambda: None


def _forget_modules(codecache: Any, active: Active) -> Callable[[], None]:
    """Drop the modules of kernels in memory; they are named by their source alone.

    A module of Triton kernels holds what was compiled for them.
    """
    forget: Callable[[], None] = codecache.PyCodeCache.cache_clear
    forget()
    return forget


def _forget_kernels(async_compile: Any, active: Active) -> Callable[[], None]:
    forget: Callable[[], None] = async_compile.CompiledTritonKernels.cache_clear
    forget()
    return forget


CHANGES: Final[dict[str, Change]] = {
    "torch._inductor.codecache": _forget_modules,
    "torch._inductor.async_compile": _forget_kernels,
    "torch._inductor.config": _set_config,
    "torch._inductor.codegen.cpp": _set_overrides,
    "torch._inductor.codegen.triton": _set_triton_overrides,
    "torch._inductor.lowering": _set_lowerings,
    "torch._inductor.decomposition": _set_decompositions,
    "torchgen.aoti.fallback_ops": _set_shims,
    "torch.export.pt2_archive._package": _guard_packages,
}
