from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from corerl_distill.alignment import Span, pieces, spans


def test_smallest_spans_with_common_borders():
    own = [b"un", b"believ", b"able", b" it"]
    other = [b"unbel", b"ievable", b" ", b"it"]
    assert spans(own, other) == [Span(0, 3, 0, 2), Span(3, 4, 2, 4)]


def test_equal_tokens_are_spans_of_one():
    own = [b"a", b"b", b"c"]
    assert spans(own, own) == [Span(0, 1, 0, 1), Span(1, 2, 1, 2), Span(2, 3, 2, 3)]


def test_borders_inside_a_character_count():
    euro = "€".encode()
    assert spans([euro[:1], euro[1:]], [euro]) == [Span(0, 2, 0, 1)]
    assert spans([euro[:1], euro[1:]], [euro[:1], euro[1:2], euro[2:]]) == [Span(0, 1, 0, 1), Span(1, 2, 1, 3)]


def test_tokens_without_bytes_belong_to_the_span_before():
    assert spans([b"a", b"", b"b"], [b"a", b"b"]) == [Span(0, 2, 0, 1), Span(2, 3, 1, 2)]
    assert spans([b"", b"a"], [b"a"]) == [Span(0, 2, 0, 1)]


def test_every_token_is_in_one_span():
    own, other = [b"ab", b"c", b"defg", b"h"], [b"a", b"bcd", b"ef", b"gh"]
    found = spans(own, other)
    assert [token for span in found for token in range(span.start, span.end)] == [0, 1, 2, 3]
    assert [token for span in found for token in range(span.other_start, span.other_end)] == [0, 1, 2, 3]


def test_texts_are_aligned_up_to_the_first_byte_that_differs():
    assert spans([b"a"], [b"b"]) == []
    assert spans([b"ab", b"c", b"\xe2\x82"], [b"abc", b"\xef\xbf\xbd"]) == [Span(0, 2, 0, 1)]
    assert spans([b"ab", b"cd"], [b"ab", b"cx"]) == [Span(0, 1, 0, 1)]


def byte_level(texts, size):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def sentence_piece():
    vocabulary = ["▁", "▁the", "▁c", "at", "é", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Tokenizer(models.BPE({name: number for number, name in enumerate(vocabulary)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend)


TEXT = "the cat, the mat: naïve 17 + 25 = 42 €\n"


def test_pieces_of_byte_level_tokens_are_the_bytes_of_the_text():
    for size in (260, 300):
        tokenizer = byte_level([TEXT] * 20, size)
        ids = tokenizer(TEXT)["input_ids"]
        assert b"".join(pieces(tokenizer, ids)) == TEXT.encode()
        assert pieces(tokenizer, [*ids, tokenizer.eos_token_id])[-1] == b""


def test_pieces_of_sentence_piece_tokens_without_the_space_in_front():
    tokenizer = sentence_piece()
    euro = [5 + byte for byte in "€".encode()]
    assert pieces(tokenizer, [1, 2, 3, 4, *euro]) == [b"the", b" c", b"at", "é".encode(), b"\xe2", b"\x82", b"\xac"]


def test_part_of_a_character_at_the_end_is_kept():
    tokenizer = byte_level([TEXT], 260)
    ids = tokenizer("€")["input_ids"]
    assert len(ids) > 1 and b"".join(pieces(tokenizer, ids[:1])) == "€".encode()[:1]
