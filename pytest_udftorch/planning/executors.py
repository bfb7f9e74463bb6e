"""Ways to run a model: interpreted, compiled, scripted, exported, and variations of each.

An executor is a name, the devices and dtypes it serves, and a function that makes a callable
from a model and example inputs. Variations are appended to the name with ``+``:

``channels_last``
    4-d parameters and inputs in channels_last memory format.
``fused``
    batch norms folded into convolutions, and convolution, bias, (sum) and ReLU in one cuDNN
    call where that is faster; see ``fusion``.
``streams``
    independent branches on CUDA streams of their own; see ``fusion``.
``cudagraph``
    the whole captured once and replayed; inputs are copied in, and every replay overwrites
    the outputs of the one before.

``resolve("compile+channels_last+cudagraph")`` returns such an executor. A project adds its own
base with :func:`register`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.metadata
import os
import signal
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch
from torch import nn
from torch.utils import _pytree as pytree

from pytest_udftorch.errors import UdfError, nearest
from pytest_udftorch.timing.timers import untyped

__all__ = [
    "VARIATIONS",
    "CapturedShapeError",
    "Executor",
    "ExecutorUnavailableError",
    "UnknownExecutorError",
    "capture",
    "convert",
    "register",
    "registered",
    "resolve",
    "unregister",
]

Run: TypeAlias = Callable[..., Any]
Make: TypeAlias = Callable[[nn.Module, tuple[Any, ...]], Run]

FLOATS: Final = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
VARIATIONS: Final = ("channels_last", "fused", "streams", "cudagraph")

#: Calls before a capture: lets cuDNN choose algorithms and lazily made buffers be made.
_CAPTURE_WARMUP: Final = 3


class UnknownExecutorError(UdfError):
    """No executor, or no variation, has the given name."""


class CapturedShapeError(UdfError):
    """Inputs of other shapes or dtypes than those a graph or a package was made for."""


class LostBranchError(UdfError):
    """A trace would keep one branch of control flow that depends on a tensor."""


class ExecutorUnavailableError(UdfError):
    """An executor does not serve this device, dtype or torch build."""


@dataclass(frozen=True)
class Executor:
    """One way to run a model.

    Attributes:
        name: as given to :func:`resolve`.
        make: takes a model that it may keep and change, and a tuple of inputs; returns a
            callable of the same arguments. It may be slow and may raise.
        devices: device types served.
        dtypes: dtypes of floating-point inputs served.
    """

    name: str
    make: Make
    devices: frozenset[str] = frozenset({"cpu", "cuda"})
    dtypes: frozenset[torch.dtype] = FLOATS

    def check(self, inputs: Sequence[Any]) -> None:
        """Check that the executor serves these inputs.

        Raises:
            ExecutorUnavailableError: wrong device or dtype.
        """
        for tensor in _tensors(inputs):
            if tensor.device.type not in self.devices:
                raise ExecutorUnavailableError(
                    f"{self.name} runs on {' and '.join(sorted(self.devices))}, the inputs are "
                    f"on {tensor.device.type}. Move model and inputs, or leave it out."
                )
            if tensor.dtype.is_floating_point and tensor.dtype not in self.dtypes:
                names = ", ".join(sorted(str(d).removeprefix("torch.") for d in self.dtypes))
                raise ExecutorUnavailableError(
                    f"{self.name} serves {names}, not {str(tensor.dtype).removeprefix('torch.')}."
                )


def convert(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Apply ``function`` to every tensor of a nested structure."""
    return pytree.tree_map_only(torch.Tensor, function, value)


def _tensors(value: Sequence[Any]) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(list(value)) if isinstance(t, torch.Tensor)]


def _laid_out(value: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """Return a copy of the tensor with these strides, in elements."""
    copied = torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)
    return copied.copy_(value)


def to_channels_last(value: Any) -> Any:
    """Return the structure with its 4-d tensors in channels_last memory format."""
    return convert(
        value, lambda t: t.contiguous(memory_format=torch.channels_last) if t.dim() == 4 else t
    )


def capture(run: Run, inputs: tuple[Any, ...], *, warmup: int = _CAPTURE_WARMUP) -> Run:
    """Capture ``run(*inputs)`` in a CUDA graph and return a callable that replays it.

    The callable copies its arguments into the graph's own inputs, except those that are the
    graph's own inputs (``.inputs`` of the callable), and returns the graph's own outputs,
    which the next replay overwrites. It raises :class:`CapturedShapeError` for arguments of
    other shapes or dtypes.

    Raises:
        ExecutorUnavailableError: the inputs are not on a CUDA device.
        RuntimeError: the work cannot be captured (it waits for the device, for instance).
    """
    tensors = _tensors(inputs)
    if not tensors or any(t.device.type != "cuda" for t in tensors):
        raise ExecutorUnavailableError(
            "A CUDA graph needs all inputs on a CUDA device. Move model and inputs to cuda."
        )
    static = convert(inputs, torch.clone)
    leaves = _tensors(static)
    side = untyped(torch.cuda.Stream)()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side), torch.no_grad():
        for _ in range(warmup):
            run(*static)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.current_stream()
    generator = torch.cuda.default_generators[leaves[0].device.index]
    unused = generator.clone_state()
    try:
        with torch.no_grad(), torch.cuda.graph(graph):
            output = run(*static)
    except BaseException:
        # A failed capture leaves its stream current, and the generator believing that it is
        # being captured, so that no random number could be drawn any more.
        torch.cuda.set_stream(stream)
        generator.graphsafe_set_state(unused)
        raise

    def replay(*arguments: Any) -> Any:
        for mine, theirs in zip(leaves, _tensors(arguments), strict=True):
            if mine is theirs:
                continue
            # A copy would broadcast and convert without a word.
            if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                raise CapturedShapeError(
                    f"The graph was captured for {mine.dtype}{list(mine.shape)} and is given "
                    f"{theirs.dtype}{list(theirs.shape)}. Capture one for these inputs too, or "
                    "use an executor without cudagraph."
                )
            mine.copy_(theirs)
        graph.replay()
        return output

    replay.inputs = static  # type: ignore[attr-defined]
    # The captured kernels use buffers that ``run`` owns.
    replay.keeps = run  # type: ignore[attr-defined]
    return replay


def _eager(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    return model


def _compile(mode: str) -> Make:
    def make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
        compiled: Run = torch.compile(model, mode=mode, dynamic=False)
        return compiled

    return make


@contextlib.contextmanager
def _quiet() -> Any:
    with warnings.catch_warnings():
        # TorchScript is deprecated and says so at each call; it is compared, not advised.
        warnings.simplefilter("ignore")
        yield


def _trace(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    with warnings.catch_warnings(record=True) as said, torch.no_grad():
        warnings.simplefilter("always")
        traced: Run = torch.jit.freeze(untyped(torch.jit.trace)(model.eval(), inputs, strict=False))
    torch_itself = str(Path(torch.__file__).parent)
    for warning in said:
        branch = warning.category.__name__ == "TracerWarning" and "boolean" in str(warning.message)
        # Where torch itself asks, it checks shapes.
        if branch and not warning.filename.startswith(torch_itself):
            raise LostBranchError(
                f"{warning.filename}, line {warning.lineno}: what is done next depends on a "
                "tensor, and a trace keeps only what these inputs choose. Leave "
                "torchscript-trace out; torchscript-script keeps both."
            )
    return traced


def _script(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    with _quiet(), torch.no_grad():
        scripted: Run = torch.jit.freeze(torch.jit.script(model.eval()))
    return scripted


def _fx(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    from pytest_udftorch.planning import fusion

    # The module's own call prints a traceback before it raises.
    run: Run = fusion.trace(model).forward
    return run


def _check_package(path: str) -> None:
    """Load a package in a process of its own first, if loading it could end this one.

    Its libraries parse with ``std::regex``, which looks up facets of the locale by numbers that
    two copies of libstdc++ do not share. With a compiler that links one in, torch 2.11 was seen
    to end in SIGSEGV there.

    Raises:
        ExecutorUnavailableError: the other process was ended by a signal.
    """
    with zipfile.ZipFile(path) as package:
        libraries = [package.read(n) for n in package.namelist() if n.endswith(".so")]
    if all(b"libstdc++.so" in library for library in libraries):
        return
    load = "import sys, torch._inductor as i; i.aoti_load_package(sys.argv[1])"
    trial = subprocess.run([sys.executable, "-c", load, path], capture_output=True)
    if trial.returncode < 0:
        raise ExecutorUnavailableError(
            "The package would end this process when it is loaded, by "
            f"{signal.Signals(-trial.returncode).name}. The C++ compiler links its own copy of "
            "libstdc++ into it, where torch has another. Set CXX to a compiler that links "
            "libstdc++.so, or leave aotinductor out."
        )


def _aot_inductor(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    import torch._inductor

    with _quiet(), torch.no_grad():
        program = torch.export.export(model, inputs)
        # The loader unpacks the package, so the folder may go once it is loaded.
        with tempfile.TemporaryDirectory(prefix="udftorch-aoti-") as folder:
            package = str(Path(folder) / "model.pt2")
            path = torch._inductor.aoti_compile_and_package(program, package_path=package)
            _check_package(path)
            loaded: Run = torch._inductor.aoti_load_package(path)
    # The package looks at none of them, and would compute something wrong.
    made_for = [(t.shape, t.dtype, t.stride()) for t in _tensors(inputs)]

    def run(*arguments: Any) -> Any:
        expected = iter(made_for)

        def fit(given: torch.Tensor) -> torch.Tensor:
            shape, dtype, stride = next(expected)
            if given.shape != shape or given.dtype != dtype:
                raise CapturedShapeError(
                    f"The package was compiled for {dtype}{list(shape)} and is given "
                    f"{given.dtype}{list(given.shape)}. Compile one for these inputs too, or use "
                    "another executor."
                )
            return given if given.stride() == stride else _laid_out(given, stride)

        return loaded(*convert(arguments, fit))

    return run


@functools.cache
def _start_lazy() -> None:
    """Start the backend of lazy tensors; a second start in a process is an error of torch's."""
    import torch._lazy.ts_backend

    torch._lazy.ts_backend.init()


def _lazy(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    try:
        import torch._lazy

        _start_lazy()
    except (ImportError, AttributeError, RuntimeError) as error:
        raise ExecutorUnavailableError(
            f"This torch build has no lazy tensors ({type(error).__name__}: {error})."
        ) from error
    home = _tensors(inputs)[0].device
    lazy_model = model.to("lazy")

    def run(*arguments: Any) -> Any:
        output = lazy_model(*convert(arguments, lambda t: t.to("lazy")))
        torch._lazy.mark_step()
        return convert(output, lambda t: t.to(home))

    return run


def _optional(distribution: str, error: Exception) -> ExecutorUnavailableError:
    """Return the error for a package that is not there, or does not load beside this torch."""
    try:
        found = f"{distribution} {importlib.metadata.version(distribution)}"
    except importlib.metadata.PackageNotFoundError:
        return ExecutorUnavailableError(
            f"{distribution} is not installed. Try: pip install {distribution}."
        )
    return ExecutorUnavailableError(
        f"{found} does not load beside torch {torch.__version__} ({type(error).__name__}: "
        f"{str(error)[:200]}). Install versions that go together, or leave the executor out."
    )


@contextlib.contextmanager
def _without_effect(owner: Any, name: str) -> Iterator[None]:
    """Let calls of a function in a module do nothing."""
    function = getattr(owner, name)
    setattr(owner, name, lambda *_: None)
    try:
        yield
    finally:
        setattr(owner, name, function)


def _thunder_profile(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    """Make lightning-thunder's choice: each graph by the fastest of thunder, Inductor, eager."""
    with _quiet():
        try:
            from thunder.dynamo import thunder_optimize, thunder_profile
        except Exception as error:
            raise _optional("lightning-thunder", error) from error
        # It starts with a reset of dynamo, which would throw away what others have compiled.
        with _without_effect(torch.compiler, "reset"):
            profiled = untyped(thunder_profile)(model)
        profiled(*inputs)
        chosen: Run = untyped(thunder_optimize)(profiled)
    return chosen


@contextlib.contextmanager
def _torch_as_before() -> Iterator[None]:
    """Take back, and keep away, what importing torchax 0.0.13 does to torch in the whole process.

    It names the backend PrivateUse1 "jax", for good: torch 2.11 then takes jax for the machine's
    accelerator, and CUDA streams cannot be entered any more. It switches off the fast path of
    attention, which changes the interpreted members.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    with (
        _without_effect(torch.utils, "rename_privateuse1_backend"),
        _without_effect(torch, "_register_device_module"),
    ):
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


@contextlib.contextmanager
def _sharing_memory() -> Iterator[None]:
    """Let JAX take memory of the GPU as it needs it: by default it takes three quarters at once.

    The variable is read when JAX first uses its devices; one that the user has set is kept.
    """
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    if name in os.environ:
        yield
        return
    os.environ[name] = "false"
    try:
        yield
    finally:
        del os.environ[name]


def _jax(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    """Make a function jitted by XLA, from torchax's translation of the operators."""
    with _quiet(), _torch_as_before(), _sharing_memory():
        try:
            import jax
        except Exception as error:
            raise _optional("jax", error) from error
        try:
            import torchax
        except Exception as error:
            raise _optional("torchax", error) from error
        home = _tensors(inputs)[0].device
        kind = "gpu" if home.type == "cuda" else "cpu"
        try:
            device = jax.devices(kind)[home.index or 0]
        except RuntimeError as error:
            raise ExecutorUnavailableError(
                f"jax {jax.__version__} has no {kind} here ({str(error)[:200]}). Install its build "
                "for this device."
            ) from error
        weights, function = torchax.extract_jax(model.cpu())
        weights = jax.device_put(weights, device)

        def to_jax(value: Any) -> Any:
            return convert(value, lambda t: jax.dlpack.from_dlpack(t.contiguous()))

        # By default XLA multiplies float32 in TF32 also where torch does not.
        with jax.default_matmul_precision("highest"):
            compiled = jax.jit(function).lower(weights, to_jax(inputs)).compile()

    def run(*arguments: Any) -> Any:
        # JAX has streams of its own, which no CUDA event of torch's waits for.
        output = untyped(jax.block_until_ready)(compiled(weights, to_jax(arguments)))
        return pytree.tree_map_only(jax.Array, torch.utils.dlpack.from_dlpack, output)

    return run


_BASES: dict[str, Executor] = {
    executor.name: executor
    for executor in (
        Executor("eager", _eager),
        Executor("compile", _compile("default")),
        Executor("compile-reduce-overhead", _compile("reduce-overhead")),
        Executor("compile-max-autotune", _compile("max-autotune")),
        Executor("compile-max-autotune-no-cudagraphs", _compile("max-autotune-no-cudagraphs")),
        Executor("torchscript-trace", _trace),
        Executor("torchscript-script", _script),
        Executor("fx", _fx),
        Executor("aotinductor", _aot_inductor),
        Executor("lazy", _lazy, frozenset({"cpu"})),
        Executor("thunder-profile", _thunder_profile),
        Executor("jax", _jax),
    )
}


_OURS: Final = frozenset(_BASES)


def registered() -> list[str]:
    """Return the names of the base executors."""
    return list(_BASES)


def register(executor: Executor) -> None:
    """Add a base executor of the project's own.

    Raises:
        UnknownExecutorError: no executor, or its name is taken or contains ``+``.
    """
    if not isinstance(executor, Executor):
        raise UnknownExecutorError(
            f"{executor!r} is no executor. Give register(Executor(name, make))."
        )
    if executor.name in _BASES or "+" in executor.name:
        raise UnknownExecutorError(
            f"{executor.name!r} cannot be registered: names must be new and without '+', which "
            f"separates variations. Taken: {', '.join(_BASES)}."
        )
    _BASES[executor.name] = executor


def unregister(name: str) -> None:
    """Remove an executor added with :func:`register`.

    Raises:
        UnknownExecutorError: no such executor, or one of this package's.
    """
    if name in _OURS:
        raise UnknownExecutorError(
            f"{name!r} is one of this package's executors and cannot be removed. Leave it out of "
            "the names you give."
        )
    if name not in _BASES:
        raise UnknownExecutorError(f"No executor {name!r}. {nearest(name, _BASES)}")
    del _BASES[name]


def _vary(base: Executor, name: str, variations: Sequence[str]) -> Executor:
    def make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
        from pytest_udftorch.planning import fusion

        prepared: nn.Module = model
        arguments = inputs
        if "channels_last" in variations:
            prepared = prepared.to(memory_format=torch.channels_last)
            arguments = to_channels_last(arguments)
        if "fused" in variations:
            prepared = fusion.fuse(prepared, arguments)
        if "streams" in variations:
            prepared = fusion.on_streams(prepared)
        inner = base.make(prepared, arguments)
        run = inner
        if "channels_last" in variations:

            def run(*given: Any) -> Any:
                return inner(*to_channels_last(given))

        return capture(run, inputs) if "cudagraph" in variations else run

    cuda_only = {"fused", "streams", "cudagraph"} & set(variations)
    devices = base.devices & {"cuda"} if cuda_only else base.devices
    return Executor(name, make, frozenset(devices), base.dtypes)


def resolve(name: str | Executor) -> Executor:
    """Return the executor of a name such as ``compile+channels_last+cudagraph``.

    Raises:
        UnknownExecutorError: unknown base or variation, or a variation given twice.
    """
    if isinstance(name, Executor):
        return name
    base, *variations = name.split("+")
    if base not in _BASES:
        raise UnknownExecutorError(f"No executor {base!r}. {nearest(base, _BASES)}")
    for variation in variations:
        if variation not in VARIATIONS or variations.count(variation) > 1:
            raise UnknownExecutorError(
                f"No variation {variation!r} in {name!r}, or it is given twice. "
                f"{nearest(variation, VARIATIONS)}"
            )
    if not variations:
        return _BASES[base]
    return _vary(_BASES[base], name, variations)


def make(executor: Executor, model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    """Make the callable from a copy of the model, after checking device and dtype.

    Raises:
        ExecutorUnavailableError: see :meth:`Executor.check`.
        Exception: whatever the executor raises.
    """
    executor.check(inputs)
    return executor.make(copy.deepcopy(model), inputs)
