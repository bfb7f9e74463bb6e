# SPDX-License-Identifier: Apache-2.0
"""IREE: the exported program, translated to MLIR by torch-mlir and compiled for this CPU."""

from __future__ import annotations

import functools
import io
from typing import Any, Final

import torch
from torch import nn

from pytest_udftorch.measure.planning.executor import Executor, Run, importing, quiet
from pytest_udftorch.measure.planning.export import export


@functools.cache
def _device(threads: int) -> Any:
    """Return the configuration for a number of threads; each has a device of its own."""
    import iree.runtime

    # The flag holds for the devices that are made next.
    iree.runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
    return iree.runtime.Config(device=iree.runtime.get_device("local-task", cache=False))


def _make(model: nn.Module, inputs: tuple[Any, ...]) -> Run:
    with quiet():
        with importing("torch-mlir"):
            from torch_mlir import fx
        with importing("iree-base-compiler"):
            import iree.compiler
        with importing("iree-base-runtime"):
            import iree.runtime
        exported = export(model, inputs)
        module = fx.export_and_import(exported.program, output_type="linalg-on-tensors")
        code = io.BytesIO()
        module.operation.write_bytecode(code)
        compiled = iree.compiler.compile_str(
            code.getvalue(),
            target_backends=["llvm-cpu"],
            extra_args=["--iree-llvmcpu-target-cpu=host"],
        )
        device = _device(torch.get_num_threads())
        library = iree.runtime.VmModule.copy_buffer(device.vm_instance, compiled)
        loaded = iree.runtime.load_vm_module(library, device)

    def flat(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        found = loaded.main(*(t.numpy() for t in tensors))
        arrays = found if isinstance(found, tuple | list) else [found]
        return [torch.as_tensor(array.to_host()) for array in arrays]

    return exported.callable(flat)


EXECUTORS: Final = (
    Executor("iree", _make, frozenset({"cpu"}), frozenset({torch.float32, torch.float64})),
)
