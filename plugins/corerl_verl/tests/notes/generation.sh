python3 -m verl.trainer.main_generation \
trainer.nnodes=1 \
trainer.n_gpus_per_node=2 \
data.path=/path/to/test.parquet \
data.prompt_key=prompt \
data.batch_size=1024 \
data.n_samples=8 \
data.output_path=/path/to/output.parquet \
model.path=/path/to/model \
rollout.temperature=0.6 \
rollout.top_p=0.95
