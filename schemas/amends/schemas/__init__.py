"""The shared language: facts, commands, the contract, keys, topics, and their bytes."""
