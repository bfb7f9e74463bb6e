# SPDX-License-Identifier: Apache-2.0
"""Which operator makes two runs differ, and which side is right?"""
