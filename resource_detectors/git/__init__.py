# SPDX-License-Identifier: Apache-2.0
"""A git repository, read as the files it is made of: no process is started and nothing of the user's runs.

`git` itself would run what a repository's configuration names (a file system monitor, filters, hooks).
"""
