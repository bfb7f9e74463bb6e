# SPDX-License-Identifier: Apache-2.0
"""Draws belong to a request and a position: under repro a batch does not change what is sampled."""

from __future__ import annotations

import pytest
import torch

from benches.data.models.llama import Llama, Size
from pytest_udftorch import patched
from pytest_udftorch.errors import OperatorError
from pytest_udftorch.reproduce import row_seeds, within_contract

SEEDS = [7, 1 << 62, 0, 5, 7]


def weights(rows=5, n=101, dtype=torch.float32):
    return torch.rand(rows, n, generator=torch.Generator().manual_seed(3)).to(dtype)


def drawn(of, seeds, **how):
    """Draw three times from each row."""
    with row_seeds(seeds):
        return [torch.multinomial(of, **how) for _ in range(3)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "how",
    [
        {"num_samples": 1},
        {"num_samples": 4},
        {"num_samples": 101},
        {"num_samples": 300, "replacement": True},
    ],
)
def test_a_row_is_drawn_as_if_alone(how, dtype):
    p = weights(dtype=dtype)
    with patched("repro"), within_contract(strict=True):
        whole = drawn(p, SEEDS, **how)
        order = [3, 0, 4, 2, 1]
        mixed = drawn(p[order], [SEEDS[i] for i in order], **how)
        for row, seed in enumerate(SEEDS):
            alone = drawn(p[row], [seed], **how)
            assert all(torch.equal(a, w[row]) for a, w in zip(alone, whole, strict=True))
        assert all(torch.equal(m, w[order]) for m, w in zip(mixed, whole, strict=True))
        if how["num_samples"] != 101 and not how.get("replacement"):
            assert not torch.equal(whole[0], whole[1])
        # The control: without seeds a row's draws depend on its place.
        torch.manual_seed(0)
        first = torch.multinomial(p, **how)
        torch.manual_seed(0)
        assert not torch.equal(torch.multinomial(p[order], **how), first[order])


def test_places_are_drawn_as_often_as_they_weigh():
    p = torch.tensor([0.0, 1.0, 2.0, 5.0, 0.0])
    with patched("repro"):
        torch.manual_seed(1)
        again = torch.multinomial(p, 80_000, replacement=True)
        once = torch.multinomial(p.expand(80_000, 5), 1)[:, 0]
        two = torch.multinomial(p.expand(1000, 5), 2)
    for found in (again, once):
        shares = torch.bincount(found, minlength=5) / 10_000
        assert torch.allclose(shares, p, atol=0.1)
        assert shares[0] == shares[4] == 0
    assert (two[:, 0] != two[:, 1]).all()


def test_seeds_that_do_not_fit():
    for seeds in ([], [-1], [1 << 63], [1.0], [True]):
        with pytest.raises(OperatorError, match="from 0 to"), row_seeds(seeds):
            pass
    with patched("repro"), row_seeds([1, 2]), pytest.raises(OperatorError, match=r"3 rows.*has 2"):
        torch.multinomial(torch.ones(3, 4), 1)


def sampled(model, prompts, seeds, steps=12):
    """Sample tokens without a cache: each step runs the whole prefix."""
    tokens = prompts
    with torch.no_grad(), row_seeds(seeds):
        for _ in range(steps):
            logits = model(tokens)[:, -1] / 0.9
            kept = logits.topk(20).values[:, -1:]
            p = logits.masked_fill(logits < kept, float("-inf")).softmax(-1)
            tokens = torch.cat([tokens, torch.multinomial(p, 1)], 1)
    return tokens


def test_a_model_samples_the_same_tokens_in_every_batch():
    prompts = torch.randint(50, (8, 6), generator=torch.Generator().manual_seed(2))
    seeds = [100 + i for i in range(8)]
    with patched("repro"):
        torch.manual_seed(4)
        model = Llama(Size(48, 3, 80, 2, 50))
        whole = sampled(model, prompts, seeds)
        alone = [sampled(model, prompts[i : i + 1], seeds[i : i + 1]) for i in (0, 5)]
        turned = sampled(model, prompts.flip(0), seeds[::-1])
    assert torch.equal(torch.cat(alone), whole[[0, 5]])
    assert torch.equal(turned.flip(0), whole)
    assert len(whole[:, 6:].unique(dim=0)) == 8


def small_llama(heads):
    """Return a language model of transformers with so many heads of keys and values."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=heads, vocab_size=90, max_position_embeddings=64,
    )  # fmt: skip
    with patched("repro"):
        torch.manual_seed(4)
        return transformers.LlamaForCausalLM(config).eval()


def generated(model, rows, **how):
    """Return the tokens that follow some of 64 prompts, each drawn with the seed of its row."""
    prompts = torch.randint(3, 90, (64, 7), generator=torch.Generator().manual_seed(2))
    with row_seeds(rows):
        return model.generate(
            prompts[rows].to(model.device), do_sample=True, max_new_tokens=10, min_new_tokens=10,
            pad_token_id=0, **how,
        )  # fmt: skip


@pytest.mark.slow
def test_transformers_generate_the_same_tokens_with_and_without_a_cache():
    model = small_llama(heads=4)
    with patched("repro"):
        whole = generated(model, list(range(64)))
        for rows in ([0], [63, 8, 3, 1, 0, 50, 9, 20]):
            assert torch.equal(generated(model, rows), whole[rows])
            assert torch.equal(generated(model, rows, use_cache=False), whole[rows])
