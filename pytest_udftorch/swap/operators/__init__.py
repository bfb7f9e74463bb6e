# SPDX-License-Identifier: Apache-2.0
"""What is known of each operator of ATen?"""
