# SPDX-License-Identifier: Apache-2.0
"""What is the correctly rounded result? Which inputs are worth testing?"""
