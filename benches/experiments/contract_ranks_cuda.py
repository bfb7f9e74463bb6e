# SPDX-License-Identifier: Apache-2.0
"""Whether a model ends with the same weights on one GPU and on several, in any layout.

    python -m benches.experiments.contract_ranks_cuda [--store FILE] [--seconds N]

A decoder of four layers and a convolutional net learn for 50 steps, in float32 and, under autocast,
in bfloat16:

- on one GPU, also in two micro-batches, and on the CPU;
- on two GPUs over NCCL with DistributedDataParallel, fully_shard (FSDP2), tensor parallelism
  (colwise and rowwise), and the same with sequence parallelism;
- on four ranks with fully_shard over the latter two, through NCCL where there are four GPUs,
  otherwise through gloo on the CPU, beside the runs on GPUs.

One run stops twice and goes on, from its checkpoint, in another layout, and ends on one GPU. Stock
does the same without the tree.

What was measured is stored after each row, so a run that is cut off leaves what it had.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any, Final

import torch
from torch import distributed
from torch.distributed.checkpoint import state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from benches import stored
from benches.data.models.llama import Llama, Net, Size
from benches.experiments import command
from benches.experiments.contract_models import digest_of, one_digest
from pytest_udftorch import patched
from pytest_udftorch.reproduce import GradientTree, tree_layout

LIBRARIES: Final = ("repro", "std")
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STEPS: Final = 50
SEED: Final = 7
#: Steps that are not timed: they compile kernels, and the first counts bytes.
WARM: Final = 10
#: Threads of each rank.
THREADS: Final = 4
#: Sizes of the decoder; only the number of layers is a power of two.
LARGE: Final = Size(576, 12, 1504, 4, 320)
#: Seconds that a run may take, by default.
SECONDS: Final = 285.0
#: The digest of a row whose ranks end with several.
_DIFFER: Final = "ranks differ"
#: Share of the time that is left which a place may take while others wait.
SHARE: Final = 0.6


@dataclass(frozen=True)
class Scale:
    """How large the models and their batches are.

    Attributes:
        size: of the decoder.
        batch: windows of the decoder's batch.
        length: symbols of a window.
        images: of the convolutional net's batch; in bfloat16 512 for each part of it, or more.
    """

    size: Size = LARGE
    batch: int = 16
    length: int = 128
    images: int = 2048

    def label(self, model: str) -> str:
        """Return a model in words."""
        if model == "net":
            return f"convolutional net, two linear layers, batch {self.images}, SGD with momentum"
        s = self.size
        return (
            f"decoder like Llama's: {s.layers} layers of {s.hidden}, {s.heads} heads, SwiGLU of "
            f"{s.inner}, {self.batch} windows of {self.length}, AdamW"
        )


#: What a test runs on the CPU: one layer of each kind, and no power of two.
TINY: Final = Scale(Size(96, 4, 320, 1, 80), batch=16, length=64, images=256)


@dataclass(frozen=True)
class Leg:
    """Some steps of a run in a layout.

    Attributes:
        layout: ``one``, ``parts`` (two micro-batches), ``ddp``, ``fsdp``, ``tp``, ``sp``,
            ``fsdp+tp`` or ``fsdp+sp``.
        begin: number of the first step.
        end: number of the step after the last.
        stopped: whether the run goes on from a checkpoint unless it begins, and leaves one unless
            it ends.
    """

    layout: str
    begin: int = 0
    end: int = STEPS
    stopped: bool = False


@dataclass(frozen=True)
class Place:
    """Where legs run: so many ranks on a device, joined by a backend."""

    device: str
    ranks: int
    backend: str
    legs: tuple[Leg, ...]


@dataclass(frozen=True)
class Order:
    """What ranks are to do.

    Attributes:
        place: where.
        out: the folder of what each rank found.
        folder: that of checkpoints.
        cases: pairs of a model and a dtype.
        libraries: to do it under.
        scale: of the models.
        steps: of a whole run.
    """

    place: Place
    out: str
    folder: str
    cases: tuple[tuple[str, str], ...] = tuple(product(("llama", "net"), DTYPES))
    libraries: tuple[str, ...] = LIBRARIES
    scale: Scale = field(default_factory=Scale)
    steps: int = STEPS


def _read(order: dict[str, Any]) -> Order:
    place, scale = order["place"], order["scale"]
    legs = tuple(Leg(**leg) for leg in place["legs"])
    return Order(
        **{
            **order,
            "place": Place(**{**place, "legs": legs}),
            "scale": Scale(**{**scale, "size": Size(*scale["size"])}),
        }
    )


def places(gpus: int, steps: int = STEPS) -> list[Place]:
    """Return where the legs run, in an order in which checkpoints are left before they are read.

    Those of the CPU run beside the others.
    """

    def whole(*layouts: str) -> tuple[Leg, ...]:
        return tuple(Leg(name, end=steps) for name in layouts)

    first, second = steps // 3, 2 * steps // 3
    begins = Leg("fsdp", 0, first, stopped=True)
    goes_on = Leg("sp", first, second, stopped=True)
    ends = Leg("one", second, steps, stopped=True)
    every, both = whole("ddp", "fsdp", "tp", "sp"), whole("fsdp+tp", "fsdp+sp")
    one = Place("cuda", 1, "", (*whole("one"), ends, *whole("parts")))
    if gpus > 3:
        return [
            Place("cuda", 2, "nccl", (*every, begins)),
            Place("cuda", 4, "nccl", (*every, *both, goes_on)),
            one,
        ]
    # What gloo gathers into one tensor on GPUs ends the process (pytorch/pytorch#152645), and
    # fully_shard gathers so.
    device, backend = ("cuda", "nccl") if gpus > 1 else ("cpu", "gloo")
    return [
        Place(device, 2, backend, (*every, begins, goes_on)),
        one,
        Place("cpu", 4, "gloo", both),
    ]


# On one rank ------------------------------------------------------------------------------


def _plan(model: str, *, sequence: bool) -> dict[str, Any]:
    """Return which style each layer of a model has under tensor parallelism."""
    if model == "net":
        return {"up": ColwiseParallel(), "down": RowwiseParallel()}
    taken = {"input_layouts": Shard(1)} if sequence else {}
    given = {"output_layouts": Shard(1)} if sequence else {}
    attention, feed = "layers.*.attention", "layers.*.feed"
    plan: dict[str, Any] = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), **given),
        "head": ColwiseParallel(output_layouts=Replicate(), **taken),
    }
    for name in (*(f"{attention}.{n}" for n in "qkv"), f"{feed}.gate", f"{feed}.up"):
        plan[name] = ColwiseParallel(**taken)
    for name in (f"{attention}.o", f"{feed}.down"):
        plan[name] = RowwiseParallel(**given)
    if sequence:
        for name in ("norm", "layers.*.norm1", "layers.*.norm2"):
            plan[name] = SequenceParallel()
    return plan


def _shard(model: Any, mesh: Any) -> None:
    for layer in getattr(model, "layers", ()):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def laid_out(model: Any, name: str, layout: str, place: Place) -> tuple[Any, int, int]:
    """Return a model in a layout, and which of how many parts of the batch this rank has."""
    rank, ranks = (distributed.get_rank(), place.ranks) if place.backend else (0, 1)
    if layout in ("one", "parts"):
        return model, 0, 1
    if layout == "ddp":
        return DistributedDataParallel(model), rank, ranks
    if layout == "fsdp":
        _shard(model, init_device_mesh(place.device, (ranks,)))
        return model, rank, ranks
    plan = _plan(name, sequence="sp" in layout)
    if "fsdp" not in layout:
        parallelize_module(model, init_device_mesh(place.device, (ranks,)), plan)
        return model, 0, 1
    mesh = init_device_mesh(place.device, (2, ranks // 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], plan)
    _shard(model, mesh["dp"])
    return model, mesh["dp"].get_local_rank(), 2


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank sends, by ring algorithms where torch chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented
        self.bytes += _sent(func.namespace, func.overloadpacket.__name__, args)
        return func(*args, **(kwargs or {}))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors(v)] if isinstance(value, list | tuple) else []


def _sent(namespace: str, name: str, args: Any) -> float:
    """Return how many bytes a collective sends from each rank."""
    ranks = distributed.get_world_size()
    if namespace == "_c10d_functional":
        group = args[-1] if isinstance(args[-1], str) else None
        mine = _tensors(args[0])
    elif namespace == "c10d":
        group = next((a for a in args if isinstance(a, torch.ScriptObject)), None)
        # Those with a result have it first.
        mine = _tensors(args[0] if "reduce_" in name and "scatter" not in name else args[1])
    else:
        return 0.0
    if group is not None:
        ranks = _size(group)
    size = sum(t.nbytes for t in mine)
    if "wait" in name or ranks < 2:
        return 0.0
    if "gather" in name:
        return size * (ranks - 1)
    share = (ranks - 1) / ranks
    if "allreduce" in name or "all_reduce" in name:
        return 2 * size * share
    return size * share if "scatter" in name or "alltoall" in name or "all_to_all" in name else 0.0


def _size(group: Any) -> int:
    if isinstance(group, str):
        group = distributed.distributed_c10d._resolve_process_group(group)
    else:
        group = distributed.ProcessGroup.unbox(group)
    return int(group.size())


def _batch(model: str, step: int, scale: Scale) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what a step learns from: the same on all ranks."""
    draw = torch.Generator().manual_seed(1000 * SEED + step)
    if model == "net":
        images = torch.rand(scale.images, 3, 12, 12, generator=draw)
        return images, torch.randint(10, (scale.images,), generator=draw)
    text = torch.randint(scale.size.symbols, (scale.batch, scale.length + 1), generator=draw)
    return text[:, :-1], text[:, 1:]


def digest(model: Any) -> str:
    """Return SHA-256 of all weights."""
    core = model.module if isinstance(model, DistributedDataParallel) else model
    weights = core.parameters()
    return digest_of(w.full_tensor() if isinstance(w, DTensor) else w for w in weights)


def _checkpoint(model: Any, optimizer: Any, path: Path, *, save: bool) -> None:
    options = state_dict.StateDictOptions(full_state_dict=True, cpu_offload=True)
    if not save:
        weights, state = torch.load(path, map_location="cpu")
        state_dict.set_state_dict(
            model, optimizer, model_state_dict=weights, optim_state_dict=state, options=options
        )
        return
    found = state_dict.get_state_dict(model, optimizer, options=options)
    if not distributed.is_initialized() or distributed.get_rank() == 0:
        torch.save(found, path)
    if distributed.is_initialized():
        distributed.barrier()


def trained(order: Order, case: tuple[str, str], leg: Leg, path: Path, tree: bool) -> Any:
    """Do the steps of a leg in this rank.

    Args:
        order: what the ranks do.
        case: model and dtype.
        leg: of a run.
        path: of its checkpoint.
        tree: whether ranks add in the tree.

    Returns:
        ``digest``, of the weights at the end; ``sent``, the bytes of a step; and ``step_ns``, the
        times of the steps, or None for few.
    """
    (name, dtype), place = case, order.place
    torch.manual_seed(SEED)
    bare = (Llama(order.scale.size) if name == "llama" else Net()).to(place.device)
    model, part, parts = laid_out(bare, name, leg.layout, place)
    batches = 2 if leg.layout == "parts" else 1
    if tree:
        tree_layout(model, micro_batches=batches)
    made: Any = torch.optim.AdamW if name == "llama" else torch.optim.SGD
    options = {"lr": 1e-3} if name == "llama" else {"lr": 0.02, "momentum": 0.9}
    # On GPUs lists of tensors are the default, which may not mix a DTensor with others.
    optimizer = made(model.parameters(), foreach=False, **options)
    if leg.stopped and leg.begin:
        _checkpoint(model, optimizer, path, save=False)

    def learn(x: torch.Tensor, y: torch.Tensor) -> None:
        with torch.autocast(place.device, torch.bfloat16, enabled=dtype != "float32"):
            found = model(x)
        F.cross_entropy(found.flatten(0, -2), y.flatten()).backward()

    def step(number: int) -> None:
        x, y = (t.chunk(parts)[part].to(place.device) for t in _batch(name, number, order.scale))
        optimizer.zero_grad()
        if batches == 1:
            learn(x, y)
        else:
            sums = GradientTree(model.parameters())
            for given in zip(x.chunk(batches), y.chunk(batches), strict=True):
                learn(*given)
                sums.add()
            sums.finish()
        optimizer.step()
        if place.device == "cuda":
            torch.cuda.synchronize()

    times, sent = [], 0.0
    for number in range(leg.begin, leg.end):
        begin = time.perf_counter_ns()
        if place.backend and number == leg.begin:
            with Sent() as counted:
                step(number)
            sent = counted.bytes
        else:
            step(number)
        times.append(time.perf_counter_ns() - begin)
    if leg.stopped and leg.end < order.steps:
        _checkpoint(model, optimizer, path, save=True)
    timed = stored.summary(times[WARM:]) if len(times) > 2 * WARM else None
    return {"digest": digest(model), "sent": sent, "step_ns": timed}


def child(order: Order) -> Iterator[dict[str, Any]]:
    """Do the legs of a place under each library in this rank."""
    place = order.place
    torch.set_num_threads(THREADS if place.device == "cuda" else torch.get_num_threads())
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    if place.device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    if place.backend and not distributed.is_initialized():
        distributed.init_process_group(place.backend)
    for (name, dtype), library, leg in product(order.cases, order.libraries, place.legs):
        if name == "net" and "sp" in leg.layout:
            # Images have no sequence.
            leg = replace(leg, layout=leg.layout.replace("sp", "tp"))
            if not leg.stopped:
                continue
        path = Path(order.folder, f"{name}-{dtype}-{library}")
        with patched(library):
            found = trained(order, (name, dtype), leg, path, library == "repro")
        yield {
            "device": place.device, "ranks": place.ranks, "backend": place.backend,
            "layout": "stopped" if leg.stopped else leg.layout, "end": leg.end,
            "library": library, "model": name, "dtype": dtype, **found,
        }  # fmt: skip
    if place.backend:
        distributed.destroy_process_group()


# All of them ------------------------------------------------------------------------------


def _rows(each: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """Return the rows that all ranks have found: those of the slowest, with one digest or none.

    The bytes are those of the rank that sends most.
    """
    rows = []
    for lines in zip(*each, strict=False):
        same = [json.loads(line) for line in lines]
        slowest = max(same, key=lambda row: (row["step_ns"] or {"median": 0})["median"])
        slowest = {**slowest, "sent": max(row["sent"] for row in same)}
        one = len({row["digest"] for row in same}) == 1
        rows.append(slowest if one else {**slowest, "digest": _DIFFER})
    return rows


def launched(order: Order, row: Callable[[dict[str, Any]], None], seconds: float) -> str:
    """Start the ranks of a place, and hand on each row as soon as all ranks have it.

    Args:
        order: of the ranks; its ``out`` is replaced.
        row: takes a row for each library, model, dtype and leg.
        seconds: after which the ranks are ended.

    Returns:
        what went wrong, or nothing.
    """
    place, until = order.place, time.monotonic() + seconds
    ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={place.ranks}"]
    # Elastic ranks get one thread; those of the CPU share what the machine has.
    share = max(1, 3 * _cores() // (4 * max(2, place.ranks)))
    env = {
        **os.environ, "OMP_WAIT_POLICY": "passive", "NCCL_NVLS_ENABLE": "0",
        "OMP_NUM_THREADS": str(THREADS if place.device == "cuda" else share),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as out:
        what = ["-m", __spec__.name, "--here", json.dumps(asdict(replace(order, out=out)))]
        said, seen = Path(out, "said"), 0
        with said.open("w") as log:
            run = subprocess.Popen(
                [sys.executable, *(ranks if place.backend else []), *what],
                env=env, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            while True:
                ended = run.poll() is not None
                files = [Path(out, str(rank)) for rank in range(place.ranks)]
                whole = [f.read_text().rpartition("\n")[0] if f.exists() else "" for f in files]
                rows = _rows([text.splitlines() for text in whole])
                for found in rows[seen:]:
                    row(found)
                seen = len(rows)
                if ended or time.monotonic() > until:
                    break
                time.sleep(0.2)
            if not ended:
                run.terminate()
                run.wait()
                return f"ended after {seconds:.0f} s"
        if not run.returncode:
            return ""
        lines = said.read_text().splitlines()
        # Of several ranks, what the launcher says of them comes last.
        print("\n".join(lines[-60:]), file=sys.stderr, flush=True)
        errors = [x for x in lines if re.search(r"Error: .", x) and "ChildFailed" not in x]
        return errors[0] if errors else f"status {run.returncode}"


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def measured(
    order: Order, chosen: Sequence[Place], row: Callable[[dict[str, Any]], None], until: float
) -> list[str]:
    """Run places one after the other until a time; return what went wrong."""
    failed = []
    for number, place in enumerate(chosen):
        left = until - time.monotonic()
        if number + 1 < len(chosen):
            left *= SHARE
        why = launched(replace(order, place=place), row, left) if left > 5 else "no time was left"
        if why:
            failed.append(f"{place.device}, {place.ranks} ranks, {place.backend}: {why}")
            print(failed[-1], flush=True)
    return failed


def measure(store: Callable[[dict[str, Any]], None], seconds: float) -> dict[str, Any]:
    """Return the digests of every run, the times of its steps and the bytes that it sent."""
    from benches.experiments.cuda_digests import gpu

    gpus, begin, lock = torch.cuda.device_count(), time.monotonic(), Lock()
    with patched("repro"):
        pass  # builds what is not built, once and not in each rank
    scale = Scale()
    figures: dict[str, Any] = {
        "device": gpu(), "gpus": gpus, "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "models": {n: {"label": scale.label(n), "steps": STEPS} for n in ("llama", "net")},
        "failed": [], "rows": [],
    }  # fmt: skip

    def row(found: dict[str, Any]) -> None:
        if found["end"] != STEPS:
            return  # Legs that were stopped have no weights of their own.
        with lock:
            figures["rows"].append(found)
            store(figures)
            _show(found, time.monotonic() - begin)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        chosen = places(gpus)
        order = Order(chosen[0], "", folder)

        def run(on_cpu: bool) -> list[str]:
            those = [p for p in chosen if (p.device == "cpu") is on_cpu]
            return measured(order, those, row, begin + seconds)

        def run_on_cpu() -> list[str]:
            one = replace(order, libraries=("repro",))
            alone = [Place("cpu", 1, "", (Leg("one"),))]
            return measured(one, alone, row, begin + seconds) + run(True)

        runs = [pool.submit(run, False), pool.submit(run_on_cpu)]
        figures["failed"] = [why for run in runs for why in run.result()]
    return figures


def _show(row: dict[str, Any], seconds: float) -> None:
    timed = f"{row['step_ns']['median'] / 1e6:.1f} ms" if row["step_ns"] else ""
    print(
        f"{seconds:.0f} s:",
        *(row[k] for k in ("device", "ranks", "backend", "layout", "library", "model", "dtype")),
        row["digest"][:12], timed, f"{row['sent'] / 1e6:.2f} MB", flush=True,
    )  # fmt: skip


def same(rows: Sequence[dict[str, Any]], library: str) -> bool:
    """Tell whether a library's runs of each model and dtype end with one digest."""
    differ = any(r["digest"] == _DIFFER for r in rows if r["library"] == library)
    return not differ and one_digest(rows, library, "dtype")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; return the exit status."""
    parser = command.parser("contract_ranks_cuda", __doc__)
    parser.add_argument("--here", metavar="JSON", help="be a rank that does what this says")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="after which what runs is ended"
    )
    options = parser.parse_args(arguments)
    if options.here:
        order = _read(json.loads(options.here))
        with Path(order.out, os.environ.get("RANK", "0")).open("w") as file:
            for row in child(order):
                print(json.dumps(row), file=file, flush=True)
        return 0

    def store(figures: dict[str, Any]) -> None:
        command.store("contract_ranks_cuda", options, figures)

    def judge(figures: dict[str, Any]) -> bool:
        rows = figures["rows"]
        return same(rows, "repro") and not same(rows, "std") and not figures["failed"]

    return command.run(
        "contract_ranks_cuda", options, lambda: measure(store, options.seconds), judge
    )


if __name__ == "__main__":
    sys.exit(main())
