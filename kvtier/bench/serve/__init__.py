"""`kvtier bench serve`: an OpenAI-compatible vLLM under load, in each mode of kvtier."""
