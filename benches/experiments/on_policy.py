# SPDX-License-Identifier: Apache-2.0
"""Do sampler and trainer agree in a real trainer? TRL's GRPO on a small model and made-up data.

    python -m benches.experiments.on_policy [--steps N] [--store FILE]

A small Llama learns, from random weights, to answer with even numbers: the reward of a completion
is their share. At each step the log-probabilities of the sampled tokens are compared: those of the
sampler, which decodes with a cache, a few rows at a time, and those of the trainer, which runs
padded rows at once. Both are computed by TRL's own function from the last hidden states. Under each
library two runs differ in the rows that are sampled at a time, in their order, and in the number of
threads. Under repro a request has a seed of its own. Padding lies on the left, and TRL does not
tell the model the positions of a row behind it, which ``generate`` does: so a hook tells them. One
more run goes without that hook. It needs the extra ``trainers``.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import tempfile
from collections.abc import Sequence
from typing import Any, Final

import torch

from benches.experiments import command
from pytest_udftorch import patched
from pytest_udftorch.base.optional import package
from pytest_udftorch.reproduce import row_seeds

LIBRARIES: Final = ("std", "corem", "repro")

#: Rows that are sampled at a time, whether backwards, and threads, of the two runs of a library.
RUNS: Final = ((16, False, 2), (4, True, 1))

WORDS, PROMPTS, GENERATED = 48, 4, 16
STEPS: Final = 10


class Sampler:
    """Generates for a trainer, a few rows at a time, and notes log-probabilities.

    Attributes:
        noted: tokens of a completion -> the log-probabilities with which they were sampled.
    """

    def __init__(self, model: Any, rows: int, backwards: bool, seeded: bool) -> None:
        self.model, self.rows, self.backwards, self.seeded = model, rows, backwards, seeded
        self.generate = model.generate
        self.calls = 0
        self.noted: dict[tuple[int, ...], Any] = {}

    def __call__(self, input_ids: Any, attention_mask: Any, **more: Any) -> Any:
        """Return prompts with their completions, as the model's own ``generate`` does."""
        import trl.trainer.utils as of_trl

        self.noted.clear()
        width = input_ids.shape[1]
        found = input_ids.new_full((len(input_ids), width + GENERATED), 0)
        order = range(len(input_ids))
        order = order[::-1] if self.backwards else order
        for start in range(0, len(order), self.rows):
            chosen = list(order[start : start + self.rows])
            seeds = [self.calls * len(order) + row for row in chosen]
            with row_seeds(seeds) if self.seeded else contextlib.nullcontext():
                made = self.generate(
                    input_ids[chosen], attention_mask=attention_mask[chosen],
                    return_dict_in_generate=True, output_hidden_states=True, **more,
                )  # fmt: skip
            tokens = made.sequences[:, width:]
            # The last layer's state of the last position of each step.
            states = torch.stack([step[-1][:, -1] for step in made.hidden_states], 1)
            chances = of_trl._ChunkedLogProbFunction.apply(
                states.flatten(0, 1), self.model.lm_head.weight, None, tokens.flatten(), 1.0,
                of_trl._CHUNKED_LOGPROB_CHUNK_SIZE, None, 1.0, ("log_probs",),
            )[0].view(tokens.shape)  # fmt: skip
            for row, of, own in zip(chosen, tokens, chances, strict=True):
                found[row, width : width + len(of)] = of
                self.noted[tuple(of.tolist())] = own
        self.calls += 1
        return found

    def at(self, tokens: list[int]) -> Any:
        """Return the log-probabilities of a completion, of which padding is cut off."""
        return next(v for k, v in self.noted.items() if list(k[: len(tokens)]) == tokens)


def trainer_class() -> Any:
    """Return TRL's trainer, which also notes log-probabilities."""
    from trl import GRPOTrainer

    class Trainer(GRPOTrainer):  # type: ignore[misc]
        """Keeps what it computes before each step."""

        def _get_per_token_logps_and_entropies(
            self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **more: Any
        ) -> Any:
            found = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, **more
            )
            differ, total, largest = 0, 0, 0.0
            for row, seen, own in zip(input_ids[:, -logits_to_keep:],
                                      attention_mask[:, -logits_to_keep:].bool(), found[0],
                                      strict=True):  # fmt: skip
                count = int(seen.sum())
                sampled = self.sampler.at(row[:count].tolist())[:count]
                apart = (own.detach()[:count].double() - sampled.double()).abs()
                differ += int((apart > 0).sum())
                total += count
                largest = max(largest, float(apart.max()))
            self.steps.append({"differ": differ, "total": total, "largest": largest})
            return found

    return Trainer


def tokenizer() -> Any:
    """Return a tokenizer of made-up words."""
    import tokenizers
    import transformers

    words = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{i}": i for i in range(3, WORDS)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>",
        padding_side="left",
    )  # fmt: skip


def model() -> Any:
    """Return the policy, with the same weights every time."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=96, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def reward(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
    """Return the share of even numbers in each completion."""
    return [sum(t % 2 == 0 for t in row) / max(len(row), 1) for row in completion_ids]


def prompts(count: int) -> list[dict[str, str]]:
    """Return prompts of 3 to 17 words."""
    chosen = random.Random(5)
    return [
        {"prompt": " ".join(f"w{chosen.randrange(3, WORDS)}" for _ in range(chosen.randint(3, 17)))}
        for _ in range(count)
    ]


def placed(module: Any, args: Any, given: dict[str, Any]) -> Any:
    """Tell a model the positions of the tokens behind padding, before it runs."""
    mask = given.get("attention_mask")
    if given.get("position_ids") is None and mask is not None and mask.dim() == 2:
        given["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    return args, given


def run(
    library: str, rows: int, backwards: bool, threads: int, steps: int, *, places: bool = True
) -> dict[str, Any]:
    """Train, and return the rewards, the differences of each step, and the digest of the weights.

    Args:
        library: under which the sampler and the trainer run.
        rows: that are sampled at a time.
        backwards: whether the last are sampled first.
        threads: of torch.
        steps: of the optimizer.
        places: whether the trainer's model is told positions.
    """
    import datasets
    import transformers
    import trl

    policy = model()
    sampler = Sampler(policy, rows, backwards, seeded=library == "repro")
    policy.generate = sampler
    if places:
        policy.model.register_forward_pre_hook(placed, with_kwargs=True)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with tempfile.TemporaryDirectory() as folder, patched(library, ranks="ignore"):
            settings = trl.GRPOConfig(
                output_dir=folder, use_cpu=True, bf16=False, report_to="none", seed=3,
                per_device_train_batch_size=4 * PROMPTS, num_generations=4, max_steps=steps,
                max_completion_length=GENERATED, learning_rate=3e-3, beta=0.0, temperature=1.0,
                save_strategy="no", logging_steps=1, disable_tqdm=True, loss_type="grpo",
            )  # fmt: skip
            trainer = trainer_class()(
                policy, reward_funcs=reward, args=settings, processing_class=tokenizer(),
                train_dataset=datasets.Dataset.from_list(prompts(64)),
            )  # fmt: skip
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.sampler, trainer.steps = sampler, []
            trainer.train()
    finally:
        torch.set_num_threads(before)
    weights = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    return {
        "rows": rows, "backwards": backwards, "threads": threads, "steps": trainer.steps,
        "rewards": [r["reward"] for r in trainer.state.log_history if "reward" in r],
        "digest": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
    }  # fmt: skip


def measure(steps: int = STEPS) -> dict[str, Any]:
    """Train twice under each library."""
    trl = package("trl", "The experiment on policies")
    import transformers

    libraries = {name: [run(name, *how, steps) for how in RUNS] for name in LIBRARIES}
    without = run("repro", *RUNS[0], steps, places=False)
    versions = {"trl": trl.__version__, "transformers": transformers.__version__}
    return {"libraries": libraries, "without_places": without, "trainer": versions}


def judge(found: dict[str, Any]) -> bool:
    """Print what differs, and tell whether all agrees under repro."""
    for name, (one, other) in found["libraries"].items():
        steps = [*one["steps"], *other["steps"]]
        apart = sum(s["differ"] for s in steps)
        print(
            f"{name}: {apart} of {sum(s['total'] for s in steps)} log-probabilities differ, by up "
            f"to {max(s['largest'] for s in steps):.2g}; rewards "
            f"{'equal' if one['rewards'] == other['rewards'] else 'differ'}, weights "
            f"{'equal' if one['digest'] == other['digest'] else 'differ'}; "
            f"{one['rewards'][0]:.2f} -> {one['rewards'][-1]:.2f}"
        )
    one, other = found["libraries"]["repro"]
    same = one["rewards"] == other["rewards"] and one["digest"] == other["digest"]
    return same and not any(s["differ"] for s in (*one["steps"], *other["steps"]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("on_policy", __doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args(arguments)
    return command.run("on_policy", options, lambda: measure(options.steps), judge)


if __name__ == "__main__":
    raise SystemExit(main())
