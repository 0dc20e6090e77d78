# SPDX-License-Identifier: Apache-2.0
"""One module a format: from bytes to batches of columns."""
