"""A model on the hub -> its files on this machine.

Flows in: a hub id and a revision. Flows out: a folder in the hub's own cache.
Invariant: weights, configuration and tokenizer only, never code; what cannot be had is one sentence with the fix.
"""

from __future__ import annotations

from pathlib import Path

from envace.errors import EnvironmentUnready

WANTED = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]  # no code


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
            f"{repo} at revision {revision[:12] or 'main'} could not be had from the hub ({type(e).__name__}): allow access "
            "to it, set HF_TOKEN where it needs one, or correct id and revision"
        ) from None
