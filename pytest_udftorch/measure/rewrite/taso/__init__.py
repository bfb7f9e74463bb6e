# SPDX-License-Identifier: Apache-2.0
"""Substitutions that are generated, proved and searched through.

Source of the method: Jia et al., TASO: Optimizing Deep Learning Computation with Automatic
Generation of Graph Substitutions, SOSP 2019.
"""
