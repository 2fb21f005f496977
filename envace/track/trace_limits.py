"""Texts and values of a trace: redacted, then held to a length.

Flows in: any JSON-like value of an episode. Flows out: the same, shorter where it was too long.
Invariant: redaction comes before cutting, so that no half of a secret is left; what was cut says how much.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from envace.chat.text import sanitise
from envace.io.redact import Redactor
from envace.types import JSON

LONGEST_TEXT = 4000  # characters of one string
LONGEST_VALUE = 24_000  # of a whole value as JSON
MOST_ENTRIES = 100  # of one list or object
DEEPEST = 24


class Limits:
    """`Limits(redactor).json(value)`"""

    def __init__(self, redactor: Redactor):
        self.redactor = redactor

    def text(self, text: str, limit: int = LONGEST_TEXT) -> str:
        """Redacted and at most `limit` characters."""
        text = self.redactor.text(sanitise(text))
        if len(text) <= limit:
            return text
        note = f"… [{len(text)} characters]"
        return text[: max(0, limit - len(note))] + note

    def json(self, value: JSON) -> str:
        """JSON text of a redacted value; one that is too long as a whole becomes the start of its text."""
        found = json.dumps(self._cut(self.redactor.data(value), DEEPEST), ensure_ascii=False)
        if len(found) <= LONGEST_VALUE:
            return found
        return json.dumps(f"{found[:LONGEST_VALUE]}… [{len(found)} characters]", ensure_ascii=False)

    def _cut(self, value: JSON, depth: int) -> JSON:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if value is None or isinstance(value, (bool, int, float)):
            return value
        if not depth:
            return "… [nested deeper]"
        if isinstance(value, Mapping):
            entries = list(value.items())[:MOST_ENTRIES]
            kept = {self.text(str(k)): self._cut(v, depth - 1) for k, v in entries}
            return kept | ({"…": f"{len(value)} entries"} if len(value) > MOST_ENTRIES else {})
        if isinstance(value, (list, tuple)):
            items = [self._cut(v, depth - 1) for v in value[:MOST_ENTRIES]]
            return items + ([f"… [{len(value)} entries]"] if len(value) > MOST_ENTRIES else [])
        return self.text(str(value))
