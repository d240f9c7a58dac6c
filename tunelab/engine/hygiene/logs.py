"""Logging: the handlers, levels and filters of all loggers, and the switches of the whole."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from tunelab.engine.hygiene.ownership import file_of, is_library

_LoggerState = tuple[tuple[logging.Handler, ...], tuple[Any, ...], int, bool, bool]


class Logging:
    """Handlers, levels and filters of all loggers. A handler that a trial added is removed and closed.

    A logger of a library that was first imported during a trial keeps its level, and handlers that write to this process's own
    output: libraries set them once, when they are imported, and what the trial made of them cannot be told apart.
    """

    what = "logging"

    def __init__(self) -> None:
        self._switches = (logging.root.manager.disable, logging.getLoggerClass(), logging.getLogRecordFactory())
        self._modules = set(sys.modules)
        self._clean = {name: _logger_state(logger) for name, logger in _loggers()}
        self._handlers = {handler: _handler_state(handler) for state in self._clean.values() for handler in state[0]}

    def restore(self) -> Iterator[str]:
        if (logging.root.manager.disable, logging.getLoggerClass(), logging.getLogRecordFactory()) != self._switches:
            logging.disable(self._switches[0])
            logging.setLoggerClass(self._switches[1])
            logging.setLogRecordFactory(self._switches[2])
            yield "logging's switches"
        removed: set[logging.Handler] = set()
        for name, logger in _loggers():
            now = _logger_state(logger)
            clean = self._clean.get(name)
            if clean is None:
                clean = self._first_seen(name, now)
                self._clean[name] = clean
                self._handlers.update({handler: _handler_state(handler) for handler in clean[0]})
            if now != clean:
                removed.update(handler for handler in now[0] if handler not in clean[0])
                logger.handlers[:], logger.filters[:] = clean[0], clean[1]
                logger.setLevel(clean[2])
                logger.propagate, logger.disabled = clean[3], clean[4]
                yield f"logger {name or 'root'}"
        for handler, state in self._handlers.items():
            if _handler_state(handler) != state:
                handler.setLevel(state[0])
                handler.setFormatter(state[1])
                handler.filters[:] = state[2]
                yield f"handler {type(handler).__name__}"
        for handler in removed - self._handlers.keys():
            with suppress(Exception):
                handler.close()

        self._modules.update(sys.modules)

    def _first_seen(self, name: str, now: _LoggerState) -> _LoggerState:
        owner = name
        while owner and owner not in sys.modules:
            owner = owner.rpartition(".")[0]
        if not owner or owner in self._modules or not is_library(file_of(sys.modules[owner])):
            return ((), (), logging.NOTSET, True, False)
        return (tuple(handler for handler in now[0] if _writes_to_output(handler)), *now[1:])


def _loggers() -> Iterator[tuple[str, logging.Logger]]:
    yield "", logging.root
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger):
            yield name, logger


def _logger_state(logger: logging.Logger) -> _LoggerState:
    return tuple(logger.handlers), tuple(logger.filters), logger.level, logger.propagate, logger.disabled


def _handler_state(handler: logging.Handler) -> tuple[int, Any, tuple[Any, ...]]:
    return handler.level, handler.formatter, tuple(handler.filters)


def _writes_to_output(handler: logging.Handler) -> bool:
    if isinstance(handler, logging.NullHandler):
        return True
    return getattr(handler, "stream", None) in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


LASTING = (Logging,)
