"""Nothing that the engine calls may raise for a reason of the daemon's: it becomes a miss."""

import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("vllm.pagoda")

_seen: set[tuple[str, str]] = set()
_lock = threading.Lock()


def log_once(where: str, kind: str, text: str, *arguments: Any) -> None:
    """A warning for the first of its kind; the counters have the others."""
    with _lock:
        if (where, kind) in _seen:
            return
        _seen.add((where, kind))
    logger.warning("pagoda: %s: " + text + " (further ones of this kind are only counted)", where,
                   *arguments)


def reason(error: BaseException) -> str:
    """The name of a status, or of the exception: few and fixed, fit for a label."""
    return str(getattr(error, "code", "") or type(error).__name__)


def guarded(default: Callable[[], Any] = lambda: None) -> Callable:
    """For methods of the connector: an exception is counted and logged once, and `default()`
    is the answer."""

    def wrap(method: Callable) -> Callable:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            try:
                return method(self, *arguments, **keywords)
            except Exception as error:
                self.count_error(method.__name__)
                log_once(method.__name__, type(error).__name__, "%s", repr(error))
                return default()

        return call

    return wrap
