# SPDX-License-Identifier: Apache-2.0
"""What a GPU was doing while it was timed: clocks, temperature, power, throttling.

All is read through NVML, the driver's library; nothing changes on the card.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from pytest_udftorch.base.interrupts import undisturbed
from pytest_udftorch.base.result import Result, Shown

#: Bits of the clock event reasons; nvml.h, nvmlClocksEventReasons.
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

#: Reasons that mean that the card ran slower than it could. Idle and chosen clocks do not.
THROTTLING: Final = frozenset(REASONS[bit] for bit in (0x004, 0x008, 0x020, 0x040, 0x080))


@dataclass(frozen=True, repr=False)
class GpuState(Result):
    """One reading. Fields that the driver does not tell are None; ``error`` may say why."""

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

    def _shown(self) -> Shown:
        said = {
            "MHz": self.sm_mhz, "MHz of memory": self.memory_mhz, "°C": self.temperature_c,
            "W": self.power_w,
        }  # fmt: skip
        parts = [f"{value:g} {unit}" for unit, value in said.items() if value is not None]
        notes = [self.error] if self.error else []
        return Shown(", ".join([*parts, *self.reasons]) or "unknown", notes=notes)

    def document(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {**asdict(self), "reasons": list(self.reasons), "throttled": self.throttled}


def throttle_reasons(mask: int) -> tuple[str, ...]:
    """Decode the bit mask of clock event reasons; unknown bits are named by their value."""
    known = [name for bit, name in REASONS.items() if mask & bit]
    rest = mask & ~sum(REASONS)
    return (*known, *([f"unknown 0x{rest:x}"] if rest else []))


def _read(nvml: Any, index: int) -> GpuState:
    gpu = nvml.nvmlDeviceGetHandleByIndex(index)

    def told(query: Callable[..., int], *arguments: int) -> float | None:
        try:
            return float(query(gpu, *arguments))
        except nvml.NVMLError:
            return None

    milliwatts = told(nvml.nvmlDeviceGetPowerUsage)
    reasons: tuple[str, ...] = ()
    error = None
    try:
        reasons = throttle_reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu))
    except nvml.NVMLError as why:
        error = f"the driver tells no clock event reasons ({why})"
    return GpuState(
        sm_mhz=told(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        memory_mhz=told(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM),
        temperature_c=told(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        power_w=None if milliwatts is None else milliwatts / 1000,
        reasons=reasons,
        error=error,
    )


def read_gpu_state(index: int = 0) -> GpuState:
    """Return the state of the GPU with this index; never raises, see ``error``."""
    # pynvml takes a lock, and would keep it if an interrupt came at once afterwards.
    return undisturbed(lambda: _from_driver(index))


def _from_driver(index: int) -> GpuState:
    try:
        import pynvml
    except ImportError:
        return GpuState(error="nvidia-ml-py is not installed. Try: pip install nvidia-ml-py.")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return GpuState(error=f"NVML does not start: {error}. Is the driver of the GPU loaded?")
    try:
        return _read(pynvml, index)
    except pynvml.NVMLError as error:
        return GpuState(error=f"NVML tells nothing of GPU {index}: {error}")
    finally:
        pynvml.nvmlShutdown()
