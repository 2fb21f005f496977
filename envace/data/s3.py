"""A prefix of an S3 bucket, or one object, as a store of files; s3fs does the transfer.

Flows in: s3://bucket/prefix; endpoint and credentials from the environment, as every AWS client reads them.
Flows out: the list of files and their bytes. Invariant: all bytes of a file come from one version, and are
held to every checksum the store states of it in a way that can be computed here; every refusal is one
sentence."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from botocore.exceptions import BotoCoreError, NoCredentialsError, PartialCredentialsError
from botocore.exceptions import ConnectionError as NoConnection
from fsspec.callbacks import TqdmCallback
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS
from tqdm import tqdm

from envace.data.source_files import UNSTATED
from envace.data.stores import Remote
from envace.errors import DataError
from envace.types import JSON

DIRECTORY = "--x-s3"  # how directory buckets end, whose ETags are no checksums
ONCE = {"retries": {"total_max_attempts": 1}}  # s3fs retries
CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


class S3:
    """`S3("s3://bucket/prefix")`."""

    licence = UNSTATED

    def __init__(self, uri: str):
        self.uri = uri
        self.bucket, _, self.prefix = uri.removeprefix("s3://").rstrip("/").partition("/")
        if not uri.startswith("s3://") or not self.bucket:
            raise DataError(f"data.uri {uri!r} is not an S3 address; write it as s3://bucket/prefix")
        self.endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
        self.store = S3FileSystem(
            endpoint_url=self.endpoint, config_kwargs=ONCE, skip_instance_cache=True, use_listings_cache=False
        )
        self._keys: dict[str, str] = {}  # name -> key

    def files(self) -> list[Remote]:
        """Every object below the prefix, or the one object that bears its name."""
        with self._explained():
            objects = {name: o for o in self._objects() if (name := self._name(o["Key"]))}
        self._keys = {name: o["Key"] for name, o in objects.items()}
        return [Remote(name, o["Size"], o["ETag"].strip('"')) for name, o in objects.items()]

    def _objects(self) -> Iterator[dict[str, JSON]]:
        more: dict[str, str] = {}
        while True:
            page = self.store.call_s3("list_objects_v2", Bucket=self.bucket, Prefix=self.prefix, **more)
            yield from page.get("Contents", ())
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _name(self, key: str) -> str:
        """The file's name, or nothing where the prefix only begins like the key."""
        if key == self.prefix:
            return key.rpartition("/")[2]
        below = f"{self.prefix}/" if self.prefix else ""
        return key.removeprefix(below) if key.startswith(below) else ""

    def pinned(self, remote: Remote) -> Remote:
        """As the object is now, with what listings do not tell: its version, where the bucket keeps versions,
        and its checksums."""
        with self._explained(remote.name):
            head = self.store.call_s3(
                "head_object", Bucket=self.bucket, Key=self._keys[remote.name], ChecksumMode="ENABLED"
            )
        version, etag, sums = head.get("VersionId", ""), head["ETag"].strip('"'), stated_sums(head)
        if self.bucket.endswith(DIRECTORY):
            sums.pop("md5", None)
        return Remote(remote.name, head["ContentLength"], etag, "" if version == "null" else version, sums)

    def download(self, remotes: Sequence[Remote], into: Path, bar: type[tqdm]) -> Iterator[Remote]:
        """One file after the other, each of one version: by its id, or held against its ETag when it is
        here."""
        for remote in remotes:
            path = into / remote.name
            shown = TqdmCallback({"unit": "B", "unit_scale": True, "desc": remote.name}, tqdm_cls=bar)
            with self._explained(remote.name), shown:
                path.parent.mkdir(parents=True, exist_ok=True)
                by_version = self._get(remote, path, shown)
            if not by_version and self.pinned(remote).etag != remote.etag:
                raise self._error(f"{self._what(remote.name)} changed while it was being fetched; run again")
            yield remote

    def _get(self, remote: Remote, path: Path, shown: TqdmCallback) -> bool:
        """Fetch a file; whether the version it has was asked for."""
        key = f"{self.bucket}/{self._keys[remote.name]}"
        get = partial(self.store.get_file, key, path, callback=shown, max_concurrency=1)
        try:
            get(version_id=remote.version or None)
            return bool(remote.version)
        except PermissionError:  # an account may read objects and not their versions
            if not remote.version:
                raise
            get()
            return False

    @contextmanager
    def _explained(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except (OSError, BotoCoreError, *S3_RETRYABLE_ERRORS) as e:
            raise self._error(self._refusal(e, self._what(name))) from e

    def _refusal(self, error: Exception, what: str) -> str:
        """What the store's answer, or its silence, means and how to put it right."""
        where, line = self.endpoint or "Amazon S3", " ".join(str(error).split()) or type(error).__name__
        answers = [
            getattr(e, "response", None) or {} for e in (error, error.__cause__)
        ]  # s3fs's cause has it
        code = next((str(c) for answer in answers if (c := answer.get("Error", {}).get("Code"))), "")
        silent = isinstance(error, (NoConnection, *S3_RETRYABLE_ERRORS))
        if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
            return f"there are no AWS credentials; {CREDENTIALS}"
        if silent or (isinstance(error, OSError) and not code):
            return f"{where} cannot be reached ({line}); check the network and AWS_ENDPOINT_URL and run again"
        if code in PASSING or code.startswith("5"):
            return f"{where} is busy or failing ({code}); run again later"
        if code in SENTENCES:
            return SENTENCES[code].format(what=what)
        return f"{what} cannot be read ({line}); check the environment's AWS settings"

    def _what(self, name: str) -> str:
        in_bucket = f"bucket {self.bucket!r} at {self.endpoint or 'Amazon S3'}"
        return f"{name} in {in_bucket}" if name else in_bucket

    def _error(self, text: str) -> DataError:
        return DataError(f"data.uri {self.uri!r}: {text}")


def stated_sums(head: Mapping[str, JSON]) -> dict[str, str]:
    """The checksums of whole objects in an answer: `{"md5": "9f8e...", "crc32": "01ab..."}`.

    An ETag is the MD5 of an object that was put in one part and is not encrypted under a key of its own. A
    checksum of checksums (an object put in several parts) says nothing of the whole."""
    found = {}
    etag = head["ETag"].strip('"')
    plain = head.get("ServerSideEncryption", "AES256") == "AES256" and "SSECustomerAlgorithm" not in head
    if plain and re.fullmatch(r"[0-9a-f]{32}", etag):
        found["md5"] = etag
    for name in ("sha256", "sha1", "crc32"):
        value = head.get(f"Checksum{name.upper()}", "")
        if value and "-" not in value and head.get("ChecksumType") != "COMPOSITE":
            found[name] = base64.b64decode(value).hex()
    return found


PASSING = ("SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout")
DENIED = f"no permission to list and read {{what}}; {CREDENTIALS} of an account that may"
REJECTED = f"the AWS credentials are not valid for {{what}}; {CREDENTIALS} anew"
GONE = "there is no {what} any more; run again"
SENTENCES = {
    "NoSuchBucket": "there is no {what}; correct data.uri or AWS_ENDPOINT_URL",
    "PreconditionFailed": "{what} changed while it was being fetched; run again",
    **dict.fromkeys(("NoSuchKey", "404"), GONE),
    **dict.fromkeys(("AccessDenied", "AllAccessDisabled", "403"), DENIED),
    **dict.fromkeys(
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"), REJECTED
    ),
}
