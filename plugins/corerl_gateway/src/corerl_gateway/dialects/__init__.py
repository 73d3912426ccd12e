"""One module for each form of requests and answers."""
