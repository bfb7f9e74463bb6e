# SPDX-License-Identifier: Apache-2.0
"""What changed from one run, measurement or certificate to another, and is that too much?"""
