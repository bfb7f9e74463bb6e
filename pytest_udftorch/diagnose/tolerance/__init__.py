# SPDX-License-Identifier: Apache-2.0
"""How many bits does each function of each layer need?"""
