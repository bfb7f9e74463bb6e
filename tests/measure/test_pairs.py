# SPDX-License-Identifier: Apache-2.0
import dataclasses
import importlib.metadata
import math
import os
import re
import sys
import threading

import pytest
import torch
from torch import nn
from torch._inductor import config
from torch._inductor.utils import fresh_cache

from pytest_udftorch import errors, measure
from pytest_udftorch.errors import DeviceMissingError, MeasureError
from pytest_udftorch.measure.planning import executors, pairs
from pytest_udftorch.measure.planning.executors import REGISTRY, jax


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


@pytest.fixture
def tiny():
    return Tiny().eval()


@pytest.fixture
def images():
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def own_executor():
    def add(name, make):
        measure.register_executor(measure.Executor(name, make))
        return name

    yield add
    REGISTRY.reset()


def test_members_agree_and_are_timed(tiny, images):
    names = ["eager", "eager+channels_last", "fx", "torchscript-trace", "torchscript-script"]
    pair = pairs.model_pair(tiny, images, names)
    assert pair.failures == {}
    pair.check()
    assert pair.working == names
    pair.measure(runs=6, rounds=2, warmup=1)
    result = pair.document()
    assert set(result["members"]) == set(names)
    assert result["versions"]["torch"] == torch.__version__
    assert all(member["first_call_ns"] > 0 for member in result["members"].values())
    assert pair.break_even_calls("eager") is None


def test_compiled_member_agrees(tiny, images):
    pair = pairs.model_pair(tiny, images, ["compile"])
    assert pair.failures == {}
    assert pair.working == ["eager", "compile"]
    assert pair.members["compile"].agrees
    assert pair.members["compile"].first_call_ns > pair.members["eager"].first_call_ns
    assert math.isfinite(pair.members["compile"].accuracy.distance)


def test_an_exported_program_agrees_and_refuses_other_shapes(tiny, images):
    pair = pairs.model_pair(tiny, images, ["export"])
    assert pair.failures == {}
    assert pair.members["export"].agrees
    with pytest.raises((AssertionError, RuntimeError), match=r"shape|size|Guard"):
        pair.members["export"].call(images[:1])


def test_wrong_member_is_reported(tiny, images, own_executor):
    """Negative control: one output element off by a thousandth."""

    def make(model, inputs):
        def run(x):
            y = model(x).clone()
            y.view(-1)[y.argmax()] *= 1.001
            return y

        return run

    pair = pairs.model_pair(tiny, images, [own_executor("slightly-wrong", make), "fx"])
    assert not pair.members["slightly-wrong"].agrees
    assert pair.members["fx"].agrees
    with pytest.raises(errors.DisagreementError, match=r"slightly-wrong: distance .* ULP"):
        pair.check()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda y: y[:1], "wanted"),
        (lambda y: (y, y), "structure"),
        (lambda y: y * math.nan, "NaNs"),
    ],
)
def test_members_that_differ_in_kind_are_reported(tiny, images, own_executor, spoil, says):
    name = own_executor("spoilt", lambda model, inputs: lambda x: spoil(model(x)))
    pair = pairs.model_pair(tiny, images, [name])
    with pytest.raises(errors.DisagreementError, match=says):
        pair.check()


def test_failing_compile_is_recorded_and_the_pair_goes_on(tiny, images, own_executor):
    def refuse(model, inputs):
        raise RuntimeError("no such backend\nsecond line")

    def fail_late(model, inputs):
        def run(x):
            raise ValueError("at run time")

        return run

    names = [own_executor("refuses", refuse), own_executor("fails-late", fail_late), "fx"]
    pair = pairs.model_pair(tiny, images, names)
    assert pair.working == ["eager", "fx"]
    assert pair.failures == {
        "refuses": "RuntimeError: no such backend",
        "fails-late": "ValueError: at run time",
    }
    assert pair.members["fails-late"].stage == "first call"
    with pytest.raises(errors.ExecutorError, match="failed in its making: RuntimeError"):
        pair["refuses"]
    assert pair.document()["members"]["refuses"]["stage"] == "making"


def test_control_flow_fails_where_it_must_and_is_said(images):
    class Flow(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 1e9 else x - 1

    pair = pairs.model_pair(Flow().eval(), images, ["fx"])
    assert pair.working == ["eager"]
    assert "TraceError" in pair.failures["fx"]


def test_a_branch_that_a_trace_would_lose_is_said(images):
    class Flow(nn.Module):
        def forward(self, x):
            if x.sum() > 1e9:
                return x + 1
            return x - 1

    pair = pairs.model_pair(Flow().eval(), images, ["torchscript-trace", "torchscript-script"])
    assert pair.working == ["eager", "torchscript-script"]
    assert re.search(
        r"test_pairs.py, line \d+: .* depends on a", pair.failures["torchscript-trace"]
    )


@pytest.mark.slow
def test_a_package_of_aotinductor_takes_other_layouts_and_refuses_other_shapes():
    model = nn.Sequential(nn.Softmax(1), nn.Sigmoid()).eval()
    x = torch.randn(3, 4, 5, 6)
    # Precompiled headers pay when more packages follow.
    with config.patch({"aot_inductor.precompile_headers": False}):
        pair = pairs.model_pair(model, x, "aotinductor")
    assert pair.failures == {}
    with torch.no_grad():
        for other in (x + 1, (x - 1).contiguous(memory_format=torch.channels_last)):
            torch.testing.assert_close(pair["aotinductor"](other), model(other))
    for other in (torch.randn(5, 4, 5, 6), x.double()):
        with pytest.raises(errors.ExecutorError, match="compiled for"):
            pair["aotinductor"](other)


@pytest.mark.slow
@pytest.mark.parametrize("ends", [False, True])
def test_a_package_that_would_end_the_process_is_not_loaded(tmp_path, ends):
    # A compiler that links its own libstdc++; what makes that crash depends on the machine.
    crash = tmp_path / "crash.cpp"
    crash.write_text(
        "#include <csignal>\n__attribute__((constructor)) void f() { std::raise(SIGSEGV); }\n"
    )
    compiler = tmp_path / "g++"
    compiler.write_text(
        '#!/bin/sh\ncase " $* " in\n'
        f'*" -shared "*) exec g++ "$@" {crash if ends else ""} -static-libstdc++;;\n'
        '*) exec g++ "$@";;\nesac\n'
    )
    compiler.chmod(0o755)
    with config.patch({"cpp.cxx": (None, str(compiler))}), fresh_cache():
        pair = pairs.model_pair(
            nn.Sequential(nn.Softmax(1)).eval(), torch.ones(2, 3), "aotinductor"
        )
    if ends:
        assert "by SIGSEGV" in pair.failures["aotinductor"]
    else:
        assert pair.failures == {}


def test_members_made_before_ctrl_c_are_kept(tiny, images):
    def stop(at):
        def progress(done, of, text):
            if done == at:
                raise KeyboardInterrupt

        return progress

    names = ["eager", "fx", "torchscript-trace", "eager+channels_last"]
    pair = pairs.model_pair(tiny, images, names, progress=stop(2))
    assert pair.interrupted
    assert pair.working == ["eager", "fx"]
    assert set(pair.failures.values()) == {"not made: interrupted"}
    assert pair.document()["interrupted"]
    pair.check()
    with pytest.raises(KeyboardInterrupt):
        pair.complete()
    with pytest.raises(KeyboardInterrupt):
        pairs.model_pair(tiny, images, names, progress=stop(0))
    whole = pairs.model_pair(tiny, images, names)
    assert whole.complete() is whole


def test_other_shapes_are_computed_and_not_broadcast(tiny, images):
    pair = pairs.model_pair(tiny, images, ["fx", "eager+channels_last"])
    for shape in ((1, 3, 8, 8), (5, 3, 12, 10)):
        x = torch.randn(shape)
        for name in pair.working:
            torch.testing.assert_close(pair[name](x), tiny(x), rtol=1e-5, atol=1e-5)


def test_shared_unused_and_hooked_layers(images, tiny):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.tiny, self.never, self.act = tiny, nn.Linear(2, 2), nn.Tanh()

        def forward(self, x):
            return self.act(self.act(self.tiny(x)))

    model = Odd().eval()
    pair = pairs.model_pair(model, images, ["fx", "torchscript-trace"])
    pair.check()
    assert pair.failures == {}
    model.act.register_forward_hook(lambda _module, _inputs, output: output * 2)
    pair = pairs.model_pair(model, images, ["fx", "eager+channels_last"])
    pair.check()
    assert "hooks of its own (act)" in pair.failures["fx"]
    assert torch.equal(pair["eager"](images), model(images))


def test_graph_breaks_are_counted(images, own_executor):
    class Breaks(nn.Module):
        def forward(self, x):
            x = x + 1
            torch._dynamo.graph_break()
            return x * 2

    name = own_executor("dynamo", lambda m, _: torch.compile(m, backend="eager"))
    pair = pairs.model_pair(Breaks().eval(), images, [name])
    assert pair.members[name].graph_breaks >= 1
    pair.check()


def test_tuples_and_dicts_are_compared(images):
    class Nested(nn.Module):
        def forward(self, x):
            return {"a": (x * 3, x.argmax()), "n": 7}

    pair = pairs.model_pair(Nested().eval(), images, ["fx"])
    pair.check()
    assert pair.members["fx"].accuracy.worst_ulp <= 1


def test_more_members_than_the_recompile_limit_stay_compiled(tiny, images, own_executor):
    """Dynamo's limit of 8 would run the later ones interpreted without a word."""
    compiled = []

    def make(model, inputs):
        def backend(graph, example):
            compiled.append(graph)
            return graph.forward

        return torch.compile(model, backend=backend)

    names = [own_executor(f"dynamo-{k}", make) for k in range(10)]
    pair = pairs.model_pair(tiny, images, names)
    assert len(compiled) == 10
    pair.measure(runs=1, rounds=1, warmup=1)
    assert len(compiled) == 10


def test_break_even_counts_first_calls(tiny, images):
    pair = pairs.model_pair(tiny, images, ["fx"])
    with pytest.raises(errors.ExecutorError, match="measure"):
        pair.break_even_calls("fx")
    timed = pair.measure(runs=6, rounds=1, warmup=0)
    slow = timed["eager"]
    timed.timings["eager"] = type(slow)("eager", "cpu", (1000.0,) * 6)
    timed.timings["fx"] = type(slow)("fx", "cpu", (900.0,) * 6)
    pair.members["eager"].first_call_ns = 5_000
    pair.members["fx"].first_call_ns = 15_050
    # 1 first call + ceil(10,050 / 100) later ones.
    assert pair.break_even_calls("fx") == 102


class Stateful(nn.Module):
    """Counts its calls in Python, and keeps a buffer of what it saw."""

    def __init__(self, *, counts):
        super().__init__()
        self.counts, self.calls = counts, 0
        self.register_buffer("seen", torch.zeros(2, 3, 8, 8))

    def forward(self, x):
        if self.counts:
            self.calls += 1
            return x * self.calls
        self.seen = self.seen * 0.5 + x
        return self.seen.sin()


@pytest.mark.parametrize("counts", [False, True])
def test_state_that_a_trace_drops_is_no_agreement(images, own_executor, counts):
    plain = own_executor("as-it-is", lambda model, inputs: lambda *given: model(*given))
    pair = pairs.model_pair(Stateful(counts=counts).eval(), images, [plain, "fx"])
    assert pair.members["eager"].agrees
    assert pair.members[plain].agrees
    assert not pair.members["fx"].agrees
    with pytest.raises(errors.DisagreementError, match=r"fx: .*the second call differs"):
        pair.check()


def test_an_executor_that_serves_one_call_has_failed(tiny, images, own_executor):
    def make(model, inputs):
        left = [1]
        return lambda x: (left.pop(), model(x))[1]

    pair = pairs.model_pair(tiny, images, own_executor("once", make))
    assert pair.failures == {"once": "IndexError: pop from empty list"}
    assert pair.members["once"].stage == "second call"


class WritesInput(nn.Module):
    def forward(self, x):
        x -= 0.5
        x *= 2
        return x.exp()


def test_a_model_that_writes_into_its_inputs_is_judged_on_the_same_ones(images, own_executor):
    before = images.clone()
    wrong = own_executor("wrong", lambda model, inputs: lambda x: model(x) * 1.01)
    pair = pairs.model_pair(WritesInput().eval(), images, ["torchscript-trace", wrong])
    assert pair.members["torchscript-trace"].agrees
    assert pair.members["eager"].accuracy.distance < 1e-6
    assert not pair.members[wrong].agrees
    pair.measure(runs=1, rounds=1, warmup=0)
    assert torch.equal(images, before)
    assert pairs.writes_inputs(WritesInput().eval(), (images,))
    assert not pairs.writes_inputs(nn.Sigmoid(), (images,))


def test_each_output_is_compared_on_its_own(images, own_executor):
    """Negative control: the small output is half as large again, which the large one hides."""

    class Scales(nn.Module):
        def forward(self, x):
            return x * 1e12, x * 1.7

    wrong = own_executor("wrong", lambda model, _: lambda x: (model(x)[0], model(x)[1] * 1.5))
    pair = pairs.model_pair(Scales().eval(), images, wrong)
    assert pair.members["eager"].agrees
    assert pair.members[wrong].accuracy.distance == pytest.approx(0.5, rel=1e-3)
    assert not pair.members[wrong].agrees


def test_the_reference_of_a_model_that_names_float32_is_float64(own_executor):
    x = torch.linspace(0, 60, 64)
    near = own_executor("near", lambda model, _: lambda x: model.double()(x.double()).float())
    pair = pairs.model_pair(Casts().eval(), x, near)
    assert pair.left == ""
    assert pair.wanted[0].dtype == torch.float64
    assert torch.equal(pair.wanted[0], torch.cos(x.double() * torch.tensor(1.7).double()))
    assert pair.exact[0].distance > 1e-7  # eager is no truth
    assert "no truth" not in pair.text()


def test_a_reference_that_leaves_float64_is_no_truth(own_executor):
    x = torch.linspace(-1, 1, 64)
    wrong = own_executor("wrong", lambda model, _: lambda x: model(x) * 1.5)
    pair = pairs.model_pair(ReadsBits().eval(), x, wrong)
    assert pair.left == "aten::view.dtype leaves float64"
    assert "There is no truth, so no distance is an error: in the reference, aten" in pair.text()
    assert pair.document()["no_truth"] == pair.left
    with pytest.raises(errors.DisagreementError, match="There is no truth"):
        pair.check()


def test_integers_are_compared_with_the_eager_ones(own_executor):
    """Near a tie float64 decides otherwise; what is wrong is still found."""

    class Decides(nn.Module):
        def forward(self, x):
            return x.softmax(-1).argmax(-1)

    x = torch.linspace(0, 0.01, 4096, dtype=torch.bfloat16).reshape(64, 64)
    model = Decides().eval()
    assert not torch.equal(model(x), model(x.double()))
    wrong = own_executor("wrong", lambda model, inputs: lambda x: model(x) + 1)
    pair = pairs.model_pair(model, x, ["fx", wrong])
    assert pair.members["eager"].agrees
    assert pair.members["fx"].agrees
    assert "other values of torch.int64" in pair.members[wrong].accuracy.problem


@pytest.mark.parametrize(
    "wrap",
    [
        lambda y: (y, y.max().item()),
        lambda y: y.detach().numpy(),
        lambda y: y.relu().to_sparse(),
        lambda y: (y, None, {"flags": y > 0}),
    ],
)
def test_numbers_that_are_no_dense_tensors_are_compared(images, own_executor, wrap):
    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 3)

        def forward(self, x):
            return wrap(self.linear(x))

    wrong = own_executor("wrong", lambda model, _: lambda x: model(x * 1.01))
    pair = pairs.model_pair(Wraps().eval(), images, wrong)
    assert pair.members["eager"].agrees
    assert not pair.members[wrong].agrees


def test_complex_weights_are_widened(images):
    class Filters(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 5, dtype=torch.complex64))

        def forward(self, x):
            return torch.fft.irfft(torch.fft.rfft(x) @ self.weight)

    pair = pairs.model_pair(Filters().eval(), images, ())
    assert 0 < pair.members["eager"].accuracy.distance < 1e-6


def test_an_optional_input_that_a_trace_takes_as_given_prints_nothing(images, capfd):
    class Masked(nn.Module):
        def forward(self, x, mask=None):
            return x if mask is None else x * mask

    pair = pairs.model_pair(Masked().eval(), images, "fx")
    assert "NoneType" in pair.failures["fx"]
    assert "Traceback" not in capfd.readouterr().err
    pairs.model_pair(Masked().eval(), (images, images), "fx").check()


def test_a_name_given_twice_is_made_once(tiny, images):
    made = []
    one = measure.Executor("one", lambda model, inputs: made.append(1) or model)
    assert pairs.model_pair(tiny, images, [one, one, "fx", "fx"]).working == ["eager", "one", "fx"]
    assert made == [1]
    for name in ("eager", "one"):
        with pytest.raises(errors.MeasureError, match=f"named '{name}'"):
            pairs.model_pair(tiny, images, [one, measure.Executor(name, lambda m, _: m)])


def _compiled_in_place():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
    model[1].compile(backend="eager")
    return model


def _locked():
    model = nn.ReLU().eval()
    model.lock = threading.Lock()
    return model


class Draws(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


def test_model_is_left_as_it_was(tiny, images):
    before = {k: v.clone() for k, v in tiny.state_dict().items()}
    pairs.model_pair(tiny, images, ["eager+channels_last", "torchscript-trace"])
    assert all(torch.equal(before[k], v) for k, v in tiny.state_dict().items())
    assert tiny.conv.weight.is_contiguous()


class Written(nn.Module):
    """Writes a dtype out, and refuses all others."""

    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError("float32 alone, please")
        return x @ torch.ones(8, 2)


class Casts(nn.Module):
    """Computes in float32 whatever it gets."""

    def forward(self, x):
        return torch.cos(x.float() * torch.tensor(1.7, dtype=torch.float32))


class ReadsBits(nn.Module):
    """Keeps the negative numbers, by their sign bits."""

    def forward(self, x):
        return x * (x.view(torch.uint8).reshape(*x.shape, -1)[..., -1] >= 128)


@dataclasses.dataclass
class Spectrum:
    values: torch.Tensor


class Transform(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(torch.fft.rfft(x))


def test_complex_results_are_compared(images, own_executor):
    def off(model, inputs):
        return lambda *given: model(*given) * (1 + 0.01j)

    pair = pairs.model_pair(Transform(lambda y: y).eval(), images, [own_executor("off", off)])
    assert pair.members["eager"].agrees
    assert 0 < pair.members["eager"].accuracy.distance < 1e-6
    assert pair.members["off"].accuracy.distance == pytest.approx(0.01, rel=1e-3)
    assert not pair.members["off"].agrees


def test_a_result_of_an_unknown_class_is_no_agreement(images):
    pair = pairs.model_pair(Transform(Spectrum).eval(), images, ())
    with pytest.raises(errors.DisagreementError, match="a Spectrum, whose tensors cannot be"):
        pair.check()


def test_lazy_tensors_serve_more_than_one_pair(tiny, images):
    first = pairs.model_pair(tiny, images, "lazy")
    if "lazy" in first.failures:
        pytest.skip(first.failures["lazy"])
    second = pairs.model_pair(tiny, images, "lazy")
    second.check()
    assert second.failures == {}


def test_one_executor_needs_no_list(tiny, images):
    assert pairs.model_pair(tiny, images, "fx").working == ["eager", "fx"]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda m, x: pairs.model_pair(m.train(), x), errors.MeasureError, r"model\.eval"),
        (lambda m, x: pairs.model_pair(m, ()), errors.MeasureError, "at least one tensor"),
        (
            lambda m, x: pairs.model_pair(m, x.to("meta")),
            errors.MeasureError,
            "one device",
        ),
        (lambda m, x: pairs.model_pair(m, x[0, 0]), errors.ExecutorError, "model itself"),
        (
            lambda m, x: pairs.model_pair(m, x, ["compil"]),
            errors.ExecutorError,
            "'compile'",
        ),
        (
            lambda m, x: pairs.model_pair(m, x, ["eager+chanels_last"]),
            errors.ExecutorError,
            "'channels_last'",
        ),
        (
            lambda m, x: pairs.model_pair(m, x, ["eager+cudagraph+cudagraph"]),
            errors.ExecutorError,
            "given twice",
        ),
        (
            lambda m, x: measure.register_executor(measure.Executor("fx", None)),
            errors.ExecutorError,
            "Taken",
        ),
        (
            lambda m, x: measure.unregister_executor("compile"),
            errors.ExecutorError,
            "cannot be removed",
        ),
        (lambda m, x: pairs.model_pair(m, {"x": x}), errors.MeasureError, r"give \(inputs,\)"),
        (
            lambda m, x: pairs.model_pair(m, x, ()).measure(run=3),
            MeasureError,
            "'run'.*'runs'",
        ),
        (
            lambda m, x: pairs.model_pair(Written().eval(), x),
            errors.ExecutorError,
            "fails in float64.*take dtype",
        ),
        (lambda m, x: pairs.model_pair(m.forward, x), errors.MeasureError, "not an nn.Module"),
        (lambda m, x: pairs.model_pair(Tiny, x), errors.MeasureError, "the class Tiny"),
        (lambda m, x: pairs.model_pair(m, None), errors.MeasureError, "of type NoneType"),
        (lambda m, x: pairs.model_pair(Draws().eval(), x), errors.MeasureError, "random numbers"),
        (
            lambda m, x: pairs.model_pair(torch.compile(m), x),
            errors.MeasureError,
            "The model is compiled already",
        ),
        (
            lambda m, x: pairs.model_pair(_compiled_in_place(), x),
            errors.MeasureError,
            "1 is compiled already",
        ),
        (
            lambda m, x: pairs.model_pair(m, x, tolerance=math.nan),
            errors.MeasureError,
            "number of at least 0",
        ),
        (
            lambda m, x: pairs.model_pair(m, x, tolerance="2"),
            errors.MeasureError,
            "number of at least 0",
        ),
        (
            lambda m, x: pairs.model_pair(m, x, tolerance=10**400),
            errors.MeasureError,
            "number of at least 0",
        ),
        *(
            (
                lambda m, x, e=e: pairs.model_pair(m, x, e),
                errors.ExecutorError,
                "not an executor. Give a name, such as 'compile'",
            )
            for e in (0, None, [1], [["eager"]], object())
        ),
        (lambda m, x: pairs.model_pair(_locked(), x), errors.MeasureError, "cannot be copied"),
        (lambda m, x: measure.register_executor("fx"), errors.ExecutorError, "not an executor"),
        (lambda m, x: measure.unregister_executor("none"), errors.ExecutorError, "No executor"),
        (lambda m, x: pairs.model_pair(m, x)["fx"], errors.ExecutorError, "not in this pair"),
    ],
)
def test_errors_say_what_to_do(tiny, images, call, error, says):
    with pytest.raises(error, match=says):
        call(tiny, images)


def test_a_reset_removes_what_was_registered_and_nothing_else():
    shipped = executors.registered()
    measure.register_executor(measure.Executor("own", lambda model, _: model))
    assert executors.registered() == [*shipped, "own"]
    REGISTRY.reset()
    assert executors.registered() == shipped
    with pytest.raises(errors.ExecutorError, match="No executor 'own'"):
        executors.resolve("own")


def test_executor_of_another_device_is_recorded_with_its_reason(tiny, images):
    pair = pairs.model_pair(tiny, images, ["eager+cudagraph"])
    assert "runs on cuda" in pair.failures["eager+cudagraph"]


def test_executor_of_another_dtype_is_recorded(tiny, images):
    half = measure.Executor("half-only", lambda m, _: m, dtypes=frozenset({torch.float16}))
    pair = pairs.model_pair(tiny, images, [half])
    assert pair.failures["half-only"].startswith("half-only serves float16, not float32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_cuda_asked_for_and_absent_gives_a_skip_reason(tiny, images):
    with pytest.raises(DeviceMissingError, match=r"torch sees no GPU|CPU build"):
        pairs.model_pair(tiny, images, device="cuda")


@pytest.mark.parametrize(
    ("name", "package"), [("thunder-profile", "lightning-thunder"), ("jax", "jax|torchax")]
)
def test_executor_of_another_package_agrees_or_says_what_is_missing(tiny, images, name, package):
    pair = pairs.model_pair(tiny, images, ["fx", name])
    pair.check()
    assert "fx" in pair.working
    if name not in pair.working:
        reason = pair.failures[name]
        assert re.match(rf"({package}) (is not installed|\S+ does not load beside torch)", reason)


@pytest.mark.parametrize("name", ["thunder-profile", "jax"])
def test_absent_package_is_named_with_what_to_install(tiny, images, name, monkeypatch):
    def absent(distribution):
        raise importlib.metadata.PackageNotFoundError(distribution)

    for module in ("thunder", "thunder.dynamo", "jax"):
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(importlib.metadata, "version", absent)
    pair = pairs.model_pair(tiny, images, [name])
    assert "is not installed. Try: pip install " in pair.failures[name]


def test_what_torchax_does_to_torch_is_taken_back():
    def as_its_import_does():
        torch.utils.rename_privateuse1_backend("jax")
        torch._register_device_module("jax", torch.cpu)
        torch.backends.mha.set_fastpath_enabled(False)
        raise ImportError("something else is missing")

    functions = torch.utils.rename_privateuse1_backend, torch._register_device_module
    with pytest.raises(ImportError, match="something else"), jax.torch_as_before():
        as_its_import_does()
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
    assert not hasattr(torch, "jax")
    assert torch.backends.mha.get_fastpath_enabled()
    assert functions == (torch.utils.rename_privateuse1_backend, torch._register_device_module)


def test_jax_is_asked_to_share_the_memory_unless_the_user_has_decided(monkeypatch):
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    monkeypatch.delenv(name, raising=False)
    with jax.sharing_memory():
        assert os.environ[name] == "false"
    assert name not in os.environ
    for decided in ("true", ""):
        monkeypatch.setenv(name, decided)
        with jax.sharing_memory():
            assert os.environ[name] == decided
        assert os.environ[name] == decided


@pytest.mark.slow
def test_every_base_executor_agrees_or_says_why(tiny, images):
    pair = pairs.model_pair(tiny, images, executors.registered())
    pair.check()
    # Lazy tensors compile with nothing that these wheels have.
    absent = re.compile(r"is not installed\. Try: pip install |does not load beside torch")
    mute = {n: why for n, why in pair.failures.items() if n != "lazy" and not absent.search(why)}
    assert mute == {}
    assert {"eager", "fx", "compile"} <= set(pair.working)
