# SPDX-License-Identifier: Apache-2.0
"""Where a repository was cloned from, as a public fact: no user, password or token, no path of this host."""

from __future__ import annotations

import re
from typing import Final

from grademl_otel.resource_detectors.git.settings import Section

_LONGEST: Final = 256
_URL: Final = re.compile(
    r"(?P<scheme>https?|ssh|git|git\+ssh|ssh\+git)://(?P<rest>[^/]+)/(?P<path>.*)", re.IGNORECASE
)
_SCP: Final = re.compile(r"(?:[^@:/\\]+@)?(?P<host>[^@:/\\]{2,}):(?P<path>[^:]*)")
_HOST: Final = re.compile(
    r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?P<port>:[0-9]{1,5})?"
)
_PATH: Final = re.compile(r"[A-Za-z0-9._~+-]+(?:/[A-Za-z0-9._~+-]+)*")
_BY_HTTPS: Final = frozenset({"github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "huggingface.co"})
"""Hosts whose repositories have the same path over HTTPS as over SSH."""
_TOKEN: Final = re.compile(
    r"(?:gh[a-z]_|github_pat_|glpat-|gl[a-z]{2,5}-|hf_|xox[a-z]-|AKIA|ASIA|sk-)[A-Za-z0-9_-]{10,}"
    r"|[0-9A-Fa-f]{32,}|[A-Za-z0-9+_-]{48,}"
)
"""What looks like a secret in a path: then nothing is told of it."""


def repository_url(settings: Section, branch: str) -> str:
    """Return the URL of the repository's remote; empty where there is none that may be told.

    The remote is that of ``branch``, else `origin`, else the only one.
    """
    remotes = {
        key[len("remote.") : -len(".url")]: value
        for key, value in settings.items()
        if key.startswith("remote.") and key.endswith(".url")
    }
    for name in (settings.get(f"branch.{branch}.remote", ""), "origin", *remotes):
        if name in remotes and (name == "origin" or len(remotes) == 1 or branch):
            return public(remotes[name])
    return ""


def public(url: str) -> str:
    """Return what of ``url`` may be told, empty where it cannot be told what in it is secret.

    A path of this host, and anything that is not plainly a host and a path, is not told.
    """
    match = _URL.fullmatch(url)
    if match is not None:
        scheme = match["scheme"].lower()
        scheme = scheme if scheme in ("http", "https") else "ssh"
        told = match["rest"].rpartition("@")[2]
        path = match["path"]
        if scheme != "ssh":
            path = path.partition("?")[0].partition("#")[0]
    else:
        match = _SCP.fullmatch(url)
        if match is None or "://" in url:
            return ""
        scheme, told, path = "ssh", match["host"], match["path"]
    place = _HOST.fullmatch(told)
    path = path.strip("/").removesuffix(".git").rstrip("/")
    if place is None or not _PATH.fullmatch(path) or _TOKEN.search(path) or _TOKEN.search(told):
        return ""
    host = place["host"].lower()
    if scheme == "ssh" and host in _BY_HTTPS and not place["port"]:
        scheme = "https"
    if scheme == "ssh" and path.startswith(("~", "home/")):
        return ""  # of somebody's home folder
    whole = f"{scheme}://{host}{place['port'] or ''}/{path}"
    return whole if len(whole) <= _LONGEST else ""
