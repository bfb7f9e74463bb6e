# SPDX-License-Identifier: Apache-2.0
"""Which operators, dtypes and layouts does a session reach?"""
