# SPDX-License-Identifier: Apache-2.0
"""From spans and metrics to bytes, and to where they go: file store, OTLP, the SDK's own provider."""
