# SPDX-License-Identifier: Apache-2.0
"""Pipelines of rows, run tile by tile: cut into parts, scheduled on threads, and joined.

As DAPHNE does (Damme et al., DAPHNE: An Open and Extensible System Infrastructure for Integrated
Data Analysis Pipelines, CIDR 2022).
"""
