"""Training and evaluation show a policy the same prompts, and both say so where they start."""

import shutil
from types import SimpleNamespace

import pytest
from token_kit import ROOT

from envace.chat.renderer import HFRenderer
from envace.config import parse
from envace.config.method import PRESETS
from envace.engine.run_files import Progress, follow, line
from envace.errors import EnvironmentUnready, ParamsError

START = ROOT / "envace/policy/start"
FOUND = (
    "chat template: appends: tool results, a user turn; "
    "new row (opening_dropped): tool results after a thought; "
    "new row (thoughts_dropped): a user turn after a thought"
)


@pytest.fixture
def run(tmp_path):
    """A project whose models are the bundled one, twice, and the same with another template."""
    for name in ("start", "kept", "other"):
        shutil.copytree(START, tmp_path / "models" / name)
    template = tmp_path / "models/other/chat_template.jinja"
    text = template.read_text(encoding="utf-8")
    template.write_text("{{ messages | length }}" + text, encoding="utf-8")
    said = []
    return SimpleNamespace(
        params=parse({}), path=lambda *parts: tmp_path.joinpath(*parts), note=said.append, said=said
    )


def test_an_evaluation_begins_with_the_check(run):
    from tasks.serving import open_policy

    assert open_policy(run, "kept").ref.name == "start"
    assert run.said == [FOUND]
    with pytest.raises(ParamsError, match="evaluation of other shows the policy other prompts than training"):
        open_policy(run, "other")


def test_a_training_begins_with_the_check(run, monkeypatch, tmp_path):
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    import envace.engine.cpu_platform  # noqa: F401
    from envace.engine import trainer

    def made(name):
        found = trainer.RolewiseTrainer.__new__(trainer.RolewiseTrainer)
        found.run = SimpleNamespace(params=run.params, start=str(run.path("models/start")))
        found.method, found.work = PRESETS["authors"], tmp_path
        found.given = HFRenderer.of(run.path("models", name)).tokenizer
        return found

    monkeypatch.setattr(
        trainer.PPOTrainerSync, "_init_tokenizer", lambda self: setattr(self, "tokenizer", self.given)
    )
    made("kept")._init_tokenizer()
    [event] = [Progress(**record) for record, _ in follow(tmp_path / "progress.jsonl")]
    assert line(event) == f"{FOUND}; old_thoughts keep appends all the same"
    with pytest.raises(ParamsError, match="same chat template"):
        made("other")._init_tokenizer()


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(EnvironmentUnready, match="holds no tokenizer"):
        HFRenderer.of(tmp_path)
