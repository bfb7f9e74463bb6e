# SPDX-License-Identifier: Apache-2.0
"""Rewrites of a traced model that compilers miss: epilogues and branches.

:func:`fuse` folds batch norms into the convolutions before them (Jacob et al., CVPR 2018,
section 3.2) and lets cuDNN run convolution, bias, an optional sum and ReLU as one kernel.
It times each site both ways on the activations there, and rewrites it only where that wins.

:func:`on_streams` runs independent branches on CUDA streams of their own, which matters when
single kernels do not fill the GPU. In a CUDA graph the branches become parallel paths and cost
no launches.

Both need a model that ``torch.fx`` can trace, in evaluation mode.
"""

from __future__ import annotations

import copy
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, fx, nn

from pytest_udftorch.base import compat
from pytest_udftorch.errors import UntraceableModelError
from pytest_udftorch.measure.planning.cuda_graph import capture
from pytest_udftorch.measure.timing.timers import cuda_event, untyped

#: More streams than this found no free multiprocessor in any model that was measured.
MAX_STREAMS: Final = 4

#: Calls that are captured together when a site is timed, and replays; the fastest replay counts.
_CALLS: Final = 10
_REPLAYS: Final = 7


def _in_steps(
    x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, *geometry: Any
) -> Tensor:
    y = nn.functional.conv2d(x, weight, bias, *geometry)
    return (y if other is None else y + other).relu()


@torch.library.custom_op("udftorch::conv_relu", mutates_args=())
def conv_relu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    other: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """Return relu(conv2d(x) + bias (+ other)), on CUDA as one cuDNN call."""
    geometry = (stride, padding, dilation, groups)
    if not x.is_cuda:
        return _in_steps(x, weight, bias, other, *geometry)
    result: Tensor
    if other is None:
        result = torch.ops.aten.cudnn_convolution_relu(x, weight, bias, *geometry)
    else:
        result = torch.ops.aten.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, *geometry)
    return result


@conv_relu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, *geometry: Any) -> Tensor:
    return nn.functional.conv2d(x, weight, bias, *geometry)


class FusedConv(nn.Module):
    """A 2-d convolution with bias, an optional sum, and ReLU.

    Attributes:
        fused: whether the one-kernel form is used; :func:`fuse` measures and sets it.
    """

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.weight = conv.weight
        bias = conv.bias
        if bias is None:
            bias = nn.Parameter(conv.weight.new_zeros(conv.out_channels), requires_grad=False)
        self.bias = bias
        self.stride, self.dilation = list(conv.stride), list(conv.dilation)
        self.padding = [int(p) for p in conv.padding]
        self.groups = conv.groups
        self.fused = True

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Return relu(conv2d(x) + bias (+ other)), N×C×H×W."""
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        run: Callable[..., Tensor] = conv_relu if self.fused else _in_steps
        return run(x, self.weight, self.bias, other, *geometry)


def refuse_hooks(model: nn.Module) -> None:
    """Raise an error if the model has hooks.

    Raises:
        UntraceableModelError: names them.
    """
    hooked = [
        name or "the model itself"
        for name, module in model.named_modules()
        if compat.has_forward_hooks(module)
    ]
    if hooked:
        raise UntraceableModelError(
            f"{type(model).__name__} has hooks of its own ({', '.join(hooked[:5])}), which a "
            "trace would run once and drop. Remove them, or use executors that need no trace: "
            "eager, compile, cudagraph."
        )


def trace(model: nn.Module) -> fx.GraphModule:
    """Return the model as an FX graph module that shares its parameters.

    Raises:
        UntraceableModelError: FX cannot follow the model.
    """
    if isinstance(model, fx.GraphModule):
        return model
    refuse_hooks(model)
    try:
        return fx.symbolic_trace(model)
    except Exception as error:
        raise UntraceableModelError(
            f"torch.fx cannot trace {type(model).__name__} ({type(error).__name__}: {error}). "
            "It can still be run by executors that need no trace: eager, compile, cudagraph."
        ) from error


def _is_relu(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(modules[str(node.target)]) is nn.ReLU
    if node.op == "call_function":
        return node.target in (nn.functional.relu, torch.relu, torch.relu_)
    return node.op == "call_method" and node.target in ("relu", "relu_")


def _conv(node: Any, modules: dict[str, nn.Module]) -> nn.Conv2d | None:
    """Return the convolution of a node whose result is used once, or None."""
    if not isinstance(node, fx.Node) or node.op != "call_module" or len(node.users) != 1:
        return None
    module = modules[str(node.target)]
    plain = type(module) is nn.Conv2d and module.padding_mode == "zeros"
    return module if plain and not isinstance(module.padding, str) else None  # type: ignore[return-value]


def _site(relu: fx.Node, modules: dict[str, nn.Module]) -> tuple[fx.Node, fx.Node | None] | None:
    """Return the convolution before a ReLU and what is added to it, or None if there is none."""
    source: Any = relu.args[0]
    if _conv(source, modules) is not None:
        return source, None
    if not isinstance(source, fx.Node) or len(source.users) != 1 or source.kwargs:
        return None
    adds = (operator.add, operator.iadd, torch.add)
    if source.op != "call_function" or source.target not in adds:
        return None
    # In torchvision's sums the last convolution of a residual block comes first.
    for mine, theirs in (source.args, source.args[::-1]):
        apart = isinstance(theirs, fx.Node) and theirs is not mine
        if apart and _conv(mine, modules) is not None:
            return mine, theirs  # type: ignore[return-value]
    return None


def _rewrite(traced: fx.GraphModule) -> None:
    """Replace convolution (+ sum) + ReLU by :class:`FusedConv`."""
    modules = dict(traced.named_modules())
    for number, node in enumerate(list(traced.graph.nodes)):
        site = _site(node, modules) if _is_relu(node, modules) else None
        if site is None:
            continue
        conv, other = site
        name = f"fused_{number}"
        traced.add_submodule(name, FusedConv(modules[str(conv.target)]))
        with traced.graph.inserting_before(node):
            arguments = (conv.args[0],) if other is None else (conv.args[0], other)
            fused = traced.graph.call_module(name, arguments)
        before = node.all_input_nodes[0]
        node.replace_all_uses_with(fused)
        traced.graph.erase_node(node)
        if before is not conv:
            traced.graph.erase_node(before)
        traced.graph.erase_node(conv)


def _replay_ns(call: Callable[[], object]) -> float:
    """Return the time of one call inside a captured series of calls."""
    marker = torch.zeros(1, device="cuda")

    def series(_: Tensor) -> list[object]:
        return [call() for _ in range(_CALLS)]

    replay = capture(series, (marker,))
    times: list[float] = []
    for _ in range(_REPLAYS):
        start, stop = cuda_event(), cuda_event()
        start.record()
        replay(*replay.inputs)  # type: ignore[attr-defined]
        stop.record()
        torch.cuda.synchronize()
        times.append(1e6 * start.elapsed_time(stop) / _CALLS)
    return min(times)


#: Whether the one-kernel form is faster, by device and geometry; this holds for every model.
_faster: dict[tuple[Any, ...], bool] = {}


class _Chooser(fx.Interpreter):
    """Runs the model and chooses the faster form at each fused site."""

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        site = self.fetch_attr(target)
        if isinstance(site, FusedConv) and args[0].is_cuda:
            key = (
                str(args[0].device),
                args[0].dtype,
                site.groups,
                tuple(args[0].shape),
                tuple(args[0].stride()),
                tuple(site.weight.shape),
                tuple(site.stride),
                tuple(site.padding),
                tuple(site.dilation),
                len(args),
            )
            if key not in _faster:
                _faster[key] = self._faster(site, args)
            site.fused = _faster[key]
        return super().call_module(target, args, kwargs)

    @staticmethod
    def _faster(site: FusedConv, args: tuple[Any, ...]) -> bool:
        geometry = (site.stride, site.padding, site.dilation, site.groups)

        def apart() -> Tensor:
            # A compiler makes one pointwise kernel of bias, sum and ReLU.
            return nn.functional.conv2d(args[0], site.weight, None, *geometry).relu_()

        site.fused = True
        try:
            with torch.no_grad():
                site(*args)
                torch.cuda.synchronize()
        except RuntimeError:
            # cuDNN has no fused engine for this geometry (a depthwise one, mostly).
            return False
        return _replay_ns(lambda: site(*args)) < _replay_ns(apart)


def _channels_last(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dim() == 4
        and value.is_contiguous(memory_format=torch.channels_last)
        and (value.shape[1] == 1 or not value.is_contiguous())
    )


def _without_batch_norms(traced: fx.GraphModule) -> nn.Module:
    # In torch 2.11 this imports a module that uses TorchScript, which is deprecated.
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        from torch.fx.experimental.optimization import fuse as fold
    return fold(traced)


def fuse(model: nn.Module, inputs: Sequence[Any]) -> fx.GraphModule:
    """Return a rewritten copy of the model; see the module's docstring.

    Args:
        model: in evaluation mode, traceable.
        inputs: positional arguments, in the memory format that the result will be called with.

    Raises:
        UntraceableModelError: FX cannot follow the model.
    """
    traced = trace(copy.deepcopy(model).eval())
    folded = trace(_without_batch_norms(traced))
    _rewrite(folded)
    for parameter in folded.parameters():
        parameter.requires_grad_(False)
    folded.graph.lint()
    folded.recompile()
    # The folded weights are new, in the default memory format.
    if any(_channels_last(t) for t in inputs):
        folded = folded.to(memory_format=torch.channels_last)
    with torch.no_grad():
        _Chooser(folded).run(*inputs)
    return folded


def _out_of_place(traced: fx.GraphModule) -> None:
    """Make activations write elsewhere: a branch may still read what they would overwrite."""
    for module in traced.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    for node in traced.graph.nodes:
        if node.kwargs.get("inplace"):
            node.kwargs = {**node.kwargs, "inplace": False}
        if node.op == "call_function" and node.target is operator.iadd:
            node.target = operator.add
    traced.recompile()


class _Streamed(nn.Module):
    """Runs the nodes of a graph on several streams, ordered by events."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__()
        self.traced = traced
        self.schedule = schedule(traced)
        self._side: list[torch.cuda.Stream] = []

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *inputs: Any) -> Any:
        return _StreamInterpreter(self).run(*inputs)

    def streams(self) -> list[torch.cuda.Stream]:
        while len(self._side) < max(self.schedule.values(), default=0):
            self._side.append(untyped(torch.cuda.Stream)())
        return [torch.cuda.current_stream(), *self._side]


class _StreamInterpreter(fx.Interpreter):
    def __init__(self, owner: _Streamed) -> None:
        # Values must outlive the pass: one stream could write into a freed block while another
        # still reads it.
        super().__init__(owner.traced, garbage_collect_values=False)
        self._schedule = owner.schedule
        self._on_cuda = any(p.is_cuda for p in owner.parameters())
        self._streams = owner.streams() if self._on_cuda else []
        self._events: dict[fx.Node, torch.cuda.Event] = {}

    def run_node(self, n: fx.Node) -> Any:
        if not self._on_cuda or n.op in ("placeholder", "get_attr"):
            if self._on_cuda and n.op == "placeholder":
                self._record(n, 0)
            return super().run_node(n)
        lane = 0 if n.op == "output" else self._schedule[n]
        for source in n.all_input_nodes:
            if source.op != "get_attr" and self._schedule.get(source, 0) != lane:
                self._streams[lane].wait_event(self._events[source])
        with torch.cuda.stream(self._streams[lane]):
            result = super().run_node(n)
        if n.op != "output":
            self._record(n, lane)
        return result

    def _record(self, n: fx.Node, lane: int) -> None:
        event: torch.cuda.Event = untyped(torch.cuda.Event)()
        event.record(self._streams[lane])
        self._events[n] = event


def schedule(traced: fx.GraphModule) -> dict[fx.Node, int]:
    """Assign each node to one of ``MAX_STREAMS`` lanes; lane 0 is the caller's stream.

    A node continues the lane of a source that is still that lane's last node; otherwise it
    opens the lane that has waited longest. A chain thus stays in one lane, and a fork sends
    all but its first branch to other lanes.
    """
    lanes: dict[fx.Node, int] = {}
    last: list[fx.Node | None] = [None] * MAX_STREAMS
    used = [-1] * MAX_STREAMS
    node: fx.Node
    for position, node in enumerate(traced.graph.nodes):
        if node.op in ("get_attr", "output"):
            continue
        sources = [s for s in node.all_input_nodes if s.op != "get_attr"]
        going_on = [lanes[s] for s in sources if last[lanes[s]] is s]
        if node.op == "placeholder":
            going_on = [0]
        lane = min(going_on) if going_on else min(range(MAX_STREAMS), key=used.__getitem__)
        lanes[node] = lane
        last[lane] = node
        used[lane] = position
    return lanes


def on_streams(model: nn.Module) -> nn.Module:
    """Return the model with its independent branches on streams; on CPU they run in order.

    Raises:
        UntraceableModelError: FX cannot follow the model.
    """
    traced = trace(model)
    _out_of_place(traced)
    return _Streamed(traced)
