"""Every metric of the core: name, unit and definition. ``scripts/metrics_page.py`` writes docs/metrics.md.

A loss declares its own metrics at its registration, as ``metrics``.
"""

import re
from collections.abc import Iterable

from corerl.contracts.metrics import Metric

SPREAD = "{mean,max,min}"

PARTS = (
    "{gen,reward,wait,batch,handover,old_log_prob,ref,values,adv,metrics,update_critic,teacher,update_actor,"
    "update_weights}"
)

SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Policy": (
        Metric(
            "actor/pg_loss",
            "",
            "policy loss: terms times rollout correction weights, aggregated by `actor.loss_agg_mode`",
        ),
        Metric("actor/entropy", "nats", "entropy of the policy before the update, mean over trained tokens"),
        Metric("actor/ppo_kl", "nats", "old minus new log-prob during the update, mean over trained tokens"),
        Metric("actor/kl_loss", "nats", "KL(policy || reference) by `actor.kl_loss_type`, before its coefficient"),
        Metric("actor/kl_coef", "", "coefficient of `actor/kl_loss`, `actor.kl_loss_coef`; with `actor.use_kl_loss`"),
        Metric(
            "actor/score_centering", "", "term of `algorithm.rollout_correction.score_centering`, added to the loss"
        ),
        Metric("actor/entropy_loss", "nats", "entropy bonus before its coefficient; with `actor.entropy_coeff`"),
        Metric("actor/grad_norm", "", "L2 norm of the gradient before clipping, mean over the step's updates"),
        Metric("actor/lr", "", "learning rate, mean over the step's updates"),
        Metric("actor/loss_scale", "", "factor of the loss after an update; with `model.dtype=fp16`"),
        Metric("actor/overflows", "share", "updates that overflowed, and changed no weight; with `model.dtype=fp16`"),
        Metric(
            "actor/router_entropy",
            "nats",
            "entropy of the routers' scores over all experts during the update, mean over tokens and layers; with a "
            "mixture of experts under `torch` or `fsdp`, as the next two rows",
        ),
        Metric(
            "actor/expert_load_{max,min}",
            "",
            "tokens of the expert with most, or fewest, over the mean of its layer, in the update; mean over layers",
        ),
        Metric("actor/expert_load_worst", "", "`expert_load_max` of the layer with the largest one"),
        Metric(
            "actor/router_aux_loss",
            "",
            "load-balance loss before its coefficient, at an even load the number of chosen experts; with "
            "`actor.strategy.router_aux_loss_coef`",
        ),
        Metric(
            "actor/skipped_tokens", "share", "tokens, of prompts and responses, that `actor.zero_advantage` left out"
        ),
        Metric("actor/skipped_updates", "share", "updates skipped because of a NaN or infinite loss or gradient"),
        Metric(
            "actor/reward_kl_penalty",
            "nats",
            "KL in the reward, mean over tokens, then over responses; with `algorithm.use_kl_in_reward`",
        ),
        Metric("actor/reward_kl_penalty_coeff", "", "coefficient of `actor/reward_kl_penalty` in this step"),
    ),
    "Scores, advantages, critic": (
        Metric(f"critic/score/{SPREAD}", "score", "scores of the scorer, over scored responses"),
        Metric(f"critic/rewards/{SPREAD}", "score", "score minus KL penalty, summed over a response's tokens"),
        Metric(f"critic/advantages/{SPREAD}", "", "advantages, over trained tokens"),
        Metric(f"critic/returns/{SPREAD}", "", "returns, over trained tokens"),
        Metric(f"critic/values/{SPREAD}", "", "values of the critic before the update, over trained tokens"),
        Metric("critic/vf_loss", "", "value loss, aggregated by `critic.loss_agg_mode`"),
        Metric(
            "critic/vf_explained_var", "", "1 - var(returns - values) / var(returns): at best 1; 0 for a constant value"
        ),
        Metric("critic/vpred_mean", "", "values during the update, mean over trained tokens"),
        Metric("critic/{grad_norm,lr,skipped_updates,loss_scale,overflows}", "", "as the policy's `actor/…`"),
    ),
    "Rewards": (
        Metric("reward/error_ratio", "share", "responses without a score"),
        Metric(
            "reward/errors/<kind>/count",
            "responses",
            "responses without a score for one reason: `timeout`, `memory`, `crash`, `exception`, `value`, `unscored`, "
            "`server`, `judge`, `length`, `other`; absent for reasons without responses",
        ),
        Metric("reward/errors/<kind>/rate", "share", "the same as a share of all responses"),
        Metric("reward/groups_without_spread", "share", "prompts whose scored responses all have the same score"),
        Metric("reward/<component>/mean", "", "a component of the scorer, over the responses with this component"),
    ),
    "Lengths": (
        Metric(f"response_length/{SPREAD}", "tokens", "length of the responses"),
        Metric("response_length/clip_ratio", "share", "responses cut off at the limit"),
        Metric(f"prompt_length/{SPREAD}", "tokens", "length of the prompts, one value per response"),
        Metric("prompt_length/clip_ratio", "share", "prompts as long as `data.max_prompt_length`"),
        Metric(f"global_seqlen/{SPREAD}", "tokens", "length of prompt plus response, over responses"),
        Metric("global_seqlen/balanced_{max,min}", "tokens", "tokens of the data-parallel rank with most, or fewest"),
        Metric("global_seqlen/minmax_diff", "tokens", "`balanced_max` minus `balanced_min`"),
    ),
    "Time": (
        Metric(
            f"timing_s/{PARTS}",
            "s",
            "one part of the step. `gen`: until the last response is complete; `reward`: time that scoring adds; "
            "`wait`: waiting for groups, with `trainer.max_staleness`; `batch`: making tensors; `handover`: passing "
            "memory from the engine to training and back; `adv`: advantages, KL penalty, rollout correction; "
            "`metrics`: metrics of the batch and sample rollouts; `teacher`: teachers of policy loss `distill`; "
            "`update_weights`: sending weights",
        ),
        Metric("timing_s/testing", "s", "evaluation"),
        Metric("timing_s/save", "s", "copying the contents of a checkpoint; writing it runs during training"),
        Metric(
            "timing_s/step",
            "s",
            "the step with its evaluation and checkpoint: the sum of all other `timing_s` within 1%",
        ),
        Metric(
            "timing_background_s/ref",
            "s",
            "with `ref.overlap_parts`: reading by the reference; `timing_s/ref` is the time that the step waits for it",
        ),
        Metric(
            "timing_background_s/{gen,reward}",
            "s",
            "with `trainer.max_staleness`: from the admission of the first group of this step to its last response, "
            "and from there to its last score",
        ),
        Metric(
            f"timing_per_token_ms/{PARTS}",
            "ms",
            "`timing_s/…` per response token (`gen`, `reward`) or per token of prompts and responses (all others)",
        ),
    ),
    "Performance": (
        Metric("perf/time_per_step", "s", "time of the step without evaluation and checkpoint"),
        Metric("perf/total_num_tokens", "tokens", "tokens of prompts and responses, summed over responses"),
        Metric("perf/throughput", "tokens/s", "`total_num_tokens` / `time_per_step`, all devices together"),
        Metric(
            "perf/mfu/actor",
            "share",
            "floating-point operations of the policy's update over the peak of its devices by their datasheets; "
            "a prefix that rows share counts for each of them; only for GPUs with a known peak",
        ),
        Metric(
            "perf/max_memory_{allocated,reserved}_gb",
            "GiB",
            "peak memory that torch used, or held, on worker 0's GPU so far",
        ),
        Metric("perf/cpu_memory_{used,peak}_gb", "GiB", "memory of the controller's process, now and at its peak"),
    ),
    "Training": (
        Metric(
            "weights/update_lost_in_rounding",
            "share",
            "part of the change of the weights, since they were first sent, that engines lack because their weights "
            "are rounded to `model.dtype`; near 1 in the first steps of a model with files in 16 bits, if the rate is "
            "small ([why](precision.md#updates-smaller-than-the-spacing)), near 0 for weights that began in float32; "
            "measured on a sample of all weights at the first three sendings and every 16th",
        ),
        Metric(
            "weights/engine_drift",
            "share",
            "norm of the difference between the engine's rounded weights and the trainer's, over the norm of the "
            "trainer's weights; in bf16 about 0.0015 at most; measured with the metric above",
        ),
        Metric("rollout/restarts", "", "restarts of engines in this run"),
        Metric("training/restarts", "", "restarts of lost workers in this process"),
        Metric(
            "rollout/workers_lost",
            "",
            "rollout workers lost in this run while others were left: ended or hung, restarted or not",
        ),
        Metric(
            "rollout/episode_workers_lost",
            "",
            "workers of `rollout.num_workers` lost in this run while others were left, restarted or not",
        ),
        Metric(
            "training/{global_step,epoch}", "", "step and epoch of the batch; the first step is 1, the first epoch 0"
        ),
        Metric(
            "training/rollout_probs_diff_{mean,max}", "", "abs(p_rollout - p_trainer) over tokens: engine and trainer"
        ),
        Metric("training/nonfinite_samples", "responses", "responses left out; with `trainer.on_nonfinite: skip`"),
        Metric(
            "training/num_gen_batches",
            "batches",
            "`training/num_gen_prompts` in batches of `data.gen_batch_size`, rounded up; with "
            "`algorithm.filter_groups`",
        ),
        Metric(
            "training/num_gen_prompts", "prompts", "prompts generated for this step, with those that the filter dropped"
        ),
        Metric(
            "rollout/requests/limit",
            "responses",
            "largest number of responses under way, as it follows the engines; these four only if the engine reports "
            "its load and `rollout.max_concurrent_requests` is null",
        ),
        Metric("rollout/requests/waiting_in_engine", "responses", "mean number that wait in the engines"),
        Metric(
            "rollout/requests/preempted",
            "responses",
            "responses whose KV cache was taken by others, since the last step; the engine computes it again",
        ),
        Metric("rollout/kv_cache_usage/max", "share", "largest share of an engine's KV cache in use"),
        Metric("rollout/failed_groups", "groups", "groups that failed twice and were left out, since the last step"),
        Metric(
            "training/staleness/{mean,max,token_mean}",
            "updates",
            "age of the weights in updates of the policy: at the start of a response; `token_mean`: at each token",
        ),
    ),
    "Agents": (
        Metric("agent/turns/{mean,max}", "turns", "requests to the policy per episode"),
        Metric("agent/tool_calls/{mean,max}", "calls", "tool calls per episode; agents `tools`, `verl_tools`"),
        Metric("agent/tool_errors/ratio", "share", "tool calls answered with an error; likewise"),
        Metric("agent/tool_rewards/{mean,max}", "number", "sum of the rewards of verl's tools; agent `verl_tools`"),
        Metric("agent/turn_scores/{mean,max}", "number", "sum of the scores of verl's interaction; agent `verl_tools`"),
        Metric("agent/num_turns/{mean,max}", "turns", "turns that verl's loop reports; agent `verl_agent_loop`"),
        Metric(
            "agent/tool_call_seconds/{mean,max}", "s", "time of the tool calls of an episode, added up; agent `tools`"
        ),
        Metric("agent/malformed_calls/{mean,max}", "calls", "tool calls of the policy per episode that cannot be read"),
        Metric(
            "agent/rewritten_chats/{mean,max}",
            "requests",
            "chats per episode that continue another, whose earlier messages the chat template wrote differently",
        ),
        Metric(
            "agent/spelled_control_tokens/{mean,max}",
            "tokens",
            "control tokens per episode that texts of messages spell; they stay text (`model.allowed_special`)",
        ),
        Metric("agent/branches/{mean,max}", "rows", "further rows per episode: conversations that leave its main one"),
        Metric(
            "agent/context/{mean,max}", "tokens", "tokens of the longest conversation per episode, read ones included"
        ),
        Metric(
            "agent/waiting_seconds/{mean,max}", "s", "time per episode in which a request waits and none is under way"
        ),
        Metric("agent/generating_seconds/{mean,max}", "s", "time per episode in which a request is in the engine"),
        Metric(
            "agent/tool_seconds/{mean,max}", "s", "the agent's own time per episode: no request waits or is under way"
        ),
        Metric("agent/scoring_seconds/{mean,max}", "s", "time from the agent's end to the episode's score"),
        Metric("agent/failed/ratio", "share", "episodes that ended with an error; they are left out of training"),
        Metric("agent/failed/timeout/ratio", "share", "of these by cause: longer than `rollout.agent_timeout`"),
        Metric("agent/failed/exception/ratio", "share", "the agent raised an exception"),
        Metric("agent/failed/aborted/ratio", "share", "a generation was aborted"),
        Metric("agent/failed/silent/ratio", "share", "the agent asked the policy for nothing"),
        Metric("agent/failed/refused/ratio", "share", "a request of the agent was refused, such as a too long one"),
        Metric("agent/failed/reported/ratio", "share", "the agent returned an error"),
        Metric("agent/<name>/{mean,max}", "", "a number of the agent per episode ([agents](agents.md#the-result))"),
    ),
    "Agents in processes": (
        Metric("harness/seconds/{mean,max}", "s", "time of the command per episode"),
        Metric("harness/check_seconds/{mean,max}", "s", "time of the check per episode"),
        Metric("harness/memory_gb/{mean,max}", "GiB", "most memory that was seen, of all processes of a command"),
        Metric("harness/processes/{mean,max}", "", "most processes and threads that were seen"),
        Metric("harness/output_kb/{mean,max}", "KiB", "printed by the command"),
        Metric("harness/exit_code/ratio", "share", "commands that ended by themselves with another exit code than 0"),
        Metric("harness/{timeout,memory,tasks,disk,output}/ratio", "share", "commands that were ended by this limit"),
        Metric("harness/lost/ratio", "share", "commands whose keeper was killed"),
        Metric("harness/left_behind/ratio", "share", "commands that left processes behind, which were killed"),
        Metric("harness/check_timeout/ratio", "share", "checks that ended at their deadline"),
        Metric("verifiers/<name>/{mean,max}", "", "a metric of a task of verifiers 0.4"),
    ),
    "Environments": (
        Metric("env/turns/{mean,max}", "turns", "turns of the policy per episode"),
        Metric("env/reward/{mean,max}", "", "sum of the environment's rewards per episode"),
        Metric("env/tool_calls/{mean,max}", "calls", "calls of tools per episode"),
        Metric("env/tool_errors/ratio", "share", "calls of tools that failed through the policy's fault"),
        Metric("env/tool_seconds/{mean,max}", "s", "time of the environment per episode"),
        Metric("env/tokens/{mean,max}", "tokens", "tokens written by the environment per episode"),
        Metric("env/failed/ratio", "share", "episodes that ended with an error; they are left out of training"),
    ),
    "Evaluation": (
        Metric("val-core/<data source>/reward/mean@<n>", "score", "score, mean over n responses, then over prompts"),
        Metric(
            "val-aux/<data source>/reward/{best,worst,maj}@<k>",
            "score",
            "best, worst and majority of k responses: [evaluation](evaluation.md#eval)",
        ),
        Metric("val-aux/<data source>/<component>/mean@<n>", "", "the same as `reward` for a component of the score"),
        Metric("val-aux/error_ratio", "share", "responses without a score"),
        Metric("val-aux/response_length/mean", "tokens", "length of the evaluation's responses"),
        Metric("val-aux/{agent,env}/<metric>", "", "the metrics of agents and environments above, for the evaluation"),
    ),
    "Rollout correction": (
        Metric("rollout_corr/log_prob_abs_diff", "nats", "abs(log pi_old - log pi_rollout), mean over tokens"),
        Metric("rollout_corr/{kl,k3_kl}", "nats", "KL(pi_rollout || pi_old) per token, by k1 and by k3"),
        Metric(
            "rollout_corr/{training,rollout}_ppl",
            "",
            "exp(-mean log pi) under pi_old, pi_rollout, mean over responses",
        ),
        Metric(
            "rollout_corr/ppl_ratio", "", "exp(-mean lr), mean over responses: the first perplexity over the second"
        ),
        Metric(
            "rollout_corr/chi2_{token,seq}", "", "mean of exp(2 lr) - 1, by token or with lr summed over each response"
        ),
        Metric("rollout_corr/rollout_is_mean", "", "mean of the weights w before truncation"),
        Metric("rollout_corr/rollout_is_eff_sample_size", "share", "1 / mean((w / mean w)²)"),
        Metric(
            "rollout_corr/rollout_is_ratio_fraction_{high,low}",
            "share",
            "weights w above the threshold, below the lower threshold",
        ),
        Metric(
            "rollout_corr/rejected_fraction", "share", "tokens masked or rejected; with `rollout_is` or `rollout_rs`"
        ),
    ),
    "Supervised": (
        Metric(
            "train/{loss,grad_norm,lr,loss_scale,overflows}",
            "",
            "`corerl sft`, `dpo`, `reward-model`: the loss, of `sft` the mean cross-entropy in nats; gradient norm and "
            "learning rate as the policy's",
        ),
        Metric("val/loss", "", "the same loss of the validation set"),
        Metric("{train,val}/accuracy", "share", "pairs whose preferred response has the higher score; equal ones half"),
        Metric(
            "{train,val}/{chosen,rejected,margin}",
            "",
            "mean score of the preferred and of the other response, and the difference: of `dpo` log π - log π_ref in "
            "nats, of `reward-model` rewards",
        ),
        Metric("{train,val}/sft_loss", "nats", "`sft_coef`: mean cross-entropy of the preferred response"),
        Metric(
            "{train,val}/{abs_error,reward}", "", "`targets: scores`: mean distance of reward and score; mean reward"
        ),
    ),
}

METRICS = tuple(metric for metrics in SECTIONS.values() for metric in metrics)


def matches(metric: Metric, name: str) -> bool:
    """Whether ``name`` is this metric."""
    pattern = ""
    for piece in re.split(r"(\{[^}]*\}|<[^>]*>)", metric.name):
        if piece.startswith("{"):
            pattern += f"(?:{'|'.join(map(re.escape, piece[1:-1].split(',')))})"
        else:
            pattern += ".+" if piece.startswith("<") else re.escape(piece)
    return re.fullmatch(pattern, name) is not None


def find(name: str, metrics: Iterable[Metric]) -> Metric | None:
    """The metric with this name; None if no table has it."""
    return next((metric for metric in metrics if matches(metric, name)), None)
