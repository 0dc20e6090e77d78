# SPDX-License-Identifier: Apache-2.0
"""Files as sources: which ones a path means, what they hold, how they are unpacked, what may still grow."""
