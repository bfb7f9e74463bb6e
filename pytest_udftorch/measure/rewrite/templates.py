# SPDX-License-Identifier: Apache-2.0
"""Rewriting by templates: patterns of operators that are always replaced where they are found."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.fx.passes.dialect.common.cse_pass import CSEPass, get_CSE_banned_ops

from pytest_udftorch.errors import RewriteError, nearest
from pytest_udftorch.measure.rewrite import graphs
from pytest_udftorch.measure.rewrite.deadline import NEVER, Deadline
from pytest_udftorch.measure.rewrite.graphs import aten, packet_name, replacing, value


@dataclass(frozen=True)
class Firing:
    """A rule that changed a graph.

    Attributes:
        rule: its name.
        where: the nodes that it replaced, and by what.
    """

    rule: str
    where: str


Apply = Callable[[fx.GraphModule, Collection[int]], tuple[fx.GraphModule, list[Firing]]]


@dataclass(frozen=True)
class Template:
    """A kind of rewriting that can be switched on alone.

    Attributes:
        name: what it is called in ``options={"templates": ...}``.
        exact: whether the results keep their bits.
        apply: takes a graph, which it may change, and the numbers of the inputs that keep their
            values; returns the graph and what fired.
        rules: the names of the rules that fire in it.
    """

    name: str
    exact: bool
    apply: Apply
    rules: tuple[str, ...]


def _cse(module: fx.GraphModule, held: Collection[int]) -> tuple[fx.GraphModule, list[Firing]]:
    """Compute equal expressions once, with torch's own pass."""
    before = graphs.calls(module.graph)
    # The pass's own list lacks some operators that draw random numbers.
    drawing: set[Any] = {
        getattr(n.target, "overloadpacket", None) for n in before if graphs.draws(n)
    }
    result: Any = CSEPass(banned_ops=get_CSE_banned_ops() | drawing)(module)
    kept = {n.name for n in graphs.calls(result.graph_module.graph)}
    gone = [n for n in before if n.name not in kept]
    fired = [Firing("common subexpression", str(n)) for n in gone if not graphs.is_view(n)]
    return result.graph_module, fired


def _number_in(node: Any, module: fx.GraphModule) -> float | None:
    """Return the number that a tensor without dimensions, which a graph holds, stands for."""
    while isinstance(node, fx.Node) and packet_name(node) in ("lift_fresh_copy", "alias", "clone"):
        (node,) = node.all_input_nodes
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        return None
    held = getattr(module, str(node.target), None)
    if not isinstance(held, torch.Tensor) or hasattr(held, "fake_mode"):
        return None
    plain = held.dim() == 0 and held.is_floating_point() and held.device.type == "cpu"
    return float(held) if plain else None


def _literals(module: fx.GraphModule, held: Collection[int]) -> tuple[fx.GraphModule, list[Firing]]:
    """Write tensors without dimensions, which the graph itself holds, as numbers."""
    fired: list[Firing] = []
    wide = (torch.float32, torch.float64)
    for node in graphs.calls(module.graph):
        if packet_name(node) not in ("add", "sub", "mul", "div") or len(node.args) != 2:
            continue
        first, second = node.args
        number = _number_in(second, module)
        fits = isinstance(first, fx.Node) and value(first).dim() > 0
        if number is None or not fits or node.kwargs:
            continue
        if value(first).dtype in wide and value(node).dtype == value(first).dtype:  # type: ignore[arg-type]
            node.args = (first, number)
            fired.append(Firing("literal", f"{second} in {node} becomes {number!r}"))
    return module, fired


def _sums(module: fx.GraphModule, held: Collection[int]) -> tuple[fx.GraphModule, list[Firing]]:
    """Add, or multiply, two numbers that a tensor meets one after the other."""
    fired: list[Firing] = []

    def number(node: fx.Node) -> Any:
        plain = len(node.args) == 2 and not node.kwargs
        found = node.args[1] if plain and isinstance(node.args[0], fx.Node) else None
        return None if isinstance(found, bool) or not isinstance(found, int | float) else found

    def make(node: fx.Node) -> fx.Node | None:
        name = packet_name(node)
        if name not in ("add", "sub", "mul") or number(node) is None:
            return None
        inner: Any = node.args[0]
        known = ("add", "sub") if name in ("add", "sub") else ("mul",)
        if packet_name(inner) not in known or len(inner.users) > 1 or number(inner) is None:
            return None
        dtypes = {value(n).dtype for n in (node, inner, inner.args[0])}
        if len(dtypes) > 1 or not value(node).is_floating_point():
            return None  # whole numbers wrap round, and float numbers turn them into others
        outer, under = number(node), number(inner)
        if name == "mul":
            target, both = aten.mul.Tensor, under * outer
        else:
            signed = [n if packet_name(of) == "add" else -n
                      for n, of in ((under, inner), (outer, node))]  # fmt: skip
            target, both = aten.add.Tensor, sum(signed)
        format = torch.finfo(value(node).dtype)
        if not (abs(both) <= format.max and (name != "mul" or abs(both) >= format.tiny)):
            return None  # it would be infinite, or lose its bits, before it meets the tensor
        return node.graph.call_function(target, (inner.args[0], both))

    for old, new in replacing(module.graph, make):
        rule = "two factors" if packet_name(old) == "mul" else "two summands"
        fired.append(Firing(rule, f"{old} becomes {new}"))
    return _dce(module, held)[0], fired


def _dce(module: fx.GraphModule, held: Collection[int]) -> tuple[fx.GraphModule, list[Firing]]:
    """Remove what no output needs, with torch's own pass."""
    before = graphs.calls(module.graph)
    module.graph.eliminate_dead_code()
    kept = set(module.graph.nodes)
    return module, [Firing("dead code", str(n)) for n in before if n not in kept]


def _same_kind(a: Any, b: Any) -> bool:
    return (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
    )


def _neutral(node: fx.Node) -> str | None:
    """Return the name of the rule by which a node equals its first argument, or None."""
    name, args = packet_name(node), node.args
    second = args[1] if len(args) > 1 else None
    plain = not node.kwargs
    if name in ("mul", "div") and plain and second == 1 and not isinstance(second, fx.Node):
        return "multiplication by one"
    if name == "sub" and plain and second == 0 and not isinstance(second, fx.Node):
        return "subtraction of zero"  # x + 0 is not x where x is -0
    if name == "pow" and second == 1 and not isinstance(second, fx.Node):
        return "first power"
    if name in ("view", "expand", "_to_copy", "slice", "permute", "alias", "_unsafe_view", "clone"):
        return "movement that moves nothing"
    if name in ("relu", "abs") and packet_name(node.all_input_nodes[0]) == name:
        return "function applied twice"
    return None


def _simplified(node: fx.Node) -> tuple[str, fx.Node] | None:
    """Return the rule that simplifies a node, and what it becomes."""
    name, graph = packet_name(node), node.graph
    inputs = node.all_input_nodes
    if not inputs:
        return None
    first = inputs[0]
    if node.args and node.args[0] is first and _same_kind(value(node), value(first)):
        rule = _neutral(node)
        if rule is not None:
            return rule, first
    inner = packet_name(first)
    if name == "neg" and inner == "neg" and isinstance(first.args[0], fx.Node):
        return "negation of a negation", first.args[0]
    if name == inner == "permute":
        outer, under = list(node.args[1]), list(first.args[1])  # type: ignore[arg-type]
        order = [under[d] for d in outer]
        new = graph.call_function(aten.permute.default, (first.args[0], order))
        return "two permutations", new
    if name in ("view", "_unsafe_view") and inner in ("view", "_unsafe_view"):
        # A view of the outer shape must exist: torch decides by the strides.
        source = first.args[0]
        try:
            value(source).view(value(node).shape)  # type: ignore[arg-type]
        except RuntimeError:
            return None
        return "two views", graph.call_function(
            aten.view.default, (source, list(value(node).shape))
        )
    return None


def _algebra(module: fx.GraphModule, held: Collection[int]) -> tuple[fx.GraphModule, list[Firing]]:
    """Apply identities that hold bit for bit."""
    fired: list[Firing] = []
    rules: list[str] = []

    def make(node: fx.Node) -> fx.Node | None:
        found = _simplified(node)
        if found is None:
            return None
        rules.append(found[0])
        return found[1]

    for old, new in replacing(module.graph, make):
        fired.append(Firing(rules[-1], f"{old} becomes {new}"))
    return module, fired


#: ATen's batch norms in evaluation: name -> where their arguments weight, bias, mean, variance and
#: eps are, and where the flag of training is, if there is one.
_NORMS: Final = {
    "_native_batch_norm_legit_no_training": ((1, 2, 3, 4, 6), None),
    "native_batch_norm": ((1, 2, 3, 4, 7), 5),
    "cudnn_batch_norm": ((1, 2, 3, 4, 7), 5),
}


def _normalised(node: fx.Node) -> tuple[fx.Node, list[Any]] | None:
    """Return the product or convolution under a batch norm in evaluation, and its arguments."""
    if node.target is not getattr and packet_name(node) == "" and len(node.args) == 2:
        norm, number = node.args
        if number == 0 and isinstance(norm, fx.Node) and packet_name(norm) in _NORMS:
            places, training = _NORMS[packet_name(norm)]
            if len(norm.users) == 1 and (training is None or norm.args[training] is False):
                source = norm.args[0]
                linear = ("convolution", "addmm", "mm")
                if isinstance(source, fx.Node) and packet_name(source) in linear:
                    return source, [norm.args[p] for p in places]
    return None


def _operands(node: fx.Node) -> tuple[Any, Any, Any, tuple[Any, ...]] | None:
    """Return the input, the weight, the bias or None, and the rest of what a product takes."""
    args: tuple[Any, ...] = node.args
    if packet_name(node) == "convolution":
        x, w, bias, *rest = args
        return None if rest[3] else (x, w, bias, tuple(rest))
    if node.kwargs:  # factors of the product and of the bias
        return None
    bias, x, w = args if len(args) == 3 else (None, *args)
    if bias is not None and len(value(bias).shape) != 1:
        return None
    return x, w, bias, ()


def _norms(module: fx.GraphModule, held: Collection[int]) -> tuple[fx.GraphModule, list[Firing]]:
    """Fold batch norms into the weights before them, as torch.nn.utils.fusion does."""
    graph, fired = module.graph, []
    folded: list[fx.Node] = []
    constant = graphs.constant_nodes(graph, held)

    def make(node: fx.Node) -> fx.Node | None:
        found = _normalised(node)
        if found is None:
            return None
        linear, (gamma, beta, mean, variance, eps) = found
        operands = _operands(linear)
        if operands is None or len(linear.users) != 1:
            return None
        x, w, bias, rest = operands
        needed = [n for n in (w, bias, gamma, beta, mean, variance) if n is not None]
        if not all(n in constant for n in needed):
            return None
        if len({value(n).dtype for n in needed}) > 1:
            return None  # under autocast the norm is in another format than the convolution
        call = graph.call_function
        scale = call(aten.rsqrt.default, (call(aten.add.Tensor, (variance, eps)),))
        if gamma is not None:
            scale = call(aten.mul.Tensor, (gamma, scale))
        column = scale
        if rest:
            ones = (1,) * (len(value(w).shape) - 1)
            column = call(aten.view.default, (scale, [-1, *ones]))
        weight = call(aten.mul.Tensor, (w, column))
        moved = mean if bias is None else call(aten.sub.Tensor, (mean, bias))
        offset = call(aten.neg.default, (call(aten.mul.Tensor, (moved, scale)),))
        if beta is not None:
            offset = call(aten.add.Tensor, (offset, beta))
        folded.append(linear)
        if rest:
            return call(linear.target, (x, weight, offset, *rest))  # type: ignore[arg-type]
        return call(aten.addmm.default, (offset, x, weight))

    for _, new in replacing(graph, make):
        conv = packet_name(new) == "convolution"
        rule = "convolution and batch norm" if conv else "product and batch norm"
        fired.append(Firing(rule, f"{folded[-1]} folded into {new}"))
    return _dce(module, held)[0], fired


def _unchanged(module: fx.GraphModule, _: Collection[int]) -> tuple[fx.GraphModule, list[Firing]]:
    """Leave the graph to what runs it: see ``backends``."""
    return module, []


#: The rule under which a tensor that is computed once from the weights is reported.
FOLDED: Final = "computed once"
#: All templates, in the order in which they are applied. ``fold`` and ``fusion`` change how a graph
#: runs: what depends on constants alone is computed once, and TorchInductor compiles the rest.
TEMPLATES: Final = {
    t.name: t
    for t in (
        Template(
            "algebra",
            True,
            _algebra,
            (
                "multiplication by one",
                "subtraction of zero",
                "first power",
                "movement that moves nothing",
                "function applied twice",
                "negation of a negation",
                "two permutations",
                "two views",
            ),
        ),
        Template("literals", True, _literals, ("literal",)),
        Template("sums", False, _sums, ("two summands", "two factors")),
        Template(
            "conv_bn", False, _norms, ("convolution and batch norm", "product and batch norm")
        ),
        Template("cse", True, _cse, ("common subexpression",)),
        Template("dce", True, _dce, ("dead code",)),
        Template("fold", True, _unchanged, (FOLDED,)),
        Template("fusion", False, _unchanged, ()),
    )
}
#: What ``udf_templates`` applies unless it is told otherwise.
DEFAULT: Final = ("algebra", "literals", "sums", "conv_bn", "cse", "dce", "fold")


def own(rules: Iterable[str]) -> list[str]:
    """Return the names among those of rules that are no template's.

    A backend that applies the templates first is credited with these alone.
    """
    known = {rule for template in TEMPLATES.values() for rule in template.rules}
    return [rule for rule in rules if rule not in known]


def chosen(names: Any) -> tuple[str, ...]:
    """Return the templates that a user names.

    Raises:
        RewriteError: there is no such template.
    """
    given = [names] if isinstance(names, str) else list(names)
    for name in given:
        if name not in TEMPLATES:
            raise RewriteError(
                f"There is no template {name!r}. {nearest(str(name), TEMPLATES)} Give one or "
                'several: options={"templates": ["cse", "dce"]}.'
            )
    return tuple(name for name in TEMPLATES if name in given)


def rewrite(
    module: fx.GraphModule,
    held: Collection[int],
    names: Collection[str],
    deadline: Deadline = NEVER,
) -> tuple[fx.GraphModule, list[Firing]]:
    """Apply templates to a graph until none of them fires; the graph is changed.

    When the deadline passes, no further template is applied.
    """
    fired: list[Firing] = []
    for _ in range(math.isqrt(len(module.graph.nodes)) + 2):
        count = len(fired)
        for name in names:
            if deadline.passed("templates"):
                return module, fired
            module, new = TEMPLATES[name].apply(module, held)
            fired += new
            graphs.propagate(module)
        if len(fired) == count:
            break
    return module, fired
