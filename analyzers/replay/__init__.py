# SPDX-License-Identifier: Apache-2.0
"""What would have been: phases and other tasks that run again with other durations. The project's one simulator."""
