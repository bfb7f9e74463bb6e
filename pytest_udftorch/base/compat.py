# SPDX-License-Identifier: Apache-2.0
"""What the package needs of its host, and of torch and Triton beyond their public names.

:func:`require_host` looks at the operating system, the processor, the C library and Python.

No other module of the package uses a private name of torch or Triton, and no module uses one of
pytest. If the installed version lacks a name, a :class:`PrivateNameError` names that version.
torch is imported when a name is first asked for.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_udftorch.base.host import require_host
from pytest_udftorch.errors import PrivateNameError, TorchNotFoundError

#: Versions that the package was tested with, first and last.
TORCH_SEEN: Final = "2.11 to 2.15"
TRITON_SEEN: Final = "3.6 to 3.9"


# torch -------------------------------------------------------------------------------


def torch_summary() -> tuple[str, str]:
    """Return torch's version and the CPU capability its kernels dispatch on."""
    torch = import_torch()
    return str(torch.__version__), str(torch.backends.cpu.get_cpu_capability())


def import_torch() -> Any:
    """Return torch.

    Raises:
        UnsupportedHostError: this system, processor or Python has no torch that can be rebound.
        TorchNotFoundError: it cannot be imported.
    """
    require_host()
    try:
        import torch
    except ImportError as error:
        raise TorchNotFoundError(
            f"torch cannot be imported: {error}. Install it (pip install torch); "
            "pytest_udftorch rebinds the ordinary registry wheels."
        ) from error
    return torch


@dataclass(frozen=True)
class PrivateName:
    """A name that its package may rename or drop.

    Attributes:
        owner: the module or class that has it.
        path: the name in it; dots separate an attribute from its own attributes.
        need: the end of the sentence "pytest_udftorch needs it".
        seen: the versions of the package in which it was seen.
    """

    owner: str
    path: str
    need: str
    seen: str = TORCH_SEEN

    def of(self, owner: Any) -> Any:
        """Return the attribute of a module or an object.

        Raises:
            PrivateNameError: it has no such attribute.
        """
        try:
            return operator.attrgetter(self.path)(owner)
        except AttributeError as error:
            raise self._missing() from error

    def get(self) -> Any:
        """Return the attribute of ``owner``, a module.

        Raises:
            PrivateNameError: there is no such module, or it has no such attribute.
        """
        # A first session asks thousands of times.
        module = sys.modules.get(self.owner)
        if module is None:
            try:
                module = importlib.import_module(self.owner)
            except ImportError as error:
                raise self._missing() from error
        return self.of(module)

    def _missing(self) -> PrivateNameError:
        package = self.owner.partition(".")[0]
        version = getattr(sys.modules.get(package), "__version__", "(not imported)")
        return PrivateNameError(
            f"{package} {version} has no {self.owner}.{self.path}, which {package} {self.seen} "
            f"has. pytest_udftorch needs it {self.need}. Install one of these versions of "
            f"{package}, or report the version that you have."
        )


# The dispatcher ----------------------------------------------------------------------

_OPERATOR_NAMES: Final = PrivateName(
    "torch._C", "_dispatch_get_all_op_names", "to list the dispatcher's operators"
)
_SCHEMA: Final = PrivateName("torch._C", "_get_schema", "to check UDFs of whole operators")
_HAS_KERNEL: Final = PrivateName(
    "torch._C", "_dispatch_has_kernel_for_dispatch_key", "to find composite operators"
)
_HAS_COMPUTED: Final = PrivateName(
    "torch._C", "_dispatch_has_computed_kernel_for_dispatch_key", "to override operators"
)
_KEY: Final = PrivateName("torch._C", "DispatchKey", "to override operators")
_KEY_SET: Final = PrivateName("torch._C", "DispatchKeySet", "to call stock kernels")
_NO_FUNCTION: Final = PrivateName("torch._C", "DisableTorchFunction", "to leave out users' modes")
_NO_MODES: Final = PrivateName(
    "torch.utils._python_dispatch", "_disable_current_modes", "to leave out users' modes"
)
_DISPATCH_MODE: Final = PrivateName(
    "torch.utils._python_dispatch", "TorchDispatchMode", "to see the operators of a model"
)
_TRANSFORMS: Final = PrivateName(
    "torch._C", "_are_functorch_transforms_active", "to see whether torch.func follows a call"
)
_NO_TRANSFORMS: Final = PrivateName(
    "torch._functorch.pyfunctorch", "temporarily_clear_interpreter_stack", "to look at layers"
)
_MODES: Final = PrivateName(
    "torch._C", "_len_torch_dispatch_stack", "to see whether modes follow a call"
)
_PACKET: Final = PrivateName(
    "torch._ops.OpOverload", "_overloadpacket", "to see the operators of a model"
)
_OVERLOAD_SCHEMA: Final = PrivateName(
    "torch._ops.OpOverload", "_schema", "to know what an operator returns"
)
_HIGHER_ORDER: Final = PrivateName(
    "torch._ops", "HigherOrderOperator", "to follow operators that call functions"
)
_DECOMPOSITIONS: Final = PrivateName(
    "torch._decomp", "decomposition_table", "to know which functions an operator evaluates"
)


_SEQUENCE: Final = PrivateName(
    "torch.autograd", "_get_sequence_nr", "to know which layer a gradient belongs to"
)
_NODE: Final = PrivateName(
    "torch._C", "_current_autograd_node", "to know which layer a gradient belongs to"
)
_NODE_NUMBER: Final = PrivateName(
    "torch.autograd.graph.Node", "_sequence_nr", "to know which layer a gradient belongs to"
)
_CONVOLUTION: Final = PrivateName(
    "torch._C", "_select_conv_backend", "to lay out a convolution as torch does"
)
_CONVOLUTION_FORMAT: Final = PrivateName(
    "torch._C", "_conv_determine_backend_memory_format", "to lay out a convolution as torch does"
)


def convolution_format(input: Any, weight: Any, *rest: Any) -> Any:
    """Return the format of memory in which torch's kernel gives the result of a convolution.

    Args:
        input: as ``aten::convolution`` takes it.
        weight: likewise.
        rest: the arguments after these.
    """
    bias, *how = rest
    backend = _CONVOLUTION.get()(input, weight, bias, *how, None)
    return _CONVOLUTION_FORMAT.get()(input, weight, backend)


def operator_names() -> list[str]:
    """Return the names of all overloads in the dispatcher (``aten::log.out``)."""
    return list(_OPERATOR_NAMES.get()())


def schema(base: str, overload: str) -> Any:
    """Return the schema of an overload (``aten::log``, ``out``)."""
    return _SCHEMA.get()(base, overload)


def has_schema(base: str, overload: str) -> bool:
    """Tell whether torch has an overload (``aten::log``, ``out``), if only in its scripts."""
    try:
        schema(base, overload)
    except RuntimeError:
        return False
    return True


def has_kernel(name: str, key: str) -> bool:
    """Tell whether the dispatcher has a kernel for an overload at a dispatch key."""
    return bool(_HAS_KERNEL.get()(name, key))


def has_own_kernel(name: str, key: str) -> bool:
    """Tell whether an overload has a kernel at a dispatch key that is not made of other operators.

    A kernel put above one made of other operators would take the gradient from it.
    """
    if not _HAS_COMPUTED.get()(name, key):
        return False
    return has_kernel(name, key) or not has_kernel(name, "CompositeImplicitAutograd")


@functools.cache
def dispatch_keys() -> frozenset[str]:
    """Return the names of all dispatch keys."""
    return frozenset(_KEY.get().__members__)


def stock_kernel(name: str, key: str, below: str = "") -> Any:
    """Return a callable for the kernel that an overload has at a dispatch key now.

    A kernel of autograd also needs the key ``below``, to which it goes on.
    """
    torch = import_torch()
    return functools.partial(torch.library.get_kernel(name, key).call_boxed, _keys(key, below))


@functools.cache
def _keys(key: str, below: str) -> Any:
    """Return a set of dispatch keys of one or two names."""
    keys = _KEY_SET.get()(getattr(_KEY.get(), key))
    return keys | _KEY_SET.get()(getattr(_KEY.get(), below)) if below else keys


def seen_by(stock: Any, key: str) -> Any:
    """Return what :func:`stock_kernel` returned, which goes on to a higher key: that of modes."""
    (keys,) = stock.args
    return functools.partial(stock.func, keys | _KEY_SET.get()(getattr(_KEY.get(), key)))


def no_torch_function() -> Any:
    """Return a context without ``TorchFunctionMode`` and ``__torch_function__``."""
    return _no_function()()


@functools.cache
def _no_function() -> Any:
    return _NO_FUNCTION.get()


def no_modes() -> Any:
    """Return a context without the user's modes for functions and the dispatcher."""
    return _NO_MODES.get()()


def no_transforms() -> Any:
    """Return a context in which ``torch.func`` follows nothing, for looks between operators."""
    return _NO_TRANSFORMS.get()()


def dispatch_mode() -> Any:
    """Return the class ``TorchDispatchMode``."""
    return _DISPATCH_MODE.get()


def is_transformed() -> bool:
    """Tell whether ``torch.func`` follows this thread's operators."""
    return bool(_TRANSFORMS.get()())


def is_in_mode() -> bool:
    """Tell whether a mode of the dispatcher follows this thread's operators."""
    return bool(_MODES.get()())


def is_higher_order(operator: Any) -> bool:
    """Tell whether an operator calls functions (``torch.cond``), and so has no schema."""
    return isinstance(operator, _higher_order())


@functools.cache
def _higher_order() -> Any:
    return _HIGHER_ORDER.get()


def packet(overload: Any) -> Any:
    """Return the operator that an overload belongs to (``torch.ops.aten.log``)."""
    return _PACKET.of(overload)


def overload_schema(overload: Any) -> Any:
    """Return the schema of ``torch.ops.aten.log.out`` and the like."""
    return _OVERLOAD_SCHEMA.of(overload)


def decompositions() -> Any:
    """Return torch's table: overload -> a function that computes it by simpler operators."""
    return _DECOMPOSITIONS.get()


def next_node() -> Any:
    """Return the function that gives the number of the next node of this thread's graph."""
    return _SEQUENCE.get()


def running_node() -> Any:
    """Return the function that gives the node whose gradient is being computed, or None."""
    return _NODE.get()


def node_number(node: Any) -> int:
    """Return the number that autograd gave to a node of its graph."""
    return int(_NODE_NUMBER.of(node)())


# Modules and tensors -----------------------------------------------------------------

_HOOKS: Final = tuple(
    PrivateName("torch.nn.Module", name, "to know whether a layer has hooks")
    for name in ("_forward_hooks", "_forward_pre_hooks")
)
_APPLY: Final = PrivateName("torch.nn.Module", "_apply", "to convert the buffers of a model")
_VERSION: Final = PrivateName(
    "torch.Tensor", "_version", "to know whether a model writes into its inputs"
)
_EXCLUDED: Final = PrivateName(
    "torch._C", "_dispatch_tls_is_dispatch_key_excluded", "to leave alone what has no memory"
)
_ZEROS: Final = PrivateName("torch.Tensor", "_is_zerotensor", "to leave alone what has no memory")
_COO: Final = tuple(
    PrivateName("torch.Tensor", name, "to look at sparse tensors")
    for name in ("_indices", "_values")
)
_WRAPPED: Final = PrivateName(
    "torch._C._functorch", "is_functorch_wrapped_tensor", "to look at what torch.func follows"
)
_UNWRAPPED: Final = PrivateName(
    "torch._C._functorch", "get_unwrapped", "to look at what torch.func follows"
)
_NO_DISPATCH: Final = PrivateName(
    "torch._C", "_disabled_torch_dispatch_impl", "to tell subclasses of tensors apart"
)
_CDATA: Final = PrivateName("torch.Tensor", "_cdata", "to show tensors to the recorder in C++")
_KINDS: Final = tuple(
    PrivateName(f"torch.nn.modules.{module}", name, "to tell layers apart")
    for module, name in (
        ("batchnorm", "_BatchNorm"), ("conv", "_ConvNd"), ("pooling", "_MaxPoolNd"),
    )
)  # fmt: skip
_PYTREE: Final = PrivateName("torch.utils", "_pytree", "to find the tensors in a model's result")


def layer_kinds() -> tuple[Any, Any, Any]:
    """Return the base classes of torch's batch norms, convolutions and max-poolings."""
    norm, convolution, pooling = (kind.get() for kind in _KINDS)
    return norm, convolution, pooling


def has_forward_hooks(module: Any) -> bool:
    """Tell whether a module has hooks that run at its forward call."""
    return any(hooks.of(module) for hooks in _HOOKS)


def convert(module: Any, function: Any) -> Any:
    """Replace each parameter and buffer by ``function`` of it; return the module."""
    return _APPLY.of(module)(function)


def write_count(tensor: Any) -> int:
    """Return how many times a tensor was written to."""
    return int(_VERSION.of(tensor))


def write_counter() -> Callable[[Any], int]:
    """Return :func:`write_count` for those who ask often; the name was looked for already."""
    _VERSION.of(import_torch().Tensor)
    return operator.attrgetter(_VERSION.path)


def excludes_zeros() -> Callable[[], bool]:
    """Return the function that tells whether this thread skips what computes with zeros."""
    return functools.partial(_EXCLUDED.get(), "ZeroTensor")


def is_zero_tensor(tensor: Any) -> bool:
    """Tell whether a tensor is one of torch's efficient zeros, which have no memory."""
    return bool(_is_zero()(tensor))


@functools.cache
def _is_zero() -> Callable[[Any], bool]:
    _ZEROS.of(import_torch().Tensor)
    return operator.methodcaller(_ZEROS.path)


def sparse_parts(tensor: Any) -> tuple[Any, Any]:
    """Return the indices and the values of a tensor in the layout ``sparse_coo``."""
    indices, values = (part.of(tensor)() for part in _COO)
    return indices, values


def is_wrapped(tensor: Any) -> bool:
    """Tell whether a tensor stands for another one that ``torch.func`` follows."""
    return bool(_wrapping()[0](tensor))


def unwrapped(tensor: Any) -> Any:
    """Return what a tensor stands for that ``torch.func`` follows, one transform less."""
    return _wrapping()[1](tensor)


@functools.cache
def _wrapping() -> tuple[Callable[[Any], bool], Callable[[Any], Any]]:
    return _WRAPPED.get(), _UNWRAPPED.get()


@functools.cache
def computes_itself(kind: type) -> bool:
    """Tell whether a class of tensors has a ``__torch_dispatch__`` of its own."""
    return getattr(kind, "__torch_dispatch__", None) is not _NO_DISPATCH.get()


def address_of(tensor: Any) -> int:
    """Return the address of the C++ object behind a tensor."""
    return int(_CDATA.of(tensor))


def pytree() -> Any:
    """Return torch's module for nested containers of tensors (``tree_map`` and the like)."""
    return _PYTREE.get()


# CUDA --------------------------------------------------------------------------------

_LAZY_CALL: Final = PrivateName("torch.cuda", "_lazy_call", "to wait for the first use of CUDA")
_DEVICE: Final = PrivateName("torch._C", "_cuda_getDevice", "to launch kernels")
_STREAM: Final = PrivateName("torch._C", "_cuda_getCurrentRawStream", "to launch kernels")
_WORKSPACES: Final = PrivateName(
    "torch._C", "_cuda_clearCublasWorkspaces", "to capture CUDA graphs that own their memory"
)


def when_cuda_starts(cuda: Any, call: Any) -> None:
    """Call ``call`` when the process begins to use CUDA, or now if it already does."""
    _LAZY_CALL.of(cuda)(call)


def current_device() -> Any:
    """Return the function that gives the index of the current GPU."""
    return _DEVICE.get()


def current_stream() -> Any:
    """Return the function that gives the current stream of a GPU as a number."""
    return _STREAM.get()


def clear_cublas_workspaces() -> None:
    """Give the workspaces that torch keeps for cuBLAS back to the memory pools they came from."""
    _WORKSPACES.get()()


# torch.distributed -------------------------------------------------------------------

_STORE: Final = PrivateName(
    "torch.distributed.distributed_c10d", "_get_default_store", "to compare the sessions of ranks"
)


def default_store() -> Any:
    """Return the store of the default process group."""
    return _STORE.get()()


# torch.compile -----------------------------------------------------------------------

DYNAMO: Final = "torch._dynamo"
#: The setting that has sums with products written out; not in torch 2.11.
DYNAMO_REWRITES: Final = "enable_dynamo_decompositions"
#: Module of optimizers -> the functions in it that do a step.
OPTIMIZERS: Final = {
    f"torch.optim.{name}": (f"_single_tensor_{name}", f"_multi_tensor_{name}")
    for name in (
        "adadelta", "adagrad", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop", "sgd"
    )
}  # fmt: skip
#: Has the lock under which torch.compile compiles.
DYNAMO_FRAMES: Final = "torch._dynamo.convert_frame"
#: Says which frames torch.compile leaves alone.
DYNAMO_RULES: Final = "torch._dynamo.trace_rules"
INDUCTOR_ASYNC: Final = "torch._inductor.async_compile"
INDUCTOR_CODECACHE: Final = "torch._inductor.codecache"
INDUCTOR_COMPILE: Final = "torch._inductor.compile_fx"
INDUCTOR_CONFIG: Final = "torch._inductor.config"
INDUCTOR_CPP: Final = "torch._inductor.codegen.cpp"
INDUCTOR_DECOMPOSITION: Final = "torch._inductor.decomposition"
INDUCTOR_FREEZING: Final = "torch._inductor.freezing"
INDUCTOR_LOWERING: Final = "torch._inductor.lowering"
INDUCTOR_PACKAGE: Final = "torch.export.pt2_archive._package"
INDUCTOR_SHIMS: Final = "torchgen.aoti.fallback_ops"
INDUCTOR_TRITON: Final = "torch._inductor.codegen.triton"
TRITON_COMPILER: Final = "triton.compiler.compiler"
TRITON_JIT: Final = "triton.runtime.jit"
TRITON_KNOBS: Final = "triton.knobs"
TRITON_MATH: Final = "triton.language.math"

#: Module -> the names in it that a session changes or calls.
_CHANGED: Final[dict[str, tuple[str, ...]]] = {
    **OPTIMIZERS,
    DYNAMO_FRAMES: ("compile_lock._is_owned", "compile_lock.acquire"),
    DYNAMO_RULES: ("SKIP_DIRS", "_recompile_re"),
    INDUCTOR_ASYNC: ("CompiledTritonKernels.cache_clear",),
    INDUCTOR_CODECACHE: ("PyCodeCache.cache_clear",),
    INDUCTOR_CONFIG: (
        "aot_inductor.metadata", "compile_threads", "cpp.cxx", "eager_numerics.division_rounding",
    ),
    INDUCTOR_CPP: (
        "CppVecOverrides.asinh", "CppVecOverrides.atanh", "CppVecOverrides.erf",
        "CppVecOverrides.expm1",
    ),
    INDUCTOR_DECOMPOSITION: ("decompositions", "fast_random_decomps.cache_clear"),
    INDUCTOR_FREEZING: ("freezing_passes",),
    INDUCTOR_LOWERING: (
        "_full", "div_prim", "fallback_handler", "lowerings", "make_pointwise", "to_dtype",
    ),
    INDUCTOR_PACKAGE: ("AOTICompiledModel.__call__",),
    INDUCTOR_SHIMS: ("inductor_fallback_ops",),
    INDUCTOR_TRITON: (
        "TritonKernelOverrides._setup_libdevice_routing", "TritonKernelOverrides.neg",
        "TritonKernelOverrides.sigmoid",
    ),
    TRITON_KNOBS: ("nvidia.libdevice_path", "runtime"),
}  # fmt: skip

_OPS: Final = PrivateName("torch._inductor.virtualized", "ops", "to give Inductor formulas")
_LOWERING: Final = tuple(
    PrivateName(INDUCTOR_LOWERING, name, "to give Inductor formulas")
    for name in ("make_pointwise", "to_dtype")
)
_CONTIGUOUS: Final = tuple(
    PrivateName("torch._inductor.ir", name, "to call operators on contiguous arguments")
    for name in ("ExternKernel.require_contiguous", "TensorBox")
)
_FAKES: Final = PrivateName(
    "torch._subclasses.fake_impls", "op_implementations_dict", "to tell the dtypes of results"
)
_FAKE_RULES: Final = PrivateName("torch._decomp", "meta_table", "to tell the dtypes of results")
_FLEX: Final = tuple(
    tuple(
        PrivateName("torch._higher_order_ops.flex_attention", name, "to compose flex attention")
        for name in names
    )
    for names in (
        ("flex_attention", "sdpa_dense"), ("flex_attention_backward", "sdpa_dense_backward"),
    )
)  # fmt: skip
_FREEZING_PATTERNS: Final = tuple(
    PrivateName("torch._inductor.fx_passes.freezing_patterns", name, "to freeze models")
    for name in ("lazy_init", "pass_patterns")
)
_FUNCTIONAL_MODE: Final = PrivateName(
    "torch._subclasses.functional_tensor", "FunctionalTensorMode", "to compose flex attention"
)
_FORGET_FAKES: Final = PrivateName(
    "torch._subclasses.fake_tensor", "FakeTensorMode.cache_clear", "to tell the dtypes of results"
)
_VECTOR: Final = PrivateName(
    "torch._inductor.cpu_vec_isa", "pick_vec_isa", "to give Inductor functions of vectors"
)
_ROUTING: Final = PrivateName(
    f"{INDUCTOR_TRITON}.TritonKernelOverrides", "_setup_libdevice_routing",
    "to give Inductor formulas",
)  # fmt: skip
_OWNED: Final = PrivateName(
    f"{DYNAMO_FRAMES}.compile_lock", "_is_owned", "to know whether torch.compile is compiling"
)
_RULES: Final = PrivateName(DYNAMO_RULES, "_recompile_re", "to keep kernels from being compiled")
_SKIPPED: Final = PrivateName(DYNAMO_RULES, "SKIP_DIRS", "to keep kernels from being compiled")
_DISABLE: Final = PrivateName(DYNAMO, "disable", "to keep kernels from being compiled")
_COUNTERS: Final = PrivateName("torch._dynamo.utils", "counters", "to count graph breaks")
_AOT: Final = PrivateName(
    "torch._inductor", "aoti_compile_and_package", "to compile with AOTInductor"
)
_AOT_LOAD: Final = PrivateName("torch._inductor", "aoti_load_package", "to load what it compiled")
_MODULES: Final = PrivateName(
    INDUCTOR_CODECACHE, "PyCodeCache.modules", "to keep the constants of captured kernels"
)
_LAZY_INIT: Final = PrivateName("torch._lazy.ts_backend", "init", "to compile with lazy tensors")
_LAZY_STEP: Final = PrivateName("torch._lazy", "mark_step", "to compile with lazy tensors")
_COMPILE: Final = PrivateName("torch._inductor", "compile", "to judge what Inductor generates")
_COMPILE_GRAPH: Final = PrivateName(
    INDUCTOR_COMPILE, "_compile_fx_inner", "to judge what Inductor generates"
)
_KERNEL_ORIGINS: Final = tuple(
    PrivateName(
        owner, "set_kernel_post_grad_provenance_tracing", "to know what a kernel was made of"
    )
    for owner in ("torch._inductor.debug", INDUCTOR_CPP)
)
_INDUCTOR_CONFIG: Final = PrivateName(INDUCTOR_CONFIG, "patch", "to compile every graph anew")
_AOT_CONFIG: Final = PrivateName(
    "torch._functorch.config", "patch", "to judge what Inductor generates"
)
_MARK_DYNAMIC: Final = PrivateName(
    "torch._dynamo", "mark_dynamic", "to compile for a range of sizes"
)
_DYNAMO_CONFIG: Final = PrivateName(
    "torch._dynamo", "config.patch", "to compile a model without the limits on recompiling"
)


def skip_frames(rules: Any, folders: Sequence[str], skip: bool) -> None:
    """Keep torch.compile from compiling frames of code in folders, or let it again.

    Args:
        rules: the module ``DYNAMO_RULES``.
        folders: their paths, with a separator at the end.
        skip: whether to.
    """
    listed: list[str] = _SKIPPED.of(rules)
    for folder in folders:
        if skip and folder not in listed:
            listed.append(folder)
        while not skip and folder in listed:
            listed.remove(folder)
    _RULES.of(rules)()


def uncompiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile leaves alone, with all that it calls.

    A frame of ``triton.runtime`` that Dynamo sees holds a kernel to be called. It would make that a
    node of a graph, and Inductor would compile the kernel's text without the names it refers to.
    """
    dynamo = sys.modules.get(DYNAMO)
    return call if dynamo is None else _DISABLE.of(dynamo)(call)


def check_changed(module: Any) -> None:
    """Check that a compiler's module has what a session changes in it.

    Raises:
        PrivateNameError: it lacks one of these; nothing has changed yet.
    """
    name = module.__name__
    seen = TRITON_SEEN if name.startswith("triton") else TORCH_SEEN
    for path in _CHANGED.get(name, ()):
        PrivateName(name, path, "to compile the functions of a session", seen).of(module)


def inductor_ops() -> Any:
    """Return the operations of Inductor's values."""
    return _OPS.get()


def inductor_pointwise() -> tuple[Any, Any]:
    """Return Inductor's ``make_pointwise`` and ``to_dtype``."""
    make, to_dtype = (name.get() for name in _LOWERING)
    return make, to_dtype


def inductor_contiguous() -> tuple[Callable[[Any], Any], type]:
    """Return what makes a value of Inductor contiguous, and the type of such values."""
    contiguous, box = (name.get() for name in _CONTIGUOUS)
    return contiguous, box


def fake_operators() -> tuple[Any, Callable[[], None]]:
    """Return the table of what operators give for fake tensors, and what forgets such results."""
    return _FAKES.get(), _FORGET_FAKES.get()


def fake_rules() -> Any:
    """Return the table of operators that have a rule for fake tensors, besides a decomposition."""
    return _FAKE_RULES.get()


@contextlib.contextmanager
def without_freezing_patterns() -> Iterator[None]:
    """Keep Inductor from packing the weights of frozen models, and from joining products."""
    begin, patterns = _FREEZING_PATTERNS
    begin.get()()  # fills the list once in a process
    kept = patterns.get()
    module = sys.modules[patterns.owner]
    setattr(module, patterns.path, [])
    try:
        yield
    finally:
        setattr(module, patterns.path, kept)


def flex_rules() -> list[tuple[dict[Any, Any], Any, Callable[..., Any]]]:
    """Return how compilers trace flex attention and its gradient.

    Each is a table of rules, the key in it of the mode that makes a graph functional, and the
    function that eager code calls.
    """
    mode = _FUNCTIONAL_MODE.get()
    return [(operator.get().python_key_table, mode, eager.get()) for operator, eager in _FLEX]


def python_rules(operator: Any) -> tuple[Any, Callable[[], None]]:
    """Return what computes an overload by others while a compiler traces, and what forgets it."""
    return operator.py_kernels, operator._dispatch_cache.clear


def look_up_again(name: str) -> None:
    """Make the Python dispatcher forget which kernels an overload (``aten::log.out``) has.

    Compilers trace with it. It remembers what it found for a dispatch key, and does not hear of
    kernels that C++ registers later.
    """
    import torch

    space, _, path = name.partition("::")
    base, _, last = path.partition(".")
    # What nobody has asked torch.ops for has remembered nothing.
    operator = vars(getattr(torch.ops, space)).get(base)
    overload = None if operator is None else vars(operator).get(last or "default")
    if overload is not None:
        python_rules(overload)[1]()


def vector_bits() -> int:
    """Return the width of the vectors that Inductor's C++ uses."""
    return int(_VECTOR.get()().bit_width())


def route_libdevice(kind: Any) -> None:
    """Make Inductor wrap its Triton operations now instead of with its first kernel."""
    _ROUTING.of(kind)()


_AOT_BACKEND: Final = PrivateName(
    "torch._dynamo.backends.common", "aot_autograd", "to rewrite graphs of ATen operators"
)
_BOXED: Final = PrivateName(
    "torch._functorch.aot_autograd", "make_boxed_func", "to rewrite graphs of ATen operators"
)
_LOOKUP: Final = PrivateName("torch._dynamo", "lookup_backend", "to compile kernels of graphs")


def inductor_backend() -> Any:
    """Return TorchInductor as a backend of torch.compile: a function of a graph and examples."""
    return _LOOKUP.get()("inductor")


def is_compiling(frames: Any) -> bool:
    """Tell whether this thread is inside torch.compile."""
    return bool(_OWNED.of(frames.compile_lock)())


_DYNAMO_HANDLERS: Final = PrivateName(
    "torch._dynamo.variables.torch", "TorchInGraphFunctionVariable._get_handlers",
    "to keep Dynamo from writing sums with quotients out",
)  # fmt: skip


def dynamo_handlers() -> dict[Any, Any]:
    """Return what Dynamo does with some functions of torch, instead of putting them into graphs."""
    found: dict[Any, Any] = _DYNAMO_HANDLERS.get()()
    return found


def graph_breaks() -> int:
    """Return how many graph breaks Dynamo has counted in this process."""
    return sum(_COUNTERS.get()["graph_break"].values())


def dynamo_config(**settings: Any) -> Any:
    """Return a context or decorator that changes settings of Dynamo."""
    return _DYNAMO_CONFIG.get()(**settings)


def mark_dynamic(tensor: Any, dimension: int, low: int, high: int | None) -> None:
    """Have Dynamo compile for all sizes of a dimension from ``low`` to ``high``.

    Without ``high``, for all from 2 on: Dynamo takes a lower bound only beside an upper one.
    """
    if high is None:
        _MARK_DYNAMIC.get()(tensor, dimension)
    else:
        _MARK_DYNAMIC.get()(tensor, dimension, min=low, max=high)


def inductor_modules() -> list[Any]:
    """Return the modules of generated code, which hold its kernels and constants."""
    return list(_MODULES.get()) if INDUCTOR_CODECACHE in sys.modules else []


def aot_package(program: Any, path: str) -> str:
    """Compile an exported program with AOTInductor; return the package's path."""
    return str(_AOT.get()(program, package_path=path))


def aot_load(path: str) -> Any:
    """Return the model in an AOTInductor package."""
    return _AOT_LOAD.get()(path)


def start_lazy_tensors() -> None:
    """Begin to compute tensors of the device ``lazy`` with TorchScript."""
    _LAZY_INIT.get()()


def mark_lazy_step() -> None:
    """Compute the pending lazy tensors."""
    _LAZY_STEP.get()()


def aten_graph(function: Any, examples: Any) -> Any:
    """Return the ATen operators that a function calls, as a graph; nothing is computed.

    Tensors that the function holds become attributes of the graph's module.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*examples)


def inductor_compiled(function: Any, examples: Any) -> Any:
    """Return a function of tensors as Inductor compiles it, without gradients."""
    return _COMPILE.get()(aten_graph(function, examples), list(examples))


@contextlib.contextmanager
def around_compiled_graphs(around: Any) -> Iterator[None]:
    """Have Inductor call ``around(compile_graph, module, ...)`` where it compiles a graph.

    AOTAutograd's cache, which goes past it, is off for so long.
    """
    module = importlib.import_module(INDUCTOR_COMPILE)
    compile_graph = _COMPILE_GRAPH.of(module)

    def compiled(*args: Any, **kwargs: Any) -> Any:
        return around(compile_graph, *args, **kwargs)

    with _AOT_CONFIG.get()(enable_autograd_cache=False):
        setattr(module, _COMPILE_GRAPH.path, compiled)
        try:
            yield
        finally:
            setattr(module, _COMPILE_GRAPH.path, compile_graph)


@contextlib.contextmanager
def around_generated_kernels(told: Callable[[str, Sequence[Any]], None]) -> Iterator[None]:
    """Have Inductor call ``told(kernel, nodes)`` where it generates the call of a kernel.

    The nodes are those of the graph that the kernel computes.
    """
    with contextlib.ExitStack() as stack:
        for name in _KERNEL_ORIGINS:
            module, own = importlib.import_module(name.owner), name.get()

            def tracing(nodes: Any, kernel: str, *args: Any, _own: Any = own, **more: Any) -> Any:
                told(kernel, _origin_nodes(nodes))
                return _own(nodes, kernel, *args, **more)

            stack.callback(setattr, module, name.path, own)
            setattr(module, name.path, tracing)
        yield


def _origin_nodes(made: Any) -> list[Any]:
    """Return the nodes of a graph behind nodes of Inductor's schedule, or behind one of its IR."""
    if getattr(made, "origin_node", None) is not None:
        return [made.origin_node]
    parts = made if isinstance(made, list | tuple) else [made]
    found = dict.fromkeys(
        origin for part in parts for origin in getattr(getattr(part, "node", part), "origins", ())
    )
    order = {n: i for graph in {n.graph for n in found} for i, n in enumerate(graph.nodes)}
    return sorted(found, key=lambda n: order.get(n, -1))


def without_graph_cache() -> Any:
    """Return a context in which Inductor compiles every graph anew."""
    return _INDUCTOR_CONFIG.get()(fx_graph_cache=False)


def source_of(module: Any) -> str:
    """Return the source of a module of generated code."""
    return Path(module.__file__).read_text(encoding="utf-8")


def is_generated(compiled: Any) -> bool:
    """Tell whether Inductor generated code for a graph: not if nothing is in it."""
    return hasattr(compiled, "current_callable")


def around_calls(compiled: Any, around: Any) -> None:
    """Have calls of a graph that Inductor compiled go to ``around(call, inputs)``."""
    call = compiled.current_callable

    def watched(inputs: Any) -> Any:
        return around(call, inputs)

    watched._boxed_call = True  # type: ignore[attr-defined]
    compiled.current_callable = watched


def copied_graph(module: Any) -> Any:
    """Return a module with a copy of a graph, and the same attributes."""
    from torch import fx

    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


def graph_calls(module: Any, inputs: Any) -> list[tuple[Any, Any, Any]]:
    """Run a graph; return the overloads that it calls, each with its arguments."""
    import torch
    from torch import fx

    calls: list[tuple[Any, Any, Any]] = []

    class Noting(fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if isinstance(target, torch._ops.OpOverload):
                calls.append((target, args, kwargs))
            if target is torch.ops.aten.view.default:
                # Inductor lays out results as it likes; a view of eager ones may be impossible.
                return args[0].reshape(args[1])
            return super().call_function(target, args, kwargs)

    with no_modes(), torch.no_grad():
        Noting(module).run(*inputs)
    return calls


def aot_backend(inference: Any, training: Any) -> Any:
    """Return a backend of torch.compile that compiles functional graphs of ATen operators.

    Args:
        inference: compiles the graph of a call without gradients.
        training: compiles the graphs of a call with gradients, forward and backward.
    """
    return _AOT_BACKEND.get()(
        fw_compiler=training, bw_compiler=training, inference_compiler=inference
    )


def boxed(call: Any) -> Any:
    """Return a compiled graph in the calling convention of AOTAutograd."""
    return _BOXED.get()(call)


def graph_break_after(module: Any) -> str:
    """Return why Dynamo ended a graph before the end of its function, or ""."""
    reason = getattr(module, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return ""
    return " ".join(str(reason.reason).split())[:300]


def logging_lock() -> Any:
    """Return the lock of ``logging``, or None."""
    return getattr(logging, "_lock", None)


def is_mine(lock: Any) -> bool:
    """Tell whether this thread holds a lock that it may take again."""
    return bool(lock._is_owned())
