# SPDX-License-Identifier: Apache-2.0
"""The measurements, each a command that stores its figures."""
