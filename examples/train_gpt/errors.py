"""What the user can mend: train_gpt.py prints its message, without a traceback."""


class TrainGptError(Exception):
    pass
