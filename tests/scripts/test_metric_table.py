import re
from pathlib import Path

import pytest
import torch

from corerl.contracts.metrics import Metric
from corerl.contracts.policy_losses import PolicyLossInputs
from corerl.contracts.value_losses import ValueLossInputs
from corerl.plugins import Plugins
from corerl.registry.modules import load_file
from scripts.metric_table import METRICS, find, matches

ROOT = Path(__file__).parents[2]


def test_the_page_is_the_table():
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == load_file(str(ROOT / "scripts" / "metrics_page.py")).render(page), "run scripts/metrics_page.py"


def test_a_name_stands_for_alternatives_and_for_what_a_run_supplies():
    assert matches(Metric("a/{mean,max}", "", ""), "a/max")
    assert not matches(Metric("a/{mean,max}", "", ""), "a/min")
    assert matches(Metric("val-core/<data source>/reward/mean@<n>", "", ""), "val-core/openai/gsm8k/reward/mean@8")
    assert not matches(Metric("a.b", "", ""), "axb")
    assert find("actor/no_such_thing", METRICS) is None


ASKED_FOR = """
actor/entropy actor/pg_loss actor/kl_loss actor/kl_coef actor/ppo_kl actor/grad_norm actor/lr
critic/score/mean critic/score/max critic/score/min critic/rewards/mean critic/rewards/max critic/rewards/min
critic/advantages/mean critic/advantages/max critic/advantages/min critic/returns/mean critic/returns/max
critic/returns/min critic/values/mean critic/values/max critic/values/min critic/vf_loss critic/vf_explained_var
response_length/mean response_length/max response_length/min response_length/clip_ratio
prompt_length/mean prompt_length/max prompt_length/min prompt_length/clip_ratio
global_seqlen/min global_seqlen/max global_seqlen/mean global_seqlen/balanced_min global_seqlen/balanced_max
global_seqlen/minmax_diff timing_s/step timing_s/gen timing_per_token_ms/gen timing_per_token_ms/update_actor
perf/time_per_step perf/total_num_tokens perf/throughput perf/mfu/actor perf/max_memory_allocated_gb
perf/max_memory_reserved_gb perf/cpu_memory_used_gb
"""


@pytest.mark.parametrize("name", ASKED_FOR.split())
def test_the_names_of_the_field_are_in_the_table(name):
    assert find(name, METRICS)


def test_no_two_rows_are_about_the_same_metric():
    plain = [metric.name for metric in METRICS if not re.search(r"[{<]", metric.name)]
    for name in plain:
        assert [metric.name for metric in METRICS if matches(metric, name) and "<" not in metric.name] == [name]


def test_losses_declare_the_metrics_that_they_report():
    registries = Plugins().registries
    mask, zeros = torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3)
    policy = PolicyLossInputs(zeros, zeros, zeros + 1, mask, zeros, zeros, mask, {"divergence": zeros})
    value = ValueLossInputs(zeros, zeros, zeros, mask)
    for registry, inputs, role in (
        (registries.policy_losses, policy, "actor"),
        (registries.value_losses, value, "critic"),
    ):
        for entry in registry:
            reported = {f"{role}/{name}" for name in registry.select(entry.name).load()(inputs).metrics}
            assert reported == {metric.name for metric in entry.facts.metrics}, entry.name
