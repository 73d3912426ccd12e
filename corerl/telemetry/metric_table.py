"""Every metric that the core writes: name, unit and definition. ``docs/metrics.md`` is made of this table.

A loss's own metrics are declared where it is registered, as ``metrics``.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One metric, or several of one kind.

    Attributes:
        name: as it is written; ``{mean,max}`` stands for either, ``<name>`` for anything that a run supplies.
        unit: '' where it has none.
        definition: one phrase.
    """

    name: str
    unit: str
    definition: str

    def matches(self, name: str) -> bool:
        """Whether ``name`` is this metric."""
        pattern = ""
        for piece in re.split(r"(\{[^}]*\}|<[^>]*>)", self.name):
            if piece.startswith("{"):
                pattern += f"(?:{'|'.join(map(re.escape, piece[1:-1].split(',')))})"
            else:
                pattern += ".+" if piece.startswith("<") else re.escape(piece)
        return re.fullmatch(pattern, name) is not None


def find(name: str, metrics: Iterable[Metric]) -> Metric | None:
    """The metric that ``name`` is; None when it is in no table."""
    return next((metric for metric in metrics if metric.matches(name)), None)


SPREAD = "{mean,max,min}"

PARTS = (
    "{gen,reward,filter,wait,batch,handover,old_log_prob,ref,values,adv,metrics,update_critic,update_actor,"
    "update_weights}"
)

SECTIONS: dict[str, tuple[Metric, ...]] = {
    "Policy": (
        Metric(
            "actor/pg_loss", "", "policy loss: its terms, times rollout correction weights, by `actor.loss_agg_mode`"
        ),
        Metric("actor/entropy", "nats", "mean over trained tokens of the policy's entropy, before the update"),
        Metric("actor/ppo_kl", "nats", "mean over trained tokens of old minus new log-prob, during the update"),
        Metric("actor/kl_loss", "nats", "KL(policy || reference) by `actor.kl_loss_type`, before its coefficient"),
        Metric("actor/kl_coef", "", "that coefficient, `actor.kl_loss_coef`; with `actor.use_kl_loss`"),
        Metric("actor/entropy_loss", "nats", "the entropy bonus, before its coefficient; with `actor.entropy_coeff`"),
        Metric("actor/grad_norm", "", "L2 norm of the gradient before clipping, mean over the step's updates"),
        Metric("actor/lr", "", "learning rate, mean over the step's updates"),
        Metric("actor/skipped_updates", "share", "updates not taken, their loss or gradient being NaN or infinite"),
        Metric(
            "actor/reward_kl_penalty",
            "nats",
            "mean over responses of the mean over tokens of the KL; with `algorithm.use_kl_in_reward`",
        ),
        Metric("actor/reward_kl_penalty_coeff", "", "its coefficient in this step"),
    ),
    "Scores, advantages, critic": (
        Metric(f"critic/score/{SPREAD}", "score", "scores as the scorer gave them, over scored responses"),
        Metric(f"critic/rewards/{SPREAD}", "score", "sum over a response's tokens of score minus KL penalty"),
        Metric(f"critic/advantages/{SPREAD}", "", "over trained tokens"),
        Metric(f"critic/returns/{SPREAD}", "", "over trained tokens"),
        Metric(f"critic/values/{SPREAD}", "", "what the critic predicted before the update, over trained tokens"),
        Metric("critic/vf_loss", "", "value loss, aggregated by `critic.loss_agg_mode`"),
        Metric("critic/vf_explained_var", "", "1 - var(returns - values) / var(returns): 1 at best, 0 as a constant"),
        Metric("critic/vpred_mean", "", "mean over trained tokens of the value during the update"),
        Metric("critic/{grad_norm,lr,skipped_updates}", "", "as those of the policy"),
    ),
    "Rewards": (
        Metric("reward/error_ratio", "share", "responses without a score"),
        Metric(
            "reward/errors/<kind>/count",
            "responses",
            "without a score for one reason: `timeout`, `memory`, `crash`, `exception`, `value`, `unscored`, `server`, "
            "`judge`, `length`, `other`; absent where there is none",
        ),
        Metric("reward/errors/<kind>/rate", "share", "the same, of all responses"),
        Metric("reward/groups_without_spread", "share", "prompts whose scored responses all have one score"),
        Metric("reward/<component>/mean", "", "a component of the scorer, over the responses that have it"),
    ),
    "Lengths": (
        Metric(f"response_length/{SPREAD}", "tokens", "of the responses"),
        Metric("response_length/clip_ratio", "share", "responses cut off at the limit"),
        Metric(f"prompt_length/{SPREAD}", "tokens", "of the prompts, once a response"),
        Metric("prompt_length/clip_ratio", "share", "prompts as long as `data.max_prompt_length`"),
        Metric(f"global_seqlen/{SPREAD}", "tokens", "prompt and response together, over responses"),
        Metric("global_seqlen/balanced_{max,min}", "tokens", "of the data-parallel rank that gets most, or fewest"),
        Metric("global_seqlen/minmax_diff", "tokens", "`balanced_max` minus `balanced_min`"),
    ),
    "Time": (
        Metric(
            f"timing_s/{PARTS}",
            "s",
            "a part of the step. `reward`: what scoring adds after generation; `filter`: `algorithm.filter_groups`; "
            "`wait`: for a batch that is collected ahead; `batch`: making tensors of it; `handover`: the engine gives "
            "its memory to training, and takes it back around `update_weights`; `adv`: advantages, KL penalty, "
            "rollout correction; `metrics`: of the batch, and sample rollouts; `update_weights`: sending them",
        ),
        Metric("timing_s/testing", "s", "the evaluation"),
        Metric("timing_s/save", "s", "copying what a checkpoint holds; it is written while training goes on"),
        Metric(
            "timing_s/step", "s", "the step, its evaluation, its checkpoint: the sum of all other `timing_s`, within 1%"
        ),
        Metric(
            "timing_background_s/{gen,reward,filter}",
            "s",
            "with `trainer.max_staleness`: parts of collecting this batch, which passed during earlier steps",
        ),
        Metric(
            f"timing_per_token_ms/{PARTS}",
            "ms",
            "that time for each response token (`gen`, `reward`) or token of prompts and responses (all others)",
        ),
    ),
    "Performance": (
        Metric("perf/time_per_step", "s", "the step without evaluation and checkpoint"),
        Metric("perf/total_num_tokens", "tokens", "prompt and response together, over responses"),
        Metric("perf/throughput", "tokens/s", "`total_num_tokens` over `time_per_step`, of all devices together"),
        Metric(
            "perf/mfu/actor",
            "share",
            "floating-point operations of the policy's update over what its devices could do by their datasheets; "
            "GPUs whose peak is known",
        ),
        Metric(
            "perf/max_memory_{allocated,reserved}_gb", "GiB", "most that torch used, or held, of worker 0's GPU so far"
        ),
        Metric("perf/cpu_memory_{used,peak}_gb", "GiB", "memory of the controller's process, now and at most so far"),
    ),
    "Training": (
        Metric(
            "weights/update_lost_in_rounding",
            "share",
            "of the change of the weights since the first that were sent, the part that engines do not see because "
            "theirs are rounded to `model.dtype`; near 0 for weights trained in float32, large at the start of LoRA; "
            "measured of a sample of all weights, every 16 times that weights are sent",
        ),
        Metric("rollout/restarts", "", "times in this run that engines ended and were started again"),
        Metric("training/restarts", "", "times in this process that lost workers were started again"),
        Metric(
            "rollout/workers_lost",
            "",
            "rollout workers in this run whose processes ended or hung while others were left, started again or not",
        ),
        Metric("training/{global_step,epoch}", "", "of the batch; the first step is 1, the first epoch 0"),
        Metric(
            "training/rollout_probs_diff_{mean,max}", "", "abs(p_rollout - p_trainer) of the tokens: engine and trainer"
        ),
        Metric("training/nonfinite_samples", "responses", "left out; with `trainer.on_nonfinite: skip`"),
        Metric("training/num_gen_batches", "batches", "generated for this step; with `algorithm.filter_groups`"),
        Metric("training/num_gen_prompts", "prompts", "the same"),
        Metric("training/staleness/{mean,max}", "updates", "that the weights which began a response lag the policy"),
    ),
    "Environments": (
        Metric("env/turns/{mean,max}", "turns", "of the policy in an episode"),
        Metric("env/reward/mean", "", "the sum of the environment's rewards in an episode"),
        Metric("env/tool_calls/mean", "calls", "in an episode"),
        Metric("env/tool_errors/ratio", "share", "calls that failed by the policy's fault"),
        Metric("env/tool_seconds/{mean,max}", "s", "that the environment took in an episode"),
        Metric("env/tokens/mean", "tokens", "in an episode that the environment wrote"),
        Metric("env/failed/ratio", "share", "episodes that ended with an error, and are left out of training"),
    ),
    "Evaluation": (
        Metric("val-core/<data source>/reward/mean@<n>", "score", "mean over prompts of the mean over n responses"),
        Metric(
            "val-aux/<data source>/reward/{best,worst,maj}@<k>",
            "score",
            "best, worst and majority of k responses: [evaluation](evaluation.md#eval)",
        ),
        Metric("val-aux/<data source>/<component>/mean@<n>", "", "the same as `reward`, of a component of the scores"),
        Metric("val-aux/error_ratio", "share", "responses without a score"),
        Metric("val-aux/response_length/mean", "tokens", "of the evaluation's responses"),
        Metric("val-aux/env/<metric>", "", "of the evaluation's episodes, as the `env/<metric>` above"),
    ),
    "Rollout correction": (
        Metric("rollout_corr/log_prob_abs_diff", "nats", "mean over tokens of abs(log pi_old - log pi_rollout)"),
        Metric("rollout_corr/{kl,k3_kl}", "nats", "KL(pi_rollout || pi_old) a token, by k1 and by k3"),
        Metric(
            "rollout_corr/{training,rollout}_ppl",
            "",
            "mean over responses of exp(-mean log pi) under pi_old, pi_rollout",
        ),
        Metric("rollout_corr/ppl_ratio", "", "mean over responses of exp(-mean lr): the first over the second"),
        Metric("rollout_corr/chi2_{token,seq}", "", "mean of exp(2 lr) - 1 over tokens, with lr summed over responses"),
        Metric("rollout_corr/rollout_is_mean", "", "mean of the weights w, before they are bounded"),
        Metric("rollout_corr/rollout_is_eff_sample_size", "share", "1 / mean((w / mean w)²)"),
        Metric(
            "rollout_corr/rollout_is_ratio_fraction_{high,low}", "share", "w above the threshold, below the lower one"
        ),
        Metric(
            "rollout_corr/rejected_fraction", "share", "tokens masked or rejected; with `rollout_is` or `rollout_rs`"
        ),
    ),
    "Supervised": (
        Metric(
            "train/{loss,grad_norm,lr}", "", "of `corerl sft`: mean cross-entropy in nats, and as those of the policy"
        ),
        Metric("val/loss", "nats", "of `corerl sft`: mean cross-entropy of the validation set"),
    ),
}

METRICS = tuple(metric for metrics in SECTIONS.values() for metric in metrics)
