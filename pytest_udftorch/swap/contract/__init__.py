# SPDX-License-Identifier: Apache-2.0
"""Which operators add and multiply in the order that docs/reproduce/contract.md fixes?"""
