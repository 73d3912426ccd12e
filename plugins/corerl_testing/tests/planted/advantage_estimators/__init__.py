"""Wrong advantage estimators."""

from typing import Any

from corerl.contracts.facts import Claims
from planted.advantage_estimators import claimed, returns
from planted.advantage_estimators import group_baselines as groups
from planted.fault import Fault


def _fault(wrong: Any, flaw: str, right: Any, check: str, reason: str, *needs: str) -> Fault:
    return Fault("advantage_estimators", wrong.__name__, flaw, wrong, right, check, reason, {"needs": needs})


def _of_groups(wrong: Any, flaw: str, check: str, reason: str, right: Any = groups.group_baseline) -> Fault:
    return _fault(wrong, flaw, right, check, reason, "groups")


def _of_critics(wrong: Any, flaw: str, check: str, reason: str) -> Fault:
    return _fault(wrong, flaw, returns.critic, check, reason, "critic")


def _of_greedy(wrong: Any, flaw: str, check: str, reason: str) -> Fault:
    return _fault(wrong, flaw, returns.greedy_baseline, check, reason, "greedy_baseline")


def _of_claims(name: str, wrong: Any, flaw: str, reason: str, right: Any, was: Claims, claims: Claims) -> Fault:
    """``right`` has the claims ``was``, and ``wrong`` those of ``claims``."""
    facts = {"needs": () if right is claimed.turn_returns else ("groups",), "claims": was}
    return Fault("advantage_estimators", name, flaw, wrong, right, "claims", reason, facts, {"claims": claims})


UNBIASED = Claims("unbiased")
SMALLER = Claims("baseline-biased", factor="(n - 1) / n")
SKEWED = Claims("baseline-biased", factor="")

FAULTS = [
    _of_groups(
        groups.batch_baseline,
        "the baseline is the mean of the batch, not of the group",
        "groups_are_isolated",
        "another group rise by 1, not by one scale (float32)",
    ),
    _of_groups(
        groups.ranks_in_the_batch,
        "a response is ranked in the batch, not in its group",
        "groups_are_isolated",
        "the advantages change by",
    ),
    _of_groups(
        groups.lone_rows_keep_their_score,
        "a response without a companion keeps its score",
        "group_of_one_has_no_advantage",
        "a response alone in its group has an advantage",
    ),
    _of_groups(
        groups.empty_rows_in_the_mean,
        "rows of failed scorers count in the mean",
        "empty_rows_take_no_part",
        "when rows without a trained token stand beside them",
    ),
    _of_groups(
        groups.leaks_through_the_mask,
        "the returns of masked tokens are scores",
        "zero_outside_the_mask",
        "the returns are not 0 where the mask is",
    ),
    _of_groups(
        groups.one_number_a_row,
        "there is a number for each response, not for each token",
        "shape_and_dtype",
        "the advantages have the shape (13,) where (13, 7) is right",
    ),
    _of_groups(
        groups.not_a_pair,
        "there are no returns",
        "shape_and_dtype",
        "it returns Tensor, not Advantages(advantages, returns)",
    ),
    _of_groups(
        groups.always_float64,
        "the advantages are float64 whatever the rewards are",
        "shape_and_dtype",
        "the advantages are torch.float64 where the inputs are torch.float32",
    ),
    _of_groups(
        groups.modifies_its_input,
        "the rewards are doubled in place",
        "inputs_untouched",
        "it modifies its input rewards",
    ),
    _of_groups(
        groups.random_tie_break,
        "noise is added",
        "deterministic",
        "two calls with the same inputs give different advantages",
    ),
    _of_groups(
        groups.mean_over_the_width,
        "advantages are divided by the padded width",
        "invariant_to_padding",
        "with five columns of padding",
    ),
    _of_groups(
        groups.first_row_counts_twice,
        "the first row counts twice",
        "invariant_to_row_order",
        "with the order of the rows",
    ),
    _of_groups(
        groups.ids_as_numbers,
        "the number of a group is a weight",
        "invariant_to_group_labels",
        "with the numbers that the groups go by",
    ),
    _of_groups(
        groups.divides_by_the_deviation,
        "the deviation of equal scores, 0, is divided by",
        "finite_with_equal_scores",
        "with all scores 0 the advantages hold nan",
        groups.normalised,
    ),
    _of_groups(
        groups.sixteenth_power,
        "large scores overflow",
        "finite_with_extreme_scores",
        "with scores of ±1e6 the advantages hold",
    ),
    _of_groups(groups.loops_over_rows, "there is a loop over rows", "vectorised", "it loops in Python"),
    _of_groups(
        groups.loops_over_lists, "there is a loop over rows as Python numbers", "vectorised", "it loops in Python"
    ),
    _of_groups(
        groups.wrong_sign,
        "the better response has the smaller advantage",
        "raised_score_raises_the_advantage",
        "a response's advantage falls from",
    ),
    _of_groups(
        groups.ignores_the_rewards,
        "the log-prob is taken for the score",
        "raised_score_raises_the_advantage",
        "is not read",
        groups.whitened,
    ),
    _of_groups(
        groups.score_at_the_column_of_the_length,
        "the score is read at a column that is the last only in rows without holes",
        "raised_score_raises_the_advantage",
        "is not read",
    ),
    _of_groups(
        groups.reward_of_the_last_token_alone,
        "rewards before the last token, such as a KL penalty, are not read",
        "rewards_of_all_tokens_count",
        "rewards before the last token, such as a KL penalty, are not read",
    ),
    _of_groups(
        groups.deviation_of_rounding,
        "a deviation that is rounding is divided by",
        "no_advantage_from_rounding",
        "a deviation that is rounding is divided by",
        groups.normalised,
    ),
    _of_groups(
        groups.first_of_the_best,
        "of two best responses the first alone is reinforced",
        "invariant_to_row_order",
        "with the order of the rows, where scores are 0 or 1",
        groups.best_of_the_group,
    ),
    _of_groups(
        groups.component_with_the_wrong_sign,
        "a component is subtracted",
        "raised_component_lowers_no_advantage",
        "when its component 'format' rises",
        groups.sum_of_components,
    ),
    _of_groups(
        groups.remembers_the_deviation,
        "the deviation of the first batch of each size is kept",
        "same_in_a_fresh_process",
        "it remembers earlier calls",
    ),
    _of_groups(
        groups.in_16_bits, "scores are rounded to bfloat16", "keeps_precision", "it computes in bfloat16 inside"
    ),
    Fault(
        "advantage_estimators",
        "whitened_and_alone",
        "scores are whitened over the batch in spite of the fact",
        groups.whitened,
        groups.group_baseline,
        "groups_alone",
        "of some groups without the others are not bit for bit those of the batch",
        {"needs": ("groups",), "groups_alone": True},
    ),
    _of_groups(
        groups.variance_of_one,
        "the variance of one number is NaN",
        "copes_with_one_response",
        "of a batch of one response of 7 tokens hold nan",
        groups.whitened,
    ),
    _of_groups(
        groups.factorial_of_the_size,
        "factorials of a large group's size are infinite",
        "copes_with_a_large_group",
        "the advantages of a group of 64 hold nan",
    ),
    _of_groups(
        groups.groups_in_8_bits,
        "group 256 is taken for group 0",
        "copes_with_many_groups",
        "from one copy of a batch to another",
    ),
    _of_groups(
        groups.groups_modulo_64,
        "group 64 is taken for group 0",
        "copes_with_many_groups",
        "from one copy of a batch to another",
    ),
    _fault(
        returns.sums_from_the_wrong_end,
        "a token gets credit for rewards before it",
        returns.reward_to_go,
        "credit_flows_back",
        "returns are summed from the wrong end",
    ),
    _fault(
        returns.discounts_by_column,
        "tool tokens are discounted",
        returns.reward_to_go,
        "invariant_to_masked_tokens",
        "between the others",
    ),
    _fault(
        returns.token_by_token, "there is a loop over tokens", returns.reward_to_go, "vectorised", "it loops in Python"
    ),
    _of_critics(
        returns.returns_of_whitened_advantages,
        "the critic learns whitened advantages plus values",
        "last_return_is_the_last_reward",
        "after the last token no value and no reward follows",
    ),
    _of_critics(
        returns.values_of_the_next_token,
        "values are shifted by one",
        "raised_value_lowers_the_advantage",
        "when the value at a token rises by 1",
    ),
    _of_critics(
        returns.value_with_the_wrong_sign, "the value is added", "raised_value_lowers_the_advantage", "it must fall"
    ),
    _of_critics(
        returns.ignores_the_critic, "the values are not used", "raised_value_lowers_the_advantage", "it must fall"
    ),
    _of_critics(
        returns.returns_less_the_batch_mean,
        "the critic learns returns less the mean of the batch",
        "returns_are_of_the_row_alone",
        "with the responses that stand beside it",
    ),
    _of_critics(
        returns.returns_of_the_whole_row,
        "the return of a token has the rewards before it",
        "returns_look_ahead",
        "with rewards of tokens before them",
    ),
    _of_critics(
        returns.discounts_from_the_start,
        "the first token is discounted least",
        "returns_look_ahead",
        "do not rise towards 1 at the last token",
    ),
    _of_greedy(
        returns.ignores_the_greedy_score,
        "the greedy score is not used",
        "greedy_score_lowers_the_advantage",
        "its own must fall",
    ),
    _of_greedy(
        returns.greedy_scores_added,
        "the greedy score is added",
        "greedy_score_lowers_the_advantage",
        "its own must fall",
    ),
    _of_greedy(
        returns.greedy_scores_by_group,
        "the greedy score is that of another row",
        "invariant_to_row_order",
        "with the order of the rows",
    ),
    _of_greedy(
        returns.mean_of_all_greedy_scores,
        "one baseline serves all prompts",
        "greedy_score_lowers_the_advantage",
        "its own must fall",
    ),
    _fault(
        returns.declares_what_it_does_not_use,
        "sum_pi_squared is declared and not used",
        returns.weighed_by_energy,
        "uses_sum_pi_squared",
        "no advantage depends on sum_pi_squared",
        "groups",
        "sum_pi_squared",
    ),
    _of_claims(
        "leaves_nothing_out",
        claimed.leaves_nothing_out,
        "a response is part of its own baseline",
        "the nearest multiple is 0.5 times",
        claimed.leave_one_out,
        UNBIASED,
        UNBIASED,
    ),
    _of_claims(
        "drops_the_baseline",
        claimed.leave_one_out,
        "the factor (n - 1) / n is claimed, and is not there",
        "the nearest multiple is 1 times",
        claimed.leaves_nothing_out,
        SMALLER,
        SMALLER,
    ),
    _of_claims(
        "doubled",
        claimed.doubled,
        "advantages are twice too large",
        "the nearest multiple is 2 times",
        claimed.leave_one_out,
        UNBIASED,
        UNBIASED,
    ),
    _of_claims(
        "over_the_length",
        claimed.over_the_length,
        "advantages are divided by the length",
        "in the game 'two tokens' with groups of 2 its expected gradient differs",
        claimed.leave_one_out,
        UNBIASED,
        UNBIASED,
    ),
    _of_claims(
        "one_turn_late",
        claimed.one_turn_late,
        "a turn is credited with the rewards behind it alone",
        "in the game 'turns' with groups of 2 its expected gradient differs",
        claimed.turn_returns,
        UNBIASED,
        UNBIASED,
    ),
    _of_claims(
        "mean_of_those_who_get_there",
        claimed.turn_mean,
        "the baseline of a turn is the mean of the episodes that get there, its own among them",
        "with groups of 2 its expected gradient differs",
        claimed.turn_mean,
        SKEWED,
        UNBIASED,
    ),
    _of_claims(
        "factor_for_turns",
        claimed.turn_mean,
        "a factor is claimed, which depends on the turn",
        "in the game 'turns' with groups of 2 its expected gradient differs",
        claimed.turn_mean,
        SKEWED,
        SMALLER,
    ),
    _of_claims(
        "too_modest",
        claimed.leave_one_out,
        "a bias is claimed, and there is none",
        "claim unbiased, or this factor",
        claimed.leave_one_out,
        UNBIASED,
        Claims("surrogate", factor=""),
    ),
    _of_claims(
        "divides_beside_its_baseline",
        groups.normalised,
        "the division by the deviation is claimed to be a baseline",
        "it divides by more than a baseline explains",
        claimed.turn_mean,
        SKEWED,
        SKEWED,
    ),
    _of_claims(
        "another_objective",
        groups.normalised,
        "the expected score is claimed, and the deviation divides",
        "times the true one",
        claimed.leave_one_out,
        UNBIASED,
        Claims("surrogate"),
    ),
    _of_claims(
        "unknown_objective",
        claimed.leave_one_out,
        "the objective has no such name",
        "it claims the unknown objective 'expected reward'; known: expected score",
        claimed.leave_one_out,
        UNBIASED,
        Claims("unbiased", "expected reward"),
    ),
    _of_claims(
        "no_formula",
        claimed.leave_one_out,
        "the factor is no formula in n",
        "must be a formula in n, such as (n - 1) / n",
        claimed.leave_one_out,
        UNBIASED,
        Claims("unbiased", factor="max(n)"),
    ),
]
