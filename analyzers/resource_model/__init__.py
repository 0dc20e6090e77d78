# SPDX-License-Identifier: Apache-2.0
"""The resource model: what phases use, as monitors saw it, from all places where they tell it."""
