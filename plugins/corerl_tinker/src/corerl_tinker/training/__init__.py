"""The model: losses, the weights of each client, samples."""
