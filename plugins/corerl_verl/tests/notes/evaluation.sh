python3 -m recipe.r1.main_eval \
data.path=/path/to/output.parquet \
data.prompt_key=prompt \
data.response_key=responses \
custom_reward_function.path=./recipe/r1/reward_score.py \
custom_reward_function.name=reward_func
