"""Imported last by what forks others, which look for no garbage in what it has imported."""

import gc

gc.collect()
gc.freeze()
