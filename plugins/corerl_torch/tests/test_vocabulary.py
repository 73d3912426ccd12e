"""The KL loss over the whole vocabulary: a function of the policy's logits beside the reference's column."""

import pytest
import torch

from corerl.contracts.experience import collate
from corerl.contracts.token_outputs import TokenChunk, TokenOutputs
from corerl.errors import RunError
from corerl_torch.vocabulary import COLUMN, NAME, LogProbs, ReferenceLogProbs, VocabularyKL, VocabularyKLTerm, column

VOCABULARY = 5


def full(log_probs, ref_log_probs):
    return (log_probs.exp() * (log_probs - ref_log_probs)).sum(dim=-1)


def batch():
    return collate([[1], [2, 3]], [[4, 4, 4], [5]], [0, 1])


def chunk(rows):
    places = (torch.arange(3) < rows.response_lengths[:, None]).nonzero()
    return TokenChunk(rows, places[:, 0], places[:, 1], None)


def random(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Reference:
    """Its logits are random."""

    def forward(self, batch, wanted):
        [function] = wanted
        own = chunk(batch)
        found = function(random(4, VOCABULARY, seed=1), own)[COLUMN]
        return TokenOutputs(of_logits={COLUMN: torch.zeros(2, 3, VOCABULARY).index_put((own.rows, own.steps), found)})


def reference(most=4.0, vocabulary=VOCABULARY):
    return ReferenceLogProbs(Reference(), vocabulary, temperature=0.5, most=most)


def test_each_token_has_the_divergence_of_policy_and_reference_at_the_temperature():
    rows = batch()
    reference().annotate(rows, torch.arange(2), None)
    logits = random(4, VOCABULARY, seed=2)
    p, q = ((each / 0.5).log_softmax(dim=1) for each in (logits, random(4, VOCABULARY, seed=1)))
    found = VocabularyKL(full, 0.5)(logits, chunk(rows))[NAME]
    torch.testing.assert_close(found, (p.exp() * (p - q)).sum(dim=1))


def test_the_column_follows_the_rows_of_a_micro_batch():
    rows = batch()
    reference().annotate(rows, torch.arange(2), None)
    logits = random(4, VOCABULARY, seed=2)
    whole = VocabularyKL(full, 0.5)(logits, chunk(rows))[NAME]
    alone = rows.select(torch.tensor([1]))
    torch.testing.assert_close(VocabularyKL(full, 0.5)(logits[3:], chunk(alone))[NAME], whole[3:])


def test_over_kept_tokens_the_others_have_no_part():
    rows, kept = batch(), torch.tensor([[1.0, 1, 0, 0, 0]] * 4)
    counts = torch.zeros(rows.input_ids.shape, dtype=torch.int32)
    counts[0, 1:4] = counts[1, 2] = 2
    rows.columns["kept_tokens"] = type(column(rows, torch.zeros(2, 3)))(torch.tensor([0, 1] * 4), counts)
    found = LogProbs(1.0)(random(4, VOCABULARY, seed=2), chunk(rows))[COLUMN]
    torch.testing.assert_close(found.exp(), torch.where(kept > 0, found.exp(), 0.0))
    torch.testing.assert_close(found.exp().sum(dim=1), torch.ones(4))


def test_the_term_is_the_loss_s_kl_with_its_coefficient():
    term = VocabularyKLTerm(full, 0.3, 1.0)
    assert (term.name, term.coefficient, term.of_logits) == ("kl_loss", 0.3, VocabularyKL(full, 1.0))
    values = random(2, 3, seed=0)
    assert term(TokenOutputs(of_logits={NAME: values}), batch()) is values


def test_the_reference_may_take_as_much_memory_as_is_allowed_and_no_more():
    """2 rows of 3 tokens over 2^26 in float32 are 1.5 GiB."""
    reference(most=1.5, vocabulary=2**26).add(batch())
    with pytest.raises(RunError) as error:
        reference(most=1.49, vocabulary=2**26).add(batch())
    assert str(error.value).startswith(
        "log-probs of 2 × 3 tokens over a vocabulary of 67108864 take 1.5 GiB, more than "
        "ref.max_vocabulary_log_probs_gb = 1.49: use a smaller actor.ppo_mini_batch_size"
    )
