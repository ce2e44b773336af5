"""The rules by which rows become verdicts, see rules.toml."""

import hashlib
import tomllib
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("rules.toml")
RULES: dict[str, Any] = tomllib.loads(_FILE.read_text(encoding="utf-8"))
FEWEST: int = RULES["fewest"]


def rules_digest() -> str:
  """Returns what tells one file of rules from another."""
  return hashlib.sha256(_FILE.read_bytes()).hexdigest()[:12]
