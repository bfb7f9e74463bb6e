# SPDX-License-Identifier: Apache-2.0
"""TorchInductor under a session: compiled with the UDFs inside, and cached separately.

While sessions are open, Inductor's C++ compiler is the one of ``bitcode.compiler_for``: clang
with the pass ``udf-replace``, which puts the functions into the fused loops. The compiler's
path holds a hash of the functions, and this path is part of the keys of Inductor's caches of
graphs and kernels. Whenever the functions change, torch.compile drops what it holds in memory. A
model compiled before is then compiled again, or taken from the cache of its functions.

Inductor rounds some operators composed of functions (sigmoid, softplus, celu, gelu) differently
from the eager kernels: it divides approximately on CUDA, multiplies by the reciprocal of a
constant, and does not fuse the product and sum that ATen's CPU kernel fuses. A session
gives it the formulas of the eager kernels (``operators.table``). All float32 divisions on CUDA are
correctly rounded, as in eager mode.

Inductor does not compute operators that a session overrides: its code calls them through the
dispatcher.

An AOTInductor package keeps the functions it was compiled with, and has their hash in its
metadata. In a process that has opened a session, it can be called only while the same functions
are active.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from pytest_udftorch.base import compat
from pytest_udftorch.errors import SessionStateError
from pytest_udftorch.swap.compiled.follower import follower
from pytest_udftorch.swap.contract.outside import WITH_NUMBERS, holds
from pytest_udftorch.swap.operators.calls import Applied, evaluate, plain
from pytest_udftorch.swap.operators.rows import find
from pytest_udftorch.swap.operators.table import COMPILED
from pytest_udftorch.swap.overrides.active import STOCK, Active, Change
from pytest_udftorch.swap.overrides.schemas import has_overload, overload
from pytest_udftorch.swap.overrides.undo import Undo
from pytest_udftorch.swap.toolchain.bitcode import compiler_for, leave

#: Key of a package's metadata; its value is the id of the active functions.
METADATA: Final = "UDFTORCH_FUNCTIONS"

#: Key of a package's metadata; its value names the libraries for people to read.
_LIBRARIES: Final = "UDFTORCH_LIBRARIES"

#: Raise it when the changes to Inductor change: its caches, keyed by it, outlive this package.
_CHANGES_METADATA: Final = {"UDFTORCH_CHANGES": "9"}

# Functions that Inductor's vector code does not call by name -> what it calls instead. It writes
# asinh and atanh out with log, and that of torch 2.11 expm1 with exp, although at::vec has them;
# at::vec's erf for AVX-512 is a polynomial around exp. {lanes} is the number of floats in one
# register.
_REWRITTEN: Final = {
    "asinh": "{x}.asinh()",
    "atanh": "{x}.atanh()",
    "expm1": "{x}.expm1()",
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


#: Settings that make Inductor round 16 bits after each operator, and leave sums and products as
#: they were written: its patterns join a product and a sum, which then are rounded once.
ROUNDING: Final = {
    "emulate_precision_casts": True, "joint_graph_constant_folding": False,
    "pattern_matcher": False,
}  # fmt: skip


def _libraries(active: Active) -> str:
    """Return the names and versions of the libraries that the functions come from."""
    names = dict.fromkeys(f"{p.build.library.name} {p.build.library.version}" for p in active.parts)
    return ", ".join(names) or STOCK


def _set_config(config: Any, active: Active, undo: Undo) -> None:
    if active.functions:
        undo.set(config.eager_numerics, "division_rounding", True)
    if active.parts:
        script = compiler_for(active.parts)
        undo.later(lambda: leave(script))
        undo.set(config.cpp, "cxx", (None, str(script)))
    changes = _CHANGES_METADATA if active.functions else {}
    names = {METADATA: active.id, _LIBRARIES: _libraries(active)}
    undo.set(config.aot_inductor, "metadata", {**config.aot_inductor.metadata, **changes, **names})
    if holds(active.operators):
        for name, value in ROUNDING.items():
            undo.set(config, name, value)
    # Triton's functions are changed in this process; a pool of workers would not see the change.
    undo.set(config, "compile_threads", 1)


def _set_overrides(codegen: Any, active: Active, undo: Undo) -> None:
    for name in active.functions.intersection(_REWRITTEN):
        rewritten = staticmethod(functools.partial(_rewritten, _REWRITTEN[name]))
        undo.set_own(codegen.CppVecOverrides, name, rewritten)
    if ROUNDING and holds(active.operators):
        # Before 2.15 a number that has just been rounded is read as it was, despite the setting.
        undo.set_own(codegen.CppKernel, "cache_dtype_convert", lambda *args: None)


def _rewritten(template: str, x: object) -> str:
    return template.format(x=x, lanes=compat.vector_bits() // 32)


def _set_triton_overrides(codegen: Any, active: Active, undo: Undo) -> None:
    """Write out the divisions that Triton or Inductor would not round correctly.

    ``tl.sigmoid`` divides approximately, and torch 2.11 takes the reciprocal of a float as an
    integer's quotient, which ``division_rounding`` does not affect.
    """
    if not active.functions:
        return
    kind = codegen.TritonKernelOverrides
    # Inductor wraps sigmoid for float64 once, when it makes the first kernel.
    compat.route_libdevice(kind)
    for name in ("sigmoid", "reciprocal"):
        undo.set_own(kind, name, staticmethod(_in_float32(name, getattr(kind, name))))
    if holds(active.operators):
        undo.set_own(kind, "neg", staticmethod(_negated(kind.neg)))


def _negated(stock: Callable[[Any], Any]) -> Any:
    """Return what negates numbers: Triton subtracts from 0, which gives 0 for 0, and not -0."""

    def override(x: Any) -> Any:
        floats = getattr(getattr(x, "dtype", None), "is_floating_point", False)
        return f"{x} * -1.0" if floats else stock(x)

    return override


def _in_float32(formula: str, stock: Callable[[Any], Any]) -> Any:
    def override(x: Any) -> Any:
        import torch

        if getattr(x, "dtype", None) != torch.float32:
            return stock(x)
        return _evaluate(plain(formula), x)

    return override


def _evaluate(formula: Applied, x: Any) -> Any:
    """Compute a formula of one value in float32 with Inductor's operations."""
    import torch

    ops = compat.inductor_ops()
    return evaluate(formula, ops, lambda number: ops.constant(number, torch.float32), x)


# Composed operators: the operations of the eager kernels ------------------------------------


def _composed(active: Active) -> dict[Any, Callable[..., Applied | None]]:
    """Return the composed operators whose formulas Inductor gets."""
    if not active.functions:
        return {}
    return {overload(n): how for n, how in COMPILED.items() if n not in active.operators}


def _lowered(how: Callable[..., Applied | None]) -> Callable[..., Any]:
    """Return a lowering that computes in float32 and rounds once to the dtype of the tensor."""

    def lower(x: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        make_pointwise, to_dtype = compat.inductor_pointwise()
        formula = how(*args, **kwargs)
        assert formula is not None  # the decomposition keeps such calls

        def inner(value: Any) -> Any:
            return _evaluate(formula, value)

        dtype = x.get_dtype()
        wide = x if dtype == torch.float32 else to_dtype(x, torch.float32)
        result = make_pointwise(inner)(wide)
        return result if dtype == torch.float32 else to_dtype(result, dtype)

    return lower


def _set_lowerings(lowering: Any, active: Active, undo: Undo) -> None:
    """Make Inductor call overridden operators instead of computing them with its own code."""
    fresh = {o: _lowered(how) for o, how in _composed(active).items()}
    for name in active.operators:
        operator = overload(name)
        call = lowering.fallback_handler(operator, add_to_fallback_set=False)
        fresh[operator] = _of_contiguous(call) if _fact(name, "mislaid") else call
    for operator in map(overload, WITH_NUMBERS if holds(active.operators) else ()):
        if operator in lowering.lowerings:
            call = lowering.fallback_handler(operator, add_to_fallback_set=False)
            fresh[operator] = _of_alike(lowering.lowerings[operator], call)
    for operator, lower in fresh.items():
        undo.set_item(lowering.lowerings, operator, lower)
    if holds(active.operators):
        undo.set(lowering, "div_prim", _divided(lowering.div_prim))
        undo.set(lowering, "_full", _rounded(lowering._full))
    _set_fakes(active, undo)


def _fact(name: str, fact: str) -> Any:
    """Return what the row of an overload (``aten::add.Tensor``) says; None if it has no row."""
    return getattr(find(name.partition("::")[2].partition(".")[0]), fact, None)


def _of_contiguous(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lowering that calls an operator on contiguous arguments: of these the rules hold.

    Inductor may lay out what a convolution gives with the channels last.
    """

    def lower(*args: Any, **kwargs: Any) -> Any:
        contiguous, box = compat.inductor_contiguous()
        return call(*(contiguous(a) if isinstance(a, box) else a for a in args), **kwargs)

    return lower


def _of_alike(stock: Callable[..., Any], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lowering that computes with tensors of one dtype, and calls the operator otherwise.

    Inductor rounds a number to the 16 bits of the tensor beside it, and alpha's product before it
    is added.
    """

    def lower(*args: Any, **kwargs: Any) -> Any:
        import torch

        dtypes = {a.get_dtype() if hasattr(a, "get_dtype") else None for a in args}
        narrow = bool(dtypes & {torch.bfloat16, torch.half})
        if kwargs.get("alpha", 1) != 1 or (narrow and len(dtypes) > 1):
            return call(*args, **kwargs)
        return stock(*args, **kwargs)

    return lower


def _rounded(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a lowering that fills a tensor: a number for 16 bits may stand in code as it was."""

    def lower(fill_value: Any, device: Any, dtype: Any, size: Any) -> Any:
        import torch

        if dtype in (torch.bfloat16, torch.half) and isinstance(fill_value, int | float):
            fill_value = torch.tensor(fill_value, dtype=dtype).item()
        return stock(fill_value, device, dtype, size)

    return lower


def _divided(stock: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a lowering that divides: on GPUs Inductor multiplies by a number's reciprocal."""

    def lower(a: Any, b: Any) -> Any:
        import torch

        if a.get_dtype() != torch.float32:
            return stock(a, b)
        make_pointwise, _ = compat.inductor_pointwise()
        return make_pointwise(compat.inductor_ops().truediv)(a, b)

    return lower


def _set_fakes(active: Active, undo: Undo) -> None:
    """Correct the dtypes of statistics that torch tells its compiler.

    Beside parameters in float32, the kernels for the CPU give the statistics of a tensor in 16 bits
    in float32, and torch's rules say 16 bits (seen in 2.11 to 2.15); running statistics keep their
    dtype, and its rules say float32. Inductor decomposes the operators and never meets the
    difference; where it calls them it refuses their results.
    """
    rules = compat.decompositions()
    found: dict[Any, Callable[..., Any]] = {}
    for name in active.operators:
        operator = overload(name)
        if statistics := _fact(name, "statistics"):
            running = slice(*(_fact(name, "running") or (0,)))
            found[operator] = _wide_statistics(rules[operator], slice(*statistics), running)
        elif _fact(name, "narrow_gradient"):
            found[operator] = _narrow_gradient(rules[operator])
    if not found:
        return
    table, forget = compat.fake_operators()
    written = compat.fake_rules()
    undo.later(forget)
    for operator, fake in found.items():
        undo.set_item(table, operator, fake)
        # torch looks into the table only for what has a rule of its own; that is not called then.
        undo.set_item(written, operator, rules[operator])
    forget()


def _wide_statistics(rule: Callable[..., Any], at: slice, running: slice) -> Callable[..., Any]:
    """Return what an operator gives for fake tensors by its rule, but for such statistics."""

    def fake(mode: Any, operator: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        with mode:
            found = list(rule(x, *args, **kwargs))
            given = (*args, *kwargs.values())
            wide = any(getattr(v, "dtype", None) is torch.float32 for v in given)
            if x.device.type == "cpu" and wide:
                found[at] = [statistic.float() for statistic in found[at]]
            kept = zip(found[running], (x, *args)[running], strict=True)
            found[running] = [new.to(old.dtype) for new, old in kept]
        return tuple(found)

    return fake


def _narrow_gradient(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a gradient is for fake tensors by its rule, but in the dtype of what it is of."""

    def fake(mode: Any, operator: Any, grad_out: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        with mode:
            of_x, *others = rule(grad_out, x, *args, **kwargs)
            return (None if of_x is None else of_x.to(x.dtype), *others)

    return fake


def _set_decompositions(decomposition: Any, active: Active, undo: Undo) -> None:
    """Keep overridden and composed operators from being decomposed before the lowerings."""
    table = decomposition.decompositions
    forget = decomposition.fast_random_decomps.cache_clear  # holds a copy of the table
    undo.later(forget)
    composed = _composed(active)
    for operator in (*map(overload, active.operators), *composed):
        if operator not in table:
            continue
        if operator in composed:
            undo.set_item(table, operator, _unless(composed[operator], table[operator]))
        else:
            undo.drop_item(table, operator)
    forget()
    for name in active.operators:
        if any(start in name for start in _TRACED_BY_OTHERS):
            _keep_whole(name, undo)
    if holds(active.operators):
        # Inductor's templates for flex attention add in an order of their own.
        for rules, mode, eager in compat.flex_rules():
            undo.set_item(rules, mode, functools.partial(_traced, eager))


def _traced(eager: Callable[..., Any], mode: Any, *args: Any, **kwargs: Any) -> Any:
    """Put into the graph that a mode makes what eager code computes."""
    with mode:
        return eager(*args, **kwargs)


def _set_freezing(freezing: Any, active: Active, undo: Undo) -> None:
    """Keep oneDNN from computing functions, and weights under the contract from taking in norms.

    Inductor packs the weights of a frozen model for oneDNN, which then computes the activation
    behind a product, too.
    """
    if holds(active.operators):
        undo.set(freezing, "freezing_passes", lambda *args: None)
    elif active.functions:
        undo.set(
            freezing, "freezing_passes", functools.partial(_unpacked, freezing.freezing_passes)
        )


def _unpacked(passes: Callable[..., None], *args: Any) -> None:
    with compat.without_freezing_patterns():
        passes(*args)


#: Operators that torch computes by others already when it traces a graph with gradients.
_TRACED_BY_OTHERS: Final = ("::upsample_", "::_upsample_")


def _keep_whole(name: str, undo: Undo) -> None:
    """Let a graph have an operator itself, whichever of its overloads is called."""
    for one in (name, f"{name}.vec"):
        if not has_overload(one):
            continue
        rules, forget = compat.python_rules(overload(one))
        undo.later(forget)
        for key in [k for k in rules if "Autograd" in str(k)]:
            undo.drop_item(rules, key)
        forget()


def _unless(how: Callable[..., Applied | None], stock: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition that leaves calls with a formula to the lowering."""

    @functools.wraps(stock)
    def decomposition(x: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        if x.dtype in (torch.float32, torch.bfloat16, torch.half) and how(*args, **kwargs):
            return NotImplemented
        return stock(x, *args, **kwargs)

    return decomposition


def _set_shims(shims: Any, active: Active, undo: Undo) -> None:
    """Make code without Python call overridden operators through the dispatcher.

    For the operators in a list, such code calls the kernels directly.
    """
    for name in active.operators:
        if str(overload(name)) in shims.inductor_fallback_ops:
            undo.drop_item(shims.inductor_fallback_ops, str(overload(name)))


def _guard_packages(package: Any, active: Active, undo: Undo) -> None:
    """Make an AOTInductor package refuse to run under functions other than its own.

    The change stays, because the package may outlive the session.
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
                raise SessionStateError(
                    f"This package was compiled with the functions {made_with!r} ({whose}), but "
                    f"{follower.active.id!r} ({_libraries(follower.active)}) are active now. Its "
                    "results would not be theirs. Call it inside a session of the library it was "
                    "compiled under (or outside any session, if it was compiled outside), or "
                    "compile it again here."
                )
            return call(self, *args, **kwargs)

        kind.__call__ = checked


def _forget_modules(codecache: Any, active: Active, undo: Undo) -> None:
    """Drop the modules of kernels from memory: their names depend on their source only.

    A module of Triton kernels holds the compiled kernels.
    """
    undo.later(codecache.PyCodeCache.cache_clear)
    codecache.PyCodeCache.cache_clear()


def _forget_kernels(async_compile: Any, active: Active, undo: Undo) -> None:
    undo.later(async_compile.CompiledTritonKernels.cache_clear)
    async_compile.CompiledTritonKernels.cache_clear()


CHANGES: Final[dict[str, Change]] = {
    compat.INDUCTOR_CODECACHE: _forget_modules,
    compat.INDUCTOR_ASYNC: _forget_kernels,
    compat.INDUCTOR_CONFIG: _set_config,
    compat.INDUCTOR_CPP: _set_overrides,
    compat.INDUCTOR_TRITON: _set_triton_overrides,
    compat.INDUCTOR_FREEZING: _set_freezing,
    compat.INDUCTOR_LOWERING: _set_lowerings,
    compat.INDUCTOR_DECOMPOSITION: _set_decompositions,
    compat.INDUCTOR_SHIMS: _set_shims,
    compat.INDUCTOR_PACKAGE: _guard_packages,
}
