"""Trackers: tensorboard, wandb, swanlab, mlflow, clearml, trackio, vemlp_wandb."""
