# SPDX-License-Identifier: Apache-2.0
"""Which executor runs which layers fastest?"""
