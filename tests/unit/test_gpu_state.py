import stat

from pytest_udftorch.timing import gpu_state


def test_line_of_nvidia_smi_is_read():
    state = gpu_state.parse("1980, 3201, 41, 310.52, 0x0000000000000004")
    assert (state.sm_mhz, state.memory_mhz, state.temperature_c) == (1980, 3201, 41)
    assert state.reasons == ("power cap",)
    assert state.throttled
    assert state.to_json()["throttled"] is True


def test_idle_is_no_throttling():
    assert not gpu_state.parse("345, 3201, 30, 80, 0x0000000000000001").throttled


def test_unknown_bit_is_named_and_not_dropped():
    assert gpu_state.throttle_reasons(0x40 | 0x4000) == (
        "thermal slowdown (hardware)",
        "unknown 0x4000",
    )


def test_driver_that_tells_nothing_is_reported():
    state = gpu_state.parse("[N/A], 3201, 30, [N/A], [N/A]")
    assert state.sm_mhz is None
    assert "no clock event reasons" in state.error
    assert "answered" in gpu_state.parse("nothing").error


def test_missing_and_failing_nvidia_smi_are_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "not on the PATH" in gpu_state.read_gpu_state().error
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho no device; exit 9\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    assert "no device" in gpu_state.read_gpu_state().error
