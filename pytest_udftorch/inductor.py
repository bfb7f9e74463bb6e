"""TorchInductor's C++ under a session: compiled with the UDFs inside, cached apart.

While sessions are open, Inductor's C++ compiler is the one of ``bitcode.compiler_for``: clang
with the pass ``udf-replace``, which puts the functions into the fused loops. The compiler's
path holds a hash of the functions, and Inductor's caches of graphs and of kernels are keyed by
it. What torch.compile holds in memory is dropped whenever the functions change, so a model
compiled before is compiled again, or taken from its own cache.

A package of AOTInductor keeps the functions it was compiled with. It carries their hash in its
metadata, and in a process that has opened a session it can be called only while the same
functions are active.

Nothing here imports torch's compiler: before its first use there is nothing to change, and
then an import hook does it.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from pytest_udftorch.bitcode import Part, compiler_for, selection_id
from pytest_udftorch.errors import CompiledElsewhereError, CompileRunningError

_CONFIG: Final = "torch._inductor.config"
_DYNAMO: Final = "torch._dynamo"
_FRAMES: Final = "torch._dynamo.convert_frame"
_CPP: Final = "torch._inductor.codegen.cpp"
_PACKAGE: Final = "torch.export.pt2_archive._package"

#: Key of a package's metadata; its value is the selection's id, or "stock".
METADATA: Final = "UDFTORCH_FUNCTIONS"
STOCK: Final = "stock"

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


class _Follower:
    """What is changed inside torch's compiler for the functions that are active."""

    def __init__(self) -> None:
        self.active = STOCK
        self.compiler: str | None = None
        self.functions: frozenset[str] = frozenset()
        self._restore: list[Callable[[], None]] = []
        self._hook: _ImportHook | None = None

    def follow(self, parts: Sequence[Part], *, wait: bool) -> None:
        """Make the compiler use these functions; with none, put back everything.

        Args:
            parts: the functions that are active from now on.
            wait: let a compilation that runs in another thread finish first.

        Raises:
            CompileRunningError: one is running, and ``wait`` is false. Nothing was changed.
            CacheError, CompilerNotFoundError, CompilerTooOldError: see
                ``bitcode.compiler_for``. Nothing was changed.
        """
        active = selection_id(parts) if parts else STOCK
        if active == self.active:
            return
        compiler = str(compiler_for(tuple(parts))) if parts else None
        frames = sys.modules.get(_FRAMES)
        if frames is None:
            self._switch(active, compiler, parts)
            return
        if not frames.compile_lock.acquire(blocking=wait):
            raise CompileRunningError(
                "torch.compile is compiling in another thread, and would end up with some "
                "functions of one library and some of another. Open the session before that "
                "thread calls the model, or when it has returned."
            )
        try:
            self._switch(active, compiler, parts)
        finally:
            frames.compile_lock.release()

    def _switch(self, active: str, compiler: str | None, parts: Sequence[Part]) -> None:
        self._undo()
        self.active, self.compiler = active, compiler
        self.functions = frozenset(name for part in parts for name, _ in part.functions)
        if parts:
            after = {
                _CONFIG: self._set_config,
                _CPP: self._set_overrides,
                _PACKAGE: _guard_packages,
            }
            if self._hook is None:
                self._hook = _ImportHook(after)
                sys.meta_path.insert(0, self._hook)
            for name, apply in after.items():
                if name in sys.modules:
                    apply(sys.modules[name])
        if _DYNAMO in sys.modules:
            sys.modules[_DYNAMO].reset()

    def _undo(self) -> None:
        while self._restore:
            self._restore.pop()()

    def _set_config(self, config: Any) -> None:
        if self.compiler is None:
            return
        cxx, metadata = config.cpp.cxx, config.aot_inductor.metadata
        config.cpp.cxx = (None, self.compiler)
        config.aot_inductor.metadata = {**metadata, METADATA: self.active}

        def restore() -> None:
            config.cpp.cxx = cxx
            config.aot_inductor.metadata = metadata

        self._restore.append(restore)

    def _set_overrides(self, codegen: Any) -> None:
        kind = codegen.CppVecOverrides
        for name in self.functions.intersection(_REWRITTEN):
            own = kind.__dict__[name]
            setattr(kind, name, staticmethod(functools.partial(_rewritten, _REWRITTEN[name])))
            self._restore.append(functools.partial(setattr, kind, name, own))


def _rewritten(template: str, x: object) -> str:
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    return template.format(x=x, lanes=pick_vec_isa().bit_width() // 32)


class _ImportHook(importlib.abc.MetaPathFinder):
    """Calls a function with a module once it has been imported."""

    def __init__(self, after: dict[str, Callable[[Any], None]]) -> None:
        self.after = after

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec that the other finders give, with the function added."""
        apply = self.after.get(fullname)
        if apply is None:
            return None
        spec = None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)):
                break
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                apply(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_guarded: set[type] = set()


def _guard_packages(package: Any) -> None:
    """Make a package of AOTInductor refuse to run under other functions than its own."""
    kind = package.AOTICompiledModel
    if kind in _guarded:
        return
    _guarded.add(kind)
    call = kind.__call__

    @functools.wraps(call)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        made_with = self.__dict__.get(METADATA)
        if made_with is None:
            made_with = self.get_metadata().get(METADATA, STOCK)
            self.__dict__[METADATA] = made_with
        if made_with != follower.active:
            raise CompiledElsewhereError(
                f"This package was compiled with the functions {made_with!r}, and "
                f"{follower.active!r} are active: its results would not be theirs. Call it "
                "inside a session of the library it was compiled under (or outside of any, if "
                "it was compiled outside), or compile it again here."
            )
        return call(self, *args, **kwargs)

    kind.__call__ = checked


follower = _Follower()
