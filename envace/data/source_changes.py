"""Whether a source is still what was staged: DVC looks at parameters and code, never at a folder or bucket
outside.

Flows in: parameters and the manifest of the staged rows. Flows out: what differs, in words. Invariant:
nothing is fetched or written. Other parameters than those staged are no change: DVC sees them. The desk is
made here and a hub's commit cannot change, so neither is asked."""

from __future__ import annotations

import json
from pathlib import Path

from envace.config import Params
from envace.data.fetch import local_files, open_store
from envace.data.source_files import Wanted, differences
from envace.errors import DataError


def changes_since(params: Params, staged: Path) -> list[str]:
    """`["changed a.jsonl", "added b.jsonl"]`; empty where nothing is staged or nothing changed.

    Raises DataError where the source cannot be asked.
    """
    want, d = Wanted.of(params), params.data
    try:
        manifest = json.loads((staged / "manifest.json").read_text(encoding="utf-8"))
        was = [manifest["params"]["data"][key] for key in ("source", "uri", "revision", "patterns")]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if want.kind not in ("local", "s3") or was != [d.source, d.uri, d.revision, list(d.patterns)]:
        return []
    before = {f["name"]: f for f in manifest["source"]["files"]}
    if want.kind == "local":
        now = local_files(want)
        return differences(before, now, lambda a, b: (a["bytes"], a["sha256"]) == (b.bytes, b.sha256))
    listed = {r.name: r for r in open_store(want).files() if want.matches(r.name)}
    return differences(before, listed, lambda a, b: (a["bytes"], a["etag"]) == (b.bytes, b.etag))


def must_stage_again(params: Params, staged: Path, keep: bool) -> tuple[bool, str]:
    """(whether staging has to run anew, a line to say). Raises DataError where the user must decide."""
    uri = params.data.uri
    try:
        changes = changes_since(params, staged)
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
        f"{what}; for the new rows give data.revision another word or set data.accept_changed: true, to go "
        "on with the staged ones add --keep-rows"
    )
