"""Training strategy ``megatron``: models spread by tensor, pipeline, context and expert parallelism (megatron-core)."""
