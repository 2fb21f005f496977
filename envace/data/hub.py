"""A data set of the Hugging Face hub as a store of files.

Flows in: the hub's id and commit, HF_ENDPOINT and HF_TOKEN from the environment. Flows out: the list of files and
their bytes.
Invariant: nothing is kept in the hub's own cache; the token comes from HF_TOKEN alone, whatever a login left on this
machine, and reaches the hub only; every refusal is one sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff

from envace.data.parts import Broken, Part, Remote
from envace.errors import DataError

ANSWER_S = 30.0  # longest wait for the first answer
TRANSFER = {
    "timeout": constants.HF_HUB_DOWNLOAD_TIMEOUT,
    "retry_on_exceptions": (),  # a broken transfer is taken up by the caller, at the byte it has
    "retry_on_status_codes": (408, 429),
}
UNSTATED = "as the source states"


@dataclass
class Hub:
    """`Hub("org/name", "<40 hex digits>")`."""

    uri: str
    revision: str
    licence: str = UNSTATED
    endpoint: str = field(
        default_factory=lambda: (os.environ.get("HF_ENDPOINT") or constants.ENDPOINT).rstrip("/")
    )

    def files(self) -> list[Remote]:
        """Every file of the commit, in one listing of names, sizes and checksums."""
        api = HfApi(endpoint=self.endpoint, token=_token())
        data_set = {"revision": self.revision, "repo_type": "dataset"}
        try:
            with self._explained():
                info = api.repo_info(self.uri, timeout=ANSWER_S, **data_set)
                tree = list(api.list_repo_tree(self.uri, recursive=True, **data_set))
        except (ValueError, KeyError, TypeError) as e:  # another server's page
            raise self._error(
                f"{self.endpoint} does not answer as a hub does ({type(e).__name__}: {e}); check HF_ENDPOINT"
            ) from e
        self.licence = _licence(info) or UNSTATED
        return [_remote(f) for f in tree if isinstance(f, RepoFile)]

    def pinned(self, remote: Remote) -> Remote:
        return remote  # the commit pins it

    def read(self, remote: Remote, part: Part) -> None:
        """Append the bytes behind those of the part. Waits for its turn where the hub limits requests."""
        url = hf_hub_url(
            self.uri, remote.name, repo_type="dataset", revision=self.revision, endpoint=self.endpoint
        )
        headers = build_hf_headers(token=_token())
        headers["Accept-Encoding"] = "identity"  # ranges of a compressed answer differ
        if part.size:
            headers["Range"] = f"bytes={part.size}-"
        with self._explained(), http_stream_backoff("GET", url, headers=headers, **TRANSFER) as answer:
            hf_raise_for_status(answer)
            if part.size and answer.status_code != httpx.codes.PARTIAL_CONTENT:
                part.restart()  # the server sends all of it
            for chunk in answer.iter_bytes():
                part.write(chunk)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OfflineModeIsEnabled as e:
            raise self._error(
                "HF_HUB_OFFLINE forbids the hub; unset it, or stage a copy with data.source: local"
            ) from e
        except httpx.RequestError as e:
            why = str(e).strip() or type(e).__name__
            raise self._error(
                f"the hub cannot be reached at {self.endpoint} ({why}); check the network and HF_ENDPOINT and run again",
                Broken,
            ) from e
        except HfHubHTTPError as e:
            kind = Broken if e.response.status_code >= 500 else DataError
            raise self._error(self._refusal(e), kind) from e
        except HFValidationError as e:
            raise self._error("this is not the id of a data set; write it as owner/name") from e

    def _error(self, text: str, kind: type[DataError] = DataError) -> DataError:
        return kind(f"data.uri {self.uri!r}: {text}")

    def _refusal(self, error: HfHubHTTPError) -> str:
        """What the hub's answer means and how to put it right."""
        if isinstance(error, GatedRepoError):
            return (
                f"the data set is gated; ask for access at {self.endpoint}/datasets/{self.uri} and set HF_TOKEN to a "
                "token of the account it is granted to"
            )
        if isinstance(error, RepositoryNotFoundError):
            return "the hub has no such data set, or it is private; correct data.uri, or set HF_TOKEN to a token that may read it"
        if isinstance(error, RevisionNotFoundError):
            return (
                f"the data set has no commit {self.revision}; set data.revision to one that its history shows"
            )
        code = error.response.status_code
        if code == 429:
            return _patience(error.response.headers.get("Retry-After", ""))
        if code >= 500:
            return f"the hub fails (status {code}); run again later, what was fetched stays"
        return STATUS.get(code, f"the hub refuses with status {code}: {str(error).strip().splitlines()[-1]}")


STATUS = {
    401: "the hub rejects the token; renew HF_TOKEN",
    403: "the token may not read this data set; give HF_TOKEN the permission to read gated and private repositories",
    404: "the hub lacks a file that it listed; run again",
}


def _patience(seconds: str) -> str:
    wait = f"{seconds} seconds" if seconds.isdigit() else "a few minutes"
    return (
        f"the hub limits how often it may be asked; wait {wait} and run again (what was fetched stays), or set "
        "HF_TOKEN for a higher limit"
    )


def _token() -> str | bool:
    """False keeps the client from the token of a login."""
    return os.environ.get("HF_TOKEN", "").strip() or False


def _remote(file: RepoFile) -> Remote:
    if file.lfs is not None:
        return Remote(file.path, file.size, etag=file.lfs.sha256, sums={"sha256": file.lfs.sha256})
    return Remote(file.path, file.size, etag=file.blob_id, sums={"git": file.blob_id})


def _licence(info: object) -> str:
    stated = getattr(getattr(info, "card_data", None), "license", None) or ""
    return ", ".join(map(str, stated)) if isinstance(stated, list) else str(stated)
