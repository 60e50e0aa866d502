"""The parts of train_gpt.py: text, model, variants, training, and the two comparisons."""
