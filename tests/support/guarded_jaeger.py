# SPDX-License-Identifier: Apache-2.0
"""A real Jaeger as companies run it: TLS, tenants, a path before its own, client certificates for gRPC."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme

from . import servers

TENANT = "a-team-of-a-test"

_GUARD = """\
    base_path: /tracing
    multi_tenancy:
      Enabled: true
      Header: x-tenant
      Tenants: [{tenant}]
    http:
      endpoint: 127.0.0.1:{query}
      tls:
        cert_file: {folder}/server.pem
        key_file: {folder}/server.key
    grpc:
      endpoint: 127.0.0.1:{query_grpc}
      tls:
        cert_file: {folder}/server.pem
        key_file: {folder}/server.key
        client_ca_file: {folder}/ca.pem
"""


@dataclass
class Guarded(servers.Server):
    """The addresses of the server, as `grademl` takes them, and the files that open it."""

    https: str
    grpcs: str
    ca: str
    client: str
    """Certificate and key."""

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def start_guarded_jaeger(folder: Path) -> Guarded:
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server.private_key_pem.write_to_path(folder / "server.key")
    for number, blob in enumerate(server.cert_chain_pems):
        blob.write_to_path(folder / "server.pem", append=number > 0)
    authority.issue_cert("client@example.org").private_key_and_cert_chain_pem.write_to_path(
        folder / "client.pem"
    )

    def attempt() -> Guarded:
        query, query_grpc, grpc, http = servers.free_ports(4)
        plain = servers.JAEGER_CONFIG.format(
            query=query, query_grpc=query_grpc, otlp_grpc=grpc, otlp_http=http
        )
        open_part = (
            f"    http:\n      endpoint: 127.0.0.1:{query}\n"
            f"    grpc:\n      endpoint: 127.0.0.1:{query_grpc}\n"
        )
        assert open_part in plain
        guard = _GUARD.format(query=query, query_grpc=query_grpc, folder=folder, tenant=TENANT)
        config = folder / "jaeger.yaml"
        config.write_text(plain.replace(open_part, guard), encoding="utf-8")
        log = folder / "jaeger.log"
        process = servers.spawn([str(servers.binary("jaeger")), "--config", str(config)], folder, log)
        started = Guarded(
            name="guarded jaeger",
            process=process,
            log=log,
            https=f"jaegers://127.0.0.1:{query}/tracing",
            grpcs=f"jaeger+grpcs://127.0.0.1:{query_grpc}",
            ca=str(folder / "ca.pem"),
            client=str(folder / "client.pem"),
        )
        servers.wait_ports(started, [query, query_grpc, grpc, http])
        return started

    return servers.with_fresh_ports(attempt)
