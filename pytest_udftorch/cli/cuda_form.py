# SPDX-License-Identifier: Apache-2.0
"""``udftorch setup cuda-form``."""

from __future__ import annotations

import argparse

from pytest_udftorch.cli.status import Subparsers


def add(actions: Subparsers) -> None:
    """Add ``udftorch setup cuda-form``."""
    parser = actions.add_parser(
        "cuda-form",
        help="time the forms for GPUs, double and float-float, on the GPU of this machine",
        description="Times a library's functions in double precision and in float-float on the "
        "GPU of this machine, and stores the result, by which cuda_form='auto' decides.",
    )
    parser.add_argument("library", nargs="?", default="corem", help="by default corem")
    parser.add_argument("--no-store", action="store_true", help="only print")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Time both forms, print the ratios and store the means."""
    from pytest_udftorch.errors import CudaFormError
    from pytest_udftorch.swap.toolchain.cuda_form import DOUBLE, FLOAT_FLOAT, store_measurement

    try:
        import torch

        from pytest_udftorch.measure.timing import cuda_forms
    except ImportError as error:
        raise CudaFormError(
            f"udftorch setup cuda-form needs torch and triton: {error}. Install a torch with CUDA."
        ) from error
    timings = cuda_forms.measure(options.library)
    name = torch.cuda.get_device_name()
    print(f"{name}: ns per element in double, in float-float, ratio")
    for timing in timings:
        double, pairs = timing.ns[DOUBLE], timing.ns[FLOAT_FLOAT]
        print(f"{timing.function:6} {double:9.4f} {pairs:9.4f} {timing.ratio:7.2f}")
    means = cuda_forms.mean_ns(timings)
    print(f"faster: {min(means, key=lambda form: means[form])}")
    if not options.no_store:
        print(f"stored in {store_measurement(name, means)}")
    return 0
