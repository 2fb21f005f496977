"""A data set of the Hugging Face hub as a store of files; huggingface_hub does the transfer.

Invariant: nothing is kept in the hub's own cache; the token comes from HF_TOKEN alone, whatever a login left
on this machine, and reaches the hub only; every refusal is one sentence."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from tqdm import tqdm

from envace.data.source_files import UNSTATED
from envace.data.stores import Remote
from envace.errors import DataError

ANSWER_S = 30.0  # longest wait for the first answer
DOWNLOADS = 3
"""Calls for one set of files."""


@dataclass
class Hub:
    """`Hub("org/name", "<40 hex digits>")`."""

    uri: str
    revision: str
    licence: str = UNSTATED
    endpoint: str = field(
        default_factory=lambda: (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    )

    def __post_init__(self) -> None:
        token = os.environ.get("HF_TOKEN", "").strip() or False  # False keeps it from the token of a login
        self._api = HfApi(endpoint=self.endpoint, token=token)
        self._commit = {"revision": self.revision, "repo_type": "dataset"}

    def files(self) -> list[Remote]:
        """Every file of the commit, in one listing of names, sizes and checksums."""
        try:
            with self._explained():
                info = self._api.repo_info(self.uri, timeout=ANSWER_S, **self._commit)
                tree = list(self._api.list_repo_tree(self.uri, recursive=True, **self._commit))
        except (ValueError, KeyError, TypeError) as e:  # another server's page
            raise self._error(
                f"{self.endpoint} does not answer as a hub does ({type(e).__name__}: {e}); check HF_ENDPOINT"
            ) from e
        stated = info.card_data.license if info.card_data else None
        self.licence = ", ".join([stated] if isinstance(stated, str) else stated or ()) or UNSTATED
        return [_remote(f) for f in tree if isinstance(f, RepoFile)]

    def pinned(self, remote: Remote) -> Remote:
        """As it is: the commit pins it."""
        return remote

    def download(self, remotes: Sequence[Remote], into: Path, bar: type[tqdm]) -> Iterator[Remote]:
        """All files at once; what an interrupted call left in `into` is not fetched again.

        The library takes up a connection that times out; one that is reset is taken up here.
        """
        patterns = [glob.escape(r.name) for r in remotes]
        with self._explained():
            for left in reversed(range(DOWNLOADS)):
                try:
                    self._api.snapshot_download(
                        self.uri, local_dir=into, allow_patterns=patterns, tqdm_class=bar, **self._commit
                    )
                    break
                except httpx.TransportError:
                    if not left:
                        raise
        if gone := [r.name for r in remotes if not (into / r.name).is_file()]:
            raise self._error(f"{gone[0]} did not arrive from {self.endpoint}; run again")
        yield from remotes

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (httpx.RequestError, HFValidationError, OSError) as e:  # the hub's own errors are OSErrors
            raise self._error(self._refusal(e)) from e

    def _error(self, text: str) -> DataError:
        return DataError(f"data.uri {self.uri!r}: {text}")

    def _refusal(self, error: Exception) -> str:
        """What went wrong, or what the hub's answer means, and how to put it right."""
        line = (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]
        match error:
            case OfflineModeIsEnabled():
                return "HF_HUB_OFFLINE forbids the hub; unset it, or stage a copy with data.source: local"
            case httpx.RequestError() | LocalEntryNotFoundError():
                where = f"the hub cannot be reached at {self.endpoint} ({line})"
                return f"{where}; check the network and HF_ENDPOINT and run again"
            case HFValidationError():
                return "this is not the id of a data set; write it as owner/name"
            case GatedRepoError():
                where = f"{self.endpoint}/datasets/{self.uri}"
                token = "set HF_TOKEN to a token of the account it is granted to"
                return f"the data set is gated; ask for access at {where} and {token}"
            case RepositoryNotFoundError():
                token = "set HF_TOKEN to a token that may read it"
                return f"the hub has no such data set, or it is private; correct data.uri, or {token}"
            case RevisionNotFoundError():
                other = "set data.revision to one that its history shows"
                return f"the data set has no commit {self.revision}; {other}"
            case HfHubHTTPError():
                code, wait = error.response.status_code, error.response.headers.get("Retry-After", "")
                wait = f"{wait} seconds" if wait.isdigit() else "a few minutes"
                if code >= 500:
                    return f"the hub fails (status {code}); run again later, what was fetched stays"
                other = f"the hub refuses with status {code}: {str(error).strip().splitlines()[-1]}"
                return STATUS.get(code, other).replace("{wait}", wait)
        return f"a file arrived broken ({str(error).splitlines()[0]}); run again"


STATUS = {
    401: "the hub rejects the token; renew HF_TOKEN",
    403: "the token may not read this data set; give HF_TOKEN the permission to read gated and private "
    "repositories",
    404: "the hub lacks a file that it listed; run again",
    429: "the hub limits how often it may be asked; wait {wait} and run again (what was fetched stays), or "
    "set HF_TOKEN for a higher limit",
}


def _remote(file: RepoFile) -> Remote:
    if file.lfs is not None:
        return Remote(file.path, file.size, etag=file.lfs.sha256, sums={"sha256": file.lfs.sha256})
    return Remote(file.path, file.size, etag=file.blob_id, sums={"git": file.blob_id})
