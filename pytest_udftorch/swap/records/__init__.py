# SPDX-License-Identifier: Apache-2.0
"""The records of what the functions did, and the file that holds them."""
