# SPDX-License-Identifier: Apache-2.0
"""Decorators: a function of the user's with each call of it in a block."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any, TypeVar

from grademl_otel.graphs import traced_as
from grademl_otel.tracebacks import leave_out_this_frame, pass_over

F = TypeVar("F")

Block = Callable[[], AbstractContextManager[Any]]


def in_blocks(function: F, block: Block, stretches: bool = True) -> F:
    """Return ``function`` with each call of it in ``block()``; what cannot be wrapped comes back as it is.

    Of a coroutine function that is the whole of the coroutine. Of a generator each stretch of its own code is
    a block, not what its consumer does meanwhile; without ``stretches`` generators stay as they are, as
    asynchronous ones do, and classes.
    """
    wrapped: Any = function
    if isinstance(function, staticmethod | classmethod):
        wrapped = type(function)(in_blocks(function.__func__, block, stretches))
    elif not callable(function) or isinstance(function, type) or inspect.isasyncgenfunction(function):
        pass
    elif inspect.iscoroutinefunction(function):
        wrapped = _of_coroutines(function, block)
    elif not inspect.isgeneratorfunction(function):
        wrapped = _of_calls(function, block)
    elif stretches:
        wrapped = _of_generators(function, block)
    return wrapped  # type: ignore[no-any-return]


def _of_calls(function: Callable[..., Any], block: Block) -> Callable[..., Any]:
    @pass_over
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with block():
                return function(*args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise

    traced_as(call, function)
    return call


def _of_coroutines(function: Callable[..., Any], block: Block) -> Callable[..., Any]:
    @pass_over
    @wraps(function)
    async def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with block():
                return await function(*args, **kwargs)
        except BaseException as error:
            leave_out_this_frame(error)
            raise

    return call


def _of_generators(function: Callable[..., Any], block: Block) -> Callable[..., Any]:
    @pass_over
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        generator = function(*args, **kwargs)
        proceed: Callable[[], Any] = generator.__next__
        try:
            while True:
                try:
                    with block():
                        item = proceed()
                except StopIteration as end:
                    return end.value
                try:
                    sent = yield item
                except GeneratorExit:
                    generator.close()
                    raise
                except BaseException as error:
                    proceed = partial(generator.throw, error)
                else:
                    proceed = partial(generator.send, sent)
        except BaseException as error:
            leave_out_this_frame(error)
            raise

    return call
