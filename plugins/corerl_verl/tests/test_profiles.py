"""verl's profilers as ``trainer.profile``."""

from corerl_verl.from_verl import from_verl

BASE = ["actor_rollout_ref.model.path=model", "data.train_files=train.parquet"]


def of(*arguments):
    values, remarks = from_verl([*BASE, *arguments])
    return values.get("trainer", {}).get("profile"), [each for each in remarks if "rofile" in each]


def test_steps_ranks_and_enabled_roles_become_one_section():
    profile, remarks = of(
        "global_profiler.tool=torch",
        "global_profiler.steps=[2,5]",
        "global_profiler.save_path=outputs/profile",
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "critic.profiler.enable=True",
        "actor_rollout_ref.actor.profiler.enable=True",
        "actor_rollout_ref.actor.profiler.ranks=[0,1]",
        "actor_rollout_ref.ref.profiler.enable=True",
        "actor_rollout_ref.ref.profiler.ranks=[0,1]",
        "actor_rollout_ref.actor.profiler.tool_config.torch.contents=[cuda,cpu,stack]",
    )
    assert profile == {"steps": [2, 5], "ranks": [0, 1], "roles": ["actor", "ref"], "stacks": True}
    assert remarks == ["global_profiler.save_path=outputs/profile: profiles are written into the run's folder"]


def test_torch_memory_writes_snapshots_alone():
    profile, _ = of(
        "global_profiler.tool=torch_memory",
        "global_profiler.steps=[1]",
        "actor_rollout_ref.actor.profiler.enable=True",
        "actor_rollout_ref.actor.profiler.all_ranks=True",
        "global_profiler.global_tool_config.torch_memory.trace_alloc_max_entries=5000",
    )
    assert profile == {
        "steps": [1], "ranks": None, "roles": ["actor"], "memory": True, "trace": False, "max_entries": 5000
    }  # fmt: skip


def test_a_profiler_that_is_off_is_harmless_and_another_tool_is_missing():
    profile, remarks = of("global_profiler.tool=torch", "global_profiler.steps=null")
    assert profile is None and "nothing is profiled" in remarks[0]
    profile, remarks = of(
        "global_profiler.tool=nsys", "global_profiler.steps=[1]", "actor_rollout_ref.actor.profiler.enable=True"
    )
    assert profile is None and "not with nsys" in remarks[0]


def test_prometheus_becomes_a_tracker():
    values, remarks = from_verl([*BASE, "actor_rollout_ref.rollout.prometheus.enable=True"])
    assert values["tracking"]["loggers"] == ["console", "wandb", "prometheus"]
    assert any("not vLLM's and SGLang's own" in each for each in remarks)


def test_keys_of_megatrons_transformer_config_are_passed_on_but_those_that_corerl_sets():
    section = "actor_rollout_ref.actor.megatron.override_transformer_config"
    values, remarks = from_verl(
        [
            "model_engine=megatron",
            *BASE,
            f"+{section}.moe_permute_fusion=True",
            f"+{section}.recompute_granularity=full",
            f"+{section}.apply_rope_fusion=True",
            f"+{section}.moe_aux_loss_coeff=0.001",
        ]
    )
    strategy = values["actor"]["strategy"]
    assert strategy["override_transformer_config"] == {"moe_permute_fusion": True}
    assert strategy["recompute_granularity"] == "full"
    assert any(each.startswith("actor.megatron") and "no load-balance loss of routers" in each for each in remarks)
    assert any("apply_rope_fusion=True: a matter of speed" in each for each in remarks)
