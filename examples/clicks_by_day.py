"""Predict clicks from logs of one day after another, with ids that are new every day.

The logs are made up, by a fixed seed: each day some users and ads leave and others come, a few are
on most lines, and what a user likes has a hidden reason. An id is a hash of a name, so there is no
dictionary of them. Rows of the tables are made when their id was seen twice, and the ones that
were unseen for longest make room: the tables stay as large as they are. Each day's visits are
predicted before the tables are trained on them.

    python examples/clicks_by_day.py
    ropewalk local --workers 2 --ps 2 examples/clicks_by_day.py -- --days 10

After some days the area under the curve (AUC) of a new day is 0.71 to 0.82; the probabilities that
the clicks were drawn with reach 0.82 to 0.88. With ``--staleness-reads 100`` a worker keeps rows
for up to a hundred lookups, and pulls a fraction of them. ``ropewalk status`` shows the rows of the
tables, and how many were evicted and refused.
"""

import argparse

import numpy as np

import ropewalk as rw

ACTIVE = {"user": 2000, "ad": 200}  # ids of a day
NEW = {"user": 200, "ad": 20}  # of them were not there the day before
VISITS, BATCH, DIM = 20_000, 500, 4  # per day and worker; examples; numbers of a row, and a bias

emb = rw.embedding


def make_embeddings(strategy, staleness_reads):
    """Tables with room for the ids of some four days."""
    features = [
        emb.FeatureConfig(
            kind,
            emb.TableConfig(
                f"{kind}s",
                DIM + 1,
                initializer=rw.Initializer("random_normal", stddev=0.3),
                max_rows=int(1.3 * ACTIVE[kind]),
                admission=emb.Sightings(2),
                evicts="least_recent",
                staleness_reads=staleness_reads,
            ),
        )
        for kind in ACTIVE
    ]
    with strategy.scope():
        return emb.Embeddings(features, rw.optimizers.Adagrad(0.2))


def traits(kind, numbers):
    """What visits and clicks of users and ads depend on, by their numbers: shape (n, 4)."""
    seeds = numbers * 2 + (kind == "ad")
    return np.stack([np.random.default_rng(seed).normal(size=4) for seed in seeds])


def visits(day, seed):
    """(ids by kind, clicks, probability of each click) of a day."""
    rng, ids, hidden = np.random.default_rng([day, seed]), {}, []
    for kind, active in ACTIVE.items():
        numbers = day * NEW[kind] + np.arange(active)  # the oldest leave, new ones come
        own = traits(kind, numbers)
        popular = np.argsort(own[:, 3])
        chosen = popular[(rng.zipf(1.2, VISITS) - 1) % active]
        ids[kind] = emb.hash_strings([f"{kind} {number}" for number in numbers])[chosen]
        hidden.append(own[chosen])
    users, ads = hidden
    logits = 1.5 * (users[:, :2] * ads[:, :2]).sum(1) + 0.5 * (users[:, 2] + ads[:, 2]) - 0.5
    probability = 1 / (1 + np.exp(-logits))
    return ids, (rng.random(VISITS) < probability).astype(np.float32), probability


def predict(users, ads):
    """Probability of a click, shape (examples,): a product of two rows, and their biases."""
    scores = (users[:, :DIM] * ads[:, :DIM]).sum(1) + users[:, DIM] + ads[:, DIM]
    return 1 / (1 + np.exp(-scores))


def train_step(embeddings, ids, clicks):
    rows = embeddings.lookup(ids)
    users, ads = rows["user"], rows["ad"]
    error = (predict(users, ads) - clicks)[:, None]  # of the sum: most rows have one example
    gradients = {"user": error * np.c_[ads[:, :DIM], np.ones_like(error)]}
    gradients["ad"] = error * np.c_[users[:, :DIM], np.ones_like(error)]
    rows.apply_gradients(gradients)


def auc(clicks, predictions):
    """Share of pairs of a click and another visit in which the click has the higher prediction."""
    ranks = np.empty(len(clicks))
    ranks[np.argsort(predictions)] = np.arange(1, len(clicks) + 1)
    hits = clicks.sum()
    return (ranks[clicks == 1].sum() - hits * (hits + 1) / 2) / (hits * (len(clicks) - hits))


def predict_and_train(strategy, embeddings, day, seed):
    """(the best AUC there can be, the AUC) of a day, on which the tables are trained then."""
    ids, clicks, probability = visits(day, seed=1000 * seed + strategy.task_index)
    rows = embeddings.lookup(ids)  # before anything of this day was trained
    found, best = auc(clicks, predict(rows["user"], rows["ad"])), auc(clicks, probability)
    for start in range(0, VISITS, BATCH):
        part = slice(start, start + BATCH)
        batch = {kind: each[part] for kind, each in ids.items()}
        strategy.run(train_step, args=(embeddings, batch, clicks[part]))
    return best, found


def main(days, staleness_reads=0, seed=0):
    strategy = rw.distribute.ParameterServerStrategy()
    embeddings = make_embeddings(strategy, staleness_reads)
    for day in range(days):
        best, found = predict_and_train(strategy, embeddings, day, seed)
        print(f"day {day}: best {best:.3f}, AUC {found:.3f}", flush=True)
    return strategy


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=20)
    parser.add_argument("--staleness-reads", type=int, default=0, help="lookups a row may be old")
    parser.add_argument("--seed", type=int, default=0, help="of the visits")
    main(**vars(parser.parse_args()))
