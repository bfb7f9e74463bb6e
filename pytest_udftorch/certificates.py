# SPDX-License-Identifier: Apache-2.0
"""Certificates of correct rounding.

See docs/verification.md.
"""

from __future__ import annotations

from pytest_udftorch.verify.certificate import (
    Certificate,
    CertificateCompleteError,
    CertificateEditedError,
    CertificateError,
    CertificateExportError,
    CertificateMismatchError,
    CertificateTruncatedError,
    Run,
)
from pytest_udftorch.verify.certificate_file import load, save
from pytest_udftorch.verify.export import fpcore, herbie_platform
from pytest_udftorch.verify.merging import comparison_table, merge

__all__ = [
    "Certificate",
    "CertificateCompleteError",
    "CertificateEditedError",
    "CertificateError",
    "CertificateExportError",
    "CertificateMismatchError",
    "CertificateTruncatedError",
    "Run",
    "comparison_table",
    "fpcore",
    "herbie_platform",
    "load",
    "merge",
    "save",
]
