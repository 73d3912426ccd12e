"""Scorers of values of the column ``data_source``, for published sets and verl's recipes.

A pattern such as ``aime*`` matches every name that is not listed itself. ``reward.scorers`` of a config is searched
before this table.
"""

BOXED_MATHEMATICS = (
    "AI-MO/aimo-validation-aime",
    "AI-MO/aimo-validation-amc",
    "DigitalLearningGmbH/MATH-lighteval",
    "EleutherAI/hendrycks_math",
    "HuggingFaceH4/MATH-500",
    "HuggingFaceH4/aime_2024",
    "Maxwell-Jia/AIME_2024",
    "hendrycks/competition_math",
    "lighteval/MATH",
    "math-ai/*",
    "opencompass/AIME2025",
    "yentinglin/aime_2025",
)
"""prompts that ask for a \\boxed{} answer"""

MATHEMATICS_IN_PROSE = (
    "AI-MO/NuminaMath-1.5",
    "AI-MO/NuminaMath-CoT",
    "AI-MO/NuminaMath-TIR",
    "numina_*",
)
"""answers of every kind, boxed or not: PRIME's Eurus-2 data are numina_aops_forum, numina_olympiads, …"""

ANSWER_LINE = ("aime*", "math", "math_dapo", "math_dapo_*")
"""prompts that ask for a last line ``Answer: …``"""

MULTIPLE_CHOICE = ("Idavidrein/gpqa", "TIGER-Lab/MMLU-Pro", "allenai/ai2_arc", "cais/mmlu")

QUESTIONS = ("searchR1_*",)
"""questions with a name or a few words as answer: Search-R1's searchR1_nq, searchR1_hotpotqa, …"""
