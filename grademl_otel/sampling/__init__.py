# SPDX-License-Identifier: Apache-2.0
"""Reading counters of hardware and hosts at a steady pace, each source by itself.

Providers (`grademl_otel.instrumentations.gpu`, `.host`, `.interconnect`) find sources; a sampler gives each a
thread and a deadline; what they read goes out as metrics and into the resource tables of window spans.
"""
