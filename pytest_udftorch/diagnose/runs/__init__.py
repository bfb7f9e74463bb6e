# SPDX-License-Identifier: Apache-2.0
"""What is run, on which side, and with which functions?"""
