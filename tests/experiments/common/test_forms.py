"""What comes in from files has the form that is stated, or is told with its place."""

import dataclasses
from typing import Literal

import pytest

from experiments import UsageError
from experiments.common.forms import FormError, conform, parse_json, read_json


@dataclasses.dataclass(frozen=True)
class Inner:
  size: int
  names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Outer:
  inner: Inner
  rate: float | None
  kind: Literal["a", 1]
  rows: list[dict[str, float]]


GOOD = {"inner": {"size": 2, "names": ["x"]}, "rate": 1, "kind": "a", "rows": [{"y": 0.5}]}


def test_values_become_what_is_stated():
  assert conform(GOOD, Outer) == Outer(Inner(2, ("x",)), 1, "a", [{"y": 0.5}])
  assert conform(GOOD | {"rate": None, "kind": 1}, Outer).kind == 1


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"more": 1}, "unknown: `o.more`"),
    ({"inner": {"size": 2}}, "missing: `o.inner.names`"),
    ({"inner": {"size": True, "names": []}}, "`o.inner.size` must be int, got True"),
    ({"inner": {"size": 2.0, "names": []}}, "`o.inner.size` must be int, got 2.0"),
    ({"inner": {"size": 2, "names": "x"}}, r"`o.inner.names` must be tuple\[str, ...\], got 'x'"),
    ({"inner": {"size": 2, "names": [3]}}, r"`o.inner.names\[0\]` must be str, got 3"),
    ({"inner": None}, "`o.inner` must be Inner, got None"),
    ({"rate": float("nan")}, "`o.rate` must be float | None, got nan"),
    ({"rate": 10**400}, "`o.rate` must be"),
    ({"kind": True}, "`o.kind` must be"),
    ({"kind": []}, "`o.kind` must be"),
    ({"rows": {}}, "`o.rows` must be list"),
    ({"rows": [{"y": "z" * 999}]}, r"`o.rows\[0\]\[y\]` must be float, got 'z{70,80}\.\.\.$"),
  ],
)
def test_value_of_another_form_is_told_with_its_place(change, message):
  with pytest.raises(FormError, match=message):
    conform(GOOD | change, Outer, "o")


TEXTS = {
  "no JSON": "{",
  "nothing": "",
  "deep": "[" * 100_000,
  "not a number": '{"a": NaN}',
  "infinite": "[1e999]",
  "long number": "1" * 10_000,
}


@pytest.mark.parametrize("kind", TEXTS)
def test_text_that_is_no_json_is_told(kind, tmp_path):
  with pytest.raises(FormError):
    parse_json(TEXTS[kind])
  (tmp_path / "a.json").write_text(TEXTS[kind])
  with pytest.raises(UsageError, match=r"the thing .*a\.json is damaged: "):
    read_json(tmp_path / "a.json", "the thing")


def test_file_that_cannot_be_read_is_told(tmp_path):
  import os

  with pytest.raises(FileNotFoundError):
    read_json(tmp_path / "no.json")
  os.mkfifo(tmp_path / "pipe")  # reading it would wait
  for name in ("", "pipe"):
    with pytest.raises(UsageError, match="is damaged: not a regular file"):
      read_json(tmp_path / name)
  (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
  with pytest.raises(UsageError, match="is damaged"):
    read_json(tmp_path / "bytes")
