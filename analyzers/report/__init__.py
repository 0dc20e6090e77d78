# SPDX-License-Identifier: Apache-2.0
"""Answers as documents, and documents as text, tables and JSON. Called, it is `api.report`."""

from grademl_otel.analyzers.verbs import callable_as_verb

callable_as_verb(__name__)
