"""Images in prompts and in turns of agents: processors of vision-language models, data sets."""
