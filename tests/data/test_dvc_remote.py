"""Staged rows outlive their source: pushed to a DVC remote on S3, pulled by a clone that cannot reach the
rows, and staged anew there with other parameters."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import boto3
import pytest
import yaml
from test_cm2_rows import foreign_row

from envace.config import load, to_dict

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()
PARTS = ("dvc.yaml", ".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "envace", "flows", "tasks")
ROWS, STORE = "rows", "my-bucket"
KEYS = {"aws_access_key_id": "any", "aws_secret_access_key": "any"}
MADE = ("data/staged", "data/raw", "models/start")  # of the stages run here


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """(client, environment): an S3 server in a process of its own, and what a user's shell would hold."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = environment(port, tmp_path_factory.mktemp("home"))
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(server, port)
        client = boto3.client("s3", endpoint_url=env["AWS_ENDPOINT_URL"], region_name="us-east-1", **KEYS)
        client.create_bucket(Bucket=ROWS)
        yield client, env
    finally:
        server.kill()
        server.wait()


def wait_for(server, port):
    stop = time.monotonic() + 60
    while True:
        assert server.poll() is None and time.monotonic() < stop
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.2)


def environment(port, home):
    own = ("PREFECT_", "MLFLOW_", "envace", "AWS_", "DVC_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(own) and k != "PYTHONPATH"}
    return env | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        **{k.upper(): v for k, v in KEYS.items()},
        "AWS_SHARED_CREDENTIALS_FILE": str(home / "none"),
        "AWS_CONFIG_FILE": str(home / "none"),
        "DVC_NO_ANALYTICS": "1",
        "DVC_SITE_CACHE_DIR": str(home),
        "DVC_GLOBAL_CONFIG_DIR": str(home),
        "GIT_AUTHOR_NAME": "t",
        "GIT_AUTHOR_EMAIL": "t@t",
        "GIT_COMMITTER_NAME": "t",
        "GIT_COMMITTER_EMAIL": "t@t",
    }


@pytest.fixture
def project(tmp_path, world):
    """A checkout of the project whose rows lie in a bucket."""
    root = tmp_path / "project"
    for part in PARTS:
        source, target = ROOT / part, root / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    ask_for(root, "1")
    git(root, world, "init", "-q")
    git(root, world, "add", ".")
    git(root, world, "commit", "-qm", "project")
    return root


def ask_for(root, revision, **data):
    params = to_dict(load(ROOT / "sizes/laptop.yaml"))
    params["data"] |= {
        "source": "s3",
        "uri": f"s3://{ROWS}/cm2",
        "revision": revision,
        "held_share": 0.2,
        **data,
    }
    (root / "params.yaml").write_text(yaml.safe_dump(params))


def put_rows(client, n):
    text = "".join(json.dumps(foreign_row(f"u-{k}")) + "\n" for k in range(n))
    client.put_object(Bucket=ROWS, Key="cm2/rows.jsonl", Body=text.encode())


def run(folder, world, command):
    done = subprocess.run(command, cwd=folder, env=world[1], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, (command, done.stdout[-3000:], done.stderr[-3000:])
    return done.stdout + done.stderr


def git(folder, world, *command):
    return run(folder, world, ["git", *command])


def dvc(folder, world, command):
    """A command as docs/operations.md has it."""
    assert f".venv/bin/dvc {command}" in PAGE
    return run(folder, world, [sys.executable, "-m", "dvc", *command.split()])


def make_bucket(folder, world):
    [line] = re.findall(r"^\.venv/bin/(python -c .*create_bucket.*)$", PAGE, re.M)
    run(folder, world, shlex.split(line))


def pipeline(folder, world, *more):
    """`make repro ARGS="stage_data ..."`; returns (status, what was said)."""
    command = [sys.executable, "-m", "flows.reproduce", "stage_data", *more]
    done = subprocess.run(command, cwd=folder, env=world[1], capture_output=True, text=True, timeout=900)
    return done.returncode, done.stdout + done.stderr


def counts(folder):
    return json.loads((folder / "data/staged/manifest.json").read_text())["counts"]


def reproduce(folder, world):
    return run(folder, world, [sys.executable, "-m", "dvc", "repro", "stage_data", "policy"])


def clone(project, world, name):
    git(project.parent, world, "clone", "-q", "project", name)
    folder = project.parent / name
    dvc(folder, world, f"remote add --local -d store s3://{STORE}/envace")
    return folder


def bytes_of(root):
    files = (f for part in MADE for f in (root / part).rglob("*") if f.is_file())
    return {f.relative_to(root).as_posix(): f.read_bytes() for f in files}


def stored(client):
    """Checksums of what the remote holds."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=STORE, Prefix="envace/files/md5/")
    return {"".join(o["Key"].split("/")[-2:]) for page in pages for o in page.get("Contents", ())}


def needed(root):
    """Checksums of the outputs dvc.lock names, folders with what is in them."""
    sums = set()
    for stage in yaml.safe_load((root / "dvc.lock").read_text())["stages"].values():
        for out in stage["outs"]:
            sums.add(out["md5"])
            listing = root / ".dvc/cache/files/md5" / out["md5"][:2] / out["md5"][2:]
            sums |= {entry["md5"] for entry in json.loads(listing.read_text())}
    return sums


def remember(root, world, message):
    git(root, world, "add", "dvc.lock", "params.yaml")
    git(root, world, "commit", "-qm", message)


@pytest.mark.heavy
def test_a_bucket_that_changed_stops_the_pipeline_or_is_followed_as_the_user_says(project, world):
    client, _ = world
    put_rows(client, 20)
    run(project, world, [sys.executable, "-m", "dvc", "repro", "stage_data"])
    put_rows(client, 22)
    code, said = pipeline(project, world)
    assert code == 2 and "is not what data/staged was made from: changed rows.jsonl" in said
    assert "--keep-rows" in said and counts(project)["read"] == 20
    code, said = pipeline(project, world, "--keep-rows")
    assert code == 0 and "the staged rows are used" in said and "nothing to do" in said
    ask_for(project, "1", accept_changed=True)
    run(project, world, [sys.executable, "-m", "dvc", "repro", "stage_data"])
    assert counts(project)["read"] == 22
    put_rows(client, 24)  # no parameter changes any more
    code, said = pipeline(project, world)
    assert code == 0 and "so stage_data runs again" in said and counts(project)["read"] == 24
    code, said = pipeline(project, world)
    assert code == 0 and "nothing to do" in said


@pytest.mark.heavy
def test_staged_rows_outlive_their_source_on_a_remote_and_old_ones_are_collected(project, world):
    client, _ = world
    put_rows(client, 30)
    make_bucket(project, world)
    dvc(project, world, f"remote add --local -d store s3://{STORE}/envace")
    reproduce(project, world)
    assert json.loads((project / "data/staged/manifest.json").read_text())["counts"]["kept"] == 30
    dvc(project, world, "push")
    remember(project, world, "thirty rows")
    old = needed(project)
    assert stored(client) == old

    put_rows(client, 40)
    ask_for(project, "2")
    assert "Stage 'policy' didn't change" in reproduce(project, world)
    dvc(project, world, "push")
    remember(project, world, "forty rows")
    new, whole = needed(project), bytes_of(project)
    assert stored(client) == old | new and old - new

    dvc(project, world, "gc --workspace --cloud --force")
    assert stored(client) == new
    assert bytes_of(project) == whole and not git(project, world, "status", "--porcelain")

    client.delete_object(Bucket=ROWS, Key="cm2/rows.jsonl")
    client.delete_bucket(Bucket=ROWS)
    pulled = clone(project, world, "pulled")
    dvc(pulled, world, "pull stage_data policy")
    assert bytes_of(pulled) == whole and "up to date" in reproduce(pulled, world)
    asked = clone(project, world, "asked")
    dvc(asked, world, "repro --pull stage_data policy")
    assert bytes_of(asked) == whole
    for folder in (pulled, asked):
        assert not (folder / ".state").exists()  # no stage ran
        assert not git(folder, world, "status", "--porcelain")

    ask_for(pulled, "2", held_share=0.5)  # the rows are staged anew, though nobody can fetch them
    assert "stand in for a download" in reproduce(pulled, world)
    before, after = counts(project), counts(pulled)
    assert after["kept"] == before["kept"] == 40 and after["held"] > before["held"]


def test_the_local_server_keeps_its_objects_and_is_pinned_and_bound_to_this_machine():
    text = (ROOT / "compose.yaml").read_text()
    compose = yaml.safe_load(text)
    server, bucket = compose["services"]["s3"], compose["services"]["bucket"]
    for service in (server, bucket):
        assert re.fullmatch(r"minio/\w+:RELEASE\.\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ", service["image"])
        assert all(re.fullmatch(r"\$\{AWS_\w+:\?.+\}", value) for value in service["environment"].values())
    [port], [volume] = server["ports"], server["volumes"]
    assert port == "127.0.0.1:9000:9000" and f"http://{port[:14]}" in PAGE
    name, at = volume.split(":")
    assert name in compose["volumes"] and server["command"] == ["server", at]
    assert bucket["depends_on"] == {"s3": {"condition": "service_healthy"}} and "healthcheck" in server
    [made] = re.findall(r"mb --ignore-existing here/(\S+)\'?$", bucket["command"][0])
    assert made == STORE and f"s3://{STORE}/" in PAGE and "docker compose up -d" in PAGE
