"""What a GPU was doing while it was timed: clocks, temperature, power, throttling.

Read through ``nvidia-smi``, which comes with the driver; nothing is changed on the card.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import asdict, dataclass, field
from typing import Any, Final

__all__ = ["GpuState", "read_gpu_state", "throttle_reasons"]

#: Bits of ``clocks_event_reasons.active``; nvml.h, nvmlClocksEventReasons.
REASONS: Final = {
    0x001: "idle",
    0x002: "application clocks",
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x010: "sync boost",
    0x020: "thermal slowdown (software)",
    0x040: "thermal slowdown (hardware)",
    0x080: "power brake",
    0x100: "display clocks",
}

#: Reasons that mean the card ran slower than it could; idle and chosen clocks do not.
THROTTLING: Final = frozenset(REASONS[bit] for bit in (0x004, 0x008, 0x020, 0x040, 0x080))

_FIELDS: Final = (
    "clocks.sm",
    "clocks.mem",
    "temperature.gpu",
    "power.draw",
    "clocks_event_reasons.active",
)


@dataclass(frozen=True)
class GpuState:
    """One reading. Fields the driver does not tell are None; ``error`` then says why."""

    sm_mhz: float | None = None
    memory_mhz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    reasons: tuple[str, ...] = field(default=())
    error: str | None = None

    @property
    def throttled(self) -> bool:
        """Whether the card said that it ran slower than it could."""
        return not THROTTLING.isdisjoint(self.reasons)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return {**asdict(self), "reasons": list(self.reasons), "throttled": self.throttled}


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Decode the bit mask of clock event reasons; unknown bits are named by their value."""
    known = [name for bit, name in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return (*known, *([f"unknown 0x{rest:x}"] if rest else []))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def parse(line: str) -> GpuState:
    """Read one line of ``nvidia-smi --format=csv,noheader,nounits`` over our fields."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != len(_FIELDS):
        return GpuState(error=f"nvidia-smi answered {line.strip()!r}")
    sm, memory, temperature, power = (_number(cell) for cell in cells[:-1])
    reasons: tuple[str, ...] = ()
    error = None
    try:
        reasons = throttle_reasons(int(cells[-1], 0))
    except ValueError:
        error = f"the driver tells no clock event reasons ({cells[-1]})"
    return GpuState(sm, memory, temperature, power, reasons, error)


def read_gpu_state(index: int = 0) -> GpuState:
    """Return the state of the GPU with this index; never raises, see ``error``."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return GpuState(error="nvidia-smi is not on the PATH")
    query = [f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits", f"--id={index}"]
    try:
        answer = subprocess.run(
            [command, *query], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return GpuState(error=f"nvidia-smi failed: {error}")
    if answer.returncode:
        return GpuState(error=f"nvidia-smi failed: {answer.stdout.strip()[:200]}")
    return parse(answer.stdout.splitlines()[0])
