# SPDX-License-Identifier: Apache-2.0
"""Which function, in which layer and operator, makes a test or metric differ?"""
