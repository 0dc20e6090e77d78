# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file: the page (`page.py`) and its charts (`charts/`)."""
