"""The desk's start policy: rebuilt from nothing but seeds, measured, and kept in `envace/policy/start`.

Flows in: `policy.tiny` of params.yaml. Flows out: the folder that `policy.kind: bundled` starts from, with
`measured.json` beside its card: what it scores, with intervals, and the floors it stands on.
Invariant: the folder is replaced only after the new policy was measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import tempfile
from pathlib import Path

from envace.config import Params, load
from envace.errors import boundary
from envace.policy import card
from envace.types import replace
from envace.warmstart.measure import measure
from envace.warmstart.training import build_start


def main(argv: list[str] | None = None) -> None:
    """Build, measure, install; or measure a folder that is there."""
    parser = argparse.ArgumentParser(prog="python -m envace.warmstart", description=__doc__)
    parser.add_argument("--params", default="params.yaml")
    parser.add_argument("--measure", metavar="FOLDER", type=Path, help="measure this folder, build nothing")
    parser.add_argument(
        "--keep", action="store_true", help="with --measure: install the folder as the bundled start"
    )
    given = parser.parse_args(argv)
    with boundary("warmstart"), tempfile.TemporaryDirectory() as scratch:
        params = load(given.params)
        folder = given.measure or build(params, Path(scratch) / "start")
        found = asyncio.run(measure(folder, params))
        print(json.dumps(found, indent=1))
        if given.keep or not given.measure:
            text = json.dumps(found, indent=1, sort_keys=True) + "\n"
            (folder / "measured.json").write_text(text, encoding="utf-8")
            install(folder)


def build(params: Params, out: Path) -> Path:
    """A new start policy, with a line of progress now and then."""

    def show(event: dict[str, float]) -> None:
        if event["step"] % 50 == 0:
            at, loss = f"update {event['step']:.0f} of {event['steps']:.0f}", event["answer_loss"]
            print(f"{at}, answer loss {loss:.3f}, {event['seconds']:.0f} s", flush=True)

    build_start(params, out, show)
    return out


def install(source: Path) -> None:
    """Put a measured folder in place of the bundled one; its card names no place of this machine."""
    ref = replace(card.read_card(source), uri="envace/policy/start")
    shutil.rmtree(card.BUNDLED, ignore_errors=True)
    shutil.copytree(source, card.BUNDLED)
    card.write_card(card.BUNDLED, ref)


if __name__ == "__main__":
    main()
