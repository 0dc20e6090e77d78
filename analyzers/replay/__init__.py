# SPDX-License-Identifier: Apache-2.0
"""The simulator: phases and other tasks that run again, with other durations. There is one in the project."""
