"""What the checks of presets do beside catching the planted faults."""

from typing import Any


def test_a_part_that_is_not_installed_is_skipped_and_named(outcomes: Any) -> None:
    def elsewhere() -> dict[str, Any]:
        return {"actor": {"policy_loss": "of_another_plugin"}}

    result = outcomes("presets", elsewhere)["parts_take_their_options"]
    assert result.status == "skipped"
    assert "unknown policy loss 'of_another_plugin'" in result.reason


def test_a_preset_that_another_process_cannot_import_is_not_tried_there(outcomes: Any) -> None:
    def local() -> dict[str, Any]:
        return {"rollout": {"n": 16}}

    name = "same_in_a_fresh_process"
    result = outcomes("presets", local, only=name)[name]
    assert (result.status, result.reason) == ("skipped", "another process cannot import it by its name")
