# SPDX-License-Identifier: Apache-2.0
"""Certificates of correct rounding.

See docs/verification.md.
"""

from __future__ import annotations

from pytest_udftorch.verify.certificate import (
    Certificate,
    CertificateEditedError,
    CertificateError,
    CertificateMismatchError,
    CertificateTruncatedError,
    Run,
    comparison_table,
    load,
    merge,
    save,
)

__all__ = [
    "Certificate",
    "CertificateEditedError",
    "CertificateError",
    "CertificateMismatchError",
    "CertificateTruncatedError",
    "Run",
    "comparison_table",
    "load",
    "merge",
    "save",
]
