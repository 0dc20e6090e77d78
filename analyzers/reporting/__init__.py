# SPDX-License-Identifier: Apache-2.0
"""Answers as documents, and documents as text, tables and JSON."""
