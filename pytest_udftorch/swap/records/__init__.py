# SPDX-License-Identifier: Apache-2.0
"""What is a profile's file made of?"""
