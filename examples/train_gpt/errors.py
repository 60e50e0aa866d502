"""Errors that the user can mend: train_gpt.py prints their message, without a traceback."""


class TrainGptError(Exception):
    pass
