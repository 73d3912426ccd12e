import json

import pytest

from corerl.errors import ConfigError
from corerl.telemetry.report import read_curves, report


def test_the_report_draws_scores_and_validation(tmp_path, capsys):
    records = [{"step": 0, "val-core/x/reward/mean@1": 0.25}, {"step": 1, "critic/score/mean": 0.5}]
    records += [{"step": 2, "critic/score/mean": 0.75, "val-core/x/reward/mean@1": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    report(tmp_path)
    printed = capsys.readouterr().out
    assert "val-core/x/reward/mean@1: 0.250 at step 0, 1.000 at the end" in printed
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_scores_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="holds no metrics"):
        read_curves(tmp_path)
