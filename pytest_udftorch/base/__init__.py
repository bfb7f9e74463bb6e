# SPDX-License-Identifier: Apache-2.0
"""Which tools know nothing of the subject?"""
