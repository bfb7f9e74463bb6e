# SPDX-License-Identifier: Apache-2.0
import sys
from types import SimpleNamespace

import pytest

from pytest_udftorch.measure.timing import gpu_state


class NvmlError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """Answer as the driver of an H200 under a power cap does, with NVML's units."""
    open_handles = []
    answers = SimpleNamespace(
        NVMLError=NvmlError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        open_handles=open_handles,
        nvmlInit=lambda: open_handles.append(True),
        nvmlShutdown=open_handles.pop,
        nvmlDeviceGetHandleByIndex=lambda index: f"gpu {index}",
        nvmlDeviceGetClockInfo=lambda gpu, kind: {1: 1980, 2: 3201}[kind],
        nvmlDeviceGetTemperature=lambda gpu, sensor: 41,
        nvmlDeviceGetPowerUsage=lambda gpu: 310_520,
        nvmlDeviceGetCurrentClocksEventReasons=lambda gpu: 0x4,
    )
    monkeypatch.setitem(sys.modules, "pynvml", answers)
    return answers


def not_supported(*_):
    raise NvmlError("Not Supported")


def test_answers_of_nvml_are_read(nvml):
    state = gpu_state.read_gpu_state()
    assert (state.sm_mhz, state.memory_mhz, state.temperature_c) == (1980, 3201, 41)
    assert state.power_w == 310.52
    assert state.reasons == ("power cap",)
    assert state.throttled
    assert state.error is None
    assert state.document()["throttled"] is True
    assert nvml.open_handles == []


def test_idle_is_no_throttling(nvml):
    nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda gpu: 0x1
    state = gpu_state.read_gpu_state()
    assert state.reasons == ("idle",)
    assert not state.throttled


def test_unknown_bit_is_named_and_not_dropped():
    assert gpu_state.throttle_reasons(0x40 | 0x4000) == (
        "thermal slowdown (hardware)",
        "unknown 0x4000",
    )


def test_driver_that_tells_nothing_is_reported(nvml):
    nvml.nvmlDeviceGetClockInfo = not_supported
    nvml.nvmlDeviceGetPowerUsage = not_supported
    nvml.nvmlDeviceGetCurrentClocksEventReasons = not_supported
    state = gpu_state.read_gpu_state()
    assert (state.sm_mhz, state.memory_mhz, state.power_w) == (None, None, None)
    assert state.temperature_c == 41
    assert "no clock event reasons (Not Supported)" in state.error


def test_missing_package_driver_and_gpu_are_reported(nvml, monkeypatch):
    nvml.nvmlDeviceGetHandleByIndex = not_supported
    assert "nothing of GPU 7: Not Supported" in gpu_state.read_gpu_state(7).error
    assert nvml.open_handles == []
    nvml.nvmlInit = not_supported
    assert "NVML does not start: Not Supported" in gpu_state.read_gpu_state().error
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in gpu_state.read_gpu_state().error
