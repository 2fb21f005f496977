"""A prefix of an S3 bucket, or one object, as a store of files.

Flows in: s3://bucket/prefix; endpoint and credentials from the environment, as every AWS client reads them. Flows
out: the list of files and their bytes, from any byte on.
Invariant: all bytes of a file come from one version, and are held to every checksum the store states of it in a way
that can be computed here; every refusal is one sentence.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, NoCredentialsError, PartialCredentialsError
from botocore.exceptions import ConnectionError as NoConnection
from fsspec.asyn import sync
from s3fs import S3FileSystem
from s3fs.core import S3_RETRYABLE_ERRORS

from envace.data.parts import Broken, Part, Remote
from envace.errors import DataError

E = TypeVar("E", bound=DataError)
DIRECTORY = "--x-s3"  # how directory buckets end, whose ETags are no checksums
BLOCK = 1 << 20  # bytes taken off an answer at a time
ONCE = {"retries": {"total_max_attempts": 1}}  # s3fs and the caller retry; a third would take minutes
CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"


class S3:
    """`S3("s3://bucket/prefix")`."""

    licence = "as the source states"

    def __init__(self, uri: str):
        self.uri = uri
        self.bucket, _, self.prefix = uri.removeprefix("s3://").rstrip("/").partition("/")
        if not uri.startswith("s3://") or not self.bucket:
            raise DataError(f"data.uri {uri!r} is not an S3 address; write it as s3://bucket/prefix")
        self.endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
        self.store = S3FileSystem(
            endpoint_url=self.endpoint, config_kwargs=ONCE, skip_instance_cache=True, use_listings_cache=False
        )
        self.store.retries = 2  # of each request; a transfer is taken up by the caller
        self._keys: dict[str, str] = {}  # name -> key

    def files(self) -> list[Remote]:
        """Every object below the prefix, or the one object that bears its name."""
        with self._explained():
            objects = {name: o for o in self._objects() if (name := self._name(o["Key"]))}
        self._keys = {name: o["Key"] for name, o in objects.items()}
        return [Remote(name, o["Size"], o["ETag"].strip('"')) for name, o in objects.items()]

    def _objects(self) -> Iterator[dict[str, Any]]:
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
        """As the object is now, with what listings do not tell: its version, where the bucket keeps versions, and
        its checksums."""
        with self._explained(remote.name):
            head = self.store.call_s3(
                "head_object", Bucket=self.bucket, Key=self._keys[remote.name], ChecksumMode="ENABLED"
            )
        version, etag, sums = head.get("VersionId", ""), head["ETag"].strip('"'), stated_sums(head)
        if self.bucket.endswith(DIRECTORY):
            sums.pop("md5", None)
        return Remote(remote.name, head["ContentLength"], etag, "" if version == "null" else version, sums)

    def read(self, remote: Remote, part: Part) -> None:
        """Append the bytes behind those of the part: of its version, or on condition of its ETag."""
        with self._explained(remote.name):
            answer = self._opened(remote, {"Range": f"bytes={part.size}-"} if part.size else {})
            while part.write(sync(self.store.loop, answer["Body"].read, BLOCK)):
                pass

    def _opened(self, remote: Remote, behind: dict[str, str]) -> dict[str, Any]:
        get = partial(
            self.store.call_s3, "get_object", Bucket=self.bucket, Key=self._keys[remote.name], **behind
        )
        by_etag = {"IfMatch": f'"{remote.etag}"'}
        if not remote.version:
            return get(**by_etag)
        try:
            return get(VersionId=remote.version)
        except PermissionError:  # an account may read objects and not their versions; the ETag pins as well
            return get(**by_etag)

    @contextmanager
    def _explained(self, name: str = "") -> Iterator[None]:
        what = f"{name} in bucket" if name else "bucket"
        try:
            yield
        except (NoCredentialsError, PartialCredentialsError) as e:
            raise self._error(f"there are no AWS credentials; {CREDENTIALS}") from e
        except (NoConnection, *S3_RETRYABLE_ERRORS) as e:
            raise self._unreached(e) from e
        except (OSError, BotoCoreError) as e:
            raise self._refusal(_code(e), e, f"{what} {self.bucket!r} at {self._where()}") from e

    def _unreached(self, error: Exception) -> Broken:
        return self._error(
            f"{self._where()} cannot be reached ({_line(error)}); check the network and AWS_ENDPOINT_URL and run again",
            Broken,
        )

    def _refusal(self, code: str, error: Exception, what: str) -> DataError:
        if not code and isinstance(error, OSError):  # no answer of the store
            return self._unreached(error)
        if code in PASSING or code.startswith("5"):
            return self._error(f"{self._where()} is busy or failing ({code}); run again later", Broken)
        if text := SENTENCES.get(code):
            return self._error(text.format(what=what))
        return self._error(f"{what} cannot be read ({_line(error)}); check the environment's AWS settings")

    def _where(self) -> str:
        return self.endpoint or "Amazon S3"

    def _error(self, text: str, kind: type[E] = DataError) -> E:
        return kind(f"data.uri {self.uri!r}: {text}")


def stated_sums(head: Mapping[str, Any]) -> dict[str, str]:
    """The checksums of whole objects in an answer: `{"md5": "9f8e...", "crc32": "01ab..."}`.

    An ETag is the MD5 of an object that was put in one part and is not encrypted under a key of its own. A checksum
    of checksums (an object put in several parts) says nothing of the whole.
    """
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
SENTENCES = {
    "NoSuchBucket": "there is no {what}; correct data.uri or AWS_ENDPOINT_URL",
    "PreconditionFailed": "{what} changed while it was being fetched; run again",
    "NoSuchKey": "there is no {what} any more; run again",
    "404": "there is no {what} any more; run again",
    "AccessDenied": DENIED,
    "AllAccessDisabled": DENIED,
    "403": DENIED,
    "InvalidAccessKeyId": REJECTED,
    "SignatureDoesNotMatch": REJECTED,
    "ExpiredToken": REJECTED,
    "InvalidToken": REJECTED,
}


def _code(error: BaseException) -> str:
    """S3's code for what is wrong, which s3fs keeps in the cause."""
    for e in (error, error.__cause__):
        if code := (getattr(e, "response", None) or {}).get("Error", {}).get("Code"):
            return str(code)
    return ""


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
