# SPDX-License-Identifier: Apache-2.0
"""What does udf.toml say? Which functions and symbols does libtorch have?"""
