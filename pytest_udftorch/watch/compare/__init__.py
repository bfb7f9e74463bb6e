# SPDX-License-Identifier: Apache-2.0
"""What changed between two runs, benches or certificates, and is it too much?"""
