"""``make fuzz``: made-up configs, data, checkpoints, run folders, frames and responses against CoreRL's readers."""
