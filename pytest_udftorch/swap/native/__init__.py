# SPDX-License-Identifier: Apache-2.0
"""How does Python talk to the runtime in C? What does a pass get told?"""
