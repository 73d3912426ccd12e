python3 -m verl.model_merger merge \
--backend fsdp \
--local_dir checkpoints/verl_examples/gsm8k/global_step_410/actor \
--target_dir checkpoints/verl_examples/gsm8k/global_step_410/actor/huggingface
