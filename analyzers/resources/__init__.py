# SPDX-License-Identifier: Apache-2.0
"""What there was to be used: resources of hosts, their metrics and capacities, whoever monitored them."""
