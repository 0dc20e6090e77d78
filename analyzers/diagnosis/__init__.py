# SPDX-License-Identifier: Apache-2.0
"""Diagnosis: symptom, evidence, cause, fix, gain; and what was not judged, with how to get it.

`engine.diagnose` runs the rules; `finding` holds what they say.
"""
