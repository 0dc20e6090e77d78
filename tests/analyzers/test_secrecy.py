# SPDX-License-Identifier: Apache-2.0
"""What is kept is left out of texts; the rest stays."""

from __future__ import annotations

import pytest

from grademl_otel.analyzers import secrecy
from grademl_otel.analyzers.errors import SourceError
from grademl_otel.analyzers.sources.base import SourceOptions


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrecy, "_kept", set())


def test_values_and_their_words_are_left_out() -> None:
    secrecy.keep(["Bearer abcdef.ghi", "team-a"])
    assert secrecy.hidden("Authorization: Bearer abcdef.ghi for team-a") == "Authorization: *** for ***"
    assert secrecy.hidden("token=abcdef.ghi") == "token=***"
    assert secrecy.hidden("nothing of it") == "nothing of it"


def test_short_words_are_no_secrets() -> None:
    secrecy.keep(["Basic a b", "one"])
    assert secrecy.hidden("one Basic thing, a b") == "one Basic thing, a b"


def test_headers_of_a_source_are_in_no_error() -> None:
    SourceOptions(headers={"Authorization": "Bearer abcdefghi"})
    assert str(SourceError("401 abcdefghi unknown")) == "401 *** unknown"
