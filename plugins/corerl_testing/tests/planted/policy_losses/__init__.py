"""Wrong policy losses."""

from typing import Any

from corerl.contracts.facts import Claims
from planted.fault import Fault
from planted.policy_losses import token_losses as losses


def _fault(
    wrong: Any, flaw: str, check: str, reason: str, right: Any = losses.surrogate, name: str = "", **facts: Any
) -> Fault:
    return Fault("policy_losses", name or wrong.__name__, flaw, wrong, right, check, reason, facts)


def _selector(select: Any, flaw: str, check: str, reason: str) -> Fault:
    loss, facts = losses.without_selected, {"select_tokens": losses.a_third}
    flawed = {"select_tokens": select}
    return Fault("policy_losses", select.__name__, flaw, loss, loss, check, reason, facts, flawed)


def _claims(name: str, wrong: Any, flaw: str, reason: str, claims: Claims) -> Fault:
    facts = {"claims": Claims("surrogate")}
    return Fault("policy_losses", name, flaw, wrong, losses.surrogate, "claims", reason, facts, {"claims": claims})


FAULTS = [
    _fault(
        losses.clipped_on_the_wrong_side,
        "of the two bounds the optimistic one counts",
        "brings_back_what_moved_away",
        "a clip must hold those that moved with their advantage alone",
        losses.clipped,
    ),
    _fault(
        losses.weighed_by_column,
        "the weight of a token falls with its column, masked ones counted",
        "invariant_to_masked_tokens",
        "between the others",
    ),
    _fault(
        losses.micro_batch_mean,
        "terms are divided by the tokens of the micro-batch",
        "rows_are_independent",
        "a mean over the micro-batch is the usual cause",
    ),
    _fault(
        losses.micro_batch_mean,
        "the gradient depends on the cut",
        "gradient_invariant_token_mean",
        "cut into 2 micro-batches, with token-mean in float32",
        name="gradient_of_the_micro_batch_mean",
    ),
    _fault(
        losses.micro_batch_mean,
        "the gradient depends on the cut",
        "gradient_invariant_with_kl_entropy_and_weights",
        "a loss that averages over the micro-batch",
        name="objective_of_the_micro_batch_mean",
    ),
    *(
        _fault(
            losses.micro_batch_mean,
            "the gradient depends on the cut",
            f"gradient_invariant_{mode}",
            f"cut into 2 micro-batches, with {mode.replace('_', '-')} in float32",
            name=f"{mode}_of_the_micro_batch_mean",
        )
        for mode in ("token_sum", "prompt_mean", "seq_mean_token_sum", "seq_mean_token_mean")
    ),
    _fault(
        losses.centred_in_the_micro_batch,
        "advantages are centred in the micro-batch",
        "gradient_invariant_seq_mean_token_sum_norm",
        "(relative) when it is cut into",
    ),
    _fault(
        losses.one_number,
        "the loss is already reduced",
        "shape_and_dtype",
        "the terms have the shape () where (6, 8) is right",
    ),
    _fault(losses.only_the_terms, "there is no LossOutput", "shape_and_dtype", "it returns Tensor, not LossOutput"),
    _fault(
        losses.always_float64,
        "the terms are float64 whatever the log-probs are",
        "shape_and_dtype",
        "the terms are torch.float64 where the inputs are torch.float32",
    ),
    _fault(
        losses.without_clamp,
        "the ratio overflows",
        "finite_at_extreme_ratios",
        "at a log-ratio of 10000 with advantage 1 the terms hold -inf",
    ),
    _fault(
        losses.wrong_sign,
        "the objective is minimised",
        "gradient_follows_the_advantage",
        "the loss rises with log pi of a token whose advantage is positive",
    ),
    _fault(
        losses.ratio_upside_down,
        "the ratio is pi_old / pi",
        "gradient_follows_the_advantage",
        "the loss rises with log pi of a token whose advantage is positive",
    ),
    _fault(
        losses.ignores_negative_advantages,
        "worse responses teach nothing",
        "gradient_follows_the_advantage",
        "a negative advantage get no gradient",
    ),
    _fault(
        losses.no_gradient,
        "the ratio is detached and nothing carries the gradient",
        "gradient_follows_the_advantage",
        "its terms do not depend on log_probs: they carry no gradient",
    ),
    _fault(
        losses.sign_of_the_advantage,
        "the size of the advantage is lost",
        "gradient_grows_with_the_advantage",
        "the gradient of a token does not grow with a positive",
    ),
    _fault(
        losses.own_entropy_bonus,
        "the loss adds an entropy bonus of its own",
        "gradient_grows_with_the_advantage",
        "tokens whose advantage is 0 get the gradient",
    ),
    _fault(
        losses.near_by_the_absolute_ratio,
        "the KL term has a kink on-policy",
        "unchanged_by_rounding",
        "changes an on-policy update by",
        losses.near_the_old_policy,
    ),
    _fault(
        losses.rising_tokens_alone,
        "tokens whose ratio is below 1 lose their gradient, on-policy by rounding",
        "unchanged_by_rounding",
        "changes an on-policy update by",
    ),
    _fault(
        losses.sums_padding,
        "the mean ratio is one over the padded width",
        "invariant_to_padding",
        "with five columns of padding",
        losses.sequence,
    ),
    _fault(
        losses.sums_padding,
        "the mean ratio has masked tokens",
        "masked_tokens_do_not_count",
        "the loss changes with other numbers at masked tokens",
        losses.sequence,
        name="reads_masked_tokens",
    ),
    _fault(
        losses.nan_of_an_empty_row,
        "a row without a token divides by 0",
        "masked_tokens_do_not_count",
        "masked tokens get the gradient nan",
        losses.sequence,
    ),
    _fault(
        losses.modifies_its_input,
        "negative advantages are cleared in place",
        "inputs_untouched",
        "it modifies its input advantages",
    ),
    _fault(
        losses.random_dropout,
        "tokens are dropped at random",
        "deterministic",
        "two calls with the same inputs give different terms",
    ),
    _fault(
        losses.first_row_counts_twice,
        "the first row counts twice",
        "invariant_to_row_order",
        "with the order of the rows",
    ),
    _fault(losses.loops_over_rows, "there is a loop over rows", "vectorised", "it loops in Python"),
    _fault(losses.in_16_bits, "log-probs are rounded to bfloat16", "keeps_precision", "it computes in bfloat16 inside"),
    _fault(
        losses.in_16_bits,
        "what 16 bits break is not called something else",
        "gradient_matches_differences",
        "it computes in bfloat16 inside",
        name="gradient_in_16_bits",
    ),
    _fault(
        losses.remembers_a_scale,
        "the scale of the first batch of each shape is kept",
        "same_in_a_fresh_process",
        "it remembers earlier calls",
    ),
    _fault(
        losses.mean_as_a_metric,
        "a metric is a mean already",
        "metrics_add_up",
        "added up over micro-batches: its total must be a sum",
    ),
    _fault(
        losses.a_number_as_a_metric,
        "a metric is a number",
        "metrics_add_up",
        "the metric ratio is float, not Mean(total, count)",
    ),
    _fault(
        losses.metric_with_its_graph,
        "a metric holds the graph",
        "metrics_add_up",
        "the metric ratio carries the gradient",
    ),
    _fault(
        losses.metric_of_padding,
        "the count of a metric is that of all places",
        "metrics_are_of_trained_tokens",
        "the count of the metric above changes",
    ),
    _fault(
        losses.metric_at_masked_tokens,
        "the total of a metric has masked tokens",
        "metrics_are_of_trained_tokens",
        "the total of the metric ratio changes",
    ),
    _fault(
        losses.metric_of_empty_rows,
        "rows without a trained token count in a metric",
        "empty_rows_do_not_count",
        "of the metric ratio_of_rows changes",
    ),
    _fault(
        losses.wrong_backward,
        "a hand-written backward is twice too large",
        "gradient_matches_differences",
        "the gradient differs from central differences",
    ),
    _fault(
        losses.wrong_backward_beside_detach,
        "a hand-written backward is twice too large, beside a detach that is meant",
        "gradient_matches_differences",
        "the backward of its torch.autograd.Function is wrong",
        losses.stopped_weights,
    ),
    _fault(
        losses.hook_beside_detach,
        "a hook halves the gradient, beside a detach that is meant",
        "gradient_matches_differences",
        "the gradient differs from central differences",
        losses.stopped_weights,
    ),
    _fault(
        losses.wrong_slopes_of_no_grad,
        "terms made without a graph get wrong slopes",
        "gradient_matches_differences",
        "the backward of its torch.autograd.Function is wrong",
    ),
    _fault(
        losses.away_from_the_teacher,
        "the policy is led away from the teacher",
        "gradient_follows_the_advantage",
        "the loss rises with log pi of a token whose advantage is positive",
        losses.towards_a_teacher,
        needs={"ref"},
    ),
    _fault(
        losses.near_the_old_policy,
        "a penalty remains without an advantage",
        "zero_at_zero_advantage",
        "a row whose advantages are all 0 has a",
        name="a_penalty_without_an_advantage",
        zero_at_zero_advantage=True,
    ),
    _selector(
        losses.own_randomness,
        "tokens are drawn by randomness of its own",
        "selector_is_pure",
        "the uniforms are the only randomness that a selector may use",
    ),
    _selector(
        losses.first_rows,
        "the first rows are selected",
        "selector_is_pure",
        "the selected tokens change with the order of the rows",
    ),
    _selector(losses.row_by_row, "there is a loop over rows", "selector_vectorised", "it loops in Python"),
    _selector(
        losses.one_flag_a_row,
        "there is one flag a row",
        "selector_shape",
        "the selected tokens have the shape (6,) where (6, 8) is right",
    ),
    _claims(
        "claims_other_samples",
        losses.surrogate,
        "the gradient is claimed for samples of any policy",
        "when the samples are those of another policy",
        Claims("unbiased"),
    ),
    _claims(
        "half_of_what_it_claims",
        losses.halved,
        "the gradient is half of the claimed one",
        "the nearest multiple is 0.5 times",
        Claims("surrogate"),
    ),
    _claims(
        "claims_less_on_policy",
        losses.surrogate,
        "no factor is claimed, and it is 1",
        "claim unbiased, or this factor",
        Claims("surrogate", factor=""),
    ),
]
