# SPDX-License-Identifier: Apache-2.0
"""Where a repository was cloned from, as a public fact: no user, password or token, no path of this host."""

from __future__ import annotations

import re
from typing import Final

from grademl_otel.resource_detectors.git.settings import Section

_LONGEST: Final = 256
# Compiled where one is needed: it takes longer than all the rest.
_SCHEMES: Final = ("http", "https", "ssh", "git", "git+ssh", "ssh+git")
_SCP: Final = r"(?:[^@:/\\]+@)?(?P<host>[^@:/\\]{2,}):(?P<path>[^:]*)"
_HOST: Final = r"(?P<host>[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?P<port>:[0-9]{1,5})?"
_IN_PATHS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~+-/")
_BY_HTTPS: Final = frozenset({"github.com", "gitlab.com", "bitbucket.org", "codeberg.org", "huggingface.co"})
"""Hosts whose repositories have the same path over HTTPS as over SSH."""
_TOKEN: Final = (
    r"(?<![A-Za-z0-9])(?:gh[a-z]_|github_pat_|gl(?:pat|dt|rt|cbt|ft)-|hf_|xox[a-z]-|AKIA|ASIA|sk-"
    r"|npm_|pypi-|dckr_pat_|AIza|eyJ)[A-Za-z0-9_-]{10,}|[0-9A-Fa-f]{32,}|[A-Za-z0-9+_-]{48,}"
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
    names = [settings.get(f"branch.{branch}.remote", ""), "origin"]
    if len(remotes) == 1:
        names.extend(remotes)
    for name in names:
        if name in remotes:
            return public(remotes[name])
    return ""


def public(url: str) -> str:
    """Return what of ``url`` may be told, empty where it cannot be told what in it is secret.

    A path of this host, and anything that is not plainly a host and a path, is not told.
    """
    scheme, colon, rest = url.partition("://")
    if colon:
        scheme = scheme.lower()
        if scheme not in _SCHEMES:
            return ""
        told, _, path = rest.partition("/")
        if "@" in path:
            return ""  # of a password with a slash in it
        told = told.rpartition("@")[2]
        if scheme.startswith("http"):
            path = path.partition("?")[0].partition("#")[0]
        else:
            scheme = "ssh"
    else:
        match = re.fullmatch(_SCP, url)
        if match is None:
            return ""
        scheme, told, path = "ssh", match["host"], match["path"]
    place = re.fullmatch(_HOST, told)
    path = path.strip("/").removesuffix(".git").rstrip("/")
    if place is None or not path or "//" in path or not _IN_PATHS.issuperset(path):
        return ""
    if re.search(_TOKEN, path) or re.search(_TOKEN, told):
        return ""
    host = place["host"].lower()
    if scheme == "ssh" and host in _BY_HTTPS and not place["port"]:
        scheme = "https"
    if scheme == "ssh" and path.startswith(("~", "home/")):
        return ""  # of somebody's home folder
    whole = f"{scheme}://{host}{place['port'] or ''}/{path}"
    return whole if len(whole) <= _LONGEST else ""
