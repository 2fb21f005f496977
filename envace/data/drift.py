"""Whether a source is still what was staged: DVC looks at parameters and code, never at a folder or bucket outside.

Flows in: parameters, the manifest of the staged rows, what `.state/` remembers of local files. Flows out: what
differs, in words.
Invariant: nothing is fetched or written. Other parameters than those staged are no drift: DVC sees them. The desk is
made here and a hub's commit cannot change, so neither is asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envace.config import Params
from envace.data.fetch import place
from envace.data.fetched import Wanted, differences
from envace.data.local import quick_digests
from envace.errors import DataError

ASKED = ("source", "uri", "revision", "patterns")  # of `data`: together they name the source


def drift(params: Params, staged: Path, state: Path) -> list[str]:
    """`["changed a.jsonl", "added b.jsonl"]`; empty where nothing is staged or nothing changed.

    Raises DataError where the source cannot be asked.
    """
    want = Wanted.of(params)
    manifest = _manifest(staged / "manifest.json")
    if want.kind not in ("local", "s3") or not manifest or not _same_source(params, manifest):
        return []
    before = {f["name"]: f for f in manifest["source"]["files"]}
    if want.kind == "local":
        now = _now(want, place(params, state))
        return differences(before, now, lambda a, b: (a["bytes"], a["sha256"]) == b)
    from envace.data.s3 import S3

    listed = {r.name: r for r in S3(want.uri).files() if want.matches(r.name)}
    return differences(before, listed, lambda a, b: (a["bytes"], a["etag"]) == (b.bytes, b.etag))


def _now(want: Wanted, folder: Path) -> dict[str, tuple[int, str]]:
    try:
        return quick_digests(want, folder)
    except OSError as e:  # no permission, or gone since it was listed
        raise DataError(f"{e.filename or want.uri} cannot be read: {e.strerror or e}") from e


def _manifest(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _same_source(params: Params, manifest: dict[str, Any]) -> bool:
    try:
        was, now = manifest["params"]["data"], params.data
        return [was[k] for k in ASKED] == [now.source, now.uri, now.revision, list(now.patterns)]
    except (KeyError, TypeError):
        return False


def judge(params: Params, staged: Path, state: Path, keep: bool) -> tuple[bool, str]:
    """(whether staging has to run anew, a line to say). Raises DataError where the user must decide."""
    uri = params.data.uri
    try:
        changes = drift(params, staged, state)
    except DataError as e:
        return False, f"whether {uri!r} changed cannot be told ({e}); the staged rows are used"
    if not changes:
        return False, ""
    what = f"data.uri {uri!r} is not what data/staged was made from: {'; '.join(changes)}"
    if keep:
        return False, f"{what}; the staged rows are used"
    if params.data.accept_changed:
        return True, f"{what}; data.accept_changed takes it as it is now, so stage_data runs again"
    raise DataError(
        f"{what}; for the new rows give data.revision another word or set data.accept_changed: true, to go on with the "
        "staged ones add --keep-rows"
    )
