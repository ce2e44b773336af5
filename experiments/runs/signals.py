"""Signals that ask a run to end."""

import signal
import threading
from types import FrameType
from typing import Any


class StopSignals:
  """Within it, SIGTERM, SIGINT and SIGHUP are requests; a second SIGINT interrupts at once.

  SIGHUP stays ignored where it is, as under `nohup`.

  Outside the main thread, where Python takes no signals, it does nothing.
  """

  def __init__(self):
    self.received: str | None = None
    self._before: dict[signal.Signals, Any] = {}

  def __call__(self) -> bool:
    """Returns whether there was a request."""
    return self.received is not None

  def __enter__(self) -> "StopSignals":
    if threading.current_thread() is threading.main_thread():
      hangs_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
      for number in (signal.SIGTERM, signal.SIGINT, *[signal.SIGHUP] * hangs_up):
        self._before[number] = signal.signal(number, self._receive)
    return self

  def renew(self) -> None:
    """Takes them again, after what takes signals past Python: JAX SIGTERM, when processes join."""
    for number in self._before:
      signal.signal(number, signal.getsignal(number))

  def __exit__(self, *_: object) -> None:
    for number, handler in self._before.items():
      signal.signal(number, handler)

  def _receive(self, number: int, _: FrameType | None) -> None:
    self.received = signal.Signals(number).name
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, signal.default_int_handler)
