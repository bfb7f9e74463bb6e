# SPDX-License-Identifier: Apache-2.0
"""Store what a computation should give, and judge what it gives.

The truth is the same computation in float64. How far a result may lie from it is measured with the
error model of ``judge.error_model``: the float64 computation runs ``DRAWS`` times while each
operator's result gets an error of the size that the working precision explains (Monte Carlo
arithmetic; Parker, UCLA CSD-970002, 1997). An element may lie ``FACTOR`` times the root mean square
of its own errors away from the truth, or ``FLOOR`` times that of the whole output: some operators
cancel inside (GELU of a negative number), which the model of an operator's result does not see. A
unit in the last place is always allowed.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.base import compat
from pytest_udftorch.base.result import Result
from pytest_udftorch.base.tensor_contents import contents, kind, sizes
from pytest_udftorch.base.trees import convert, tensors_in
from pytest_udftorch.diagnose.golden.file import MOST, SUMS, Golden, Output, load, places
from pytest_udftorch.errors import GoldenError, GoldenMismatchError
from pytest_udftorch.prove.judge.double_precision import DoublePrecision
from pytest_udftorch.prove.judge.error_model import perturbing
from pytest_udftorch.swap.native.machine import cpu_model
from pytest_udftorch.swap.observe.digests import array_of

pytree = compat.pytree()

Computation = Callable[..., Any]

#: Runs with different errors. Sixteen samples of a normal variable underestimate its standard
#: deviation by half with a probability of 1e-4.
DRAWS: Final = 16

#: How many root mean squares of the modelled error are allowed. The model is of the plainest order
#: of computation, so real errors are smaller.
FACTOR: Final = 6.0

#: The same for the root mean square over all elements of an output.
FLOOR: Final = 12.0


@dataclass(frozen=True, repr=False)
class Judgement(Result):
    """How a result compares with golden values.

    Attributes:
        worst: the largest error as a share of what is allowed; 0 for a result without
            floating-point numbers.
        same_bits: whether the bits are those that this platform has stored; None if none are.
        platform: what the bits depend on: device, torch, CPU capability, threads and library.
    """

    worst: float
    same_bits: bool | None
    platform: str

    def text(self) -> str:
        """Return a line."""
        bits = {True: "the stored bits", False: "other bits than stored", None: "no stored bits"}
        return f"{self.worst:.3g} of what is allowed, {bits[self.same_bits]}, on {self.platform}"

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def store_golden(
    path: str | Path,
    computation: Computation,
    inputs: Sequence[Any] | torch.Tensor = (),
    *,
    truth: Computation | None = None,
    digests: bool = False,
    library: str = "stock",
) -> Judgement:
    """Write the golden values of a computation; the bits of other platforms stay where they hold.

    Args:
        path: the file; its folder is made if needed.
        computation: a module or a callable. A module is copied and converted to float64. A callable
            is called with float64 inputs. Where either names a shorter type, or holds a tensor of
            one, that computes in float64, too.
        inputs: its positional arguments: tensors of any shape and dtype, or nested structures.
        truth: what to run in float64 instead, such as the eager model of a compiled one.
        digests: whether to keep the SHA-256 of the bits for this platform.
        library: the name of the UDF library that is swapped in; part of the platform.

    Returns:
        The judgement of this machine's own result.

    Raises:
        GoldenError: the computation cannot be called, the file cannot be written, the float64 run
            fails or is not in float64, or this machine's own result is farther from it than
            rounding explains.
    """
    check_callable(computation)
    path, given = Path(path), _as_tuple(inputs)
    identity = _identity(computation, given)
    with torch.random.fork_rng():
        result = _tensors(computation(*convert(given, torch.clone)))
    made = _made(truth or computation, given, result)
    golden = Golden(_about(), identity, made)
    if path.exists():
        before = load(path)
        if (before.inputs, before.outputs) == (identity, made):
            golden.about, golden.digests = before.about, before.digests
    judgement = _judged(golden, result, library)
    if lines := _differences(golden, result):
        raise GoldenError(
            f"{path} is not written: this machine's own result is farther from the float64 run "
            f"than rounding explains. A wrong kernel, or a branch that depends on values, can do "
            f"that; udf_diff names the operator.\n" + "\n".join(lines)
        )
    if digests:
        golden.digests[judgement.platform] = _digest(result)
    golden.save(path)
    return judgement


def check_golden(
    path: str | Path,
    computation: Computation,
    inputs: Sequence[Any] | torch.Tensor = (),
    *,
    library: str = "stock",
) -> Judgement:
    """Run a computation and compare its result with golden values.

    Args:
        path: a file that :func:`store_golden` wrote.
        computation: as there; compiled forms and other devices are welcome.
        inputs: as there, with the same values.
        library: as there.

    Raises:
        GoldenError: the computation cannot be called, the file cannot be read, or the inputs or
            parameters are not those that it belongs to.
        GoldenMismatchError: a result is farther from the truth than rounding explains, or its
            bits are not those that this platform has stored.
    """
    check_callable(computation)
    path, given = Path(path), _as_tuple(inputs)
    golden = load(path)
    if _identity(computation, given) != golden.inputs:
        raise GoldenError(
            f"The inputs, or the module's parameters, are not those that {path.name} was made "
            "with. Make them the same on every machine: from a file, from integers, or from a "
            "generator outside of a UDF library. If they changed on purpose, store the golden "
            "values anew with --udf-golden-update."
        )
    result = _tensors(computation(*convert(given, torch.clone)))
    judgement = _judged(golden, result, library)
    if lines := _differences(golden, result):
        raise GoldenMismatchError(
            f"The result is not that of {path.name}.\n" + "\n".join(lines) + f"\n{_where(golden)}"
        )
    if judgement.same_bits is False:
        raise GoldenMismatchError(
            f"The bits are not those that {path.name} has for this platform "
            f"({judgement.platform}), though rounding explains the difference: the worst element "
            f"uses {judgement.worst:.2g} of what is allowed. If the change is wanted, store the "
            "golden values anew with --udf-golden-update."
        )
    return judgement


# What is run --------------------------------------------------------------------------


def check_callable(computation: Any) -> None:
    """Refuse a result in the place of what computes it."""
    if callable(computation):
        return
    raise GoldenError(
        f"The first argument is a {type(computation).__name__}, and has to be what computes one: a "
        "module or a function, which also runs in float64 for the truth. Give it with its inputs: "
        "udf_golden(model, (x,)), or udf_golden(torch.softmax, (x, 0))."
    )


def _as_tuple(inputs: Sequence[Any] | torch.Tensor) -> tuple[Any, ...]:
    return (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)


def _tensors(result: Any) -> list[torch.Tensor]:
    found = [t.detach() for t in tensors_in([result])]
    if not any(t.numel() for t in found):
        raise GoldenError(
            "The computation returned no numbers, so a check could not fail. Let it return tensors."
        )
    return found


def _identity(computation: Computation, inputs: tuple[Any, ...]) -> str:
    """Return the SHA-256 of the inputs, and of a module's parameters and buffers in their order."""
    tensors = tensors_in(inputs)
    if isinstance(computation, nn.Module):
        tensors += [*computation.parameters(), *computation.buffers()]
    digest = hashlib.sha256()
    for tensor in tensors:
        _feed(digest, tensor)
    return digest.hexdigest()


def _feed(digest: Any, tensor: torch.Tensor) -> None:
    parts = contents(tensor.detach())
    if parts is None:
        raise GoldenError(
            f"A tensor of the kind {kind(tensor)} has no numbers that can be read. Give and return "
            "tensors that have."
        )
    digest.update(f"{_kind(tensor)} {list(sizes(tensor))} ".encode())
    for part in parts:
        digest.update(array_of(part).tobytes())


def _digest(tensors: Sequence[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        _feed(digest, tensor)
    return digest.hexdigest()


def _kind(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _wide(value: Any) -> Any:
    """Return the structure with its floating-point tensors in float64, as copies."""
    return convert(value, lambda t: t.detach().clone().double() if t.is_floating_point() else t)


# What is stored -----------------------------------------------------------------------


def _made(
    truth: Computation, inputs: tuple[Any, ...], result: list[torch.Tensor]
) -> tuple[Output, ...]:
    def run(*modes: Any) -> list[torch.Tensor]:
        made = copy.deepcopy(truth).double() if isinstance(truth, nn.Module) else truth
        double = DoublePrecision()
        try:
            with torch.random.fork_rng(), contextlib.ExitStack() as entered:
                arguments = _wide(inputs)
                for mode in (*modes, double):
                    entered.enter_context(mode)
                found = _tensors(made(*arguments))
        except GoldenError:
            raise
        except Exception as error:
            raise GoldenError(
                f"The computation does not run in float64: {type(error).__name__}: {error} Give "
                "the module itself, or truth=, a callable that takes float64 inputs."
            ) from error
        if double.left:
            raise GoldenError(
                f"The float64 run leaves float64: {double.left} gives another precision. "
                "Give truth=, a callable that stays in float64."
            )
        return found

    exact = run()
    if _digest(exact) != _digest(run()):
        raise GoldenError(
            "The computation gives different results when it is run again, from the same state of "
            "torch's generators. Take out what it counts or keeps between runs."
        )
    _check_kinds(exact, result)
    used = [*tensors_in(inputs), *result]
    if isinstance(truth, nn.Module):
        used += [*truth.parameters(), *truth.buffers()]
    unit = max((torch.finfo(t.dtype).eps / 2 for t in used if t.is_floating_point()), default=0.0)
    devices = {t.device for t in used}
    generators = {d: torch.Generator(d).manual_seed(0) for d in devices}
    drawn = [run(perturbing(unit, generators)) for _ in range(DRAWS)]
    return tuple(
        _output(mine, right, [row[i] for row in drawn])
        for i, (mine, right) in enumerate(zip(result, exact, strict=True))
    )


def _check_kinds(exact: list[torch.Tensor], result: list[torch.Tensor]) -> None:
    if odd := next((k for k in map(kind, [*exact, *result]) if k), ""):
        raise GoldenError(
            f"The computation returns a tensor of the kind {odd}. Golden values are of ordinary "
            "tensors; return what it holds, such as to_dense() or to_padded_tensor(0.0)."
        )
    if [t.shape for t in exact] != [t.shape for t in result]:
        raise GoldenError(
            "The float64 run returns tensors of other shapes than the computation. Give a truth= "
            "that computes the same."
        )
    for i, (wide, mine) in enumerate(zip(exact, result, strict=True)):
        if wide.is_complex() or wide.is_floating_point() != mine.is_floating_point():
            raise GoldenError(
                f"Output {i} is {_kind(mine)}, and {_kind(wide)} in the float64 run. Golden values "
                "are of real numbers; return real and imaginary parts on their own."
            )


def _output(mine: torch.Tensor, exact: torch.Tensor, drawn: list[torch.Tensor]) -> Output:
    if not mine.is_floating_point():
        return Output(_kind(mine), tuple(mine.shape), _digest([mine]))
    truth = exact.cpu().reshape(-1)
    errors = torch.stack([d.cpu().reshape(-1) - truth for d in drawn])
    errors = errors.where(errors.isfinite(), 0)
    own = errors.square().mean(0).sqrt()
    whole = float(own.square().mean().sqrt()) if own.numel() else 0.0
    limits = (FACTOR * own).clamp_min(FLOOR * whole) + _ulp(truth, mine.dtype)
    at = torch.tensor(places(truth.numel()), dtype=torch.int64)
    sums, sum_limits = _sums(truth), tuple[float, ...]()
    if sums:
        each = torch.tensor([_sums(row) for row in errors], dtype=torch.float64)
        spread = each.square().mean(0).sqrt()
        # An output whose errors cancel in the draws is still rounded.
        least = float(_ulp(truth, mine.dtype).square().sum().sqrt())
        sum_limits = tuple(_short(FACTOR * float(s) + least) for s in spread)
    return Output(
        _kind(mine), tuple(mine.shape), "", tuple(truth[at].tolist()),
        tuple(_short(float(v)) for v in limits[at]), sums, sum_limits,
    )  # fmt: skip


def _short(value: float) -> float:
    """Return a limit as the file has it."""
    return float(f"{value:.3g}")


def _ulp(truth: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return the distance of neighbouring numbers of a dtype at values in float64."""
    kind = torch.finfo(dtype)
    return (truth.abs() * kind.eps).nan_to_num(0, 0, 0).clamp_min(kind.tiny)


def _sums(values: torch.Tensor) -> tuple[float, ...]:
    """Return the sums of all finite values under fixed signs; none if few are kept whole."""
    if values.numel() <= MOST:
        return ()
    index = torch.arange(values.numel(), dtype=torch.int64)
    finite = values.where(values.isfinite(), 0)
    found = []
    for k in range(SUMS):
        # A bit of a multiplicative hash (Knuth, vol. 3, section 6.4), the same everywhere.
        signs = ((index + k * 7919) * 2654435761 >> 17) & 1
        found.append(math.fsum((finite * (1 - 2 * signs)).tolist()))
    return tuple(found)


# What is judged -----------------------------------------------------------------------


def _judged(golden: Golden, result: list[torch.Tensor], library: str) -> Judgement:
    devices = {t.device for t in result}
    platform = "; ".join((*sorted(map(_device, devices)), f"torch {torch.__version__}", library))
    stored = golden.digests.get(platform)
    shares = [
        float(_shares(mine, one)[0].max())
        for mine, one in zip(result, golden.outputs, strict=False)
        if one.truth and tuple(mine.shape) == one.shape and mine.is_floating_point()
    ]
    same = None if stored is None else stored == _digest(result)
    return Judgement(max(shares, default=0.0), same, platform)


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{cpu_model()} ({capability}), {torch.get_num_threads()} threads"


def _shares(mine: torch.Tensor, golden: Output) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the kept elements' errors, as shares of the limits, and the elements themselves."""
    count = mine.numel()
    at = torch.tensor(places(count), dtype=torch.int64)
    got = mine.detach().cpu().reshape(-1)[at].double()
    # A truth beyond the dtype's largest number is an infinity there.
    truth = torch.tensor(golden.truth, dtype=torch.float64)
    limits = torch.tensor(golden.limits, dtype=torch.float64)
    narrow = truth.to(mine.dtype).double()
    special = ~narrow.isfinite() | ~got.isfinite()
    same = (got == narrow) | (got.isnan() & narrow.isnan())
    share = (got - truth).abs() / limits
    return share.where(~special, torch.where(same, 0.0, math.inf)), got


def _differences(golden: Golden, result: list[torch.Tensor]) -> list[str]:
    if len(result) != len(golden.outputs):
        return [f"It has {len(result)} tensors instead of {len(golden.outputs)}."]
    lines = []
    for i, (mine, one) in enumerate(zip(result, golden.outputs, strict=True)):
        lines += [f"output {i}: {line}" for line in _of_one(mine, one)]
    return lines


def _of_one(mine: torch.Tensor, golden: Output) -> list[str]:
    have, want = (_kind(mine), tuple(mine.shape)), (golden.dtype, golden.shape)
    if have != want:
        return [
            f"it is {have[0]} of shape {list(have[1])} instead of {want[0]} of shape "
            f"{list(want[1])}."
        ]
    if golden.sha256:
        same = _digest([mine]) == golden.sha256
        return [] if same else [f"its {want[0]} values are not those that were stored."]
    share, got = _shares(mine, golden)
    if bool((share > 1).any()):
        return _worst(share, got, mine, golden)
    far = [
        (abs(a - b) / limit, a, b)
        for a, b, limit in zip(
            _sums(mine.detach().cpu().reshape(-1).double()),
            golden.sums, golden.sum_limits, strict=True,
        )
        if not abs(a - b) <= limit
    ]  # fmt: skip
    if far:
        ratio, a, b = max(far)
        return [
            f"the {len(share):,} elements that are kept agree, but others do not: {len(far)} of "
            f"{SUMS} sums over all elements are farther from the truth than allowed, at worst "
            f"{ratio:.3g} times ({a:.9g}, truth {b:.9g})."
        ]
    return []


def _worst(share: torch.Tensor, got: torch.Tensor, mine: torch.Tensor, golden: Output) -> list[str]:
    worst = int(share.argmax())
    kept = places(mine.numel())
    index = [int(i) for i in torch.unravel_index(torch.tensor(kept[worst]), mine.shape)]
    value, truth = float(got[worst]), golden.truth[worst]
    ulp = float(_ulp(torch.tensor([truth], dtype=torch.float64), mine.dtype))
    apart = f"{abs(value - truth) / ulp:.3g} ULP apart" if math.isfinite(value - truth) else "apart"
    of = f"{len(share):,} elements" + ("" if len(kept) == mine.numel() else " that are kept")
    return [
        f"{int((share > 1).sum()):,} of {of} are farther from the truth than rounding explains.",
        f"  the worst, at {index}: {value:.9g}, truth {truth:.17g}: {apart}, "
        f"{float(share[worst]):.3g} times what is allowed ({golden.limits[worst]:.3g}).",
    ]


def _where(golden: Golden) -> str:
    stored = ", ".join(f"{name} {value}" for name, value in golden.about.items())
    return (
        f"Stored with {stored}. udf_diff names the operator that does it; products in TF32 or "
        "bfloat16 (torch.backends.fp32_precision) explain more than was allowed then."
    )


def _about() -> dict[str, str]:
    return {"torch": str(torch.__version__), "cpu": cpu_model()}
