# SPDX-License-Identifier: Apache-2.0
"""Fusion plans by cost, after SystemDS.

Boehm et al., *On Optimizing Operator Fusion Plans for Large-Scale Machine Learning in SystemML*,
PVLDB 11(12), 2018.
"""
