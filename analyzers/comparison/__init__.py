# SPDX-License-Identifier: Apache-2.0
"""Two runs beside each other (`grademl diff`), and one held against what is expected (`grademl check`)."""
