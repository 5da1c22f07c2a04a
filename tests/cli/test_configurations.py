"""How files and options come together."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lucid_core.cli import CONFIGS, main

from .conftest import QUIET, Command
from .standin import Recorder

Printed = Callable[..., dict[str, Any]]
REPOSITORY = Path(__file__).parents[2]


def names(config: dict[str, Any]) -> list[str]:
    return [item["class_path"].rpartition(".")[2] for item in config["trainer"]["callbacks"] or []]


def test_without_a_configuration_the_demo_applies(printed: Printed) -> None:
    assert printed("fit")["trainer"]["max_epochs"] == 5
    assert printed("fit --config detect")["trainer"]["max_epochs"] == 60


def test_a_named_configuration_replaces_the_demo(printed: Printed, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("model: {lr: 0.5}")
    for option in ("--config mine.yaml", "--config=mine.yaml", "-c mine.yaml"):
        config = printed(f"fit {option}")
        assert config["model"]["lr"] == 0.5
        assert config["trainer"]["max_epochs"] == 50


def test_a_checkpoint_that_is_named_by_a_word_replaces_the_demo(printed: Printed) -> None:
    assert printed("fit --ckpt_path last")["trainer"]["max_epochs"] == 50


def test_defaults_of_the_trainer(printed: Printed) -> None:
    trainer = printed("fit --config {}")["trainer"]
    assert trainer["gradient_clip_val"] == 10
    assert trainer["deterministic"] is True
    assert trainer["use_distributed_sampler"] is False
    assert printed("fit")["seed_everything"] == 0


def test_a_file_comes_before_a_packaged_name(printed: Printed, tmp_path: Path) -> None:
    assert printed("fit --config demo") == printed("fit --config demo.yaml") == printed("fit")
    (tmp_path / "demo").write_text("trainer: {max_epochs: 77}")
    assert printed("fit --config demo")["trainer"]["max_epochs"] == 77


def test_configurations_compose_and_options_win_from_left_to_right(printed: Printed, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: {lr: 0.1, variant: s}")
    (tmp_path / "b.yaml").write_text("model: {lr: 0.2}")
    model = printed("fit --config a.yaml --config b.yaml --model.momentum 0.5")["model"]
    assert (model["lr"], model["variant"], model["momentum"]) == (0.2, "s", 0.5)
    assert printed("fit --model.lr 9 --config a.yaml")["model"]["lr"] == 0.1


@pytest.mark.parametrize("content", [b"", b" \n\n", b"# only a comment\n", b"{}", b"\xef\xbb\xbf"])
def test_an_empty_configuration_changes_nothing(printed: Printed, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "empty.yaml").write_bytes(content)
    assert printed("fit --config empty.yaml") == printed("fit --config {}")


def test_a_byte_order_mark_is_read_over(printed: Printed, tmp_path: Path) -> None:
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfmodel: {variant: s}\n")
    assert printed("fit --config bom.yaml")["model"]["variant"] == "s"


@pytest.mark.parametrize("value", ["1e-3", "5e-4", "1E-8", "1"])
def test_numbers_in_scientific_notation_are_numbers(printed: Printed, tmp_path: Path, value: str) -> None:
    (tmp_path / "mine.yaml").write_text(f"model: {{lr: {value}, momentum: {value}}}")
    for config in (printed("fit --config mine.yaml"), printed(f"fit --model.lr {value} --model.momentum={value}")):
        assert config["model"]["lr"] == config["model"]["momentum"] == float(value)


def test_a_later_list_replaces_and_the_append_form_adds(printed: Printed, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("trainer: {callbacks: [ModelSummary]}")
    (tmp_path / "b.yaml").write_text("trainer: {callbacks: [Recorder]}")
    (tmp_path / "c.yaml").write_text("trainer: {callbacks+: [Recorder]}")
    assert names(printed("fit -c a.yaml -c b.yaml")) == ["Recorder"]
    assert names(printed("fit -c a.yaml -c c.yaml")) == ["ModelSummary", "Recorder"]
    assert names(printed("fit -c a.yaml --trainer.callbacks+=Recorder")) == ["ModelSummary", "Recorder"]


def test_options_follow_the_callback_before_them(printed: Printed) -> None:
    config = printed(
        "fit --trainer.callbacks+=Recorder --trainer.callbacks.gain=.9 --trainer.callbacks+=EarlyStopping "
        "--trainer.callbacks.monitor=v --trainer.callbacks.patience=7"
    )
    recorder, stopping = (item["init_args"] for item in config["trainer"]["callbacks"])
    assert recorder["gain"] == 0.9
    assert (stopping["monitor"], stopping["patience"]) == ("v", 7)


def test_a_saved_configuration_gives_the_same_run_again(lucid: Command) -> None:
    first = lucid("fit --model.variant s --trainer.callbacks+=Recorder --trainer.callbacks.gain=.3", *QUIET)
    again = lucid("fit --config runs/version_0/config.yaml", *QUIET)

    def kinds(cli: Any) -> list[str]:
        return sorted(type(callback).__name__ for callback in cli.trainer.callbacks)

    assert kinds(first) == kinds(again)
    assert [c.gain for c in again.trainer.callbacks if isinstance(c, Recorder)] == [0.3]
    assert again.model.hparams["variant"] == "s"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_packaged_configuration_names_only_what_exists(path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--config", path.stem, "--print_config"])
    assert stopped.value.code == 0


def test_the_folder_at_the_root_has_the_packaged_ones() -> None:
    links = {path.name: path for path in (REPOSITORY / "configs").iterdir() if path.suffix == ".yaml"}
    if shutil.which("git") is None and not all(link.is_symlink() for link in links.values()):
        pytest.skip("the checkout has no symbolic links")
    assert {name: link.resolve() for name, link in links.items()} == {
        path.name: path.resolve() for path in CONFIGS.glob("*.yaml")
    }
    assert not any(link.readlink().is_absolute() for link in links.values())
