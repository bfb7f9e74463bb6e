# SPDX-License-Identifier: Apache-2.0
"""A private name that is missing is an error which names the version."""

from __future__ import annotations

import pytest
import torch

from pytest_udftorch.base import compat
from pytest_udftorch.errors import PrivateNameError
from pytest_udftorch.swap.compiled.follower import Follower, active_of
from pytest_udftorch.swap.session.session import patched


def names() -> list[compat.PrivateName]:
    found = []
    for value in vars(compat).values():
        found += value if isinstance(value, tuple) else [value]
    return [v for v in found if isinstance(v, compat.PrivateName)]


def test_this_torch_has_every_private_name():
    objects = {
        "torch.library.Library": torch.library.Library,
        "torch._ops.OpOverload": torch.ops.aten.log.default,
        "torch.nn.Module": torch.nn.Module(),
        "torch.Tensor": torch.ones(1),
    }
    cuda = torch.backends.cuda.is_built()
    for name in names():
        if name.path.startswith("_cuda") and not cuda:
            continue
        if name.owner in objects:
            name.of(objects[name.owner])
        elif name.owner.startswith(("torch.", "torch._")) and "." not in name.path:
            owner, _, last = name.owner.rpartition(".")
            if last[:1].isupper() or last == "compile_lock":
                name.of(compat.PrivateName(owner, last, "").get())
            else:
                name.get()
    assert len(names()) > 20


def test_this_torch_has_what_sessions_change_in_its_compilers():
    import importlib

    for module in compat._CHANGED:
        if module.startswith("triton"):
            pytest.importorskip("triton")
        compat.check_changed(importlib.import_module(module))


def test_a_missing_name_is_an_error_that_names_the_version(monkeypatch):
    monkeypatch.delattr(torch._C, "_get_schema")
    with pytest.raises(PrivateNameError) as caught:
        compat.schema("aten::log", "out")
    message = str(caught.value)
    assert f"torch {torch.__version__} has no torch._C._get_schema" in message
    assert "torch 2.11 to 2.15 has" in message
    assert "to check UDFs of whole operators" in message


def test_a_missing_module_is_the_same_error():
    name = compat.PrivateName("torch._no_such_module", "name", "to test")
    with pytest.raises(PrivateNameError, match=r"has no torch\._no_such_module\.name"):
        name.get()


def test_a_compiler_without_a_name_is_refused_and_nothing_is_changed(monkeypatch):
    from torch._inductor import codecache

    with patched("corem", functions=("exp",)):
        pass
    monkeypatch.delattr(codecache, "PyCodeCache")
    stock = torch.exp(torch.linspace(-3, 3, 100))
    with (
        pytest.raises(PrivateNameError, match=r"codecache\.PyCodeCache\.cache_clear"),
        patched("corem", functions=("exp",)),
    ):
        pass
    assert torch.equal(torch.exp(torch.linspace(-3, 3, 100)), stock)


def test_a_follower_is_reset():
    import sys

    before = list(sys.meta_path)
    fresh = Follower()
    fresh.serve({"a_module_that_nobody_has": lambda module, active: lambda: None})
    fresh.follow(active_of((), ("aten::log",)), wait=True)
    assert fresh.active.operators == ("aten::log",)
    assert sys.meta_path != before
    fresh.reset()
    assert fresh.active.operators == ()
    assert sys.meta_path == before
