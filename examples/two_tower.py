"""Train two towers, one of users and one of items, and retrieve items for a user elsewhere.

A tower adds up the rows of its features: those of a user and of what the user saw last, and those
of an item and of its genre. The dot product of both says how well they fit. A step learns to tell
each user's item from those of the other examples (softmax over the batch); as popular items are
there more often, the log of their frequency is taken off, after Yi et al., "Sampling-Bias-Corrected
Neural Modeling for Large Corpus Item Recommendations" (2019). Users and items are hashes of their
names, and get a row when they are first trained.

    python examples/two_tower.py
    ropewalk local --workers 2 --ps 2 examples/two_tower.py

In the end the chief starts another process, ``two_tower.py --serve``, which takes no part in the
job: it reads the rows of items and users by ``rw.embedding.Reader``. The item of a new visit is
among the 20 of 1,000 that fit best in 0.55 of all visits or more (recall), and among the 20 most
popular ones in 0.30. Start ``--serve HOST:PORT`` with the address of the chief to retrieve while
the job trains.
"""

import argparse
import os
import subprocess
import sys

import numpy as np

import ropewalk as rw

USERS, ITEMS, GENRES, SEEN = 5000, 1000, 20, 5
DIM, BATCH, BEST = 16, 256, 20  # numbers of a row; examples; items that are retrieved

emb = rw.embedding
ITEM_IDS = emb.hash_strings([f"item {number}" for number in range(ITEMS)])
USER_IDS = emb.hash_strings([f"user {number}" for number in range(USERS)])


def make_features():
    """By tower: its features. What a user saw has rows of its own, apart from the item's."""
    start = rw.Initializer("random_normal", stddev=0.1)
    tables = {
        name: emb.TableConfig(name, DIM, initializer=start) for name in ("user", "seen", "item")
    }
    tables["genre"] = emb.TableConfig("genre", DIM, vocabulary_size=GENRES, initializer=start)
    return [emb.FeatureConfig(name, table) for name, table in tables.items()]


TASTES = np.random.default_rng(0)
OF_USERS, OF_GENRES = TASTES.normal(size=(USERS, 8)), TASTES.normal(size=(GENRES, 8))
GENRE = TASTES.integers(GENRES, size=ITEMS)
OF_ITEMS = OF_GENRES[GENRE] + 0.6 * TASTES.normal(size=(ITEMS, 8))
POPULAR = 1 / np.arange(10, 10 + ITEMS)  # of items, before the taste of a user


def load_visits(seed, count):
    """Numbers of users (n,), of items that they saw before (n, SEEN), and of the next one (n,)."""
    rng = np.random.default_rng(seed)
    users = rng.integers(USERS, size=count)
    scores = OF_USERS[users] @ OF_ITEMS.T + np.log(POPULAR)
    until = np.exp(scores - scores.max(axis=1, keepdims=True)).cumsum(axis=1)
    points = rng.random((1 + SEEN, count)) * until[:, -1]
    chosen = [(until < point[:, None]).sum(axis=1) for point in points]
    return users, np.stack(chosen[1:], axis=1), chosen[0]


def of_users(users, seen):
    return {"user": USER_IDS[users], "seen": ITEM_IDS[seen]}


def of_items(items):
    return {"item": ITEM_IDS[items], "genre": GENRE[items]}


def train_step(embeddings, frequency, users, seen, items):
    rows = embeddings.lookup(of_users(users, seen) | of_items(items))
    left, right = rows["user"] + rows["seen"], rows["item"] + rows["genre"]
    logits = left @ right.T - np.log(frequency[items])
    logits[(items[:, None] == items) & ~np.eye(len(items), dtype=bool)] = -np.inf  # is the same
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances /= chances.sum(axis=1, keepdims=True)
    error = (chances - np.eye(len(items))).astype(np.float32)
    of_left, of_right = error @ right, error.T @ left  # of the sum: most rows have one example
    rows.apply_gradients({"user": of_left, "seen": of_left, "item": of_right, "genre": of_right})
    return -np.log(np.diag(chances)).mean()


def retrieve(lookup, users, seen):
    """The items that fit best, by numbers: shape (users, BEST)."""
    rows = lookup(of_items(np.arange(ITEMS)))
    items = rows["item"] + rows["genre"]
    rows = lookup(of_users(users, seen))
    return np.argsort(-(rows["user"] + rows["seen"]) @ items.T, axis=1)[:, :BEST]


def recall(lookup):
    """Shares of new visits: whose item is among those retrieved, and among the most popular."""
    users, seen, items = load_visits(seed=1, count=2000)
    retrieved = (retrieve(lookup, users, seen) == items[:, None]).any(axis=1)
    popular = np.argsort(-np.bincount(items, minlength=ITEMS))[:BEST]
    return f"recall {retrieved.mean():.3f}, of popular items {np.isin(items, popular).mean():.3f}"


def train(steps):
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        embeddings = emb.Embeddings(make_features(), rw.optimizers.Adagrad(0.1))
    frequency = np.bincount(load_visits(seed=2, count=20_000)[2], minlength=ITEMS) + 1
    seed = 1_000_000 * (1 + strategy.task_index)  # every worker sees visits of its own
    while strategy.global_step < steps:
        seed += 1
        loss = strategy.run(train_step, args=(embeddings, frequency, *load_visits(seed, BATCH)))
        rw.training.report(loss=loss, total_steps=steps)
    if strategy.is_chief:
        print(f"loss {loss:.3f}, {recall(embeddings.lookup)}", flush=True)
        if "TF_CONFIG" in os.environ:
            subprocess.run([sys.executable, __file__, "--serve"], check=True)


def serve(chief):
    """In a process of its own: rows of items are kept here, those of users looked up."""
    with emb.Reader(chief, make_features(), keys={"item": ITEM_IDS}) as reader:
        print(f"reader: {recall(reader.lookup)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300, help="of all workers together")
    parser.add_argument("--serve", nargs="?", const="", metavar="HOST:PORT")
    arguments = parser.parse_args()
    if arguments.serve is None:
        train(arguments.steps)
    else:
        serve(arguments.serve or None)
