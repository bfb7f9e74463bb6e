# SPDX-License-Identifier: Apache-2.0
"""Which form GPUs get: what is asked for, what a GPU's double precision is worth, measurements."""

from __future__ import annotations

import json
import sys

import pytest

from pytest_udftorch.errors import CacheError, CudaFormError
from pytest_udftorch.swap.session.session import patched
from pytest_udftorch.swap.toolchain import cuda_form
from pytest_udftorch.swap.toolchain.cuda_form import (
    DOUBLE,
    FLOAT_FLOAT,
    Gpu,
    asked_form,
    choose,
    gpus,
    measurements,
    resolved_form,
    store_measurement,
)

H200 = Gpu("NVIDIA H200", (9, 0))
RTX = Gpu("NVIDIA GeForce RTX 4090", (8, 9))


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "cache"))
    cuda_form._for_this_machine.cache_clear()
    yield tmp_path / "cache"
    cuda_form._for_this_machine.cache_clear()


def test_the_argument_comes_before_the_environment(monkeypatch):
    monkeypatch.delenv("UDFTORCH_CUDA_FORM", raising=False)
    assert asked_form(None) == "auto"
    monkeypatch.setenv("UDFTORCH_CUDA_FORM", "float-float")
    assert asked_form(None) == "float-float"
    assert asked_form("double") == "double"
    assert patched("corem").cuda_form == "float-float"
    assert patched("corem", cuda_form="double").cuda_form == "double"


def test_an_unknown_form_is_named_with_its_origin(monkeypatch):
    with pytest.raises(CudaFormError, match=r"cuda_form='float' is not a form.*float-float"):
        patched("corem", cuda_form="float")
    with pytest.raises(CudaFormError, match="cuda_form=1 is not a form"):
        patched("corem", cuda_form=1)
    monkeypatch.setenv("UDFTORCH_CUDA_FORM", "fast")
    with pytest.raises(CudaFormError, match="UDFTORCH_CUDA_FORM='fast' is not a form"):
        patched("corem")


def test_a_library_without_the_form_says_so(tmp_path):
    with pytest.raises(CudaFormError, match="'canary' has no float-float form"):
        patched("canary", cuda_form="float-float")
    for name, functions in (("mine", ("exp", "pow")), ("pairs", ("exp",))):
        tables = "".join(
            f'[functions.{f}.float32]\nsource = "f.c"\nscalar = "{f}"\n' for f in functions
        )
        other = 'float_float = "../pairs"\n' if name == "mine" else ""
        folder = tmp_path / name
        folder.mkdir()
        (folder / "f.c").write_text("")
        text = f'[library]\nname = "{name}"\nversion = "1"\n{other}{tables}'
        (folder / "udf.toml").write_text(text)
    mine = tmp_path / "mine"
    with pytest.raises(CudaFormError, match="'mine' has no float-float form of pow; it has one of"):
        patched(mine, functions=("pow",), cuda_form="float-float")
    assert patched(mine, functions=("pow", "exp"), cuda_form="float-float")
    assert patched("std", cuda_form="float-float")


def test_weak_double_precision_takes_float_float():
    assert choose((), {}) == DOUBLE
    assert choose((H200,), {}) == DOUBLE
    assert choose((RTX,), {}) == FLOAT_FLOAT
    assert choose((Gpu("NVIDIA GeForce GTX 1080", (6, 1)),), {}) == FLOAT_FLOAT
    # One form for the process: where a strong GPU is there, work is expected on it.
    assert choose((RTX, H200), {}) == DOUBLE


@pytest.mark.parametrize(
    ("capability", "form"),
    [
        *((strong, DOUBLE) for strong in ((6, 0), (7, 0), (7, 2), (8, 0), (9, 0), (10, 0))),
        *(
            (weak, FLOAT_FLOAT)
            for weak in ((6, 1), (6, 2), (7, 5), (8, 6), (8, 9), (10, 3), (12, 0))
        ),
    ],
)
def test_the_capability_decides_without_a_measurement(capability, form):
    gpu = Gpu("unknown", capability)
    assert choose((gpu,), {}) == form
    assert choose((gpu,), {"another": {DOUBLE: 2.0, FLOAT_FLOAT: 1.0}}) == form
    # The faster form as measured, whatever the capability says.
    for faster, slower in ((DOUBLE, FLOAT_FLOAT), (FLOAT_FLOAT, DOUBLE)):
        assert choose((gpu,), {"unknown": {faster: 1.0, slower: 2.0}}) == faster


def test_a_measurement_overrides_the_capability(cache):
    store_measurement(H200.name, {DOUBLE: 2.0, FLOAT_FLOAT: 1.0})
    path = store_measurement(RTX.name, {DOUBLE: 1.0, FLOAT_FLOAT: 2.0})
    assert path.is_relative_to(cache)
    assert choose((H200,), measurements()) == FLOAT_FLOAT
    assert choose((RTX,), measurements()) == DOUBLE


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", '{"NVIDIA H200": {"double": 1}}', '{"a": 1}', "[" * 100_000,
        '{"NVIDIA H200": {"double": 1, "float-float": 1%s}}' % ("0" * 400),
        '{"NVIDIA H200": {"double": 1, "float-float": NaN}}',
    ],
)  # fmt: skip
def test_a_measurement_that_cannot_be_read_is_none(cache, text):
    store_measurement(H200.name, {DOUBLE: 2.0, FLOAT_FLOAT: 1.0})
    assert json.loads((cache / "cuda-form.json").read_text())
    (cache / "cuda-form.json").write_text(text)
    assert measurements() == {}


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UDFTORCH_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheError, match="cannot be written"):
        store_measurement("GPU", {DOUBLE: 1.0, FLOAT_FLOAT: 1.0})


class Driver:
    """What pynvml tells of some GPUs."""

    class NVMLError(Exception):
        pass

    def __init__(self, *gpus, failing=""):
        self.gpus, self.failing, self.opened = gpus, failing, 0

    def _answer(self, name, answer):
        if name == self.failing:
            raise self.NVMLError(name)
        return answer

    def nvmlInit(self):
        self._answer("nvmlInit", None)
        self.opened += 1

    def nvmlShutdown(self):
        self.opened -= 1

    def nvmlDeviceGetCount(self):
        return self._answer("nvmlDeviceGetCount", len(self.gpus))

    def nvmlDeviceGetHandleByIndex(self, index):
        return self.gpus[index]

    def nvmlDeviceGetName(self, gpu):
        return gpu.name

    def nvmlDeviceGetCudaComputeCapability(self, gpu):
        return self._answer("nvmlDeviceGetCudaComputeCapability", list(gpu.capability))


@pytest.fixture(autouse=True)
def asked_anew():
    cuda_form._listed.cache_clear()
    yield
    cuda_form._listed.cache_clear()


def test_the_drivers_list_is_read_once(monkeypatch):
    driver = Driver(RTX, H200)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert gpus() == (RTX, H200)
    assert driver.opened == 0
    driver.gpus = ()
    assert gpus() == (RTX, H200)


def test_auto_asks_the_driver(cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", Driver(RTX))
    assert resolved_form("auto") == FLOAT_FLOAT
    assert resolved_form("double") == DOUBLE


@pytest.mark.parametrize(
    "failing", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetCudaComputeCapability", "import"]
)
def test_without_an_answer_of_the_driver_auto_is_double(cache, monkeypatch, failing):
    driver = None if failing == "import" else Driver(RTX, failing=failing)
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    assert resolved_form("auto") == DOUBLE
    assert driver is None or driver.opened == 0
