"""Values of the column ``data_source`` that select a scorer by themselves: those of published sets and verl's recipes.

A pattern such as ``aime*`` stands for every name that it fits and that is not listed by itself. ``reward.scorers`` of a
config comes before all of these.
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
"""the prompt asks for a \\boxed{} answer"""

MATHEMATICS_IN_PROSE = (
    "AI-MO/NuminaMath-1.5",
    "AI-MO/NuminaMath-CoT",
    "AI-MO/NuminaMath-TIR",
    "numina_*",
)
"""answers of every kind, boxed or not: PRIME's Eurus-2 data are numina_aops_forum, numina_olympiads, …"""

ANSWER_LINE = ("aime*", "math", "math_dapo", "math_dapo_*")
"""the prompt asks for a last line ``Answer: …``"""

MULTIPLE_CHOICE = ("Idavidrein/gpqa", "TIGER-Lab/MMLU-Pro", "allenai/ai2_arc", "cais/mmlu")

QUESTIONS = ("searchR1_*",)
"""questions whose answer is a name or a few words: Search-R1's searchR1_nq, searchR1_hotpotqa, …"""
