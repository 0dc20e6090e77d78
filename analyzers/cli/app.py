# SPDX-License-Identifier: Apache-2.0
"""The command line as a function from arguments to an exit code; nothing here ends in a traceback unasked."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final

import click

from grademl_otel.analyzers import errors
from grademl_otel.analyzers.cli import missing_package
from grademl_otel.analyzers.cli.commands import grademl
from grademl_otel.analyzers.cli.completion import VARIABLE, answer_shell
from grademl_otel.analyzers.cli.debugging import debugging
from grademl_otel.analyzers.cli.interrupts import interruptible
from grademl_otel.analyzers.cli.output import Outcome, deliver
from grademl_otel.analyzers.cli.progress import ProgressLine
from grademl_otel.analyzers.printable import clean, clean_lines
from grademl_otel.analyzers.secrecy import hidden

_UNWRITABLE: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO))
"""Why what is open cannot be written; a file of ours that cannot be says so where it is written."""


def run(argv: Sequence[str]) -> int:
    """Run one command and return its exit code (docs/commands.md); one line on stderr for each failure."""
    if VARIABLE in os.environ:
        return answer_shell(grademl)
    debug = "--debug" in argv
    try:
        with interruptible(), debugging(debug):
            result = _answer(argv)
            if isinstance(result, Outcome):
                deliver(result)
        sys.stdout.flush()
        return result if isinstance(result, int) else errors.EXIT_OK
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", errors.EXIT_INTERRUPTED, debug)
    except click.ClickException as error:
        return _fail(error.format_message(), errors.EXIT_USAGE, debug)
    except errors.GrademlError as error:
        return _fail(str(error), error.exit_code, debug, error.excerpt)
    except ModuleNotFoundError as error:
        line = missing_package(error)
        return _bug(error, debug) if line is None else _fail(line, errors.EXIT_USAGE, debug)
    except OSError as error:
        if error.errno == errno.EPIPE:
            return _quiet()
        if error.errno in _UNWRITABLE and error.filename is None:
            return _unwritten(error, debug)
        return _bug(error, debug)
    except SystemExit:  # click's own answer to a closed pipe while it prints help
        return _quiet()
    except Exception as error:
        return _bug(error, debug)


def _answer(argv: Sequence[str]) -> object:
    with closing(ProgressLine()) as progress:
        return grademl.main(args=list(argv), prog_name="grademl", standalone_mode=False, obj=progress)


def _fail(line: str, code: int, debug: bool, excerpt: str | None = None) -> int:
    # Nobody may be left to read it: the code still tells.
    with suppress(OSError):
        if debug:
            print(hidden(clean_lines(traceback.format_exc())), file=sys.stderr)
        print(f"grademl: {hidden(clean(' '.join(line.split())))}", file=sys.stderr, flush=True)
        if excerpt is not None and sys.stderr.isatty():
            print(hidden(clean_lines(excerpt)), file=sys.stderr, flush=True)
    return code


def _bug(error: Exception, debug: bool) -> int:
    what = f"{type(error).__name__}: {error}".strip()
    if len(what) > 300:
        what = what[:300] + "..."
    hint = "" if debug else "; run the same command with --debug and report what it prints"
    return _fail(f"this is a bug in grademl ({what}){hint}", errors.EXIT_BUG, debug)


def _quiet() -> int:
    """Return success for a reader that closed the pipe."""
    _drop_the_rest()
    return errors.EXIT_OK


def _unwritten(error: OSError, debug: bool) -> int:
    """Tell that standard output, which is a file on a full disk or a terminal that is gone, takes no more."""
    _drop_the_rest()
    reason = (error.strerror or str(error)).lower()
    return _fail(f"cannot write to standard output: {reason}; is there room?", errors.EXIT_USAGE, debug)


def _drop_the_rest() -> None:
    """Let what is still buffered go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
