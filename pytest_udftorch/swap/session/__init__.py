# SPDX-License-Identifier: Apache-2.0
"""Where is a slot bound, and where is it restored? What is open now?"""
