"""Episodes for readers: times, columns of sample rollouts, conversations, timelines, metrics."""
