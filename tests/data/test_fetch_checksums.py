"""Which checksums a store states, and that the bytes which arrive are held to every one of them."""

import hashlib
import random
import zlib

import pytest
from hub_kit import params
from s3_kit import BUCKET, served

from envace.data.fetch import fetch
from envace.data.s3 import stated_sums
from envace.data.stores import Remote, verified
from envace.errors import DataError

MB = 1 << 20
MD5 = "0123456789abcdef" * 2
BIG = random.Random(2).randbytes(6 * MB)


@pytest.fixture
def client(monkeypatch):
    with served(monkeypatch.setenv) as (client, _):
        yield client


def test_bytes_are_held_to_the_checksums_the_store_states_and_the_record_says_to_which(client, tmp_path):
    client.put_object(Bucket=BUCKET, Key="cm2/a.jsonl", Body=b"{}\n", ChecksumAlgorithm="SHA256")
    upload = {"Bucket": BUCKET, "Key": "cm2/b.parquet"}
    started = client.create_multipart_upload(**upload)["UploadId"]
    parts = [
        {
            "PartNumber": k,
            "ETag": client.upload_part(**upload, UploadId=started, PartNumber=k, Body=body)["ETag"],
        }
        for k, body in ((1, BIG), (2, b"end"))
    ]
    client.complete_multipart_upload(**upload, UploadId=started, MultipartUpload={"Parts": parts})
    a, b = fetch(
        params(source="s3", uri=f"s3://{BUCKET}/cm2", revision=""), tmp_path / "f", say=lambda t: None
    ).files
    assert {"md5", "sha256"} <= set(a.verified.split()) and "-" in b.etag and "md5" not in b.verified


@pytest.mark.parametrize(
    ("head", "stated"),
    [
        ({"ETag": f'"{MD5}"'}, {"md5": MD5}),
        ({"ETag": f'"{MD5}"', "ServerSideEncryption": "AES256"}, {"md5": MD5}),
        ({"ETag": f'"{MD5}"', "ServerSideEncryption": "aws:kms"}, {}),
        ({"ETag": f'"{MD5}-2"', "ChecksumCRC32": "AAAAAQ==", "ChecksumType": "COMPOSITE"}, {}),
        ({"ETag": f'"{MD5}-2"', "ChecksumSHA256": "AAAAAQ==-2"}, {}),
        (
            {"ETag": f'"{MD5}-2"', "ChecksumCRC32": "AAAAAQ==", "ChecksumType": "FULL_OBJECT"},
            {"crc32": "00000001"},
        ),
        ({"ETag": '"made by another store"', "ChecksumCRC32C": "AAAAAQ=="}, {}),
    ],
)
def test_only_checksums_of_whole_objects_count(head, stated):
    assert stated_sums(head) == stated


@pytest.mark.parametrize("name", ["sha256", "sha1", "md5", "crc32"])
def test_a_file_that_does_not_have_the_stated_checksum_is_refused(tmp_path, name):
    right = {
        "sha256": hashlib.sha256(b"rows").hexdigest(),
        "sha1": hashlib.sha1(b"rows").hexdigest(),
        "md5": hashlib.md5(b"rows").hexdigest(),
        "crc32": f"{zlib.crc32(b'rows'):08x}",
    }
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"rows")
    assert verified(path, Remote("a.jsonl", 4, "e", sums=right)) == right["sha256"]
    wrong = right | {name: "0" * len(right[name])}
    with pytest.raises(DataError, match=f"a.jsonl arrived damaged .its {name} is {right[name]}"):
        verified(path, Remote("a.jsonl", 4, "e", sums=wrong))
    assert not path.exists()
