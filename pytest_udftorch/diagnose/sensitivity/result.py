# SPDX-License-Identifier: Apache-2.0
"""How many bits of every layer's output are significant, as text and as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from pytest_udftorch.base.result import Result
from pytest_udftorch.diagnose.sensitivity.digits import Bits
from pytest_udftorch.swap.observe.layers import Place

#: Rows of each list in the text.
_SHOWN: Final = 10

#: Bits that an operator has to lose to be named: its own rounding costs up to two.
LOSS: Final = 2.0


@dataclass(frozen=True, repr=False)
class Digits(Result):
    """The significant bits before and after an operator or a layer.

    Attributes:
        operator: the overload; empty for a layer.
        place: layer, phase and step.
        call: its position in the run.
        before: of its worst input; None if it got no tensor of floating-point numbers.
        after: of its worst output.
    """

    operator: str
    place: Place
    call: int
    before: Bits | None
    after: Bits

    @property
    def lost(self) -> float:
        """Bits that its output has less than its worst input; 0 if it has more."""
        return 0.0 if self.before is None else max(0.0, self.before.bits - self.after.bits)

    @property
    def surely_lost(self) -> float:
        """Bits that are lost wherever in their intervals both estimates lie, at least."""
        return 0.0 if self.before is None else max(0.0, self.before.low - self.after.high)

    def text(self) -> str:
        """Return a line."""
        before = "-" if self.before is None else self.before.text()
        what = f"{self.operator} in {self.place}" if self.operator else str(self.place)
        return f"{what}: {before} -> {self.after.text()}"

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        where = dict(zip(("layer", "phase", "step"), self.place, strict=True))
        return {**asdict(self), "place": where, "lost": self.lost, "surely_lost": self.surely_lost}


@dataclass(frozen=True, repr=False)
class Sensitivity(Result):
    """What perturbed runs of a model have shown.

    Attributes:
        perturbed: what was perturbed, in words.
        samples: how many runs.
        probability: with which the bits of one run are significant.
        outputs: name -> the bits of what a run gives.
        layers: each call of a layer, in the order in which they ended.
        operators: each call of an operator.
        unsteady: the first operator whose output changes without any perturbation; or None.
        parted: where the operators of a run were other ones than before, in words; or empty.
        unseen: operators inside of which nothing could be perturbed, and kinds of tensors that
            could not be looked at.
    """

    perturbed: str
    samples: int
    probability: float
    outputs: dict[str, Bits]
    layers: tuple[Digits, ...]
    operators: tuple[Digits, ...]
    unsteady: Digits | None = None
    parted: str = ""
    unseen: tuple[str, ...] = ()

    @property
    def losses(self) -> tuple[Digits, ...]:
        """The operators that surely lose two bits or more, the worst first."""
        found = [o for o in self.operators if o.surely_lost >= LOSS]
        return tuple(sorted(found, key=lambda o: -o.lost))

    @property
    def least(self) -> float:
        """The lower end of the interval of the output that has the fewest significant bits."""
        return min((b.low for b in self.outputs.values()), default=0.0)

    def verdict(self) -> str:
        """Return the answer in a line."""
        if self.unsteady is not None:
            return (
                f"The run is not deterministic by itself: {self.unsteady.operator} in "
                f"{self.unsteady.place} gives different results without any perturbation."
            )
        inexact = [(bits.low, name) for name, bits in self.outputs.items() if not bits.exact]
        if not inexact:
            return "Every bit of every output holds." if self.outputs else "There is no output."
        low, name = min(inexact)
        lost = "no operator loses two bits"
        if self.losses:
            worst = self.losses[0]
            lost = f"{worst.operator} in {worst.place} loses {worst.lost:.1f}"
        return f"At least {max(low, 0.0):.1f} bits of {name} hold; {lost}."

    def text(self) -> str:
        """Return a report for a terminal."""
        lines = [self.verdict()]
        lines.append(
            f"{self.samples} runs, {self.perturbed}. Significant bits, relative to the tensor's "
            f"norm, with probability {self.probability:g}, and their 95 % intervals:"
        )
        lines += [f"  {name}: {_described(bits)}" for name, bits in _worst(self.outputs)]
        if self.parted:
            lines.append(self.parted)
        if self.unseen:
            lines.append(f"Not looked into: {', '.join(self.unseen)}.")
        losses = self.losses
        if losses:
            lines.append("Where bits are lost:")
        lines += [f"  {o.text()}: {o.lost:.1f} lost" for o in losses[:_SHOWN]]
        if len(losses) > _SHOWN:
            lines.append(f"  and {len(losses) - _SHOWN} more")
        if self.layers:
            lines.append("Layers with the fewest bits, input -> output:")
            fewest = sorted(self.layers, key=lambda one: one.after.bits)[:_SHOWN]
            lines += [f"  {one.text()}" for one in fewest]
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "format": "udftorch-sensitivity-1",
            "verdict": self.verdict(),
            "perturbed": self.perturbed,
            "samples": self.samples,
            "probability": self.probability,
            "outputs": {name: bits.document() for name, bits in self.outputs.items()},
            "layers": [one.document() for one in self.layers],
            "operators": [one.document() for one in self.operators],
            "losses": [one.document() for one in self.losses],
            "unsteady": None if self.unsteady is None else self.unsteady.document(),
            "parted": self.parted,
            "unseen": list(self.unseen),
        }


def _worst(outputs: dict[str, Bits]) -> list[tuple[str, Bits]]:
    return sorted(outputs.items(), key=lambda item: item[1].bits)[:_SHOWN]


def _described(bits: Bits) -> str:
    if bits.exact:
        return "exact"
    text = f"{bits.text()}; of a typical element {bits.typical:.1f}"
    if bits.lost:
        text += f"; {bits.lost:.1%} of the elements have none"
    if bits.infinite:
        text += f"; {bits.infinite:.1%} of them are infinite or no number in a part of the runs"
    return text
