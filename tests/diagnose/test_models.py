# SPDX-License-Identifier: Apache-2.0
"""Models that a word names: what is made, the same with a seed, and what is refused."""

from __future__ import annotations

import sys

import pytest
import torch

from pytest_udftorch.diagnose import first_difference
from pytest_udftorch.diagnose.runs.files import load_make
from pytest_udftorch.errors import CoverageError, RunError

LLAMA = "hf-tiny:LlamaForCausalLM"


def made(where):
    torch.manual_seed(0)
    return load_make(where)()


def test_a_network_of_torchvision_takes_small_images():
    model, (images,) = made("torchvision:squeezenet1_1")
    assert images.shape == (4, 3, 64, 64)
    assert model(images).shape == (4, 1000)
    assert not model.training


def test_a_network_with_a_fixed_size_is_made_for_small_images():
    model, (images,) = made("torchvision:vit_b_16")
    assert images.shape == (4, 3, 64, 64)
    assert model.image_size == 64


def test_other_verbs_take_the_names():
    found = first_difference("threads=1", "eager", make="torchvision:squeezenet1_1", train=False)
    assert found.calls[0] > 20


@pytest.mark.parametrize(
    ("where", "error", "message"),
    [
        ("torchvision:squeezenet9", RunError, "no classifier 'squeezenet9'. Did you mean"),
        ("hf:", CoverageError, "'hf:' names no model"),
        ("hf:nowhere", RunError, "'nowhere' is not the folder of a checkpoint"),
        ("torchvision", CoverageError, "'torchvision' names no model"),
    ],
)
def test_what_is_no_model_is_refused(where, error, message):
    with pytest.raises(error) as raised:
        load_make(where)
    assert message in str(raised.value)


def test_a_class_of_transformers_is_made_small_and_the_same_each_time():
    pytest.importorskip("transformers")
    (model, inputs), (again, other) = made(LLAMA), made(LLAMA)
    assert sum(p.numel() for p in model.parameters()) < 3e6
    assert inputs["input_ids"].shape == (4, 128)
    assert torch.equal(inputs["input_ids"], other["input_ids"])
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_on_disk_is_loaded_and_nothing_is_asked_for(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model, inputs = made(LLAMA)
    model.save_pretrained(tmp_path)
    loaded, words = made(f"hf:{tmp_path}")
    assert type(loaded) is type(model)
    assert words["input_ids"].shape == (4, 128)
    with torch.no_grad():
        assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)


def test_a_folder_without_weights_is_refused(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunError, match="cannot be loaded: "):
        made(f"hf:{tmp_path}")


def test_a_class_that_is_not_there_is_refused():
    pytest.importorskip("transformers")
    with pytest.raises(RunError, match=r"no class of models 'LlamaForCausalLN'\. Did you mean"):
        load_make("hf-tiny:LlamaForCausalLN")


def test_a_class_that_cannot_be_made_small_says_what_to_do():
    pytest.importorskip("transformers")
    with pytest.raises(RunError, match=r"name it as model\.py:make"):
        made("hf-tiny:EncoderDecoderModel")


def test_a_network_of_timm_is_made():
    pytest.importorskip("timm")
    model, (images,) = made("timm:vit_tiny_patch16_224")
    assert images.shape == (4, 3, 64, 64)
    assert model(images).shape == (4, 1000)
    with pytest.raises(RunError, match="timm has no model 'vit_tony'"):
        load_make("timm:vit_tony")


@pytest.mark.parametrize("name", ["DeepseekV2ForCausalLM", "Mamba2ForCausalLM", "XLNetLMHeadModel"])
def test_sizes_that_a_configuration_leaves_open_are_given(name):
    """Of experts for each token, heads that divide what expands, and a length."""
    pytest.importorskip("transformers")
    model, inputs = made(f"hf-tiny:{name}")
    with torch.no_grad():
        assert model(**inputs).logits.shape[:2] == (4, 128)


def test_a_small_configuration_keeps_each_kind_of_layer():
    pytest.importorskip("transformers")
    model, _ = made("hf-tiny:JambaForCausalLM")
    assert model.config.layers_block_type == ["mamba", "attention"]


@pytest.mark.slow
def test_stages_that_small_sizes_do_not_fit_have_their_own():
    pytest.importorskip("transformers")
    model, inputs = made("hf-tiny:ConvNextV2ForImageClassification")
    with torch.no_grad():
        assert len(model(**inputs).logits) == len(inputs["pixel_values"]) == 4
    # Its own size is 600 pixels, which is not small.
    with pytest.raises(RunError, match="cannot be made with a small configuration"):
        made("hf-tiny:EfficientNetForImageClassification")


def test_a_part_of_any_class_is_small_too():
    """By default it is a language model of 7 billion weights."""
    pytest.importorskip("transformers")
    model, _ = made("hf-tiny:LlavaForConditionalGeneration")
    assert sum(p.numel() for p in model.parameters()) < 5e6


def test_why_a_configuration_cannot_be_small_is_said_in_one_line():
    pytest.importorskip("transformers")
    with pytest.raises(RunError, match=r"validate_layer_type': ValueError: .*\)\. Write a func"):
        made("hf-tiny:DoryForCausalLM")


def test_a_file_may_import_the_files_beside_it(tmp_path):
    (tmp_path / "its_network.py").write_text(
        "def net():\n    import its_sizes\n    return its_sizes.WIDTH\n"
    )
    (tmp_path / "its_sizes.py").write_text("WIDTH = 7\n")
    (tmp_path / "model.py").write_text(
        "import its_network\n\n\ndef make():\n    return its_network.net\n"
    )
    assert load_make(f"{tmp_path / 'model.py'}:make")()() == 7


def test_two_versions_of_a_file_import_what_lies_beside_each(tmp_path):
    made = []
    for version in (1, 2, 1):
        folder = tmp_path / str(version)
        (folder / "of_version").mkdir(parents=True, exist_ok=True)
        (folder / "of_version" / "__init__.py").write_text(f"NUMBER = {version}\n")
        (folder / "model.py").write_text(
            "import of_version\n\n\ndef make():\n    return of_version.NUMBER\n"
        )
        made.append(load_make(f"{folder / 'model.py'}:make"))
    assert [make() for make in made] == [1, 2, 1]
    assert [p for p in sys.path if p.startswith(str(tmp_path))] == [str(tmp_path / "1")]
