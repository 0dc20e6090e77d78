# SPDX-License-Identifier: Apache-2.0
"""A real Chromium without a window, for what a page looks like and does; the system's, driven by Playwright.

Every page keeps what it complained of (`Watched.errors`) and what it asked for beyond itself
(`Watched.requests`): of a report both must stay empty.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .needed import cannot_be_had

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS: Final = (
    "--no-sandbox",  # which root cannot have
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # A browser looks for updates of its own, which are requests that no page made.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Watched:
    """A page, and what it did that a report must not do."""

    page: Page
    errors: list[str] = field(default_factory=list)
    """Errors of scripts, and what went to the console as an error or warning."""
    requests: list[str] = field(default_factory=list)
    """Addresses asked for, other than files, data and blobs."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; the test that asks is skipped, or fails on CI, where there is none."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        cannot_be_had("needs playwright: pip install playwright")
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        cannot_be_had("needs a Chromium on PATH: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(browser: Browser, address: Path | str, **options: Any) -> Iterator[Watched]:
    """Open a file or address; ``options`` are those of a Playwright context (viewport, color_scheme, ...)."""
    context = browser.new_context(**options)
    try:
        page = context.new_page()
        seen = Watched(page)
        page.on("pageerror", lambda error: seen.errors.append(str(error)))
        page.on(
            "console",
            lambda line: seen.errors.append(line.text) if line.type in ("error", "warning") else None,
        )
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:", "blob:"))
                else seen.requests.append(request.url)
            ),
        )
        page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        yield seen
    finally:
        context.close()
