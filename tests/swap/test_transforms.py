# SPDX-License-Identifier: Apache-2.0
"""What records, transforms or compiles a program sees an overridden operator, never its inside.

Each program is recorded without a session and in one: the records name the same operators, and
what they compute in the session has the bits of the eager call there.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from pytest_udftorch import patched

tree = torch.utils._pytree

LIBRARIES = {"composites": ("corem", {"composites": True}), "repro": ("repro", {})}


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Called(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


def evaluated(norm):
    """A norm in evaluation, whose statistics say something."""
    norm.running_mean.copy_(numbers(len(norm.running_mean), seed=3))
    norm.running_var.copy_(numbers(len(norm.running_var), seed=4).abs() + 0.5)
    return norm.eval()


IMAGES, LINES, BLOCKS = numbers(2, 4, 6, 6), numbers(2, 4, 9), numbers(2, 4, 4, 4, 4)
ROWS, LABELS = numbers(6, 10), torch.tensor([0, 3, 9, 1, 1, 7])
HEADS = tuple(numbers(2, 2, 5, 8, seed=s) for s in range(3))


@functools.cache
def programs():
    """Return name -> a module, and what it is called with; random numbers are stock's."""
    torch.manual_seed(0)
    found = {
        "conv1d": (nn.Conv1d(4, 6, 3), (LINES,)),
        "conv2d": (nn.Conv2d(4, 6, 3, padding=1), (IMAGES,)),
        "conv2d same": (nn.Conv2d(4, 6, 3, padding="same"), (IMAGES,)),
        "conv3d": (nn.Conv3d(4, 6, 3), (BLOCKS,)),
        "conv_transpose1d": (nn.ConvTranspose1d(4, 6, 3), (LINES,)),
        "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, stride=2), (IMAGES,)),
        "conv_transpose3d": (nn.ConvTranspose3d(4, 6, 3), (BLOCKS,)),
        "batch_norm": (nn.BatchNorm2d(4), (IMAGES,)),
        "batch_norm in evaluation": (evaluated(nn.BatchNorm2d(4)), (IMAGES,)),
        "instance_norm": (nn.InstanceNorm2d(4), (IMAGES,)),
        "instance_norm in evaluation": (
            evaluated(nn.InstanceNorm2d(4, affine=True, track_running_stats=True)), (IMAGES,)
        ),
        "group_norm": (nn.GroupNorm(2, 4), (IMAGES,)),
        "layer_norm": (nn.LayerNorm(10), (ROWS,)),
        "linear": (nn.Linear(10, 7), (ROWS,)),
        "softmax": (nn.Softmax(-1), (ROWS,)),
        "cross_entropy": (Called(F.cross_entropy), (ROWS, LABELS)),
        "mse_loss": (nn.MSELoss(), (ROWS, ROWS.flip(0))),
        "embedding": (nn.Embedding(10, 5), (LABELS,)),
        "attention": (Called(F.scaled_dot_product_attention), HEADS),
        "gelu": (nn.GELU(), (ROWS,)),
        "elu": (nn.ELU(), (ROWS,)),
        "erf": (Called(torch.erf), (ROWS.bfloat16(),)),
        "exp": (Called(torch.exp), (ROWS.bfloat16(),)),
        "sums": (Called(lambda x: (x.sum(1), x.mean(), x.var(0), x.cumsum(1))), (ROWS,)),
        "prod": (Called(lambda x: x.prod(1)), (ROWS,)),
        "bmm": (Called(torch.bmm), (LINES, LINES.mT)),
        "norm": (Called(torch.linalg.vector_norm), (ROWS,)),
        "upsampling": (nn.Upsample(scale_factor=2, mode="bilinear"), (IMAGES,)),
        "lstm": (Called(nn.LSTM(10, 5)), (ROWS[:, None],)),
        "index_add": (Called(lambda x, i: x.index_add(0, i % 6, x)), (ROWS, LABELS)),
    }  # fmt: skip
    for module, _ in found.values():
        module.requires_grad_(True)
    return found


#: Programs that a quick run takes.
QUICK = ("conv2d", "conv_transpose1d", "batch_norm in evaluation", "attention", "erf", "lstm")
#: Those of them that take no long import or translation.
QUICKEST = ("conv2d", "batch_norm in evaluation", "erf")


def each(names):
    """Every program; those that are not quick are marked slow."""
    return [
        pytest.param(name, marks=() if name in names else pytest.mark.slow) for name in programs()
    ]


@contextlib.contextmanager
def quiet():
    """Without warnings of recorders about what they record."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def session(library):
    name, options = LIBRARIES[library]
    return patched(name, **options)


def same_bits(one, other):
    one, other = tree.tree_leaves(one), tree.tree_leaves(other)
    return len(one) == len(other) and all(
        a.dtype is b.dtype and torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def same(one, other):
    """Whether tensors have the same bits, and lie in memory alike."""
    pairs = zip(tree.tree_leaves(one), tree.tree_leaves(other), strict=False)
    return same_bits(one, other) and all(a.stride() == b.stride() for a, b in pairs)


def fresh(name):
    """A program of its own, whose statistics nobody has changed."""
    module, given = programs()[name]
    return copy.deepcopy(module), given


# Records ----------------------------------------------------------------------------------


def traced(module, given):
    found = torch.jit.trace(module, given, check_trace=False)
    return found, [n.kind() for n in found.inlined_graph.nodes()]


def scripted(module, given):
    found = torch.jit.script(module)
    return found, [n.kind() for n in found.inlined_graph.nodes()]


def _operators(graph):
    return [str(n.target) for n in graph.nodes if n.op == "call_function"]


def made_fx(module, given):
    from torch.fx.experimental.proxy_tensor import make_fx

    found = make_fx(module)(*given)
    return found, _operators(found.graph)


def made_fx_of_fakes(module, given):
    from torch.fx.experimental.proxy_tensor import make_fx

    found = make_fx(module, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*given)
    return found, _operators(found.graph)


def exported(module, given):
    program = torch.export.export(module, given)
    return program.module(), _operators(program.graph)


def exported_and_decomposed(module, given):
    program = torch.export.export(module, given).run_decompositions()
    return program.module(), _operators(program.graph)


def functionalized(module, given):
    from torch.func import functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    found = make_fx(functionalize(module))(*given)
    return found, _operators(found.graph)


RECORDERS = {
    f.__name__: f
    for f in (
        traced, scripted, made_fx, made_fx_of_fakes, exported, exported_and_decomposed,
        functionalized,
    )
}  # fmt: skip


def recorded(recorder, name):
    """A record of a program, and the operators in it."""
    module, given = fresh(name)
    return RECORDERS[recorder](module, given)


def eager(name):
    module, given = fresh(name)
    return module(*given)


#: Recorders that decompose a program into operators in another order of additions.
REORDERED = {("index_add", "exported_and_decomposed")}

#: What repro leaves whole once Inductor is loaded, and torch does not.
KEPT_WHOLE = {("upsampling", "made_fx_of_fakes"): ["aten.upsample_bilinear2d.default"]}

#: Of a program that it traces, torch computes the gradient as if there were zeros.
OTHER_GRADIENTS = ("prod",)


def close(one, other):
    def near(a, b):
        # Of the largest element: what cancels has errors of what it is made of.
        far = (a.double() - b.double()).abs().max()
        return far <= max(1e-5, torch.finfo(a.dtype).eps) * b.double().abs().max()

    pairs = zip(tree.tree_leaves(one), tree.tree_leaves(other), strict=True)
    return all(near(a, b) if a.is_floating_point() else torch.equal(a, b) for a, b in pairs)


def each_record():
    """Every program and recorder; those that take long are marked slow."""
    for name in programs():
        for recorder in RECORDERS:
            quick = name in QUICK and recorder in ("traced", "made_fx", "exported")
            if recorder == "scripted" and isinstance(fresh(name)[0], Called):
                continue  # TorchScript compiles the source of a module, and this is a function
            yield pytest.param(name, recorder, marks=() if quick else pytest.mark.slow)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("name", "recorder"), list(each_record()))
def test_a_record_has_stocks_operators_and_the_bits_of_the_session(name, recorder, library):
    _, given = fresh(name)
    with quiet(), torch.no_grad():
        record, operators = recorded(recorder, name)
        stock = record(*given)
        # Where torch decomposes an operator, the bits may be other ones than eager's.
        whole = same(stock, eager(name)) and (name, recorder) not in REORDERED
        with session(library):
            record, seen = recorded(recorder, name)
            assert (same if whole else close)(record(*given), eager(name))
        inductor = library == "repro" and "torch._inductor.decomposition" in sys.modules
        if inductor and (name, recorder) in KEPT_WHOLE:
            operators, stock = KEPT_WHOLE[name, recorder], eager(name)
        assert seen == operators
        # The record holds nothing of the session.
        assert same(record(*given), stock)


def test_a_kernel_that_is_recorded_from_within_is_found():
    """The negative control: a UDF above autograd, whose inner operators a mode records."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("linear", lambda x, w, b: x.matmul(w.mT) + b, "AutogradCPU", allow_override=True)
    with quiet(), torch.no_grad():
        try:
            _, seen = recorded("made_fx", "linear")
        finally:
            library._destroy()
        _, operators = recorded("made_fx", "linear")
    assert seen != operators


# Transforms -------------------------------------------------------------------------------


def gradients(run, module, given):
    """The results of a run, and the gradients of what it is called with and of parameters."""
    given = [t.clone().requires_grad_() if t.is_floating_point() else t for t in given]
    made = [t for t in tree.tree_leaves(run(module, given)) if t.requires_grad]
    wanted = [t for t in (*given, *module.parameters()) if t.requires_grad]
    slopes = [torch.arange(t.numel()).view(t.shape).sub(3).to(t.dtype) for t in made]
    found = torch.autograd.grad(made, wanted, slopes, allow_unused=True)
    return made, [g for g in found if g is not None]


def plain(module, given):
    return module(*given)


def checkpointed(module, given):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(module, *given, use_reentrant=False)


def called_functionally(module, given):
    return torch.func.functional_call(module, dict(module.named_parameters()), tuple(given))


def deterministic(module, given):
    torch.use_deterministic_algorithms(True)
    try:
        return module(*given)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("run", [checkpointed, called_functionally, deterministic])
@pytest.mark.parametrize("name", each(QUICK))
def test_gradients_have_the_bits_of_the_plain_call(name, run, library):
    with session(library):
        assert same(gradients(run, *fresh(name)), gradients(plain, *fresh(name)))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", each(QUICK))
def test_inference_mode_gives_the_bits_of_the_plain_call(name, library):
    with session(library):
        with torch.inference_mode():
            found = eager(name)
        assert same(found, tree.tree_map(torch.Tensor.detach, eager(name)))


def layouts(found):
    return [
        (t.dtype, tuple(t.shape), t.stride(), t.device.type) for t in tree.tree_leaves(found)
    ]  # fmt: skip


def under_autocast(name):
    with torch.autocast("cpu", torch.bfloat16):
        return layouts(gradients(plain, *fresh(name)))


def of_fakes(name):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        module, given = fresh(name)
        return layouts(module(*(mode.from_tensor(t) for t in given)))


def of_meta(name):
    module, given = fresh(name)
    return layouts(module.to("meta")(*(t.to("meta") for t in given)))


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("look", [under_autocast, of_fakes, of_meta])
@pytest.mark.parametrize("name", each(QUICK))
def test_dtypes_and_layouts_are_stocks(name, look, library):
    if (
        name == "lstm"
        and look is under_autocast
        and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    ):
        pytest.skip("oneDNN has no LSTM in bfloat16 for this CPU")

    def result():
        try:
            return look(name)
        except (RuntimeError, NotImplementedError) as error:
            return type(error), str(error)

    stock = result()
    with session(library):
        assert result() == stock


@pytest.fixture(scope="module")
def mesh():
    """One process as a mesh of devices."""
    distributed = torch.distributed
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield distributed.device_mesh.init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", each(QUICKEST))
def test_distributed_tensors_are_placed_as_stocks_and_have_the_bits(name, library, mesh):
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    def result(place):
        module, given = fresh(name)
        module = distribute_module(module, mesh)
        spread = [distribute_tensor(t, mesh, [place]) for t in given]
        try:
            found = module(*spread)
        except (RuntimeError, NotImplementedError) as error:  # torch has no rule for it
            return type(error).__name__, None
        leaves = tree.tree_leaves(found)
        return [str(t.placements) for t in leaves], [t.full_tensor() for t in leaves]

    for place in (Replicate(), Shard(0)):
        with torch.no_grad():
            stock, _ = result(place)
            with session(library):
                placed, made = result(place)
                assert placed == stock
                assert made is None or same(made, eager(name))


# Compilers --------------------------------------------------------------------------------


class Net(nn.Module):
    """What torch.compile once failed on, among others."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(
            programs()[name][0]
            for name in ("batch_norm in evaluation", "instance_norm in evaluation", "group_norm")
        )
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        for norm in self.norms:
            x = norm(F.gelu(self.convolution(x)))
        x = F.scaled_dot_product_attention(x, x, x)
        return self.last(x).softmax(-1)


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net()


MODES = {
    "default": {}, "dynamic": {"dynamic": True}, "whole": {"fullgraph": True},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"}, "eager": {"backend": "eager"},
    "aot_eager": {"backend": "aot_eager"},
    "decomposed": {"backend": "aot_eager_decomp_partition"},
}  # fmt: skip


@pytest.mark.slow
def test_compiled_code_gives_the_bits_of_eager(net):
    with session("repro"), quiet():
        compiled = torch.compile(net, **MODES["whole"])
        assert same_bits(gradients(plain, compiled, [IMAGES]), gradients(plain, net, [IMAGES]))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_compiled_code_gives_the_bits_of_eager_in_every_mode(net, mode):
    with session("repro"), quiet():
        for images in (IMAGES, torch.cat([IMAGES, IMAGES.flip(0)])):
            compiled = torch.compile(net, **MODES[mode])
            assert same_bits(gradients(plain, compiled, [images]), gradients(plain, net, [images]))
            with torch.no_grad():
                assert same_bits(compiled(images), net(images))


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("name", list(programs()))
def test_every_compiled_program_is_like_eager(name, library):
    with session(library), quiet():
        module, given = fresh(name)
        found = gradients(plain, torch.compile(module), given)
        wanted = gradients(plain, *fresh(name))
        if library == "repro" and name not in OTHER_GRADIENTS:
            assert same_bits(found, wanted)
        else:
            assert close(found, wanted)
            assert library != "repro" or same_bits(found[0], wanted[0])


@pytest.mark.slow
def test_a_package_of_aotinductor_gives_the_bits_of_eager(net, tmp_path):
    with session("repro"), quiet(), torch.no_grad():
        program = torch.export.export(net, (IMAGES,))
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "net.pt2")
        )
        assert same_bits(torch._inductor.aoti_load_package(path)(IMAGES), net(IMAGES))


@pytest.mark.parametrize("dynamo", [False, True])
def test_onnx_has_the_operators_of_stock(net, dynamo):
    pytest.importorskip("onnx", reason="the exporters write with onnx")
    if dynamo:
        pytest.importorskip("onnxscript", reason="the newer exporter translates with onnxscript")

    def nodes():
        import onnx

        written = io.BytesIO()
        torch.onnx.export(net, (IMAGES,), written, dynamo=dynamo)
        return [n.op_type for n in onnx.load_from_string(written.getvalue()).graph.node]

    with quiet(), torch.no_grad():
        stock = nodes()
        for library in LIBRARIES:
            with session(library):
                assert nodes() == stock
