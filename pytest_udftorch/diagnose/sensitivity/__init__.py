# SPDX-License-Identifier: Apache-2.0
"""How many bits of a result hold, and where are they lost?"""
