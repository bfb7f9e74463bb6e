# SPDX-License-Identifier: Apache-2.0
"""The native runtime, and the manifests that the LLVM passes read."""
