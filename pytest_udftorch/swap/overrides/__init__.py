# SPDX-License-Identifier: Apache-2.0
"""Overriding torch's operators through the dispatcher."""
