"""Trains XGBoost on the card, prints a hash of the model, and holds its memory until a line comes."""
import hashlib

import numpy
import xgboost
from hold import hold, result

random = numpy.random.default_rng(0)
data = random.standard_normal((200_000, 50), dtype=numpy.float32)
labels = (data[:, 0] * data[:, 1] + data[:, 2] > 0).astype(numpy.float32)
matrix = xgboost.QuantileDMatrix(data, labels)
options = {"device": "cuda", "tree_method": "hist", "objective": "binary:logistic", "max_depth": 8, "seed": 0}
booster = xgboost.train(options, matrix, num_boost_round=30)
result(model=hashlib.sha256(bytes(booster.save_raw("ubj"))).hexdigest())
hold()
