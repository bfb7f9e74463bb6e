# SPDX-License-Identifier: Apache-2.0
"""Do trainers end with the same weights without a break and from a checkpoint on?

    python -m benches.experiments.resumed_trainers [--store FILE]

transformers' ``Trainer``, Lightning and accelerate train a small Llama for six steps:
once on two threads without a break, and once on one thread, in two parts, with their own
checkpoint between them. As a control, accelerate also goes on from the weights alone. It needs the
extra ``trainers``.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from benches.experiments import command
from pytest_udftorch import patched
from pytest_udftorch.base.optional import package

LIBRARIES: Final = ("std", "repro")
STEPS: Final = 6
ROWS, LENGTH, WORDS = 8, 32, 60


def model() -> Any:
    """Return a small language model, with the same weights every time."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=96, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, attention_dropout=0.0, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def rows() -> list[dict[str, Any]]:
    """Return made-up sentences."""
    words = torch.randint(
        3, WORDS, (ROWS * STEPS, LENGTH), generator=torch.Generator().manual_seed(1)
    )
    return [{"input_ids": row, "labels": row} for row in words]


def digest(policy: Any) -> str:
    """Return the SHA-256 of all weights."""
    weights = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    return hashlib.sha256(weights.numpy().tobytes()).hexdigest()


def with_transformers(folder: Path, stops: Sequence[int]) -> Any:
    """Train by transformers' ``Trainer``."""
    import transformers

    policy = model()
    for last in stops:
        settings = transformers.TrainingArguments(
            output_dir=str(folder), use_cpu=True, max_steps=STEPS, save_steps=STEPS // 2,
            per_device_train_batch_size=ROWS, report_to="none", disable_tqdm=True, seed=3,
            learning_rate=1e-3, logging_strategy="no",
        )  # fmt: skip

        class Stop(transformers.TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                control.should_training_stop = state.global_step >= last  # noqa: B023

        trainer = transformers.Trainer(policy, settings, train_dataset=rows(), callbacks=[Stop()])
        trainer.remove_callback(transformers.PrinterCallback)
        resume = str(folder / f"checkpoint-{STEPS // 2}") if last != stops[0] else None
        trainer.train(resume_from_checkpoint=resume)
        policy = trainer.model if last == STEPS else model()
    return policy


def with_lightning(folder: Path, stops: Sequence[int]) -> Any:
    """Train by Lightning."""
    lightning = package("lightning", "Training by Lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.policy = model()

        def training_step(self, batch: Any, _: int) -> Any:
            return self.policy(**batch).loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    path = folder / "one.ckpt"
    module = Module()
    for last in stops:
        lightning.seed_everything(3, verbose=False)
        trainer = lightning.Trainer(
            max_epochs=2 * last // STEPS, accelerator="cpu", logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        # Its checkpoint has no place in the data: each part is an epoch.
        loader = torch.utils.data.DataLoader(rows()[: ROWS * STEPS // 2], batch_size=ROWS)
        module = Module()
        trainer.fit(module, loader, ckpt_path=str(path) if path.exists() else None)
        trainer.save_checkpoint(path)
    return module.policy


def with_accelerate(folder: Path, stops: Sequence[int], *, moments: bool = True) -> Any:
    """Train in a loop of accelerate; without moments the optimizer forgets its state."""
    accelerate = package("accelerate", "Training in a loop of accelerate")

    begin = 0
    for last in stops:
        accelerator = accelerate.Accelerator(cpu=True)
        accelerate.utils.set_seed(3)
        policy = model()
        optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
        loader = torch.utils.data.DataLoader(rows(), batch_size=ROWS)
        policy, optimizer, loader = accelerator.prepare(policy, optimizer, loader)
        if begin:
            accelerator.load_state(str(folder / "state"))
            if not moments:
                optimizer.optimizer.state.clear()
        for number, batch in enumerate(loader):
            if begin <= number < last:
                accelerator.backward(policy(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.save_state(str(folder / "state"))
        begin = last
    return policy


TRAINERS: Final[dict[str, Callable[[Path, Sequence[int]], Any]]] = {
    "transformers": with_transformers,
    "lightning": with_lightning,
    "accelerate": with_accelerate,
    "accelerate, weights alone": functools.partial(with_accelerate, moments=False),
}


def runs(library: str) -> Iterator[dict[str, Any]]:
    """Yield the digests of a trainer's two runs."""
    for name, train in TRAINERS.items():
        version = importlib.metadata.version(name.partition(",")[0])
        found = {"library": library, "trainer": name, "version": version}
        before = torch.get_num_threads()
        for how, threads, stops in (("through", 2, [STEPS]), ("resumed", 1, [STEPS // 2, STEPS])):
            torch.set_num_threads(threads)
            try:
                with tempfile.TemporaryDirectory() as folder, patched(library, ranks="ignore"):
                    found[how] = digest(train(Path(folder), stops))
            finally:
                torch.set_num_threads(before)
        print(f"{library} {name}: {found['through'] == found['resumed']}", file=sys.stderr)
        yield found


def measure() -> dict[str, Any]:
    """Train by each trainer, twice, under each library."""
    return {"steps": STEPS, "runs": [one for library in LIBRARIES for one in runs(library)]}


def judge(found: dict[str, Any]) -> bool:
    """Tell whether all agree under repro."""
    ours = [one for one in found["runs"] if one["library"] == "repro"]
    return all(
        (one["through"] == one["resumed"]) is not one["trainer"].endswith("weights alone")
        for one in ours
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    options = command.parser("resumed_trainers", __doc__).parse_args(arguments)
    return command.run("resumed_trainers", options, measure, judge)


if __name__ == "__main__":
    raise SystemExit(main())
