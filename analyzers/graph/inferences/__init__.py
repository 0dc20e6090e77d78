# SPDX-License-Identifier: Apache-2.0
"""What nobody recorded: dependencies that steps show by repeating, barriers, ties of tables."""
