"""A model on the hub -> its files on this machine.

Weights, configuration and tokenizer only, never code; what cannot be had is one sentence with the fix.
`python -m envace.policy.hub resolve ID [ID ...]` prints rows for `bench.baselines`, each with the newest
commit; `fill` puts those commits into params.yaml in place of placeholders.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from envace.config import load
from envace.config.check import PLACEHOLDER
from envace.errors import EnvironmentUnready, boundary
from envace.io.files import write_text

WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]
"""No code."""


def fetched(repo: str, revision: str) -> Path:
    """The files of a hub model, from the hub's cache or the hub; an empty revision is the newest one.

    Raises EnvironmentUnready.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo, revision=revision or None, allow_patterns=WANTED))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as e:
        raise EnvironmentUnready(
            f"{repo} at revision {revision[:12] or 'main'} could not be had from the hub "
            f"({type(e).__name__}): allow access to it, set HF_TOKEN where it needs "
            "one, or correct id and revision"
        ) from None


def resolve(repo: str, branch: str = "main") -> str:
    """The commit (40 hex digits) a hub model's branch or tag stands at now. Raises EnvironmentUnready."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled

    try:
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        found = api.model_info(repo, revision=branch, timeout=30).sha
    except (HfHubHTTPError, HFValidationError, OfflineModeIsEnabled, httpx.HTTPError) as e:
        raise EnvironmentUnready(
            f"{repo} at {branch} could not be found on the hub ({type(e).__name__}): allow access to it, set "
            "HF_TOKEN where it needs one, or correct the id"
        ) from None
    if not found:
        raise EnvironmentUnready(f"the hub names no commit for {repo} at {branch}")
    return found


def fill(path: Path) -> int:
    """Put today's commits in place of the placeholders of `bench.baselines`; how many. Raises
    EnvironmentUnready before anything is written."""
    rows = load(path).bench.baselines.values()
    ids = [row.uri for row in rows if row.revision == PLACEHOLDER]
    text = path.read_text(encoding="utf-8")
    for repo in ids:
        row = re.compile(rf"(uri: ['\"]?{re.escape(repo)}['\"]?, revision:\s*)['\"]?{PLACEHOLDER}['\"]?")
        text = row.sub(rf"\g<1>'{resolve(repo)}'", text)
    write_text(path, text)
    return len(ids)


def main() -> None:
    """Pin hub models to the commit they stand at now: as rows of bench.baselines, or in params.yaml."""
    cli = argparse.ArgumentParser(prog="python -m envace.policy.hub", description=main.__doc__)
    cli.add_argument("command", choices=["resolve", "fill"])
    cli.add_argument("ids", nargs="*", metavar="ID", help="resolve: hub id, such as Qwen/Qwen3-8B")
    cli.add_argument("--branch", default="main", help="branch or tag (default main)")
    cli.add_argument(
        "--params", default="params.yaml", type=Path, help="fill: the file (default params.yaml)"
    )
    args = cli.parse_args()
    if args.command == "fill":
        print(f"{fill(args.params)} commits written into {args.params}")
    for repo in args.ids:
        name = repo.rpartition("/")[2].lower()
        print(f'{name}: {{uri: {repo}, revision: "{resolve(repo, args.branch)}"}}', flush=True)


if __name__ == "__main__":
    with boundary("hub"):
        main()
