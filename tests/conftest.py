# SPDX-License-Identifier: Apache-2.0
"""Fixtures that several folders share: the real servers. Which tests share a process is in `groups`.

A machine that cannot have a server skips the tests that need one and says why; on CI (`CI=true`) they fail.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .groups import (  # noqa: F401
    no_fork_beside_grpc,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_ignore_collect,
)
from .support import browser as browsers
from .support import servers
from .support.needed import cannot_be_had, on_ci
from .support.pipeline import Pipeline, start_pipeline

if TYPE_CHECKING:
    from playwright.sync_api import Browser

StartCollector = Callable[..., servers.Collector]
"""`start(config, environ, flags, extra, ports)`: a Collector of collector-config/ until the test ends.

`config` may be several files of which the others add to the first; `extra` is YAML that is merged last;
`ports` are those of gRPC, HTTP and health, by default free ones.
"""


def pytest_sessionstart() -> None:
    """On CI the tests that `importorskip` PyTorch, its companions, a kernel or pandas must not be skipped."""
    wanted = (
        "torch",
        "torchdata",
        "accelerate",
        "ipykernel",
        "jupyter_client",
        "nbclient",
        "pandas",
        "pynvml",
        "viztracer",
    )
    missing = [name for name in wanted if find_spec(name) is None]
    if on_ci() and missing:
        pytest.exit(f"CI=true, and not installed: {', '.join(missing)}; the tests of it would be skipped", 1)


def pytest_collection_finish() -> None:
    """What is loaded by now stays; the collections that many tests ask for need not go through it."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # libraries complain of what is left when the interpreter ends


def _binary(part: str) -> Path:
    try:
        return servers.binary(part)
    except servers.PartUnavailable as error:
        cannot_be_had(str(error))


@pytest.fixture(scope="session")
def collector_binary() -> Path:
    return _binary("collector")


@pytest.fixture(scope="session")
def jaeger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Jaeger]:
    """One Jaeger for the whole session: tests must find their own run in it, among others."""
    _binary("jaeger")
    server = servers.start_jaeger(tmp_path_factory.mktemp("jaeger"))
    with servers.stopping(server):
        yield server


@pytest.fixture
def collector(collector_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartCollector]:
    with _collectors(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="module")
def module_collector(
    collector_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartCollector]:
    """The same, stopped at the end of the module."""
    with _collectors(tmp_path_factory) as start:
        yield start


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Prometheus]:
    """One Prometheus for the whole session: tests must find their own series in it, among others."""
    _binary("prometheus")
    server = servers.start_prometheus(tmp_path_factory.mktemp("prometheus"))
    with servers.stopping(server):
        yield server


@pytest.fixture(scope="module")
def pipeline(
    collector_binary: Path,
    jaeger: servers.Jaeger,
    prometheus: servers.Prometheus,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pipeline]:
    """Agent, gateway, Jaeger and Prometheus as users run them, for a module; nothing has been sent yet."""
    with ExitStack() as running:
        yield start_pipeline(tmp_path_factory.mktemp("pipeline"), jaeger, prometheus, running)


@contextmanager
def _collectors(folders: pytest.TempPathFactory) -> Iterator[StartCollector]:
    with ExitStack() as running:

        def start(
            config: str | Sequence[str],
            environ: Mapping[str, str] | None = None,
            flags: Sequence[str] = (),
            extra: str = "",
            ports: Sequence[int] | None = None,
        ) -> servers.Collector:
            folder = folders.mktemp("collector")
            server = servers.start_collector(config, folder, environ, flags, extra=extra, ports=ports)
            running.enter_context(servers.stopping(server))
            return server

        yield start


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One Chromium for a module; each test opens pages of its own, see `support.browser`.

    Not for the session: as long as Playwright runs, nothing else in the thread can run an event loop.
    """
    with browsers.chromium() as found:
        yield found
