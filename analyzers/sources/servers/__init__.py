# SPDX-License-Identifier: Apache-2.0
"""Servers that are read over the network: one client, and one module or more for each back end."""
